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
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minigpt._training_log import TrainingLog
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
from minigpt.batches import get_batch
from minigpt.checkpoint import Checkpoint, save_checkpoint
from minigpt.evaluate import evaluate, window_count
from minigpt.model import MiniGPT
from minigpt.optimizer import make_optimizer
from minigpt.schedule import learning_rate_at
from minigpt.seed import random_states, restore_random_states
from minigpt.tokenizer import CharTokenizer
from minigpt.update import Update, update_weights

__all__ = ["NonFiniteError", "SaveError", "StepReport", "TrainSettings", "TrainState", "Trainer"]


class Trainer:
    """Trains a model on ids and writes `folder`/mini_gpt_best, mini_gpt_last and the log.

    train_ids, validation_ids: 1-D int64; more than block_size of the first, 2 of the second.
    on_step: called after each update, and once before the first, with a `StepReport`.
    should_stop: asked between updates; True saves and ends the run, ready to be resumed.
    checkpoint: continue from what another trainer saved; `model` must be `checkpoint.model`.
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
    ) -> None:
        self.model, self.tokenizer, self.settings = model, tokenizer, settings
        self.train_ids, self.validation_ids = train_ids, validation_ids
        self.folder = Path(folder)
        self.corpus_fingerprint = corpus_fingerprint
        self.on_step, self.should_stop = on_step, should_stop
        self.device = next(model.parameters()).device
        self.optimizer = make_optimizer(
            model,
            learning_rate=settings.learning_rate,
            betas=(settings.beta1, settings.beta2),
            weight_decay=settings.weight_decay,
        )
        self.log = TrainingLog(self.folder / LOG_NAME)
        self.state = TrainState()
        self.last_good: tuple[Path, int] | None = None
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
        Raises NonFiniteError, or SaveError; both leave the last good checkpoint where it is.
        """
        settings, state = self.settings, self.state
        self._start_log()
        self.model.train()
        if self._random_states is not None:
            restore_random_states(self._random_states)
            self._random_states = None
        if state.step == 0:
            self._evaluate()  # evaluation itself is proved to work before hours go into training
            self._report(StepReport(step=0, validation_loss=state.validation_loss), logged=True)
        while (reason := self._reason_to_stop(stop_after)) is None:
            start = time.perf_counter()
            report = self.update()
            self._seconds += time.perf_counter() - start
            due = state.step % settings.evaluate_every == 0 or state.step == settings.max_steps
            if due:
                self._evaluate()
            report = dataclasses.replace(
                report,
                validation_loss=state.validation_loss if due else None,
                tokens_per_second=self._tokens / self._seconds,
            )
            self._report(report, logged=due or state.step % settings.log_every == 0)
            if due:
                self._save(best=state.best_step == state.step)
        if self.last_good != (self.folder / LAST_NAME, state.step):
            self._save(best=False)
        return reason

    @property
    def clipped_share(self) -> float:
        """The share of updates whose gradient was scaled down, from 0 to 1."""
        return self.state.clipped_steps / self.state.step if self.state.step else 0.0

    @property
    def _block_size(self) -> int:
        return self.model.config.block_size

    def _reason_to_stop(self, stop_after: int | None) -> str | None:
        if self.state.step >= self.settings.max_steps:
            return "finished"
        if 0 < self.settings.patience <= self.state.evaluations_without_gain:
            return "early"
        if self.should_stop():
            return "interrupted"
        if stop_after is not None and self.state.step >= stop_after:
            return "paused"
        return None

    def update(self) -> StepReport:
        """Make one update: nothing non-finite ever reaches the weights."""
        settings, state = self.settings, self.state
        rate = learning_rate_at(
            state.step,
            peak=settings.learning_rate,
            warmup_steps=settings.warmup_steps,
            max_steps=settings.max_steps,
            floor=settings.min_learning_rate,
        )
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        update = update_weights(
            self.model,
            self.optimizer,
            [self._batch(part) for part in range(settings.accumulation_steps)],
            clip_norm=settings.clip_norm,
            precision=self._precision,
        )
        if not update.made:
            raise self._non_finite(update, rate)
        state.step += 1
        state.clipped_steps += update.clipped
        self._tokens += settings.batch_size * settings.accumulation_steps * self._block_size
        return StepReport(
            step=state.step,
            train_loss=update.loss,
            learning_rate=rate,
            grad_norm=update.grad_norm,
            clipped=update.clipped,
        )

    def _batch(self, part: int) -> tuple[Tensor, Tensor]:
        """Return (inputs, targets), (B, T) each: batch number `part` of the coming update."""
        # torch's CPU generator keeps 32 bits of its seed, so the three numbers are mixed first.
        seeds = np.random.SeedSequence((self.settings.seed, self.state.step, part))
        self._generator.manual_seed(int(seeds.generate_state(1)[0]))
        return get_batch(
            self.train_ids,
            self.settings.batch_size,
            self._block_size,
            self.device,
            self._generator,
        )

    def _precision(self) -> AbstractContextManager[Any]:
        if self.settings.dtype == "float32":
            return nullcontext()
        return torch.autocast(self.device.type, dtype=torch.bfloat16)

    def _evaluate(self) -> None:
        """Measure both losses in the same way, in float32, and judge the validation loss."""
        state = self.state
        windows = self.settings.evaluation_windows
        losses = [
            evaluate(self.model, self.validation_ids, max_windows=windows or None),
            evaluate(
                self.model,
                self.train_ids,
                max_windows=windows or max(1, window_count(self.validation_ids, self._block_size)),
            ),
        ]
        if not all(math.isfinite(loss) for loss in losses):
            raise NonFiniteError(
                f"the evaluation at step {state.step} gave validation loss {losses[0]} and "
                f"training loss {losses[1]}; nothing was saved. {self._where_to_go_on()}"
            )
        state.validation_loss, state.training_loss = losses
        if state.step == 0:
            return  # the untrained model is a baseline, no candidate for the best
        if state.best_validation_loss is None or losses[0] < state.best_validation_loss:
            state.best_validation_loss, state.best_step = losses[0], state.step
            state.evaluations_without_gain = 0
        else:
            state.evaluations_without_gain += 1

    def _non_finite(self, update: Update, rate: float) -> NonFiniteError:
        bad = next(
            (
                f", first in {name}"
                for name, parameter in self.model.named_parameters()
                if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
            ),
            "",
        )
        return NonFiniteError(
            f"update {self.state.step + 1} got loss {update.loss:g} and gradient norm "
            f"{update.grad_norm:g}{bad}, at learning rate {rate:g}; it was not made. "
            f"Last finite step: {self.state.step}. {self._where_to_go_on()} "
            "Then try a lower learning rate or a longer warm-up"
        )

    def _where_to_go_on(self) -> str:
        if self.last_good is None:
            return "There is no checkpoint of this run yet."
        path, step = self.last_good
        return f"Last good checkpoint: {path} (step {step})."

    def _report(self, report: StepReport, *, logged: bool) -> None:
        if logged:
            try:
                self.log.append(dataclasses.asdict(report))
            except OSError as error:
                raise self._save_error(self.log.path, error) from error
            self._seconds, self._tokens = 0.0, 0
        self.on_step(report)

    def _save(self, *, best: bool) -> None:
        """Write the state to mini_gpt_last, and to mini_gpt_best where it is the best so far."""
        if not all(bool(p.isfinite().all()) for p in self.model.parameters()):
            raise NonFiniteError(
                f"the weights after step {self.state.step} are not finite; nothing was saved. "
                f"{self._where_to_go_on()} Then try a lower learning rate"
            )
        for name in (BEST_NAME, LAST_NAME) if best else (LAST_NAME,):
            path = self.folder / name
            try:
                self._write(path)
            except OSError as error:
                raise self._save_error(path, error) from error
            self.last_good = (path, self.state.step)

    def _write(self, path: Path) -> None:
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
            },
            random_states=random_states(),
        )

    def _save_error(self, path: Path, error: OSError) -> SaveError:
        return SaveError(
            f"cannot write {path} at step {self.state.step}: {error.strerror or error}. "
            f"{self._where_to_go_on()} Make room or choose another folder, then --resume"
        )

    def _start_log(self) -> None:
        try:
            self.log.start_at(self.state.step or -1)
        except OSError as error:
            raise self._save_error(self.log.path, error) from error

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
        self.last_good = (checkpoint.path, checkpoint.step)
