"""Read a recorded gradient: which mixture of known gradients is it?

Shapes: B batch, T time, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._optimizer_step import gradient_of
from diagnostics._probe import Batch, Probe
from diagnostics._step_trial import (
    Call,
    Fit,
    Gradient,
    Pair,
    at_weights,
    cosine,
    fit,
    kept_buffers,
    norm,
    reference,
)

EXACT = 2e-3  # share of a gradient; float32 on one machine: below 1e-5
ROUGH = 0.08  # autocast to bfloat16 against float32, measured on debug models: 0.01 to 0.03
STALE_MIN = 0.02
SOME = 1e-4  # of the whole gradient: a parameter whose absence is worth a word
LIMIT_SPREAD = 0.02  # norms this close to one another were cut to one limit


@dataclass
class Reading:
    """What one call's gradient turned out to be."""

    kind: str  # none, not_finite, fits, stale, not_cleared, partial, ... or a hypothesis
    scale: float = 1.0  # used gradient over the batch's own
    stale: float = 0.0  # share of what the call before had left
    misfit: float = 0.0
    size: float = 0.0  # norm of what was used
    own_size: float = 0.0  # norm of the batch's own gradient
    decay: float = 0.0
    cosine: float = 1.0
    names: list[str] = field(default_factory=list)
    call: int = 0  # its number

    @property
    def exact(self) -> bool:
        """Whether the gradient is the batch's own, up to a factor, to rounding in float32."""
        return self.kind in ("fits", "by_value") and self.misfit <= EXACT


def read_gradient(
    call: Call,
    own: Gradient,
    noise: float,
    others: Iterator[tuple[str, Gradient]],
) -> Reading:
    """Say what a call used; own: the gradient of its batch; others: hypotheses, tried in order.

    noise: how far the gradient differs between two seeds with dropout silenced.
    """
    used = call.used
    size, own_size = norm(used), norm(own)
    if not math.isfinite(size):
        return Reading("not_finite", size=size, own_size=own_size)
    if own_size == 0:
        return Reading("no_own_gradient", size=size)
    if size <= 1e-12 * own_size:
        return Reading("none", size=size, own_size=own_size)
    exact, rough = max(EXACT, 3 * noise), max(ROUGH, 3 * noise)
    missing = [n for n, g in own.items() if n in call.times and _is_lost(n, used, g, own_size)]
    seen = {n: g for n, g in own.items() if n in call.times}  # held by the optimizer
    # what is not finite, as a loss scale that overflowed leaves it, would show in what is used
    has_left = 1e-12 * own_size < norm(call.left) < math.inf
    parts = [seen, call.left] if has_left else [seen]
    best = fit(used, parts)
    common: dict[str, Any] = {"size": size, "own_size": norm(seen), "misfit": best.misfit}
    if not best.misfit <= rough and len(missing) > 0:
        rest = {n: g for n, g in seen.items() if n not in missing}
        if fit(used, [rest]).misfit <= rough:
            return Reading("partial", names=missing, **common)
    mixed = _mixed(best, call, size, own_size, missing, common)
    if best.misfit <= exact:
        return mixed
    for kind, scale_found, decay in _reshaped(call, seen, exact):
        return Reading(kind, scale_found, decay=decay, size=size, own_size=norm(seen))
    for name, gradient in others:
        guess = fit(used, [gradient])
        if guess.misfit <= min(exact, 0.5 * best.misfit) and guess.factors[0] > 0:
            return Reading(
                name, guess.factors[0], misfit=guess.misfit, size=size, own_size=norm(seen)
            )
    if best.misfit <= rough:
        return mixed
    return Reading("other", best.factors[0], cosine=cosine(used, seen), **common)


def _mixed(
    best: Fit,
    call: Call,
    size: float,
    own_size: float,
    missing: list[str],
    common: dict[str, Any],
) -> Reading:
    """Read the factors of this batch's gradient and of what the last call had left."""
    scale, stale = best.factors[0], best.factors[1] if len(best.factors) > 1 else 0.0
    if abs(stale) * norm(call.left) / size > max(STALE_MIN, 2 * best.misfit):
        if abs(scale) * own_size < STALE_MIN * size:
            return Reading("stale", scale, stale, **common)
        return Reading("not_cleared", scale, stale / scale, **common)
    if missing:
        return Reading("partial", names=missing, **common)
    return Reading("fits", scale, **common)


def _is_lost(name: str, used: Gradient, gradient: Tensor, own_size: float) -> bool:
    expected = norm({name: gradient})
    found = norm({name: used[name]}) if name in used else 0.0
    return expected > SOME * own_size and found <= 1e-9 * expected


def _reshaped(call: Call, own: Gradient, exact: float) -> Iterator[tuple[str, float, float]]:
    """Yield the ways of changing a gradient's direction that fit: (kind, scale, decay)."""
    used = call.used
    limit = max(float(g.abs().max()) for g in used.values())
    cut = {n: g.clamp(-limit, limit) for n, g in own.items()}
    if fit(used, [cut]).misfit <= exact and any(
        float(g.abs().max()) > limit * (1 + 1e-6) for g in own.values()
    ):
        yield "by_value", 1.0, 0.0
    penalised = fit(used, [own, call.before])
    if penalised.misfit <= exact and penalised.factors[0] > 0:
        yield "extra", penalised.factors[0], penalised.factors[1] / penalised.factors[0]
    factors, limits = [], []
    for name, gradient in own.items():
        if name in used and norm({name: gradient}) > 1e-9 * norm(own):
            each = fit({name: used[name]}, [{name: gradient}])
            if not (each.misfit <= exact and 0 < each.factors[0] <= 1 + exact):
                return
            factors.append(each.factors[0])
            if each.factors[0] < 1 - exact:
                limits.append(norm({name: used[name]}))
    if factors:  # one limit for all is a misplaced call; limits of their own are a method
        same = min(limits, default=0.0) >= (1 - LIMIT_SPREAD) * max(limits, default=1.0)
        yield "per_parameter" if same else "per_parameter_own", min(factors), 0.0


def limit_of(readings: list[Reading]) -> float | None:
    """Return the norm to which gradients were cut; None where scaling follows no such rule."""
    cut = [r.size for r in readings if r.scale < 1 - EXACT]
    free = [r.size for r in readings if r.scale >= 1 - EXACT]
    if not cut or any(r.scale > 1 + max(EXACT, r.misfit) for r in readings):
        return None
    limit = max(cut)
    same = min(cut) >= (1 - LIMIT_SPREAD) * limit
    return limit if same and all(size <= (1 + LIMIT_SPREAD) * limit for size in free) else None


def cut_afterwards(calls: list[Call]) -> tuple[float, float] | None:
    """Return (limit, largest norm used) when gradients were scaled down after their use."""
    found = []
    for call in calls:
        size, kept = norm(call.used), norm(call.kept)
        if 0 < kept < (1 - EXACT) * size and fit(call.kept, [call.used]).misfit <= EXACT:
            found.append((kept, size))
    if len(found) < 2:  # an optimizer that writes into gradients turns their direction too
        return None
    limits = [kept for kept, _ in found]
    same = min(limits) >= (1 - LIMIT_SPREAD) * max(limits)
    return (max(limits), max(size for _, size in found)) if same else None


def hypotheses(
    probe: Probe, model: nn.Module, calls: list[Call], pairs: list[Pair], number: int
) -> Iterator[tuple[str, Gradient]]:
    """Yield gradients that a faulty step would use in call `number`, at the weights it saw."""
    now = {n: p.detach().clone() for n, p in model.named_parameters()}
    at_weights(model, calls[number].before)
    try:
        if number > 1:
            yield "last_batch", reference(probe, model, pairs[number - 1])[1]
        if number > 0:
            yield "same_batch", reference(probe, model, pairs[0])[1]
        with kept_buffers(model), torch.enable_grad(), probe.seeded("step"):
            logits, _ = probe.loss(model, Batch(*pairs[number]))
            for name, loss in _losses(probe, logits, *pairs[number]):
                yield name, gradient_of(model, loss)
    finally:
        at_weights(model, now)


def _losses(
    probe: Probe, logits: Tensor, inputs: Tensor, targets: Tensor
) -> Iterator[tuple[str, Tensor]]:
    """Yield wrong losses of logits (B, T, W) by name; the honest one first."""
    adapter = probe.adapter
    yield "fits", adapter.cross_entropy(logits, targets)
    if logits.shape[:2] != targets.shape:
        return
    if probe.pipeline.labels == "same":  # from here on logits at t belong to targets at t
        logits, inputs, targets = logits[:, :-1], inputs[:, :-1], targets[:, 1:]

    def entropy(scores: Tensor, wanted: Tensor) -> Tensor:
        return nn.functional.cross_entropy(
            scores.flatten(0, 1).float(), wanted.flatten(), ignore_index=adapter.ignore_index
        )

    half = max(1, len(targets) // 2)
    yield "shifted_again", entropy(logits[:, :-1], targets[:, 1:])
    yield "copy", entropy(logits, inputs)
    yield "last_position", entropy(logits[:, -1:], targets[:, -1:])
    yield "half", entropy(logits[:half], targets[:half])
    yield "row", entropy(logits[:1], targets[:1])


def describe(readings: list[Reading]) -> Mapping[str, list[object]]:
    """Return the readings as plain numbers, one entry per call."""
    return {
        "kinds": [r.kind for r in readings],
        "scales": [r.scale for r in readings],
        "norms_used": [r.size for r in readings],
        "norms_own": [r.own_size for r in readings],
        "misfits": [r.misfit for r in readings],
    }
