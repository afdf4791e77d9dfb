"""What a training run tells a watcher, which it does not know: the monitor of the checks, or none.

Shapes: B batch, T time.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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
