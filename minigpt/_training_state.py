"""The plain values of a training run: settings, counters, reports. Imports no torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

BEST_NAME = "mini_gpt_best.safetensors"
LAST_NAME = "mini_gpt_last.safetensors"
LOG_NAME = "mini_gpt_log.jsonl"


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """All numbers of a run but the model's own; stored in its checkpoints, taken on resume.

    accumulation_steps: batches whose gradients make one update; effective batch = B times this.
    clip_norm: the largest global gradient norm that goes unscaled into an update; 0 is off.
    evaluation_windows: how many windows of each split an evaluation reads; 0 reads the whole
        validation split.
    patience: evaluations in a row without a better validation loss before stopping; 0 is off.
    dtype: "float32", or "bfloat16" to run the forward pass under autocast.
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

    def __post_init__(self) -> None:
        for name in ("max_steps", "batch_size", "accumulation_steps", "log_every"):
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


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """One update, or the evaluation before the first (step 0), where what was not made is None."""

    step: int
    train_loss: float | None = None  # of this update's batches, before the update
    validation_loss: float | None = None
    learning_rate: float | None = None
    grad_norm: float | None = None  # before clipping
    clipped: bool | None = None
    tokens_per_second: float | None = None


class NonFiniteError(FloatingPointError):
    """NaN or infinity turned up; no update was made with it and no checkpoint written."""


class SaveError(OSError):
    """A checkpoint or the log could not be written; the message names the last good one."""


def _require(fits: bool, name: str, wanted: str, value: object) -> None:
    if not fits:
        raise ValueError(f"{name} must be {wanted}, got {value}")
