"""Accumulation: one step over micro-batches is one step on all their tokens.

Why it matters
    Micro-batches exist to save memory, and must not change what is learnt. A missing division
    makes the gradient K times too large, which Adam and clipping hide; a mean of means gives a
    token in a short micro-batch more weight than one in a long one.

How it is measured
    Your function gets windows of micro-batches with unequal numbers of scored tokens, on a copy
    with its dropout silenced. The gradient at the step is written as a sum of the micro-batches'
    own, and the weights of that sum tell the rule: equal weight per token, equal weight per
    micro-batch, one missing, and which divisor. Weights that fit no rule are compared with those
    that cutting the running sum after each micro-batch would leave. A window of repeated tokens
    with a large gradient, and the first window once more with a gradient made too small for any
    clipping, tell clipping from a factor; a shorter window, one with an empty micro-batch, and one
    in which a forward call gives NaN follow; a loop that skips the NaN must not count it as one of
    K.

What it cannot see
    Whether gradients are added or averaged where every gradient is brought to one norm: only their
    direction is left then. The order in which your loop cuts data into windows, and what it does
    with the rest of an epoch before this function sees it. The cause of uneven weights, unless it
    is such a cut to one norm. The divisor after a NaN that was skipped, where tokens are counted
    and not micro-batches. What other processes add: that is for `distributed`.

Break it
    python -m exercises.break_accumulation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from diagnostics import _accumulation_words as words
from diagnostics._fault import Fault, found
from diagnostics._optimizer_step import set_usual_rate
from diagnostics._overfit_curve import without_dropout
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._step_reading import EXACT, ROUGH, Reading, limit_of
from diagnostics._step_trial import Call, build_optimizers, call_recorded, fit, keeps_graph, norm
from diagnostics._step_verdicts import acts_on_mode, judge_modes
from diagnostics._step_windows import (
    SHRINK,
    Window,
    limit_inside,
    make_windows,
    nan_in_call,
    shrunk_gradients,
)
from diagnostics._text import say

PARTS = 4  # micro-batches per window where the pipeline does not say
PARTS_MAX = 16
NONE = 0.02  # weight of a micro-batch, over the largest: it is missing
SAME_LOSS, NEAR_LOSS = 1e-4, 0.02  # relative


def check_accumulation(
    model: nn.Module,
    make_optimizer: Callable[[nn.Module], Any],
    accumulate: Callable[..., Any],
    **parts: Any,
) -> CheckResult:
    """Check `accumulate(model, optimizer, [(inputs, targets), ...]) -> loss`: one step over all.

    parts: other fields of Pipeline, such as micro_batches (how many a full window holds), batch
    (where every target of it is scored, equal weight per micro-batch is a warning), or forward.
    """
    return run(
        Probe(Pipeline(model, make_optimizer=make_optimizer, accumulate=accumulate, **parts))
    )


def run(probe: Probe) -> CheckResult:
    """Step over four windows; the first fault counts."""
    if probe.pipeline.accumulate is None:
        raise MissingPartError("accumulate", why="there is no step over micro-batches")
    probe.require_choice()
    trial = measure_windows(probe)
    numbers = {
        "token_weights": [mix.token_weights for mix in trial.mixes],
        "norms_used": [norm(call.used) for call in trial.calls],
        "steps": [call.steps for call in trial.calls],
        "returned_losses": [call.loss for call in trial.calls],
    }
    warning: CheckResult | None = None
    for finding in _findings(trial, numbers):
        if finding.failed:
            return finding
        warning = finding if warning is None else warning
    return _passed(trial, numbers) if warning is None else warning


@dataclass(frozen=True)
class Mix:
    """How the gradient of one step is made up of the micro-batches' own.

    token_weights: of one scored token in each micro-batch, times all tokens; 1 when all is well.
    """

    token_weights: list[float]
    counts: list[int]
    stale: float
    misfit: float
    size: float

    @property
    def rule(self) -> str:
        """What the weights have in common: "tokens", "means", "missing" or "none"."""
        part_weights = [w * n for w, n in zip(self.token_weights, self.counts, strict=True)]
        if not all(map(math.isfinite, part_weights)):
            return "none"
        if min(map(abs, part_weights)) <= NONE * max(map(abs, part_weights)):
            return "missing"
        if _spread(self.token_weights) <= NONE:
            return "tokens"
        return "means" if _spread(part_weights) <= NONE else "none"

    @property
    def factor(self) -> float:
        """The gradient over the one that the rule would give, with the right divisor."""
        K, N = len(self.counts), sum(self.counts)
        if self.rule == "tokens":
            return sum(self.token_weights) / K
        part_weights = [w * n / N for w, n in zip(self.token_weights, self.counts, strict=True)]
        return sum(part_weights)  # K times the share of each, which ought to be 1 / K


@dataclass(frozen=True)
class Trial:
    """Windows, what was recorded, and how each gradient is made up."""

    windows: list[Window]
    calls: list[Call]
    mixes: list[Mix]
    may_differ: bool  # whether the user's micro-batches can score different numbers of tokens
    acts_on_mode: bool
    free: Mix | None  # of the first window once more, with a gradient too small to be clipped


def measure_windows(probe: Probe) -> Trial:
    """Step over the windows; one with a NaN counts only if the function steps around the NaN."""
    accumulate, micro = probe.pipeline.accumulate, probe.pipeline.micro_batches
    assert accumulate is not None
    K = min(PARTS_MAX, micro) if micro > 1 else PARTS
    calls: list[Call] = []
    mixes: list[Mix] = []
    windows: list[Window] = []
    with probe.model(train=True) as model, without_dropout(model):
        made, optimizers = build_optimizers(probe, model)
        set_usual_rate(probe, optimizers)
        for number, window in enumerate(make_windows(probe, model, K)):
            pairs = [(inputs.clone(), targets.clone()) for inputs, targets in window.pairs]
            step = partial(accumulate, model, made, pairs)
            with probe.seeded(f"window {number}"):
                if window.spoiled is None:
                    call: Call | None = call_recorded(model, optimizers, step)
                else:
                    call = _call_spoiled(model, optimizers, step, window)
            if call is None:
                continue
            windows.append(window)
            calls.append(call)
            mixes.append(_mix(call, window))
        acts = acts_on_mode(model)
    free = _mix_unclipped(probe, windows[0]) if mixes[0].size > 0 else None
    if free is not None and abs(free.size * SHRINK / mixes[0].size - 1) <= NONE:
        free = None  # a step that brings every gradient to one norm
    return Trial(windows, calls, mixes, _may_differ(probe), acts, free)


def _mix_unclipped(probe: Probe, window: Window) -> Mix | None:
    """Step over the first window with a tiny gradient; None where it is not a mix of its parts.

    window: of another copy before its first step, so that its gradients are this copy's as well.
    """
    accumulate = probe.pipeline.accumulate
    assert accumulate is not None
    with probe.model(train=True) as model, without_dropout(model):
        if any(p.dtype is torch.float16 for p in model.parameters()):
            return None  # tiny gradients are 0 there
        made, optimizers = build_optimizers(probe, model)
        set_usual_rate(probe, optimizers)
        pairs = [(inputs.clone(), targets.clone()) for inputs, targets in window.pairs]
        with probe.seeded("window 0"), shrunk_gradients(model):
            call = call_recorded(model, optimizers, partial(accumulate, model, made, pairs))
    call.used = {name: gradient / SHRINK for name, gradient in call.used.items()}
    mix = _mix(call, window)
    return mix if call.steps == 1 and mix.misfit <= ROUGH and mix.size > 0 else None


def _call_spoiled(
    model: nn.Module, optimizers: list[Any], step: Callable[[], Any], window: Window
) -> Call | None:
    """Make one forward call give NaN; None where the function does not step on the others alone."""
    with nan_in_call(model, window.spoiled) as forwards:
        try:
            call = call_recorded(model, optimizers, step)
        except Exception:  # any: to stop at a NaN is right, whatever the words
            return None
    one_each = len(forwards) == len(window.pairs)
    return call if one_each and call.steps == 1 and math.isfinite(norm(call.used)) else None


def _mix(call: Call, window: Window) -> Mix:
    counts = [count for count in window.counts if count]
    parts = [g for g, count in zip(window.gradients, window.counts, strict=True) if count]
    has_left = norm(call.left) > 1e-12 * max(map(norm, parts))
    best = fit(call.used, [*parts, call.left] if has_left else parts)
    weights = [factor * sum(counts) for factor in best.factors[: len(parts)]]
    stale = best.factors[-1] * norm(call.left) / max(norm(call.used), 1e-300) if has_left else 0.0
    return Mix(weights, counts, stale, best.misfit, norm(call.used))


def _may_differ(probe: Probe) -> bool:
    """Whether some target of the user's batch is not scored, or nothing is known of it."""
    try:
        targets = probe.raw_batch.targets
    except MissingPartError:
        return True
    ignored = bool((targets == probe.pipeline.ignore_index).any())
    return ignored or probe.pipeline.pad_id is not None


def _findings(trial: Trial, numbers: dict[str, Any]) -> Iterator[CheckResult]:
    """Judge in the order in which faults hide one another."""

    def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
        return found(fault, measured, numbers, **facts)

    yield from judge_modes(tell, words, trial.calls, trial.acts_on_mode)
    for judge in (_judge_steps, _judge_mixes):
        finding = judge(tell, trial)
        if finding is not None:
            yield finding
            return  # no mixture to judge any further
    yield from _judge_factor(tell, trial)
    yield from _judge_loss(tell, trial)
    if any(keeps_graph(call.returned) for call in trial.calls):
        yield tell(words.KEEPS_GRAPH, say("loss.requires_grad is True"))


def _judge_steps(tell: Callable[..., CheckResult], trial: Trial) -> CheckResult | None:
    steps = [call.steps for call in trial.calls]
    measured = say("steps per window: {steps}", steps=", ".join(map(str, steps)))
    if any(call.closure for call in trial.calls):
        return tell(words.CLOSURE, measured)
    if not any(steps):
        moved = any(call.moved for call in trial.calls)
        foreign = any(call.foreign_steps for call in trial.calls)
        fault = words.OTHER_OPTIMIZER if foreign else words.NO_STEP
        return tell(words.OWN_UPDATE if moved else fault, measured, calls=len(steps))
    if max(steps) > 1:
        return tell(words.STEPS_TWICE, measured, times=max(steps))
    if steps[0] and not all(steps):
        short = trial.windows[steps.index(0)]
        full = len(trial.windows[0].counts)
        return tell(words.PARTIAL_WINDOW, measured, parts=len(short.counts), full=full)
    return None


def _judge_mixes(tell: Callable[..., CheckResult], trial: Trial) -> CheckResult | None:
    """Judge how the first two windows, which are full, were mixed; NO_STEP is told before."""
    for number, mix in enumerate(trial.mixes[:2]):
        K = len(mix.counts)
        shown = say("weights per token: {w}", w=", ".join(f"{w:.3g}" for w in mix.token_weights))
        if not math.isfinite(mix.size):
            return tell(words.NOT_FINITE, say("norm {size}", size=mix.size))
        if mix.size == 0:
            return tell(words.CLEARED, shown)
        if not mix.misfit <= ROUGH:
            return tell(words.OTHER, shown, cosine=math.sqrt(max(0.0, 1 - mix.misfit**2)))
        if abs(mix.stale) > max(NONE, 2 * mix.misfit):
            return tell(words.NOT_CLEARED, shown, stale=mix.stale)
        limit = None
        if mix.rule in ("none", "missing"):
            call = trial.calls[number]
            limits = {norm(call.used), *(clip.limit for clip in call.clips)}
            limit = limit_inside(trial.windows[number], call.used, limits)
        if limit is not None:
            first, *_, last = mix.token_weights
            return tell(words.CLIPPED_INSIDE, shown, limit=limit, first=first, last=last)
        if mix.rule == "missing":
            largest = max(map(abs, mix.token_weights))
            lost = [k for k, w in enumerate(mix.token_weights) if abs(w) <= NONE * largest]
            fault = words.ONLY_LAST if lost == list(range(K - 1)) else words.DROPPED
            return tell(fault, shown, parts=K, count=len(lost), dropped=", ".join(map(str, lost)))
        if mix.rule == "none":
            return tell(
                words.UNEVEN, shown, low=min(mix.token_weights), high=max(mix.token_weights)
            )
    return None


def _judge_factor(tell: Callable[..., CheckResult], trial: Trial) -> Iterator[CheckResult]:
    """Judge the divisor, which clipping may hide, then the shorter windows."""
    full, parts = trial.mixes[0], len(trial.mixes[0].counts)
    judged = trial.mixes[:2] if trial.free is None else [trial.free]
    factors = [mix.factor for mix in judged]
    slack = max(EXACT, *(2 * mix.misfit for mix in trial.mixes[:2]))
    limit = limit_of([Reading("fits", m.factor, size=m.size) for m in trial.mixes[:2]])
    if limit is None and _spread([mix.size for mix in trial.mixes[:2]]) <= NONE:
        limit = full.size  # every gradient is brought to one norm, small ones too
    measured = say("factors {f}", f=", ".join(f"{factor:.4g}" for factor in factors))
    constant = abs(factors[0] / factors[-1] - 1) <= slack
    divisor_is_fixed = False
    if constant and abs(factors[0] - 1) > slack:
        factor = factors[0]
        facts = {"factor": factor, "parts": parts, "tokens": sum(full.counts)}
        known = {
            parts: words.NOT_DIVIDED,
            1 / parts: words.DIVIDED_TWICE,
            sum(full.counts): words.ACCUMULATED_SUM,
        }
        fault = next((f for k, f in known.items() if abs(factor / k - 1) <= slack), None)
        divisor = parts / factor
        divisor_is_fixed = full.rule == "means" and abs(divisor - round(divisor)) < 0.01 <= divisor
        if fault is None and divisor_is_fixed and divisor > 1.5:
            fault = words.FIXED_DIVISOR
        yield tell(fault or words.WRONG_SCALE, measured, divisor=round(divisor), **facts)
    elif not constant and limit is None and _spread([m.size for m in trial.mixes[:2]]) > NONE:
        yield tell(words.WRONG_SCALE, measured, factor=factors[0])
    if full.rule == "means":
        fault = words.MEAN_OF_MEANS if trial.may_differ else words.MEAN_OF_MEANS_HARMLESS
        yield tell(fault, measured, few=min(full.counts), many=max(full.counts))
    if not divisor_is_fixed:
        yield from _judge_short(tell, trial, limit, slack)


def _judge_short(
    tell: Callable[..., CheckResult], trial: Trial, limit: float | None, slack: float
) -> Iterator[CheckResult]:
    """Judge the window with fewer micro-batches, and the one with an empty micro-batch."""
    for window, mix in list(zip(trial.windows, trial.mixes, strict=True))[2:]:
        measured = say("factor {factor}", factor=mix.factor)
        empty = [k for k, count in enumerate(window.counts) if count == 0]
        if empty and not trial.may_differ and window.spoiled is None:
            continue  # cannot happen with batches that score every target
        if empty and not math.isfinite(mix.size):
            yield tell(words.NAN_ON_EMPTY, say("norm {size}", size=mix.size))
            continue
        clipped = limit is not None and abs(mix.size / limit - 1) <= NONE
        if clipped or abs(mix.factor - 1) <= slack or mix.rule not in ("tokens", "means"):
            continue
        spoiled = window.spoiled is not None
        if spoiled and mix.rule == "tokens":
            continue  # a loop that looks for NaN to find what scores nothing weighs tokens rightly
        if empty and any(math.isnan(window.losses[k]) for k in empty):
            fault = words.SPOILED_COUNTED if spoiled else words.SKIPPED_COUNTED
            yield tell(fault, measured, factor=mix.factor)
        elif not empty:
            divisor = round(len(mix.counts) / mix.factor)
            yield tell(words.FIXED_DIVISOR, measured, divisor=divisor, parts=len(mix.counts))


def _judge_loss(tell: Callable[..., CheckResult], trial: Trial) -> Iterator[CheckResult]:
    """Compare the returned loss of the first window with what it could be; a gap makes no NaN."""
    told, window = trial.calls[0].loss, trial.windows[0]
    if math.isnan(told):
        yield tell(
            words.NO_LOSS, say("returned {kind}", kind=type(trial.calls[0].returned).__name__)
        )
        return
    for call, other in zip(trial.calls, trial.windows, strict=True):
        gap = trial.may_differ and 0 in other.counts and other.spoiled is None
        if gap and math.isnan(call.loss) and math.isfinite(norm(call.used)):
            yield tell(words.NAN_LOSS_ON_EMPTY, say("returned {told}", told=call.loss))
    counts, losses, K = window.counts, window.losses, len(window.counts)
    wanted = sum(n * loss for n, loss in zip(counts, losses, strict=True)) / sum(counts)
    means = sum(losses) / K

    def near(value: float, tolerance: float = SAME_LOSS) -> bool:
        return abs(told - value) <= tolerance * max(1.0, abs(value))

    measured = say("returned {told}; mean over tokens {wanted}", told=told, wanted=wanted)
    if near(wanted) or near(means):  # the mean of means is judged by the gradient
        return
    if near(losses[-1]):
        yield tell(words.LOSS_LAST, measured)
        return
    scaled = [K * means, losses[-1] / K, wanted / K, means / K, wanted * sum(counts)]
    if any(near(value) for value in scaled):
        yield tell(words.LOSS_SCALED, measured, factor=told / wanted)
    elif not near(wanted, NEAR_LOSS):
        yield tell(words.LOSS_OTHER, measured, returned=told, wanted=wanted)


def _spread(values: list[float]) -> float:
    largest = max(map(abs, values))
    return (max(values) - min(values)) / largest if largest else math.inf


def _passed(trial: Trial, numbers: dict[str, Any]) -> CheckResult:
    mix = trial.mixes[0]
    return CheckResult(
        check="accumulation",
        status=Status.PASS,
        reason="accumulation.ok",
        claim=say(
            "one step over {parts} micro-batches has the gradient of their {tokens} tokens in one "
            "batch, each token with the same weight",
            parts=len(mix.counts),
            tokens=sum(mix.counts),
        ),
        measured=say(
            "weights per token: {weights}; misfit {misfit}",
            weights=", ".join(f"{weight:.4g}" for weight in mix.token_weights),
            misfit=mix.misfit,
        ),
        numbers=numbers,
    )
