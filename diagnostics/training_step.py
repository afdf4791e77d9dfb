"""Training step: the optimizer uses the gradient of this batch, once, and the loss says so.

Why it matters
    Four lines, zero_grad, backward, clip, step, work in any order without complaint. Adam
    divides by the size of the gradient, so that sums, stale gradients and lost scales still
    train, only worse, and the loss curve looks ordinary.

How it is measured
    Your step is called three times on a copy with its dropout silenced: on your batch, on random
    tokens, and on one repeated token, whose gradient is so large that clipping shows. A hook
    reads the gradient that the optimizer is about to use, and least squares says what it is made
    of: this batch's own gradient, as recomputed on the same weights, and what the last call left
    behind. One factor for all that cuts to a fixed norm is clipping, as is a limit on each
    element. What fits neither is compared with the gradients of usual mistakes. The modes of all
    modules, the number of steps and the returned loss are read on the way.

What it cannot see
    Clipping after the step where zero_grad(set_to_none=False) follows, or where hooks step during
    backward. A gradient computed inside step(closure). What your loop does outside the step:
    whether it draws new batches, when it evaluates, and which rate it sets. A scaled loss that is
    divided again correctly looks like none, as it should. A small auxiliary loss is reported as
    a difference, and whether it is intended is yours to say.

Break it
    python -m exercises.break_training_step
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from diagnostics import _step_words as words
from diagnostics._optimizer_faults import Fault
from diagnostics._optimizer_step import set_usual_rate
from diagnostics._overfit_curve import without_dropout
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._step_loss import judge_loss
from diagnostics._step_reading import (
    EXACT,
    Reading,
    cut_afterwards,
    describe,
    hypotheses,
    limit_of,
    read_gradient,
)
from diagnostics._step_trial import (
    ROWS,
    Call,
    Gradient,
    Pair,
    at_weights,
    build_optimizers,
    call_recorded,
    constant_pair,
    fit,
    keeps_graph,
    loss_now,
    random_pair,
    reference,
)
from diagnostics._text import say

CALLS, CALLS_MAX = 3, 9  # more calls only while no step is seen: the step may accumulate
LOW, TINY = 0.1, 0.01  # limits of clipping: recipes use 0.25 to 5
UNRELATED_MAX = 0.1  # cosine; a second loss of the same weight still leaves about 0.7
SCALER_MIN = 2**5  # a power of two from here on is a loss scale; accumulation stays below
NICE = (0.1, 0.25, 0.5, 1.0, 2.0, 5.0, 10.0)


def check_training_step(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], Any],
    train_step: Callable[..., Any],
    inputs: Tensor | None = None,
    targets: Tensor | None = None,
    **parts: Any,
) -> CheckResult:
    """Check what `train_step(model, optimizer, inputs, targets) -> loss` makes its optimizer do.

    inputs, targets: (B, T) of the first call; None: random tokens.
    parts: other fields of Pipeline, such as forward or vocab_size.
    Raises ValueError when only one of inputs and targets is given.
    """
    if (inputs is None) != (targets is None):
        raise ValueError("inputs and targets belong together, got only one of them")
    if inputs is not None and targets is not None:
        parts["batch"] = (inputs, targets)
    return run(
        Probe(Pipeline(model, make_optimizer=make_optimizer, train_step=train_step, **parts))
    )


def run(probe: Probe) -> CheckResult:
    """Call the step three times; judge modes, steps, gradient and loss; the first fault counts."""
    if probe.pipeline.train_step is None:
        raise MissingPartError("train_step", why="there is no training step to call")
    try:
        trial = measure_step(probe)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        measured = say("torch refused backward(): {error}", error=str(error).split(":")[0])
        return words.verdict("training_step", words.REFUSED, measured, {})
    numbers = {**describe(trial.readings), "losses": [c.loss for c in trial.calls]}
    numbers |= {"own_losses": trial.losses, "steps": [c.steps for c in trial.calls]}
    warning: CheckResult | None = None
    for finding in _findings(trial, numbers):
        if finding.failed:
            return finding
        warning = finding if warning is None else warning
    return _passed(trial, numbers) if warning is None else warning


@dataclass(frozen=True)
class Trial:
    """What was recorded, call by call; readings are empty when no step was seen."""

    calls: list[Call]
    readings: list[Reading]
    losses: list[float]  # of the model itself, before each call, and after the last
    losses_after: list[float]  # of each call's batch, after the call
    counts: list[int]  # scored targets of each batch
    noise: float  # how far two gradients of one batch differ, with dropout silenced
    acts_on_mode: bool  # whether some module behaves differently in eval mode


def measure_step(probe: Probe) -> Trial:
    """Call the user's step on one copy, and compare each gradient with the recomputed one."""
    with probe.model(train=True) as model, without_dropout(model):
        made, optimizers = build_optimizers(probe, model)
        set_usual_rate(probe, optimizers)
        pairs = _pairs(probe)
        calls, owns, losses, after = [], [], [], []
        for number in range(CALLS_MAX):
            pair = pairs[number] if number < CALLS else random_pair(probe, f"step {number}")
            pairs[number:] = [pair, *pairs[number + 1 :]]
            loss, own = reference(probe, model, pair)
            calls.append(_call(probe, model, made, optimizers, pair, number))
            owns.append(own)
            losses.append(loss)
            after.append(loss_now(probe, model, pair))
            if number >= CALLS - 1 and _is_settled(calls):
                break
        noise = _noise(probe, model, calls[0], owns[0], pairs[0])
        readings = [
            read_gradient(call, owns[n], noise, hypotheses(probe, model, calls, pairs, n))
            for n, call in enumerate(calls)
            if call.steps and not call.closure
        ]
        counts = [_scored(probe, targets) for _, targets in pairs[: len(calls)]]
        return Trial(calls, readings, losses, after, counts, noise, acts_on_mode(model))


def _is_settled(calls: list[Call]) -> bool:
    """Whether further calls would tell nothing new; calls without a step may be accumulating."""
    first = next((n for n, call in enumerate(calls) if call.steps), None)
    if first is None:
        return not any(call.left for call in calls[1:])
    return len(calls) >= 2 * (first + 1)


def _call(
    probe: Probe, model: nn.Module, made: Any, optimizers: list[Any], pair: Pair, number: int
) -> Call:
    step = probe.pipeline.train_step
    assert step is not None
    with probe.seeded(f"step {number}"):
        inputs, targets = (tensor.clone() for tensor in pair)
        return call_recorded(model, optimizers, lambda: step(model, made, inputs, targets))


def _pairs(probe: Probe) -> list[Pair]:
    """Return the user's batch (random tokens where it has a mask), random tokens, one token."""
    first = random_pair(probe, "step 0")
    if probe.batch.source != "synthetic" and probe.batch.attention_mask is None:
        batch = probe.batch.crop(ROWS, probe.probe_length, probe.pipeline.ignore_index)
        first = (batch.inputs.contiguous(), batch.targets.contiguous())
    return [first, random_pair(probe, "step 1"), constant_pair(probe)]


def _noise(probe: Probe, model: nn.Module, call: Call, own: Gradient, pair: Pair) -> float:
    """Return how far the gradient of one batch moves under another random state."""
    now = {n: p.detach().clone() for n, p in model.named_parameters()}
    at_weights(model, call.before)
    again = reference(probe, model, pair, seed="another step")[1]
    at_weights(model, now)
    return fit(again, [own]).misfit if own else 0.0


def _scored(probe: Probe, targets: Tensor) -> int:
    if probe.pipeline.labels == "same":
        targets = targets[:, 1:]
    return int((targets != probe.pipeline.ignore_index).sum())


def acts_on_mode(model: nn.Module) -> bool:
    """Whether some module computes something else in eval mode: dropout, batch norm, GRU."""
    kinds = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._NormBase, nn.RNNBase)
    return any(
        isinstance(m, kinds)
        or any("drop" in n and isinstance(v, float) for n, v in vars(m).items())
        for m in model.modules()
    )


def _findings(trial: Trial, numbers: dict[str, Any]) -> Iterator[CheckResult]:
    """Judge in the order in which faults hide one another."""

    def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
        return words.verdict("training_step", fault, measured, numbers, **facts)

    yield from judge_modes(tell, trial.calls, trial.acts_on_mode)
    finding = _judge_steps(tell, trial)
    if finding is not None:
        yield finding  # no gradient of a single batch was seen
    else:
        yield from judge_gradients(tell, trial.readings[1:] or trial.readings, trial)
    exact = bool(trial.readings) and all(r.exact for r in trial.readings)
    yield from judge_loss(
        tell, trial.calls, trial.losses, trial.losses_after, trial.counts, exact, trial.noise
    )
    if any(keeps_graph(call.returned) for call in trial.calls):
        yield tell(words.KEEPS_GRAPH, say("loss.requires_grad is True"))


def judge_modes(
    tell: Callable[..., CheckResult], calls: list[Call], acts_on_mode: bool
) -> Iterator[CheckResult]:
    """Judge the modes in which the forward calls with gradient ran."""
    paths = sorted({path for call in calls for path in call.eval_paths})
    if not paths:
        return
    shown = [path or "the model itself" for path in paths]
    measured = say("{count} module(s) with training=False", count=len(paths))
    if "" not in paths:
        yield tell(words.EVAL_MODE_PARTLY, measured, names=shown)
    elif acts_on_mode:
        yield tell(words.EVAL_MODE, measured, names=shown)
    else:
        yield tell(words.EVAL_MODE_HARMLESS, measured, names=shown)


def _judge_steps(tell: Callable[..., CheckResult], trial: Trial) -> CheckResult | None:
    """Return the verdict where there is not one ordinary step per call."""
    calls = trial.calls
    stepped = [n for n, call in enumerate(calls) if call.steps]
    measured = say("{steps} step(s) in {calls} calls", steps=len(stepped), calls=len(calls))
    if not stepped:
        if any(call.moved for call in calls):
            return tell(words.OWN_UPDATE, measured)
        foreign = any(call.foreign_steps for call in calls)
        fault = words.OTHER_OPTIMIZER if foreign else words.NO_STEP
        return tell(fault, measured, calls=len(calls))
    if any(call.closure for call in calls):
        return tell(words.CLOSURE, measured)
    most = max(call.steps for call in calls)
    if most > 1:
        measured = say("{most} steps in one call", most=most)
        return tell(words.STEPS_TWICE, measured, times=most)
    if stepped != list(range(stepped[0], len(calls))):  # a scaler may skip the first calls
        return tell(words.ACCUMULATES, measured, calls=stepped[0] + 1)
    per_call = [{id(s) for s in call.steppers} for call in calls if call.steps]
    renewed = len(per_call) > 1 and not (per_call[0] & per_call[1])
    if renewed and any(s.state for call in calls for s in call.steppers):
        return tell(words.NEW_OPTIMIZER, say("a new object in each of {n} calls", n=len(per_call)))
    return None


def judge_gradients(
    tell: Callable[..., CheckResult], readings: list[Reading], trial: Trial
) -> Iterator[CheckResult]:
    """Judge what the optimizer used; the first call has no predecessor and is left out."""
    for reading in readings:
        finding = _judge_kind(tell, reading, trial)
        if finding is not None:
            yield finding
            return
    sign = -1.0 if any(call.maximize for call in trial.calls) else 1.0
    fitting = [r for r in trial.readings if r.kind == "fits"]
    scales = [sign * r.scale for r in fitting]
    if fitting and min(scales) < 0:
        yield tell(words.UPHILL, say("factor {scale}", scale=min(scales)))
    elif fitting and sign > 0:
        yield from _judge_scale(tell, fitting, trial.counts)
    cut = cut_afterwards([call for call in trial.calls if call.steps])
    if cut is not None:
        limit, size = cut
        measured = say("norm {size} at the step, {limit} afterwards", size=size, limit=limit)
        yield tell(words.CLIP_AFTER, measured, limit=limit, norm=size)


def _judge_kind(
    tell: Callable[..., CheckResult], reading: Reading, trial: Trial
) -> CheckResult | None:
    """Return the verdict on one gradient that is not the batch's own up to a factor."""
    sizes = say("norm {used}, the batch's own {own}", used=reading.size, own=reading.own_size)
    if reading.kind in ("fits", "by_value", "no_own_gradient"):
        return None
    if reading.kind == "none":
        if not any(call.forwards for call in trial.calls):
            fault = words.OTHER_MODEL
        elif any(call.backward_first for call in trial.calls):
            fault = words.CLEARED
        else:
            after = any(call.backward_after for call in trial.calls)
            fault = words.BEFORE_BACKWARD if after else words.NO_GRADIENT
        return tell(fault, sizes)
    named = {
        "not_finite": words.NOT_FINITE,
        "stale": words.STALE,
        "not_cleared": words.NOT_CLEARED,
        "partial": words.PARTIAL,
        "extra": words.EXTRA,
        "per_parameter": words.CLIP_PARAMETERS,
        "per_parameter_own": words.RESCALED_PARAMETERS,
        **words.HYPOTHESES,
    }
    fault = named.get(reading.kind, words.OTHER)
    if reading.kind == "other" and trial.noise < EXACT and reading.cosine < UNRELATED_MAX:
        fault = words.UNRELATED
    measured = say("{sizes}; misfit {misfit}", sizes=sizes, misfit=reading.misfit)
    return tell(
        fault,
        measured,
        names=reading.names,
        stale=reading.stale,
        decay=reading.decay,
        cosine=reading.cosine,
    )


def _judge_scale(
    tell: Callable[..., CheckResult], readings: list[Reading], counts: list[int]
) -> Iterator[CheckResult]:
    """Judge factors on the gradient: clipping cuts to one norm, a constant has another cause."""
    scales = [reading.scale for reading in readings]
    slack = max(EXACT, *(2 * reading.misfit for reading in readings))
    if all(abs(scale - 1) <= slack for scale in scales):
        return
    measured = say("factors {scales}", scales=", ".join(f"{scale:.4g}" for scale in scales))
    limit = limit_of(readings)
    if max(scales) <= (1 + slack) * min(scales) and len(scales) > 1:
        scale = sum(scales) / len(scales)
        power = math.log2(scale)
        if any(abs(scale / count - 1) <= slack for count in counts):
            yield tell(words.SUM, measured, scale=scale)
        elif scale >= SCALER_MIN and abs(power - round(power)) <= 2 * slack:
            yield tell(words.NOT_UNSCALED, measured, scale=scale)
        else:
            yield tell(words.SCALED, measured, scale=scale)
    elif limit is None:
        yield tell(words.CHANGES, measured, low=min(scales), high=max(scales))
    elif limit < LOW:
        factor, nice = _as_fraction(limit)
        if factor:
            fault = words.CLIP_BEFORE_UNSCALE
        else:
            fault = words.CLIP_TINY if limit < TINY else words.CLIP_LOW
        yield tell(fault, measured, limit=limit, factor=factor, nice=nice)


def _as_fraction(limit: float) -> tuple[int, float]:
    """Return (S, limit * S) where that is a usual limit and S a loss scale; (0, 0) otherwise."""
    for exponent in range(5, 25):
        for nice in NICE:
            if abs(limit * 2**exponent / nice - 1) < 1e-3:
                return 2**exponent, nice
    return 0, 0.0


def _passed(trial: Trial, numbers: dict[str, Any]) -> CheckResult:
    limit = limit_of(trial.readings)
    by_value = any(r.kind == "by_value" for r in trial.readings)
    how = "as it is"
    if by_value:
        how = "with each element cut to a limit"
    elif limit is not None:
        how = f"cut to a norm of {limit:.4g}"
    return CheckResult(
        check="training_step",
        status=Status.PASS,
        reason="training_step.ok",
        claim=say(
            "each call steps once, with the gradient of its own batch, {how}, and returns the loss "
            "of that batch",
            how=how,
        ),
        measured=say(
            "factors {scales}; largest misfit {misfit}",
            scales=", ".join(f"{r.scale:.4g}" for r in trial.readings),
            misfit=max((r.misfit for r in trial.readings), default=0.0),
        ),
        numbers={**numbers, "clip_limit": limit, "noise": trial.noise},
    )
