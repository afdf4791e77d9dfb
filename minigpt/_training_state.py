"""The plain values of a training run: settings, counters, reports. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from minigpt.schedule import learning_rate_at

BEST_NAME = "mini_gpt_best.safetensors"
LAST_NAME = "mini_gpt_last.safetensors"
LOG_NAME = "mini_gpt_log.jsonl"
EVALUATION_ROWS_MAX = 64  # more rows at once are hardly faster
EVALUATION_LOGITS_MAX = 2**24  # numbers: an evaluation should need less memory than an update
MATMUL_PRECISIONS = ("highest", "high", "medium")


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """All numbers of a run but the model's own; stored in its checkpoints, taken on resume.

    accumulation_steps: batches of each process whose gradients make one update.
    processes: how many train together; the effective batch is `rows_per_update`.
    clip_norm: the largest global gradient norm that goes unscaled into an update; 0 is off.
    evaluation_windows: how many windows of each split an evaluation reads; 0 reads the whole
        validation split.
    patience: evaluations in a row without a better validation loss before stopping; 0 is off.
    dtype: "float32", or "bfloat16" to run the forward pass under autocast.
    matmul_precision: torch's `float32_matmul_precision` while training: highest, high or medium.
    compiled: whether updates go through `torch.compile`. Both change the last bits of a run.
    Raises ValueError naming the field that does not fit.
    """

    max_steps: int = 300
    batch_size: int = 8
    accumulation_steps: int = 1
    learning_rate: float = 1e-3
    min_learning_rate: float = 1e-4
    warmup_steps: int = 10
    beta1: float = 0.9
    beta2: float = 0.99
    weight_decay: float = 0.1
    clip_norm: float = 1.0
    log_every: int = 50
    evaluate_every: int = 50
    evaluation_windows: int = 240
    patience: int = 0
    seed: int = 42
    dtype: str = "float32"
    processes: int = 1
    matmul_precision: str = "highest"
    compiled: bool = False

    def rate_after(self, step: int) -> float:
        """Return the learning rate of the update that is made after `step` others."""
        return learning_rate_at(
            step,
            peak=self.learning_rate,
            warmup_steps=self.warmup_steps,
            max_steps=self.max_steps,
            floor=self.min_learning_rate,
        )

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "accumulation_steps", "log_every", "processes"):
            _require(getattr(self, name) >= 1, name, ">= 1", getattr(self, name))
        _require(self.evaluate_every >= 1, "evaluate_every", ">= 1", self.evaluate_every)
        for name in ("weight_decay", "clip_norm", "evaluation_windows", "patience"):
            _require(0 <= getattr(self, name) < math.inf, name, ">= 0", getattr(self, name))
        _require(0 < self.learning_rate < math.inf, "learning_rate", "> 0", self.learning_rate)
        _require(
            0 <= self.min_learning_rate <= self.learning_rate,
            "min_learning_rate",
            f"in 0..learning_rate = {self.learning_rate:g}",
            self.min_learning_rate,
        )
        _require(
            0 <= self.warmup_steps <= self.max_steps,
            "warmup_steps",
            f"in 0..max_steps = {self.max_steps}",
            self.warmup_steps,
        )
        for name in ("beta1", "beta2"):
            _require(0 <= getattr(self, name) < 1, name, "in [0, 1)", getattr(self, name))
        _require(0 <= self.seed < 2**32, "seed", "in 0..2**32 - 1", self.seed)
        _require(self.dtype in ("float32", "bfloat16"), "dtype", "float32 or bfloat16", self.dtype)
        _require(
            self.matmul_precision in MATMUL_PRECISIONS,
            "matmul_precision",
            "highest, high or medium",
            self.matmul_precision,
        )
        _require(isinstance(self.compiled, bool), "compiled", "True or False", self.compiled)

    @property
    def rows_per_update(self) -> int:
        """The effective batch: rows of a batch x processes x accumulation steps."""
        return self.batch_size * self.processes * self.accumulation_steps

    def with_processes(self, processes: int) -> TrainSettings:
        """Return the settings of the same run, with the same effective batch, on that many.

        Raises ValueError naming the numbers that fit where the batches cannot be dealt out evenly.
        """
        parts = self.processes * self.accumulation_steps
        if parts % processes:
            fitting = ", ".join(str(n) for n in range(1, parts + 1) if parts % n == 0)
            raise ValueError(
                f"processes must divide the {parts} batches of an update, got {processes}; "
                f"these fit: {fitting}"
            )
        return replace(self, processes=processes, accumulation_steps=parts // processes)


@dataclass(kw_only=True)
class TrainState:
    """What a run remembers between updates, beside weights, optimizer and random states."""

    step: int = 0
    training_loss: float | None = None  # of the last evaluation, measured like the other one
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    best_step: int = 0
    evaluations_without_gain: int = 0
    clipped_steps: int = 0

    def judge(self, validation_loss: float, training_loss: float) -> None:
        """Take over both losses of an evaluation, in nats: is the model the best so far?

        Before the first update it is a baseline, no candidate for the best.
        """
        self.validation_loss, self.training_loss = validation_loss, training_loss
        if self.step == 0:
            return
        if self.best_validation_loss is None or validation_loss < self.best_validation_loss:
            self.best_validation_loss, self.best_step = validation_loss, self.step
            self.evaluations_without_gain = 0
        else:
            self.evaluations_without_gain += 1


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One update, or the evaluation before the first (step 0), where what was not made is None."""

    step: int
    train_loss: float | None = None  # of this update's batches, before the update
    validation_loss: float | None = None
    training_loss: float | None = None  # measured like the validation loss, in the same evaluation
    learning_rate: float | None = None
    grad_norm: float | None = None  # before clipping
    clipped: bool | None = None
    tokens_per_second: float | None = None


class NonFiniteError(FloatingPointError):
    """NaN or infinity turned up; no update was made with it and no checkpoint written.

    report: the update that was refused, None where it was no update.
    """

    report: StepReport | None = None


class SaveError(OSError):
    """A checkpoint or the log could not be written; the message names the last good one."""


def evaluation_rows(block_size: int, vocab_size: int) -> int:
    """Return how many windows an evaluation reads at once: fewer where logits are large."""
    return max(1, min(EVALUATION_ROWS_MAX, EVALUATION_LOGITS_MAX // (block_size * vocab_size)))


def _require(fits: bool, name: str, wanted: str, value: object) -> None:
    if not fits:
        raise ValueError(f"{name} must be {wanted}, got {value}")
