"""What one batch allows: the best accuracy and the lowest loss that any model could reach on it.

Two rows that begin alike and go on differently cannot both be predicted. The best answer to equal
contexts is the commonest next token, and the lowest loss is the entropy of the next tokens.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

from torch import Tensor

Context = Callable[[list[int], int], Hashable]  # (row of ids, position t) -> what a model may read


@dataclass(frozen=True)
class Floor:
    """The lowest loss (nats per token) and the highest accuracy for one kind of context."""

    loss: float
    accuracy: float


def measure_floor(inputs: Tensor, targets: Tensor, context: Context, ignore_index: int) -> Floor:
    """Return the floor of inputs (B, T) and next tokens (B, T) for a model that reads `context`.

    Raises ValueError when no target is scored.
    """
    seen: dict[Hashable, Counter[int]] = defaultdict(Counter)
    for row, nexts in zip(inputs.tolist(), targets.tolist(), strict=True):
        for t, token in enumerate(nexts):
            if token != ignore_index:
                seen[context(row, t)][token] += 1
    total = sum(counter.total() for counter in seen.values())
    if total == 0:
        raise ValueError(f"every target is {ignore_index}, so there is nothing to memorise")
    nats = 0.0
    right = 0
    for counter in seen.values():
        count = counter.total()
        nats -= sum(n * math.log(n / count) for n in counter.values())
        right += max(counter.values())
    return Floor(nats / total, right / total)


def whole_prefix(row: list[int], t: int) -> Hashable:
    """Read every token up to position t, as a causal model does."""
    return tuple(row[: t + 1])


def nothing(row: list[int], t: int) -> Hashable:
    """Read neither tokens nor position: what remains is how often each target occurs."""
    return None


def position_only(row: list[int], t: int) -> Hashable:
    """Read the position, and no token."""
    return t


def last_tokens(k: int) -> Context:
    """Read the last k tokens, as a k-gram or a window model does."""

    def context(row: list[int], t: int) -> Hashable:
        return tuple(row[max(0, t - k + 1) : t + 1])

    return context
