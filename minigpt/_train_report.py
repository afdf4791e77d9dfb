"""What `python -m minigpt.train` says: before the first step, during the run, at the end."""

from __future__ import annotations

import math
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType

from torch import Tensor
from tqdm import tqdm

from minigpt._train_data import TrainData
from minigpt._training_state import BEST_NAME, LAST_NAME, StepReport, TrainSettings
from minigpt.checkpoint import load_checkpoint
from minigpt.device import describe_device
from minigpt.evaluate import evaluate
from minigpt.model import MiniGPT
from minigpt.trainer import Trainer

SAMPLE_LENGTH = 48  # characters of the training data shown for a person to read
PROCESSES_SHOWN = 8
LEARNT_NATS = 0.1  # below ln V; a run that is nearer says nothing of its fit
INITIAL_NATS = 0.5  # a fresh GPT-2 initialisation lies within 0.1 of ln V
OVERFIT_GAP_NATS = 0.1
OVERFIT_RISE_NATS = 0.01  # above its best, beyond the noise of an evaluation
CONSTANT_CLIPPING = 0.95
LINE_LENGTH = 88


class TrainReport:
    """Prints lines to stdout and, on a terminal, a progress bar to stderr. A context manager.

    on_lost: called once when nobody takes the output of the run any more (a closed terminal, the
        end of `| head`, a full disk). The run must be saved before it ends of that.
    lost: why, None as long as all is well; after it nothing is printed.
    """

    def __init__(
        self,
        data: TrainData,
        model: MiniGPT,
        settings: TrainSettings,
        folder: Path,
        on_lost: Callable[[], None] = lambda: None,
    ) -> None:
        self.data, self.model, self.settings, self.folder = data, model, settings, folder
        self.on_lost = on_lost
        self.lost: OSError | None = None
        self.bar: tqdm[None] | None = None
        self.start = time.perf_counter()

    def __enter__(self) -> TrainReport:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Remove the progress bar; nothing happens when there is none."""
        bar, self.bar = self.bar, None
        if bar is not None:
            with suppress(OSError):
                bar.close()

    def print_header(self, resumed_step: int, rows: Sequence[Tensor]) -> None:
        """Say what is about to run, so that a wrong size or file is seen before it costs time.

        rows: (T,) ids of each process, the first that it will read.
        """
        with self._output():
            self._show_header(resumed_step, rows)
        if self.lost is None and sys.stderr.isatty():
            self.bar = tqdm(total=self.settings.max_steps, initial=resumed_step, unit="step")

    def _show_header(self, resumed_step: int, rows: Sequence[Tensor]) -> None:
        config, settings, data = self.model.config, self.settings, self.data
        device = next(self.model.parameters()).device
        tokens = settings.rows_per_update * config.block_size
        epochs = tokens * settings.max_steps / len(data.train_ids)
        sample = data.tokenizer.decode(data.train_ids[:SAMPLE_LENGTH])
        how = f"{settings.dtype}, matmul {settings.matmul_precision}"
        how += ", compiled" if settings.compiled else ""
        print(f"device      {describe_device(device)}, {how}")
        print(
            f"data        train {len(data.train_ids):,} ids, validation "
            f"{len(data.validation_ids):,}, vocabulary {config.vocab_size}"
        )
        print(f"begins      {sample!a}")
        print(
            f"model       block {config.block_size}, dim {config.embedding_dim}, "
            f"{config.num_heads} heads, {config.num_layers} layers, dropout {config.dropout:g}: "
            f"{self.model.parameter_count():,} parameters"
        )
        accumulated = f" x {settings.accumulation_steps}" if settings.accumulation_steps > 1 else ""
        if settings.processes > 1:
            accumulated = f" x {settings.processes} processes{accumulated}"
            self._print_processes(rows)
        print(
            f"step        {settings.batch_size} x {config.block_size}{accumulated} = "
            f"{tokens:,} tokens; {settings.max_steps:,} steps are {epochs:.2f} epochs"
        )
        if resumed_step:
            print(f"resumed     after step {resumed_step:,}")
        elif (self.folder / BEST_NAME).exists():
            print(f"note        {self.folder / BEST_NAME} of an earlier run will be replaced")
        sys.stdout.flush()

    def _print_processes(self, rows: Sequence[Tensor]) -> None:
        """Show what each process reads: they must differ, or they all do the same work."""
        samples = [self.data.tokenizer.decode(row[:SAMPLE_LENGTH]) for row in rows]
        print(f"processes   {len(rows)}, each with rows of its own; the first of each begins")
        for rank, sample in enumerate(samples[:PROCESSES_SHOWN]):
            print(f"            {rank:>3} {sample!a}")
        if len(rows) > PROCESSES_SHOWN:
            print(f"            and {len(rows) - PROCESSES_SHOWN} more")

    def on_step(self, report: StepReport) -> None:
        """Print a line for an evaluation; move the bar for every update."""
        with self._output():
            self._show_step(report)

    @contextmanager
    def _output(self) -> Iterator[None]:
        """Keep an output that nobody takes from ending the run before it is saved."""
        try:
            yield
        except OSError as error:
            self.close()
            if self.lost is None:
                self.lost = error
                self.on_lost()

    def _show_step(self, report: StepReport) -> None:
        if self.lost is not None:
            return
        if report.train_loss is None:
            self._print_initial_loss(report.validation_loss or math.nan)
            return
        if self.bar is not None:
            self.bar.set_postfix_str(
                f"loss {report.train_loss:.3f}, rate {report.learning_rate:.1e}, "
                f"norm {report.grad_norm:.2f}, {report.tokens_per_second:,.0f} tokens/s",
                refresh=False,
            )
            self.bar.update()
        if report.validation_loss is not None:
            self._print(
                f"step {report.step:>6,} train {report.train_loss:.3f}  "
                f"validation {report.validation_loss:.3f}  rate {report.learning_rate:.1e}  "
                f"norm {report.grad_norm:.2f}  {report.tokens_per_second:,.0f} tokens/s"
            )

    def on_warning(self, text: str) -> None:
        """Print what a person must see now, whether or not standard output goes to a file."""
        lines = textwrap.wrap(
            f"[WARN] {text}",
            LINE_LENGTH,
            subsequent_indent="       ",
            break_long_words=False,  # a path that is cut cannot be copied
            break_on_hyphens=False,
        )
        self._print_error("\n".join(lines))

    def on_event(self, event: object) -> None:
        """Print what the monitor has to say, above the bar."""
        self._print_error(str(event))

    def print_summary(self, trainer: Trainer, reason: str) -> None:
        """Say how the run ended, what the losses mean and where the checkpoints are."""
        state = trainer.state
        seconds = time.perf_counter() - self.start
        steps = self.settings.max_steps
        print(f"{reason:<11} at step {state.step:,} of {steps:,}, {seconds:.1f} s")
        if state.best_validation_loss is not None:
            path = self.folder / BEST_NAME
            print(
                f"best        step {state.best_step:,}, validation loss "
                f"{state.best_validation_loss:.4f}: {path}"
            )
            if reason in ("finished", "early"):
                self._print_whole_split(path, state.best_step)
            print(describe_gap(trainer))
        print(describe_clipping(trainer))
        if reason in ("interrupted", "paused"):
            print(f"saved       {self.folder / LAST_NAME}; go on with --resume")

    def _print_initial_loss(self, loss: float) -> None:
        V = self.model.config.vocab_size
        verdict = "[OK]"
        if not abs(loss - math.log(V)) <= INITIAL_NATS:
            verdict = "[WARN]\n            not near it: look at targets and initialisation first"
        self._print(
            f"loss        {loss:.3f} at step 0; a blind guess has ln {V} = "
            f"{math.log(V):.3f} {verdict}"
        )

    def _print_whole_split(self, path: Path, step: int) -> None:
        """Measure the best checkpoint on every validation token, through the file just written."""
        device = next(self.model.parameters()).device
        best = None  # where a run goes on in another folder, or somebody has removed files
        if path.exists():
            best = load_checkpoint(path, tokenizer=self.data.tokenizer, device=device)
        if best is None or best.step != step:
            print(f"            which does not hold step {step:,} (removed, or in another folder)")
            return
        loss = evaluate(best.model, self.data.validation_ids)
        print(
            f"whole       validation loss {loss:.4f} over all "
            f"{len(self.data.validation_ids) - 1:,} tokens of the validation split"
        )

    def _print_error(self, text: str) -> None:
        with self._output():
            if self.lost is None:
                tqdm.write(text, file=sys.stderr)
                sys.stderr.flush()

    def _print(self, line: str) -> None:
        if self.bar is None:
            print(line, flush=True)
        else:
            tqdm.write(line)  # above the bar, not through it


def describe_gap(trainer: Trainer) -> str:
    """Return two lines: the generalization gap of the last evaluation, and what it suggests."""
    state = trainer.state
    assert state.validation_loss is not None
    assert state.training_loss is not None
    assert state.best_validation_loss is not None
    gap = state.validation_loss - state.training_loss
    rise = state.validation_loss - state.best_validation_loss
    blind = math.log(trainer.model.config.vocab_size)
    if state.training_loss > blind - LEARNT_NATS:
        meaning = f"nothing is learnt yet: a blind guess has {blind:.3f}"
    elif gap > OVERFIT_GAP_NATS and rise > OVERFIT_RISE_NATS:
        meaning = "overfitting: stop earlier, more data or dropout"
    elif state.best_step == state.step:
        meaning = "underfitting so far, still improving at the end: more steps would help"
    else:
        meaning = "neither over- nor underfitting shows"
    losses = f"{state.validation_loss:.3f} - {state.training_loss:.3f} = {gap:.3f}"
    return f"gap         validation - training = {losses}\n            {meaning}"


def describe_clipping(trainer: Trainer) -> str:
    """Return one line: the share of clipped updates, with a note when it is nearly all of them."""
    line = f"clipping    {trainer.clipped_share:.1%} of {trainer.state.step:,} updates"
    if trainer.clipped_share >= CONSTANT_CLIPPING:
        line += (
            f"; the limit {trainer.settings.clip_norm:g} rules nearly every step\n            "
            "if the loss falls well, raise --clip-norm; if not, it may hide a problem"
        )
    return line
