"""Windows of micro-batches with unequal numbers of scored tokens, and their own gradients.

Shapes: B batch, T time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._probe import Probe
from diagnostics._step_trial import (
    Gradient,
    Pair,
    constant_pair,
    fit,
    norm,
    random_pair,
    reference,
)

SHARES = (1.0, 0.5, 0.25, 0.75)  # of each row's targets that are scored, micro-batch by micro-batch
ROWS = 2
CUT_GAP = 2e-3  # of the gradient, from a sum that was cut on the way
SHRINK = 2.0**-13  # exact in binary; below every limit that recipes clip to, above underflow


@dataclass(frozen=True)
class Window:
    """The micro-batches of one step. gradients: of the summed, losses: of the mean loss of each."""

    pairs: list[Pair]
    counts: list[int]  # scored targets that can add to the gradient
    losses: list[float]
    gradients: list[Gradient]
    spoiled: int | None = None  # the micro-batch whose forward call is made to give NaN


def make_windows(probe: Probe, model: nn.Module, K: int) -> Iterator[Window]:
    """Yield K micro-batches, K with a large gradient, K - 1, and twice K with a useless one.

    First it scores nothing, then its forward call is to give NaN; a loop that does not look at
    its losses has weights of NaN after that, so that it comes last.

    Each window is computed at the weights of the moment in which it is asked for. Where the
    model's loss knows no ignored targets, the micro-batches differ in rows instead.
    """
    numbers = itertools.count()
    by_rows = not _ignores(probe, model)
    plain = [
        _unequal(probe, random_pair(probe, f"part {k}", _rows(k, by_rows)), k, by_rows)
        for k in range(K)
    ]
    yield _window(probe, model, plain, next(numbers))
    large = [
        _unequal(probe, constant_pair(probe, _rows(k, by_rows), k), k, by_rows) for k in range(K)
    ]
    yield _window(probe, model, large, next(numbers))
    if K > 2:
        yield _window(probe, model, plain[: K - 1], next(numbers))
    if K > 2 and not by_rows:
        inputs, targets = plain[1]
        empty = (inputs, torch.full_like(targets, probe.pipeline.ignore_index))
        yield _window(probe, model, [plain[0], empty, *plain[2:]], next(numbers))
    if K > 2:
        yield _spoiled(_window(probe, model, plain, next(numbers)), 1)


@contextmanager
def shrunk_gradients(model: nn.Module) -> Iterator[None]:
    """Multiply every gradient by SHRINK as it is written, so that no clipping acts on it.

    Clipping hides a factor on the gradient: with and without it, both are cut to one norm.
    """
    handles = [
        parameter.register_hook(lambda gradient: gradient * SHRINK)
        for parameter in model.parameters()
        if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextmanager
def nan_in_call(model: nn.Module, number: int | None) -> Iterator[list[None]]:
    """Turn into NaN what the model gives in its call of a number; yield a list, one item a call."""
    calls: list[None] = []

    def hook(module: nn.Module, args: Any, output: Any) -> Any:
        if not torch.is_grad_enabled():
            return None
        calls.append(None)
        return _as_nan(output) if len(calls) - 1 == number else None

    handle = model.register_forward_hook(hook)
    try:
        yield calls
    finally:
        handle.remove()


def limit_inside(window: Window, used: Gradient, limits: Iterable[float]) -> float | None:
    """Return the norm to which the running sum is cut after each micro-batch; None where it is not.

    The sum with such cuts is computed for each of the limits and for each usual divisor.
    """
    parts = [(g, n) for g, n in zip(window.gradients, window.counts, strict=True) if n]
    N, K = sum(window.counts), len(parts)
    for limit in limits:
        for shares in ([1 / N] * K, [1 / (K * n) for _, n in parts], [1 / n for _, n in parts]):
            running: Gradient = {}
            for (gradient, _), share in zip(parts, shares, strict=True):
                grown = {n: running.get(n, 0.0) + share * g for n, g in gradient.items()}
                factor = min(1.0, limit / max(norm(grown), 1e-300))
                running = {n: factor * g for n, g in grown.items()}
            guess = fit(used, [running])
            if guess.misfit <= CUT_GAP and abs(guess.factors[0] - 1) <= CUT_GAP:
                return limit
    return None


def _as_nan(output: Any) -> Any:
    if isinstance(output, Tensor):
        return output * math.nan if output.is_floating_point() else output
    if isinstance(output, tuple) and not hasattr(output, "_fields"):
        return tuple(map(_as_nan, output))
    if isinstance(output, list):
        return list(map(_as_nan, output))
    # a named tuple stays as it is; of an object the parts are replaced
    parts = output if isinstance(output, Mapping) else getattr(output, "__dict__", {})
    for name, part in list(parts.items()):
        if isinstance(part, Tensor):
            if isinstance(output, Mapping):
                output[name] = _as_nan(part)  # type: ignore[index]
            else:
                setattr(output, name, _as_nan(part))
    return output


def _spoiled(window: Window, number: int) -> Window:
    """Return the window as it is without one of its micro-batches."""

    def without(values: list[Any], nothing: Any) -> list[Any]:
        return [nothing if k == number else value for k, value in enumerate(values)]

    return replace(
        window,
        counts=without(window.counts, 0),
        losses=without(window.losses, math.nan),
        gradients=without(window.gradients, {}),
        spoiled=number,
    )


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


def _window(probe: Probe, model: nn.Module, pairs: list[Pair], number: int) -> Window:
    """Compute the parts one after the other under the seed of the call: they draw what it draws."""
    counts, losses, gradients = [], [], []
    with probe.seeded(f"window {number}"):
        for inputs, targets in pairs:
            shifted = targets[:, 1:] if probe.pipeline.labels == "same" else targets
            count = int((shifted != probe.pipeline.ignore_index).sum())
            # a loop that leaves out what scores nothing draws nothing for it either
            seed = None if count else "step"
            loss, gradient = reference(probe, model, (inputs, targets), seed=seed)
            counts.append(count)
            losses.append(loss)
            gradients.append({n: count * g for n, g in gradient.items()})
    return Window(pairs, counts, losses, gradients)
