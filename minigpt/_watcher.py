"""What a training run tells those who look on, whom it does not know: a monitor, a page, or none.

Shapes: B batch, T time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor, nn
from torch.optim import Optimizer


class Watcher(Protocol):
    """Looks on and never interferes: weights, gradients and random states stay as they are."""

    def begin(self, inputs: Tensor, targets: Tensor) -> None:
        """Take note of the (B, T) batch of the coming update, before its forward pass."""

    def step(
        self,
        loss: float,
        model: nn.Module,
        optimizer: Optimizer,
        *,
        inputs: Tensor,
        targets: Tensor,
        learning_rate: float,
        grad_norm: float,
        clipped: bool,
        step: int,
    ) -> None:
        """Take note of an update, made or refused; its gradients are still there.

        inputs, targets: (B, T) each, the last micro-batch.    step: 1 for the first update.
        """

    def evaluating(self, model: nn.Module) -> AbstractContextManager[Any]:
        """Return the context of an evaluation, which must leave the model as it was."""

    def evaluation(self, validation_loss: float, training_loss: float) -> None:
        """Take note of two losses that were measured in the same way."""

    @property
    def postmortem_path(self) -> Path | None:
        """Where the latest post-mortem was written, None where there is none."""


class Page(Protocol):
    """Shows a run while it trains, and never ends it: what cannot be written is left out."""

    def log(self, step: int, **numbers: float | None) -> None:
        """Take note of numbers after `step` updates, named as in `StepReport`."""

    def event(self, event: object) -> None:
        """Take note of a message: an event of the watcher, or a sentence."""

    def sample(self, step: int, text: str, *, prompt: str = "") -> None:
        """Take note of what the model wrote after `step` updates, going on from `prompt`."""

    def go_on(self, step: int, *, log: Path, clipped_updates: int) -> None:
        """Continue the page of a run that goes on after `step`, whose rows are in `log`."""

    def finish(self, kind: str, message: str = "", *, postmortem: object = None) -> None:
        """Say how the run ended: "finished", "early", "paused", "interrupted" or "failed"."""

    def fail(self, error: BaseException, *, postmortem: object = None) -> None:
        """Say that the run ended with this error."""
