"""Training step: the optimizer uses the gradient of this batch, once, and the loss says so.

Why it matters
    Four lines, zero_grad, backward, clip, step, work in any order without complaint. Adam
    divides by the size of the gradient, so that sums, stale gradients and lost scales still
    train, only worse, and the loss curve looks ordinary.

How it is measured
    Your step is called three times on a copy with its dropout silenced: on your batch, on random
    tokens, and on one repeated token, whose gradient is so large that clipping shows; then up to
    nine times where some call makes no step, to tell accumulation from a limit on the size. A hook
    reads the gradient that the optimizer is about to use, and least squares says what it is made
    of: this batch's own gradient, as recomputed on the same weights, and what the last call left
    behind. One factor for all that cuts to a fixed norm is clipping, as is a limit on each
    element. What fits neither is compared with the gradients of usual mistakes. The modes of all
    modules, the number of steps, what clip_grad_norm_ finds when it is called, and the returned
    loss are read on the way, and whether the graphs of all calls are still held in the end.

What it cannot see
    Clipping by code of your own after the step, where zero_grad(set_to_none=False) follows or hooks
    step during backward. A gradient computed inside step(closure). A loss scale that goes wrong
    only when it grows, if it does not grow within three calls. What a limit above the norm of the
    repeated token leaves behind when it skips a step. What your loop does outside the step: whether
    it draws new batches, when it evaluates, and which rate it sets. A scaled loss that is divided
    again correctly looks like none, as it should. A small auxiliary loss is reported as a
    difference, and whether it is intended is yours to say. Of a model with noise of its own,
    besides dropout, the gradient is known as long as your step draws nothing before it.

Break it
    python -m exercises.break_training_step
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from diagnostics import _step_words as words
from diagnostics._fault import Fault, found
from diagnostics._optimizer_step import set_usual_rate
from diagnostics._overfit_curve import without_dropout
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._step_loss import judge_loss
from diagnostics._step_reading import (
    EXACT,
    describe,
    hypotheses,
    limit_of,
    read_gradient,
)
from diagnostics._step_skips import add_up, are_from_some_call_on, judge_skips, period_of
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
    norm,
    random_pair,
    reference,
)
from diagnostics._step_verdicts import Trial, acts_on_mode, judge_gradients, judge_modes
from diagnostics._step_windows import shrunk_gradients
from diagnostics._text import say

CALLS, CALLS_MAX = 3, 9  # more calls only while no step is seen: the step may accumulate


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
    probe.require_choice()
    try:
        trial = measure_step(probe)
    except RuntimeError as error:
        if "modified by an inplace operation" not in str(error):
            raise
        measured = say("torch refused backward(): {error}", error=str(error).split(":")[0])
        return found(words.REFUSED, measured, {})
    numbers = {**describe(trial.readings), "losses": [c.loss for c in trial.calls]}
    numbers |= {"own_losses": trial.losses, "steps": [c.steps for c in trial.calls]}
    warning: CheckResult | None = None
    for finding in _findings(trial, numbers):
        if finding.failed:
            return finding
        warning = finding if warning is None else warning
    return _passed(trial, numbers) if warning is None else warning


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
            # the seed of the call itself: what the model draws besides dropout is drawn alike
            loss, own = reference(probe, model, pair, seed=f"step {number}")
            calls.append(_call(probe, model, made, optimizers, pair, number))
            owns.append(own)
            losses.append(loss)
            after.append(loss_now(probe, model, pair))
            if number >= CALLS - 1 and _is_settled(calls):
                break
        noise = _noise(probe, model, calls[0], owns[0], pairs[0])
        readings = []
        for n, call in enumerate(calls):
            if call.steps and not call.closure:
                others = hypotheses(probe, model, calls, pairs, n)
                readings.append(replace(read_gradient(call, owns[n], noise, others), call=n))
        small = not any(call.steps for call in calls)
        small = small and _steps_when_small(probe, model, made, optimizers)
        return Trial(
            calls,
            readings,
            losses,
            after,
            [_scored(probe, targets) for _, targets in pairs[: len(calls)]],
            noise,
            acts_on_mode(model),
            [norm(own) for own in owns],
            (CALLS - 1,),
            small,
            add_up(calls, owns),
        )


def _steps_when_small(probe: Probe, model: nn.Module, made: Any, optimizers: list[Any]) -> bool:
    """Whether two calls in a row step when nothing was left and their gradients are tiny."""
    for number in range(2):  # one alone may be the last call of a long accumulation
        for parameter in model.parameters():
            parameter.grad = None
        with shrunk_gradients(model):
            pair = random_pair(probe, f"step {number}")
            if not _call(probe, model, made, optimizers, pair, number).steps:
                return False
    return True


def _is_settled(calls: list[Call]) -> bool:
    """Whether further calls would tell nothing new; calls without a step may be accumulating."""
    stepped = [n for n, call in enumerate(calls) if call.steps]
    if not stepped:
        return not any(call.left for call in calls[1:])
    if not are_from_some_call_on(stepped, len(calls)):
        return False  # by a regular count, or by the size of the gradient: many calls tell
    return len(calls) >= 2 * (stepped[0] + 1)


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
    """Return how far the gradient of one batch moves under another random state.

    0 where the step draws what the recomputed gradient draws, so that nothing has to be excused.
    """
    if call.used and fit(call.used, [own]).misfit <= EXACT:
        return 0.0
    now = {n: p.detach().clone() for n, p in model.named_parameters()}
    at_weights(model, call.before)
    again = reference(probe, model, pair, seed="another step")[1]
    at_weights(model, now)
    return fit(again, [own]).misfit if own else 0.0


def _scored(probe: Probe, targets: Tensor) -> int:
    if probe.pipeline.labels == "same":
        targets = targets[:, 1:]
    return int((targets != probe.pipeline.ignore_index).sum())


def _findings(trial: Trial, numbers: dict[str, Any]) -> Iterator[CheckResult]:
    """Judge in the order in which faults hide one another."""

    def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
        return found(fault, measured, numbers, **facts)

    yield from judge_modes(tell, words, trial.calls, trial.acts_on_mode)
    finding = _judge_steps(tell, trial)
    if finding is not None:
        yield finding  # no gradient of a single batch was seen
    else:
        if not all(call.steps for call in trial.calls):
            yield from judge_skips(tell, trial)
        later = [reading for reading in trial.readings if reading.call > 0]
        yield from judge_gradients(tell, later or trial.readings, trial)
    exact = bool(trial.readings) and all(r.exact for r in trial.readings)
    yield from judge_loss(
        tell, trial.calls, trial.losses, trial.losses_after, trial.counts, exact, trial.noise
    )
    if any(call.autocast for call in trial.calls):
        yield tell(words.AUTOCAST, say("torch.is_autocast_enabled() is True at step()"))
    if any(keeps_graph(call.returned) for call in trial.calls):
        yield tell(words.KEEPS_GRAPH, say("loss.requires_grad is True"))
    elif all(call.graph_is_alive() for call in trial.calls):  # one alone may be a last loss
        yield tell(
            words.GRAPHS_PILE_UP,
            say("{n} of {n} graphs are still held", n=len(trial.calls)),
            count=len(trial.calls),
        )


def _judge_steps(tell: Callable[..., CheckResult], trial: Trial) -> CheckResult | None:
    """Return the verdict where there is not one ordinary step per call."""
    calls = trial.calls
    stepped = [n for n, call in enumerate(calls) if call.steps]
    measured = say("{steps:step|steps} in {calls} calls", steps=len(stepped), calls=len(calls))
    if not stepped:
        if any(call.moved for call in calls):
            return tell(words.OWN_UPDATE, measured)
        if trial.steps_when_small:
            fault = words.SKIPS_PILE_UP if trial.adds_up else words.SKIPS_ALL
            return tell(fault, measured, calls=len(calls))
        foreign = any(call.foreign_steps for call in calls)
        fault = words.OTHER_OPTIMIZER if foreign else words.NO_STEP
        return tell(fault, measured, calls=len(calls))
    if any(call.closure for call in calls):
        return tell(words.CLOSURE, measured)
    most = max(call.steps for call in calls)
    if most > 1:
        measured = say("{most} steps in one call", most=most)
        return tell(words.STEPS_TWICE, measured, times=most)
    period = period_of(stepped, len(calls))
    if period is not None and not are_from_some_call_on(stepped, len(calls)):
        return tell(words.ACCUMULATES, measured, calls=period)
    per_call = [{id(s) for s in call.steppers} for call in calls if call.steps]
    renewed = len(per_call) > 1 and not (per_call[0] & per_call[1])
    if renewed and any(s.state for call in calls for s in call.steppers):
        return tell(words.NEW_OPTIMIZER, say("a new object in each of {n} calls", n=len(per_call)))
    return None


def _passed(trial: Trial, numbers: dict[str, Any]) -> CheckResult:
    limit = limit_of(trial.readings)
    by_value = any(r.kind == "by_value" for r in trial.readings)
    skipped = sum(not call.steps for call in trial.calls)
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
            "each {what}, with the gradient of its own batch, {how}, and returns the loss of that "
            "batch",
            what="call steps once" if skipped == 0 else "call that steps does so once",
            how=how,
        ),
        measured=say(
            "factors {scales}; largest misfit {misfit}{skipped}",
            skipped="" if skipped == 0 else f"; {skipped} of {trial.count} calls make no step",
            scales=", ".join(f"{r.scale:.4g}" for r in trial.readings),
            misfit=max((r.misfit for r in trial.readings), default=0.0),
        ),
        numbers={**numbers, "clip_limit": limit, "noise": trial.noise},
    )
