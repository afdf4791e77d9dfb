"""Windows of micro-batches with unequal numbers of scored tokens, and their own gradients.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import nn

from diagnostics._probe import Probe
from diagnostics._step_trial import (
    Gradient,
    Pair,
    constant_pair,
    random_pair,
    reference,
)

SHARES = (1.0, 0.5, 0.25, 0.75)  # of each row's targets that are scored, micro-batch by micro-batch
ROWS = 2


@dataclass(frozen=True)
class Window:
    """The micro-batches of one step. gradients: of the summed, losses: of the mean loss of each."""

    pairs: list[Pair]
    counts: list[int]  # scored targets
    losses: list[float]
    gradients: list[Gradient]


def make_windows(probe: Probe, model: nn.Module, K: int) -> Iterator[Window]:
    """Yield K micro-batches, K with a large gradient, K - 1, and K of which one scores nothing.

    Each window is computed at the weights of the moment in which it is asked for. Where the
    model's loss knows no ignored targets, the micro-batches differ in rows instead.
    """
    by_rows = not _ignores(probe, model)
    plain = [
        _unequal(probe, random_pair(probe, f"part {k}", _rows(k, by_rows)), k, by_rows)
        for k in range(K)
    ]
    yield _window(probe, model, plain)
    large = [
        _unequal(probe, constant_pair(probe, _rows(k, by_rows), k), k, by_rows) for k in range(K)
    ]
    yield _window(probe, model, large)
    if K > 2:
        yield _window(probe, model, plain[: K - 1])
    if K > 2 and not by_rows:
        inputs, targets = plain[1]
        empty = (inputs, torch.full_like(targets, probe.pipeline.ignore_index))
        yield _window(probe, model, [plain[0], empty, *plain[2:]])


def _rows(k: int, by_rows: bool) -> int:
    return 1 + (2 * k + 1) % 4 if by_rows else ROWS


def _unequal(probe: Probe, pair: Pair, k: int, by_rows: bool) -> Pair:
    inputs, targets = pair
    T = targets.shape[1]
    first_ignored = max(2, round(T * SHARES[k % len(SHARES)]))
    if not by_rows:
        targets = targets.clone()
        targets[:, first_ignored:] = probe.pipeline.ignore_index
    return inputs, targets


def _ignores(probe: Probe, model: nn.Module) -> bool:
    """Whether the model's loss leaves ignored targets out: their mean must not move."""
    inputs, targets = random_pair(probe, "ignored", ROWS)
    half = targets.clone()
    half[1:] = probe.pipeline.ignore_index
    try:
        alone = reference(probe, model, (inputs[:1], targets[:1]))[0]
        return abs(reference(probe, model, (inputs, half))[0] - alone) <= 1e-3 * abs(alone)
    except Exception:  # any: an id of -100 ends in an index error
        return False


def _window(probe: Probe, model: nn.Module, pairs: list[Pair]) -> Window:
    counts, losses, gradients = [], [], []
    for inputs, targets in pairs:
        shifted = targets[:, 1:] if probe.pipeline.labels == "same" else targets
        count = int((shifted != probe.pipeline.ignore_index).sum())
        loss, gradient = reference(probe, model, (inputs, targets))
        counts.append(count)
        losses.append(loss)
        gradients.append({n: count * g for n, g in gradient.items()})
    return Window(pairs, counts, losses, gradients)
