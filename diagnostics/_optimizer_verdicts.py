"""What the optimizer's groups and its steps say, judged: coverage, motion, decay, five losses."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from diagnostics import _optimizer_faults as faults
from diagnostics._fault import found
from diagnostics._optimizer_step import Coverage, Move, Trial, rate_of
from diagnostics._probe import Probe, ln
from diagnostics._result import CheckResult
from diagnostics._state import some
from diagnostics._text import Text, say

# Median of the last three losses after 5 steps, over max(first loss, ln V). Measured with AdamW on
# debug, 6-layer and 8-layer models, fresh and trained: at most 0.98 up to 3e-3 and at debug size
# up to 1e-2; at least 1.09 at 0.1, where the second update is also 0.6 of the weights' size
# (1e-2: at most 0.3).
RISE, EXPLOSION = 1.03, 1.5
RATIO_MAX = 0.4
STILL = 1e-14  # motion over the largest weight: 45 rounding errors of float64
NO_GRADIENT = 1e-10  # of the largest gradient: rounding, such as that of a key bias in attention
SOME_GRADIENT = 1e-3  # of a parameter's mean gradient: elements that ought to move
MOVED_SHARE_MIN = 0.5  # bfloat16 at 1e-3: 0.97, at 1e-5: 0.2
RATIO_MIN = 1e-7  # update over weight; fine-tuning at 1e-6 gives about 5e-5
DECAY_MAX = 0.03  # of a weight per step; Muon's 0.02 * 0.1 takes 0.002, SGD's 0.1 * 5e-4 less
GAIN_MIN = 0.5  # gains of norms begin at 1; those of norms that add 1 to them begin at 0

Numbers = dict[str, Any]


def judge_coverage(coverage: Coverage, numbers: Numbers) -> Iterator[CheckResult]:
    """Judge whose parameters the groups hold."""
    facts: Numbers = {"total": coverage.trainable}
    missing = coverage.missing
    if coverage.foreign:
        fault = faults.IGNORED_ARGUMENT if coverage.foreign_of_original else faults.FOREIGN
        measured = say("{missing} of the model's own are missing", missing=len(missing))
        yield found(fault, measured, numbers, names=missing, **{**facts, "count": coverage.foreign})
    if coverage.unregistered:
        shapes = coverage.unregistered
        measured = say("shapes {shapes}", shapes=some(shapes))
        yield found(faults.UNREGISTERED, measured, numbers, count=len(shapes), **facts)
    if missing:
        measured = say("{count} in no group", count=len(missing))
        yield found(faults.MISSING, measured, numbers, names=missing, **facts)
    if coverage.repeated:
        measured = say("{count} more than once", count=len(coverage.repeated))
        yield found(faults.REPEATED, measured, numbers, names=coverage.repeated, **facts)


def judge_motion(moves: list[Move], numbers: Numbers) -> Iterator[CheckResult]:
    """Judge what the gradient alone does to each parameter."""
    largest = max((float(m.gradient.abs().max()) for m in moves if m.gradient.numel()), default=0)
    judged = [m for m in moves if not float(m.gradient.abs().max()) <= NO_GRADIENT * largest]
    total: Numbers = {"total": len(judged)}
    wild = [m for m in moves if not torch.isfinite(m.motion + m.decay).all()]
    if wild:
        yield _not_finite(wild, moves, numbers)
    still = [m for m in judged if _is_still(m)]
    if still:
        every = len(still) == len(judged)
        idle = every and not any(numbers["learning_rates"])
        causes = (say("the learning rate is 0"),) if idle else ()
        fault = faults.DOES_NOT_MOVE if every else faults.STILL
        names = [m.name for m in still]
        yield found(fault, _motion_text(still[0]), numbers, names=names, causes=causes, **total)
    uphill = [m for m in judged if not float((m.motion * m.gradient).sum()) < 0]
    if uphill:
        measured = say(
            "cosine of {cosine} between motion and gradient of {name}",
            cosine=_cosine(uphill[0].motion, uphill[0].gradient),
            name=uphill[0].name,
        )
        yield found(faults.UPHILL, measured, numbers, names=[m.name for m in uphill], **total)
    shares = {m.name: _moved_share(m) for m in judged}
    partly = [name for name, share in shares.items() if share < 0.5]
    if partly:
        measured = say(
            "{share:%} of the elements of {name} move", share=shares[partly[0]], name=partly[0]
        )
        yield found(faults.PARTLY, measured, numbers, names=partly, **total)


def _not_finite(wild: list[Move], moves: list[Move], numbers: Numbers) -> CheckResult:
    """Tell a division by a correction of 0, which spares no element, from the rest."""
    first = wild[0]
    bad = ~torch.isfinite(first.motion + first.decay)
    rates = numbers["learning_rates"]
    whole = all(not torch.isfinite(m.motion[m.gradient != 0]).any() for m in moves)
    corrected = all("betas" in m.group for m in moves)
    zero = whole and corrected and all(map(math.isfinite, rates))
    measured = say(
        "{n} of {total:element|elements} of {name} after one step, rate {rate}",
        n=int(bad.sum()),
        total=bad.numel(),
        name=first.name,
        rate=max(rates, default=0.0, key=lambda rate: (math.isnan(rate), rate)),
    )
    fault = faults.ZERO_DIVISION if zero else faults.NOT_FINITE
    return found(fault, measured, numbers, names=[m.name for m in wild], total=len(moves))


def judge_decay(moves: list[Move], numbers: Numbers) -> Iterator[CheckResult]:
    """Judge what a step does without a gradient."""
    decayed = [m for m in moves if float(m.decay.abs().max()) > 0]
    total: Numbers = {"total": len(decayed)}
    grown = [m for m in decayed if _cosine(m.decay, m.weight) > 0.5]
    if grown:
        measured = say(
            "{name} grows by {growth} of itself", name=grown[0].name, growth=-_pull(grown[0])
        )
        yield found(faults.DECAY_SIGN, measured, numbers, names=[m.name for m in grown], **total)
    # a decay proportional to the weight has a cosine of -1 with it; the sign of a weight, -0.8
    cosines = {m.name: _cosine(m.decay, m.weight) for m in decayed if m.weight.numel() > 1}
    coupled = [name for name, cosine in cosines.items() if -0.95 < cosine < 0]
    strong = [m for m in decayed if m.name not in coupled and _pull(m) >= DECAY_MAX]
    if strong and not _is_said(strong[0]):
        share = _pull(strong[0])
        measured = say("{name} shrinks by {share:%}", name=strong[0].name, share=share)
        names = [m.name for m in strong]
        yield found(faults.DECAY_STRONG, measured, numbers, names=names, share=share, **total)
    if coupled:
        measured = say(
            "cosine of {cosine} between decay and weight of {name}",
            cosine=cosines[coupled[0]],
            name=coupled[0],
        )
        yield found(faults.COUPLED, measured, numbers, names=coupled, **total)
    matrices = [m for m in moves if m.weight.ndim >= 2]
    said = max((_said_decay(m) for m in matrices), default=0.0)
    if said > 0 and not any(m.weight.ndim >= 2 for m in decayed):
        measured = say(
            "a step with a gradient of 0 moves 0 of {n:matrix|matrices}", n=len(matrices)
        )
        yield found(faults.DECAY_IGNORED, measured, numbers, decay=said)


def judge_groups(moves: list[Move], coverage: Coverage, numbers: Numbers) -> Iterator[CheckResult]:
    """Judge which vectors decay: only where the groups say that some parameters should not."""
    decays = {m.name: float(m.decay.abs().max()) > 0 for m in moves}
    vectors = [m for m in moves if m.weight.ndim < 2 and (m.is_bias or _is_gain(m))]
    pulled = [m.name for m in vectors if decays[m.name]]
    matrices = [m.name for m in moves if m.weight.ndim >= 2]
    alone = len(coverage.classes) == 1  # Muon without decay beside AdamW with it is no exchange
    if alone and pulled and matrices and not any(decays[name] for name in matrices):
        measured = say(
            "{n:vector decays|vectors decay}, 0 of {m:matrix|matrices}",
            n=len(pulled),
            m=len(matrices),
        )
        yield found(faults.DECAY_SWAPPED, measured, numbers, names=pulled)
    linear = [decays[m.name] for m in moves if m.kind == "Linear.weight"]
    # new layers that decay on top of old ones that do not are a recipe for fine-tuning
    if not pulled or not linear or sum(linear) < 0.9 * len(linear):
        return
    if coverage.empty_without_decay:
        measured = say("0 parameters in group {n}", n=coverage.empty_without_decay[0])
        yield found(faults.GROUP_EMPTY, measured, numbers, names=pulled)
    kinds: dict[str, list[str]] = defaultdict(list)
    for move in vectors:
        kinds[move.kind].append(move.name)
    for kind, names in kinds.items():
        hit = [name for name in names if decays[name]]
        if 0 < len(hit) < len(names):
            measured = say("{hit} of {n} decay", hit=len(hit), n=len(names))
            facts: Numbers = {"kind": kind, "total": len(names)}
            yield found(faults.DECAY_UNEVEN, measured, numbers, names=hit, **facts)
    biases = [m.name for m in vectors if m.is_bias]
    gains = [m.name for m in vectors if not m.is_bias]
    if biases and not any(decays[n] for n in biases) and gains and all(decays[n] for n in gains):
        measured = say(
            "{b:bias|biases} without decay, {g:gain|gains} with it", b=len(biases), g=len(gains)
        )
        yield found(faults.GAINS_DECAY, measured, numbers, names=gains)


def judge_trial(trial: Trial, probe: Probe, numbers: Numbers) -> Iterator[CheckResult]:
    """Judge five steps on one batch in the model's own dtype."""
    reference = max(trial.losses[0], ln(probe.vocab_size))
    finite = all(map(math.isfinite, trial.losses))
    ended = sorted(trial.losses[-3:])[1] if finite else math.nan  # the median
    facts: Numbers = {
        "first": trial.losses[0],
        "last": ended,
        "limit": RISE * reference,
        "rate": max(numbers["learning_rates"], default=0.0),
        "ratio": trial.ratios[1],
        "share": trial.moved_share,
    }
    losses = say("losses {shown}", shown=", ".join(f"{loss:.2f}" for loss in trial.losses))
    if not math.isfinite(trial.losses[0]):
        yield found(faults.NO_LOSS, losses, numbers, **facts)
    if not ended <= RISE * reference:
        exploded = not ended <= EXPLOSION * reference or not trial.ratios[1] <= RATIO_MAX
        yield found(faults.TOO_LARGE if exploded else faults.RISES, losses, numbers, **facts)
    if trial.still_at_zero:
        measured = say("{name} is 0 after five steps", name=trial.still_at_zero[0])
        yield found(faults.STUCK_AT_ZERO, measured, numbers, names=trial.still_at_zero)
    if not trial.moved_share >= MOVED_SHARE_MIN:
        measured = say("{share:%} of the elements, rate {rate}", **facts)
        yield found(faults.ROUNDING, measured, numbers, names=trial.still, **facts)
    if trial.still:
        measured = say("{name} moves by 0 in five steps", name=trial.still[0])
        yield found(faults.ROUNDING_SOME, measured, numbers, names=trial.still)
    if not trial.ratios[1] >= RATIO_MIN:
        measured = say("{ratio} of the weights' size, rate {rate}", **facts)
        yield found(faults.TOO_SMALL, measured, numbers, **facts)


def rates_text(numbers: Numbers) -> Text:
    """Return the learning rates in words."""
    rates = sorted(set(numbers["learning_rates"]))
    return say("learning rate {rates}", rates=", ".join(f"{rate:g}" for rate in rates) or "unknown")


def _motion_text(move: Move) -> Text:
    return say(
        "{name} moves by {motion}, where its largest gradient is {gradient}",
        name=move.name,
        motion=float(move.motion.abs().max()),
        gradient=float(move.gradient.abs().max()),
    )


def _is_still(move: Move) -> bool:
    return not float(move.motion.abs().max()) > STILL * float(move.weight.abs().max())


def _moved_share(move: Move) -> float:
    """Return the share of elements with a gradient worth the name that moved."""
    wanted = move.gradient.abs() > SOME_GRADIENT * move.gradient.square().mean().sqrt()
    moved = move.motion.abs() > STILL * move.weight.abs().max()
    return float((moved & wanted).sum() / wanted.sum().clamp_min(1))


def _is_gain(move: Move) -> bool:
    """Whether a vector is the gain of a norm: it begins at 1, unlike one to which 1 is added."""
    return move.start >= GAIN_MIN and ("norm" in move.kind.lower() or move.kind.endswith(".weight"))


def _pull(move: Move) -> float:
    """Return the share of itself by which a parameter shrinks without a gradient."""
    return -float((move.decay * move.weight).sum() / move.weight.square().sum().clamp_min(1e-300))


def judge_said_decay(moves: list[Move], numbers: Numbers) -> Iterator[CheckResult]:
    """Judge a decay that follows its rule: after the rate, which may be what is too large."""
    decayed = [m for m in moves if float(m.decay.abs().max()) > 0]
    strong = [m for m in decayed if _pull(m) >= DECAY_MAX and _is_said(m)]
    if strong:
        facts: Numbers = {"share": _pull(strong[0]), "total": len(decayed)}
        measured = say("{name} shrinks by {share:%}", name=strong[0].name, share=facts["share"])
        names = [m.name for m in strong]
        yield found(faults.DECAY_SAID, measured, numbers, names=names, **facts)


def _is_said(move: Move) -> bool:
    """Whether the decay is rate * weight_decay, as the group says."""
    said = (rate_of(move.group) or 0.0) * _said_decay(move)
    return abs(_pull(move) - said) <= 0.01 * said


def _said_decay(move: Move) -> float:
    value = move.group.get("weight_decay", 0.0)
    return float(value) if isinstance(value, (int, float)) else 0.0


def _cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-30))
