"""The training loop: batch, forward, backward, clip, step; evaluate, keep the best, go on exactly.

A step counts updates: at step s, s updates have been made. What happens in update s + 1 depends
only on the state after s (weights, optimizer, random states, counters), and its batch only on the
seed and s. A run that was stopped anywhere and resumed therefore ends with the same bits as one
that was not.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path

import torch
from torch import Tensor

from minigpt._run_files import RunFiles
from minigpt._training_state import (
    BEST_NAME,
    LAST_NAME,
    LOG_NAME,
    NonFiniteError,
    SaveError,
    StepReport,
    TrainSettings,
    TrainState,
)
from minigpt._watcher import Watcher
from minigpt.batches import get_update_batch
from minigpt.checkpoint import Checkpoint, save_checkpoint
from minigpt.evaluate import evaluate_splits
from minigpt.model import MiniGPT
from minigpt.optimizer import make_optimizer
from minigpt.parallel import ALONE, Team
from minigpt.seed import random_states, restore_random_states
from minigpt.speed import compile_model, matmul_precision
from minigpt.tokenizer import CharTokenizer
from minigpt.update import Update, first_bad_gradient, forward_precision, update_weights

CLOCK_SECONDS = 1e-7  # the resolution of a coarse clock: an update is not made in no time

__all__ = [
    "BEST_NAME",
    "LAST_NAME",
    "LOG_NAME",
    "NonFiniteError",
    "SaveError",
    "StepReport",
    "TrainSettings",
    "TrainState",
    "Trainer",
]


class Trainer:
    """Trains a model on ids and writes `folder`/mini_gpt_best, mini_gpt_last and the log.

    train_ids, validation_ids: 1-D int64; more than block_size of the first, 2 of the second.
    on_step: called after each update, and once before the first, with a `StepReport`.
    should_stop: asked between updates; True saves and ends the run, ready to be resumed.
    checkpoint: continue from what another trainer saved; `model` must be `checkpoint.model`.
    team: the processes that train together, each with a trainer of its own; rank 0 writes.
    save_wait_seconds: how long the run stands still where it cannot save; see `_saving.py`.
    on_warning: gets a sentence when that happens, and when the folder is not as it should be.
    watcher: is told of every update and evaluation; see `_watcher.py`.
    """

    def __init__(
        self,
        model: MiniGPT,
        tokenizer: CharTokenizer,
        train_ids: Tensor,
        validation_ids: Tensor,
        settings: TrainSettings,
        *,
        folder: str | Path = "checkpoints",
        corpus_fingerprint: str | None = None,
        on_step: Callable[[StepReport], None] = lambda report: None,
        should_stop: Callable[[], bool] = lambda: False,
        checkpoint: Checkpoint | None = None,
        team: Team = ALONE,
        save_wait_seconds: float = 300.0,
        on_warning: Callable[[str], None] = warnings.warn,
        watcher: Watcher | None = None,
    ) -> None:
        if settings.processes != team.size:
            raise ValueError(f"processes must be {team.size}, got {settings.processes}")
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.train_ids, self.validation_ids = train_ids, validation_ids
        self.folder = Path(folder)
        self.corpus_fingerprint = corpus_fingerprint
        self.on_step, self.should_stop = on_step, should_stop
        self.watcher = watcher
        self.device = next(model.parameters()).device
        self.team, self._stop_agreed = team, False
        # The same parameters; steps go through this one. Compiled inside: the wrapper itself, with
        # accumulation, is more than torch 2.13 can trace.
        self._shared_model = team.wrap(compile_model(model) if settings.compiled else model)
        self.optimizer = make_optimizer(
            model,
            learning_rate=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.state = TrainState()
        self.files = RunFiles(
            self.folder,
            team,
            wait_seconds=save_wait_seconds,
            should_stop=should_stop,
            on_warning=on_warning,
        )
        self.log = self.files.log
        self._cut_at: int | None = None  # the step that an exception left half-made
        self._seconds = 0.0  # spent in updates, and the tokens of them, since the last log row
        self._tokens = 0
        self._generator = torch.Generator()
        self._random_states: dict[str, Tensor] | None = None
        if checkpoint is not None:
            self._restore(checkpoint)

    def run(self, stop_after: int | None = None) -> str:
        """Train to the end and return why it ended; the model is left in train mode.

        "finished": max_steps are made. "early": patience is used up. "interrupted": should_stop
        said so. "paused": `stop_after` steps are made, counted from the beginning of the run.
        In all cases `mini_gpt_last` holds the state at the end.
        Raises FolderBusyError when another trainer writes there. Raises NonFiniteError, or
        SaveError; both leave the last good checkpoint where it is. Of a team every process raises
        the NonFiniteError; for the others, PeerError tells of the one that could not go on.
        """
        if self._cut_at is not None:
            raise RuntimeError(
                f"this trainer was interrupted inside of step {self._cut_at} and may be half-way "
                f"through it; make a new one. {self.files.where_to_go_on()}"
            )
        with ExitStack() as stack:
            stack.enter_context(matmul_precision(self.settings.matmul_precision))
            with self.team.united():
                if self.team.is_first:
                    stack.enter_context(self.files.locked())
            if self._random_states is not None:
                restore_random_states(self._random_states)
            self.files.start(self.state, self._write_checkpoint)
            self._random_states = None
            self._cut_at = self.state.step + 1
            try:
                reason = self._run(stop_after)
            except SaveError:  # the state is whole, and saved first when the user runs it again
                self._cut_at = None
                raise
            self._cut_at = None
        return reason

    def _run(self, stop_after: int | None) -> str:
        settings, state = self.settings, self.state
        self.model.train()
        if state.step == 0:
            self._evaluate()  # evaluation itself is proved to work before hours go into training
            report = StepReport(
                step=0, validation_loss=state.validation_loss, training_loss=state.training_loss
            )
            self._report(report, logged=True)
        while (reason := self._reason_to_stop(stop_after)) is None:
            self._cut_at = state.step + 1
            start = time.perf_counter()
            report = self.update()
            self._seconds += time.perf_counter() - start
            due = state.step % settings.evaluate_every == 0 or state.step == settings.max_steps
            if due:
                self._evaluate()
            report = dataclasses.replace(
                report,
                validation_loss=state.validation_loss if due else None,
                training_loss=state.training_loss if due else None,
                tokens_per_second=self._tokens / max(self._seconds, CLOCK_SECONDS),
            )
            self._report(report, logged=due or state.step % settings.log_every == 0)
            if due:
                self._save(best=state.best_step == state.step)
        if not self.files.holds(state.step):
            self._save(best=False)
        return reason

    @property
    def clipped_share(self) -> float:
        """The share of updates whose gradient was scaled down, from 0 to 1."""
        return self.state.clipped_steps / self.state.step if self.state.step else 0.0

    def coming_row(self) -> Tensor:
        """Return (T,) ids: the first row that this process reads for the coming update."""
        return self._batch(self.team.rank)[0][0]

    def _reason_to_stop(self, stop_after: int | None) -> str | None:
        if self.state.step >= self.settings.max_steps:
            return "finished"
        if 0 < self.settings.patience <= self.state.evaluations_without_gain:
            return "early"
        if self._stop_agreed if self.team.size > 1 else self.should_stop():
            return "interrupted"
        if stop_after is not None and self.state.step >= stop_after:
            return "paused"
        return None

    def update(self) -> StepReport:
        """Make one update: nothing non-finite ever reaches the weights."""
        settings, state = self.settings, self.state
        rate = settings.rate_after(state.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.team.reseed(settings.seed, state.step)
        first, every = self.team.rank, self.team.size  # parts of an update go round the ranks
        parts = [self._batch(first + every * part) for part in range(settings.accumulation_steps)]
        if self.watcher is not None and len(parts) == 1:  # else the last comes after other draws
            self.watcher.begin(*parts[-1])
        update = update_weights(
            self._shared_model,
            self.optimizer,
            parts,
            clip_norm=settings.clip_norm,
            precision=forward_precision(settings.dtype, self.device),
            stop=self.team.size > 1 and self.should_stop(),
        )
        self._stop_agreed = update.stop
        if self.watcher is not None:
            self._tell(self.watcher, update, rate, parts[-1])
        if not update.made:
            raise self._non_finite(update, rate)
        state.step += 1
        state.clipped_steps += update.clipped
        self._tokens += settings.rows_per_update * self.model.config.block_size
        return StepReport(
            step=state.step,
            train_loss=update.loss,
            learning_rate=rate,
            grad_norm=update.grad_norm,
            clipped=update.clipped,
        )

    def _tell(
        self, watcher: Watcher, update: Update, rate: float, batch: tuple[Tensor, Tensor]
    ) -> None:
        watcher.step(
            update.loss,
            self.model,
            self.optimizer,
            inputs=batch[0],
            targets=batch[1],
            learning_rate=rate,
            grad_norm=update.grad_norm,
            clipped=update.clipped,
            step=self.state.step + 1,
        )

    def _batch(self, part: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), (B, T) each: batch number `part` of the coming update."""
        return get_update_batch(
            self.train_ids,
            self.settings.batch_size,
            self.model.config.block_size,
            seed=self.settings.seed,
            step=self.state.step,
            part=part,
            device=self.device,
            generator=self._generator,
        )

    def _evaluate(self) -> None:
        """Measure both losses in the same way, in float32, and judge the validation loss."""
        state, watcher = self.state, self.watcher
        with nullcontext() if watcher is None else watcher.evaluating(self.model):
            losses = evaluate_splits(
                self.model,
                self.validation_ids,
                self.train_ids,
                max_windows=self.settings.evaluation_windows,
                team=self.team,
            )
        if watcher is not None:
            watcher.evaluation(*losses)
        if not all(math.isfinite(loss) for loss in losses):
            raise NonFiniteError(
                f"the evaluation at step {state.step} gave validation loss {losses[0]} and "
                f"training loss {losses[1]}; nothing was saved. {self.files.where_to_go_on()}"
            )
        state.judge(*losses)

    def _non_finite(self, update: Update, rate: float) -> NonFiniteError:
        name = first_bad_gradient(self.model)
        bad = "" if name is None else f", first in {name}"
        error = NonFiniteError(
            f"update {self.state.step + 1} got loss {update.loss:g} and gradient norm "
            f"{update.grad_norm:g}{bad}, at learning rate {rate:g}; it was not made. "
            f"Last finite step: {self.state.step}. {self.files.where_to_go_on()} "
            "Start a new run with a lower learning rate or a longer warm-up"
        )
        error.report = StepReport(
            step=self.state.step + 1,
            train_loss=update.loss,
            learning_rate=rate,
            grad_norm=update.grad_norm,
        )
        return error

    def _report(self, report: StepReport, *, logged: bool) -> None:
        if logged:
            self.files.log_row(report)
            self._seconds, self._tokens = 0.0, 0
        self.on_step(report)

    def _save(self, *, best: bool) -> None:
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise NonFiniteError(
                f"the weights after step {self.state.step} are not finite; nothing was saved. "
                f"{self.files.where_to_go_on()} Start a new run with a lower learning rate"
            )
        self.files.save(self.state.step, self._write_checkpoint, best=best)

    def _write_checkpoint(self, path: Path) -> None:
        state = self.state
        save_checkpoint(
            path,
            self.model,
            self.tokenizer,
            optimizer=self.optimizer,
            step=state.step,
            train_loss=state.training_loss,
            validation_loss=state.validation_loss,
            best_validation_loss=state.best_validation_loss,
            corpus_fingerprint=self.corpus_fingerprint,
            trainer_state={
                "settings": dataclasses.asdict(self.settings),
                "state": dataclasses.asdict(state),
                "log": self.files.log_digest,
            },
            random_states=random_states(),
        )

    def _restore(self, checkpoint: Checkpoint) -> None:
        """Take over counters, optimizer and random states; `ValueError` when one does not fit."""
        if checkpoint.trainer_state is None or checkpoint.random_states is None:
            raise ValueError(f"{checkpoint.path} holds no training state to go on from")
        try:
            self.state = TrainState(**checkpoint.trainer_state["state"])
        except (KeyError, TypeError) as error:
            reason = f"another version may have written it ({error})"
            raise ValueError(f"{checkpoint.path} cannot be resumed: {reason}") from error
        checkpoint.restore_optimizer(self.optimizer)
        self._random_states = checkpoint.random_states  # used when the run starts
        self.files.go_on_from(checkpoint)
