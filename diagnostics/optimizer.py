"""Optimizer: one step moves every trainable parameter, downhill, by a sane amount.

Why it matters
    A parameter that no group holds keeps its random value for the whole run, and the others
    learn to live with it: the loss falls, only less far. A rate that is 30 times too high is
    visible in five steps, and looks like a bug of the model when it is met later.

How it is measured
    The optimizer is built for a copy of the model, and what it holds is compared by identity with
    what the model lists and with what the loss trains. One step with the decay switched off shows
    the motion of each parameter, one step with gradients of zero shows the decay alone; both in
    float64 with jittered weights. Motion against the gradient is downhill. Then five steps on one
    batch in the model's own dtype: the loss must not end above where knowing nothing would put
    it, and the size of an update over the size of the weights is reported (1e-3 is usual).

What it cannot see
    Your training loop: a step before backward, a forgotten zero_grad or a scheduler are for
    `training_step` and `schedule`. State that a checkpoint restored. A rate that is 3 times too
    high, or too low. Whether an optimizer of your own is the one that its paper describes, save
    that its Adam begins with a step of one learning rate.

Break it
    python -m exercises.break_optimizer
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import _optimizer_faults as faults
from diagnostics._optimizer_faults import Fault
from diagnostics._optimizer_step import (
    Coverage,
    MakeOptimizer,
    Move,
    Trial,
    measure_coverage,
    measure_moves,
    measure_trial,
    rate_of,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe, ln
from diagnostics._result import CheckResult, Status
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
ADAM_TOLERANCE = 0.02


def check_optimizer(
    model: nn.Module,
    make_optimizer: MakeOptimizer,
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    **parts: Any,
) -> CheckResult:
    """Check what one step of `make_optimizer(copy of model)` does.

    make_optimizer: (model) -> an optimizer, or a list of them, over the model it is given.
    inputs, targets: (B, T) to take the step on; None: random tokens.
    parts: other fields of Pipeline, such as forward, vocab_size or learning_rate.
    Raises ValueError when only one of inputs and targets is given.
    """
    if (inputs is None) != (targets is None):
        raise ValueError("inputs and targets belong together, got only one of them")
    batch = None if inputs is None or targets is None else (inputs, targets)
    return run(Probe(Pipeline(model, make_optimizer=make_optimizer, batch=batch, **parts)))


def run(probe: Probe) -> CheckResult:
    """Judge coverage, then one step, then five."""
    make_optimizer = probe.pipeline.make_optimizer
    if make_optimizer is None:
        raise MissingPartError("make_optimizer", why="there is no optimizer to look at")
    try:
        coverage = measure_coverage(probe, make_optimizer)
    except ValueError as error:  # torch's own words for a parameter in two groups
        if "more than one parameter group" not in str(error):
            raise
        return _fail(faults.REPEATED, [], say("torch refused it: {error}", error=str(error)), {})
    numbers: dict[str, Any] = {
        "trainable": coverage.trainable,
        "missing": coverage.missing,
        "foreign": coverage.foreign,
        "repeated": coverage.repeated,
        "frozen": coverage.frozen,
        "learning_rates": coverage.rates,
    }
    warning: CheckResult | None = None
    for finding in _findings(probe, make_optimizer, coverage, numbers):
        if finding.status is not Status.WARN:  # a failure, or the final word
            return finding if finding.failed or warning is None else warning
        warning = warning if warning is not None else finding
    raise AssertionError("the last finding is a pass")


def _findings(
    probe: Probe, make_optimizer: MakeOptimizer, coverage: Coverage, numbers: dict[str, Any]
) -> Iterator[CheckResult]:
    """Judge coverage, one step, five steps, each only when the one before is in order."""
    yield from _judge_coverage(coverage, numbers)
    moves = measure_moves(probe, make_optimizer)
    numbers |= _describe(moves)
    yield from _judge_motion(moves, numbers)
    yield from _judge_decay(moves, numbers)
    yield from _judge_adam(moves, coverage, numbers)
    trial = measure_trial(probe, make_optimizer)
    numbers |= {
        "losses": trial.losses,
        "update_to_weight": trial.ratios,
        "moved_share": trial.moved_share,
    }
    yield from _judge_trial(trial, probe, numbers)
    yield _passed(moves, trial, numbers)


def _judge_coverage(coverage: Coverage, numbers: dict[str, Any]) -> Iterator[CheckResult]:
    facts: dict[str, Any] = {"total": coverage.trainable}
    if coverage.foreign:
        fault = faults.IGNORED_ARGUMENT if coverage.foreign_of_original else faults.FOREIGN
        names = coverage.missing
        measured = say("{missing} of the model's own are missing", missing=len(names))
        yield _fail(fault, names, measured, numbers, count=coverage.foreign, **facts)
    if coverage.unregistered:
        shapes = coverage.unregistered
        measured = say("shapes {shapes}", shapes=_some(shapes))
        yield _fail(faults.UNREGISTERED, [], measured, numbers, count=len(shapes), **facts)
    if coverage.missing:
        yield _fail(
            faults.MISSING,
            coverage.missing,
            say("{count} in no group", count=len(coverage.missing)),
            numbers,
            **facts,
        )
    if coverage.repeated:
        yield _fail(
            faults.REPEATED,
            coverage.repeated,
            say("{count} more than once", count=len(coverage.repeated)),
            numbers,
            **facts,
        )


def _judge_motion(moves: list[Move], numbers: dict[str, Any]) -> Iterator[CheckResult]:
    """Judge what the gradient alone does to each parameter."""
    largest = max((float(m.gradient.abs().max()) for m in moves if m.gradient.numel()), default=0)
    judged = [m for m in moves if not float(m.gradient.abs().max()) <= NO_GRADIENT * largest]
    total: dict[str, Any] = {"total": len(judged)}
    wild = [m.name for m in moves if not torch.isfinite(m.motion + m.decay).all()]
    if wild:
        yield _fail(faults.NOT_FINITE, wild, _rates_text(numbers), numbers, total=len(moves))
    still = [m.name for m in judged if _is_still(m)]
    if judged and len(still) == len(judged):
        causes = (say("the learning rate is 0"),) if not any(numbers["learning_rates"]) else ()
        yield _fail(
            faults.DOES_NOT_MOVE, still, _rates_text(numbers), numbers, causes=causes, **total
        )
    if still:
        yield _fail(faults.STILL, still, _rates_text(numbers), numbers, **total)
    uphill = [m.name for m in judged if not float((m.motion * m.gradient).sum()) < 0]
    if uphill:
        yield _fail(faults.UPHILL, uphill, _rates_text(numbers), numbers, **total)
    shares = {m.name: _moved_share(m) for m in judged}
    partly = [name for name, share in shares.items() if share < 0.5]
    if partly:
        measured = say(
            "{share:%} of the elements of {name} move", share=shares[partly[0]], name=partly[0]
        )
        yield _fail(faults.PARTLY, partly, measured, numbers, **total)


def _judge_decay(moves: list[Move], numbers: dict[str, Any]) -> Iterator[CheckResult]:
    """Judge what a step does without a gradient."""
    decayed = [m for m in moves if float(m.decay.abs().max()) > 0]
    grown = [m.name for m in decayed if _cosine(m.decay, m.weight) > 0.5]
    if grown:
        first = next(m for m in decayed if m.name == grown[0])
        growth = float((first.decay * first.weight).sum() / first.weight.square().sum())
        measured = say("{name} grows by {growth} of itself", name=grown[0], growth=growth)
        yield _fail(faults.DECAY_SIGN, grown, measured, numbers, total=len(decayed))
    # a decay proportional to the weight has a cosine of -1 with it; the sign of a weight, -0.8
    coupled = [
        m.name for m in decayed if m.weight.numel() > 1 and -0.95 < _cosine(m.decay, m.weight) < 0
    ]
    if coupled:
        cosine = next(_cosine(m.decay, m.weight) for m in decayed if m.name == coupled[0])
        measured = say("cosine of {cosine} between decay and weight", cosine=cosine)
        yield _fail(faults.COUPLED, coupled, measured, numbers, total=len(decayed))


def _judge_adam(
    moves: list[Move], coverage: Coverage, numbers: dict[str, Any]
) -> Iterator[CheckResult]:
    """Compare an Adam's first step with its closed form: rate * gradient / (|gradient| + eps)."""
    if not all(map(_is_plain_adam, coverage.classes)):
        return
    ratios = {m.name: ratio for m in moves if (ratio := _first_step_in_rates(m)) is not None}
    numbers["adam_first_step"] = ratios
    betas = {move.name: move.group.get("betas", (0.9, 0.999)) for move in moves}
    steps = {name: _fitting_step(ratio, betas[name], len(moves)) for name, ratio in ratios.items()}
    wrong = [name for name, step in steps.items() if step is not None and step != 1]
    if not wrong:
        return
    last = wrong[-1]
    fault = (
        faults.NO_CORRECTION
        if all(math.isinf(steps[name] or 0) for name in wrong)
        else faults.STEP_COUNTER
    )
    measured = say("first step of {name}: {ratio} rates", name=last, ratio=ratios[last])
    yield _fail(fault, wrong, measured, numbers, ratio=ratios[last], total=len(ratios))


def _judge_trial(trial: Trial, probe: Probe, numbers: dict[str, Any]) -> Iterator[CheckResult]:
    reference = max(trial.losses[0], ln(probe.vocab_size))
    finite = all(map(math.isfinite, trial.losses))
    ended = sorted(trial.losses[-3:])[1] if finite else math.nan  # the median
    facts: dict[str, Any] = {
        "first": trial.losses[0],
        "last": ended,
        "limit": RISE * reference,
        "rate": max(numbers["learning_rates"], default=0.0),
        "ratio": trial.ratios[1],
        "share": trial.moved_share,
    }
    losses = say("losses {shown}", shown=", ".join(f"{loss:.2f}" for loss in trial.losses))
    if not ended <= RISE * reference:
        exploded = not ended <= EXPLOSION * reference or not trial.ratios[1] <= RATIO_MAX
        yield _fail(faults.TOO_LARGE if exploded else faults.RISES, [], losses, numbers, **facts)
    if not trial.moved_share >= MOVED_SHARE_MIN:
        yield _fail(faults.ROUNDING, trial.still, _rates_text(numbers), numbers, **facts)
    if trial.still:
        yield _fail(faults.ROUNDING_SOME, trial.still, _rates_text(numbers), numbers)
    if not trial.ratios[1] >= RATIO_MIN:
        yield _fail(faults.TOO_SMALL, [], losses, numbers, **facts)


def _passed(moves: list[Move], trial: Trial, numbers: dict[str, Any]) -> CheckResult:
    return CheckResult(
        check="optimizer",
        status=Status.PASS,
        reason="optimizer.ok",
        claim=say(
            "one step moves all {count} parameters that have a gradient, downhill, by {ratio} of "
            "the weights' size; loss {first} -> {last} nats in {steps} steps",
            count=len(moves),
            ratio=trial.ratios[0],
            first=trial.losses[0],
            last=trial.losses[-1],
            steps=len(trial.ratios),
        ),
        measured=_rates_text(numbers),
        numbers=numbers,
    )


def _fail(
    fault: Fault,
    names: Sequence[str],
    measured: Text,
    numbers: dict[str, Any],
    *,
    causes: tuple[Text, ...] | None = None,
    **facts: Any,
) -> CheckResult:
    facts = {"count": len(names), **facts}
    return CheckResult(
        check="optimizer",
        status=fault.status,
        reason=fault.reason,
        claim=say(fault.claim, **facts),
        measured=measured,
        expected=say(fault.expected, **facts),
        where=say("{names}", names=_some(names)) if names else "",
        causes=tuple(say(cause, **facts) for cause in fault.causes) if causes is None else causes,
        next_step=say(fault.next_step, **facts),
        numbers={**numbers, "names": list(names)},
    )


def _describe(moves: list[Move]) -> dict[str, Any]:
    """Return the numbers that every verdict carries."""
    decayed = [m for m in moves if float(m.decay.abs().max()) > 0]
    return {
        "update_to_weight_by_name": {
            m.name: float(m.motion.norm() / m.weight.norm().clamp_min(1e-30)) for m in moves
        },
        "decayed_matrices": sum(m.weight.ndim >= 2 for m in decayed),
        "decayed_vectors": sum(m.weight.ndim < 2 for m in decayed),  # biases and gains of norms
    }


def _is_still(move: Move) -> bool:
    return not float(move.motion.abs().max()) > STILL * float(move.weight.abs().max())


def _moved_share(move: Move) -> float:
    """Return the share of elements with a gradient worth the name that moved."""
    wanted = move.gradient.abs() > SOME_GRADIENT * move.gradient.square().mean().sqrt()
    moved = move.motion.abs() > STILL * move.weight.abs().max()
    return float((moved & wanted).sum() / wanted.sum().clamp_min(1))


def _cosine(a: Tensor, b: Tensor) -> float:
    return float((a * b).sum() / (a.norm() * b.norm()).clamp_min(1e-30))


def _is_plain_adam(name: str) -> bool:
    """Whether a class name promises Adam's first step; some variants begin otherwise, by design."""
    variants = ("NAdam", "RAdam", "Adamax", "Mini", "8bit")
    return "adam" in name.lower() and not any(word in name for word in variants)


def _first_step_in_rates(move: Move) -> float | None:
    """Return the median size of the first step, in learning rates, where eps does not count."""
    rate, eps = rate_of(move.group), move.group.get("eps")
    if not rate or eps is None or "betas" not in move.group:
        return None
    clear = move.gradient.abs() > 1e4 * float(eps)
    return float(move.motion[clear].abs().median()) / abs(rate) if clear.any() else None


def _fitting_step(ratio: float, betas: tuple[float, float], count: int) -> float | None:
    """Return the step number at which Adam's first average would come out as large as `ratio`.

    Infinity stands for averages without correction; None for a size that fits nothing.
    """
    beta1, beta2 = (float(beta) for beta in betas)
    first, second = 1 - beta1, math.sqrt(1 - beta2)

    def fits(size: float) -> bool:
        return abs(ratio - size) < ADAM_TOLERANCE * size

    if fits(1.0):
        return 1
    if any(map(fits, (first / second, first, 1 / second))):  # neither, or only one, is corrected
        return math.inf
    for step in range(2, count + 3):
        if fits(first / (1 - beta1**step) / (second / math.sqrt(1 - beta2**step))):
            return step
    return None


def _rates_text(numbers: dict[str, Any]) -> Text:
    rates = sorted(set(numbers["learning_rates"]))
    return say("learning rate {rates}", rates=", ".join(f"{rate:g}" for rate in rates) or "unknown")


def _some(names: Sequence[str], most: int = 3) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
