"""Builders that several files of the table share: models that score otherwise, micro-batches.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from exercises._lab import IGNORE_INDEX, retype
from exercises.break_loss import ScoredGPT
from minigpt import MiniGPT
from tests.catalogue._row import Build

Score = Callable[[Tensor, Tensor], Tensor]  # logits (B, T, V), targets (B, T) -> loss
Batches = list[tuple[Tensor, Tensor]]


def scored_by(score: Score) -> Build:
    """Return a pipeline whose model scores its logits with `score`."""

    class Scored(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            return score(logits, targets)

    return lambda lab: lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Scored))


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The right one: mean over the scored targets."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def of_class(kind: type[MiniGPT]) -> Build:
    """Return a pipeline whose model is of a subclass of the reference."""
    return lambda lab: lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, kind))


def accumulating(weigh: Callable[[list[int], int], float], score: Score = cross_entropy) -> Build:
    """Return a pipeline with a loop over micro-batches.

    weigh: (scored tokens of each micro-batch, the current one) -> the weight of its mean loss.
    """

    class Scored(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            return score(logits, targets)

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        counts = [int((targets != IGNORE_INDEX).sum()) for _, targets in batches]
        total = torch.zeros(())
        optimizer.zero_grad()
        for number, (inputs, targets) in enumerate(batches):
            loss = model(inputs, targets)[1] * weigh(counts, number)
            loss.backward()
            total += loss.detach()
        optimizer.step()
        return total

    return lambda lab: lab.pipeline(
        accumulate=accumulate, edit_model=lambda model: retype(model, MiniGPT, Scored)
    )


def by_tokens(counts: list[int], number: int) -> float:
    """Each scored token has the same weight."""
    return counts[number] / sum(counts)
