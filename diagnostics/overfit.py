"""Overfit: a model that can learn at all memorises one batch, down to the floor of that batch.

Why it matters
    It is the cheapest test in which data, model, loss and gradients have to work together. A
    model that cannot learn 256 tokens by heart will not learn a million.

How it is measured
    A fresh model (a copy of the given one without make_model) learns one batch, at most 8 x 32
    tokens, with our own AdamW at 3e-3, gradients clipped to norm 1 and dropout off, and is
    thrown away. Where that falls short, a second rate is tried before judging. What counts is
    accuracy in eval mode, and 100 % of what is learnable: rows that begin alike and go on
    differently cannot both be right, so the ceiling of the accuracy and the floor of the loss
    are computed from the batch. Where the loss comes to rest is compared with what a model could
    reach that reads nothing (ln V, or the entropy of the targets), nothing but the position, or
    the last k tokens only.

What it cannot see
    Nearly every silent bug: a model without a mask or with misplaced positions memorises a batch
    as well, and so does one whose targets are wrong. Passing proves that learning is possible,
    not that the right thing is learnt. Your own optimizer and its rate are for `optimizer`.

Break it
    python -m exercises.break_overfit
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._batch_floor import Floor
from diagnostics._overfit_curve import (
    KNOWS_MAX,
    LARGE_SIZE,
    LEARNING_RATE,
    Curve,
    Limits,
    crop,
    is_memorised,
    measure_curve,
    measure_limits,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Batch, Probe, ln
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say

SLOWER, FASTER = 1 / 3, 10.0  # second try: after trouble, or while the loss still falls
NEAR_NATS = 0.1  # how close to a hypothesis the loss comes to rest; healthy floors: within 0.05


def check_overfit(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    steps: int = 300,
    learning_rate: float | None = None,
    make_optimizer: Callable[[nn.Module], Optimizer] | None = None,
    **parts: Any,
) -> CheckResult:
    """Check that a copy of the model memorises inputs (B, T) and targets (B, T).

    steps: upper bound; training stops once everything learnable is learnt.
    learning_rate, make_optimizer: train with these instead of AdamW at 3e-3; one try only.
    parts: other fields of Pipeline, such as make_model, forward or vocab_size.
    Raises ValueError when shapes differ, steps < 1 or no target is scored.
    """
    if inputs.ndim != 2 or inputs.shape != targets.shape:
        raise ValueError(
            f"inputs and targets must both have shape (B, T), "
            f"got {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
    probe = Probe(Pipeline(model, batch=(inputs, targets), **parts), overfit_steps=steps)
    return _check(probe, learning_rate, make_optimizer)


def run(probe: Probe) -> CheckResult:
    """Memorise the pipeline's batch (random tokens without one) with our own optimizer."""
    if not probe.scores_something:
        return _nothing_scored()
    return _check(probe, None, None)


def _check(
    probe: Probe,
    rate: float | None,
    make_optimizer: Callable[[nn.Module], Optimizer] | None,
) -> CheckResult:
    if probe.overfit_steps < 1:
        raise ValueError(f"steps must be at least 1, got {probe.overfit_steps}")
    probe.require_choice()
    batch = crop(probe)
    limits = measure_limits(probe, batch)
    with probe.model(fresh=True) as model:
        trainable = sum(p.numel() for p in model.parameters() if p.requires_grad)
        frozen = sum(p.numel() for p in model.parameters() if not p.requires_grad)
        if trainable == 0:
            return _frozen(frozen)
        with torch.enable_grad():
            if not probe.loss(model, batch)[1].requires_grad:
                return _no_gradient()
    usual = LEARNING_RATE * min(1.0, math.sqrt(LARGE_SIZE / trainable))
    first_rate = usual if rate is None else rate
    curve = measure_curve(probe, batch, limits, first_rate, make_optimizer)
    if rate is None and make_optimizer is None and not is_memorised(curve, limits):
        slow = curve.not_finite_at is None and curve.still_falls(limits.best.loss)
        factor = FASTER if slow else SLOWER
        second = measure_curve(probe, batch, limits, first_rate * factor, None)
        curve = max(curve, second, key=lambda attempt: attempt.rank)
    return _judge(curve, limits, batch, probe.pipeline.causal, trainable, frozen)


def _judge(
    curve: Curve, limits: Limits, batch: Batch, causal: bool, trainable: int, frozen: int
) -> CheckResult:
    first, last, accuracy = curve.losses[0], curve.losses[-1], curve.accuracies[-1]
    numbers = _numbers(curve, limits, batch) | {"trainable": trainable, "frozen": frozen}
    if causal and accuracy > limits.best.accuracy + 0.5 / limits.count:
        return _below_floor(curve, limits, numbers)
    if is_memorised(curve, limits):
        return _memorised(curve, limits, numbers)
    reason, status, claim, causes, next_step = _explain(curve, limits, trainable, frozen)
    return verdict(
        status,
        reason,
        claim,
        measured=say(
            "loss {first} -> {last} nats, {right} of {total:target|targets} right after "
            "{steps:step|steps}",
            first=first,
            last=last,
            right=round(accuracy * limits.count),
            total=limits.count,
            steps=curve.steps[-1],
        ),
        expected=say(
            "{right} of {total} right, which is all that this batch allows; loss floor {floor}",
            right=round(limits.best.accuracy * limits.count),
            total=limits.count,
            floor=limits.best.loss,
        ),
        causes=causes,
        next_step=next_step,
        numbers=numbers,
    )


def _numbers(curve: Curve, limits: Limits, batch: Batch) -> dict[str, Any]:
    return {
        "curve": {"step": curve.steps, "loss": curve.losses, "accuracy": curve.accuracies},
        "reported_loss": curve.reported,
        "steps": curve.steps[-1],
        "initial_loss": curve.losses[0],
        "final_loss": curve.losses[-1],
        "final_accuracy": curve.accuracies[-1],
        "learning_rate": curve.rate,
        "floor_loss": limits.best.loss,
        "ceiling_accuracy": limits.best.accuracy,
        "unigram_loss": limits.unigram.loss,
        "uniform_loss": ln(limits.V),
        "shape": list(batch.inputs.shape),
        "batch_source": batch.source,
    }


_Verdict = tuple[str, Status, Text, tuple[Text, ...], Text]


def _explain(curve: Curve, limits: Limits, trainable: int, frozen: int) -> _Verdict:
    """Read the curve; the first story that the numbers fit is told."""
    first, last = curve.losses[0], curve.losses[-1]
    way = max(first, ln(limits.V)) - limits.best.loss
    if curve.not_finite_at == 0:
        return _not_finite()
    if curve.not_finite_at is not None:
        return _diverged(
            say("the loss stops being a number at step {step}", step=curve.not_finite_at)
        )
    if curve.bound is not None:
        return _loss_is_bounded(curve, curve.bound)
    own_first, own_last = curve.reported[0], curve.reported[-1]
    if own_last < own_first - 0.5 * abs(own_first) and last > first - 0.25 * way:
        return _other_target(curve)
    lowest = min(range(len(curve.losses)), key=curve.losses.__getitem__)
    if last - curve.losses[lowest] > 0.25 * way:
        return _diverged(
            say(
                "the loss stands at {low} after step {step}, then rises to {last}",
                low=curve.losses[lowest],
                step=curve.steps[lowest],
                last=last,
            )
        )
    if not last < first - 0.05 * way:
        return _no_progress(curve, limits, way)
    knows_much = curve.accuracies[-1] >= 0.5 * limits.best.accuracy
    falling = curve.still_falls(limits.best.loss)
    if knows_much and last > limits.best.loss + KNOWS_MAX * way and not falling:
        return _loss_stays_high(curve, limits)
    return _reads_too_little(curve, limits) or _incomplete(curve, limits, trainable, frozen)


def _not_finite() -> _Verdict:
    return (
        "overfit.not_finite",
        Status.FAIL,
        say("the loss of one batch is not a finite number before the first step"),
        (),
        say("python -m diagnostics --only forward_hooks,loss"),
    )


def _diverged(claim: Text) -> _Verdict:
    return (
        "overfit.diverged",
        Status.FAIL,
        claim,
        (
            say("the learning rate is too high for this model"),
            say("a number overflows: half precision, a log of 0, a division by 0"),
        ),
        say("divide the learning rate by 10; if it still happens, look at the first bad module"),
    )


def _no_progress(curve: Curve, limits: Limits, way: float) -> _Verdict:
    uniform = abs(curve.losses[-1] - ln(limits.V)) < 0.05 * way
    return (
        "overfit.stuck_at_uniform" if uniform else "overfit.no_progress",
        Status.FAIL,
        say(
            "training on one batch leaves the loss at {last}, where it began{uniform}",
            last=curve.losses[-1],
            uniform=" (ln V, knowing nothing)" if uniform else "",
        ),
        (),
        say("print the norm of each parameter's gradient, and its change over one step"),
    )


def _loss_is_bounded(curve: Curve, bound: float) -> _Verdict:
    return (
        "overfit.loss_is_bounded",
        Status.FAIL,
        say(
            "the model's own loss stops at exactly {bound}, while its predictions score {honest}",
            bound=bound,
            honest=curve.losses[-1],
        ),
        (say("the loss is clamped: beyond its bound it has no gradient, and nothing is learnt"),),
        say("return the cross-entropy itself; to limit the steps, clip the gradient instead"),
    )


def _loss_stays_high(curve: Curve, limits: Limits) -> _Verdict:
    return (
        "overfit.loss_stays_high",
        Status.FAIL,
        say(
            "{share:%} of the learnable targets are right, and yet the loss rests at {last} nats",
            share=curve.accuracies[-1] / limits.best.accuracy,
            last=curve.losses[-1],
        ),
        (
            say("the model returns probabilities where logits are expected: the softmax is twice"),
            say("the logits are bounded by a scale or a cap that is too small"),
        ),
        say("print logits[0, 0]: values from 0 to 1 that sum to 1 are probabilities"),
    )


def _other_target(curve: Curve) -> _Verdict:
    return (
        "overfit.other_target",
        Status.FAIL,
        say(
            "the model's own loss falls to {own}, while its predictions of the targets score "
            "{honest}",
            own=curve.reported[-1],
            honest=curve.losses[-1],
        ),
        (say("the loss inside the model compares the logits with something else than targets"),),
        say("recompute cross_entropy(logits.flatten(0, 1), targets.flatten()) and compare"),
    )


def _reads_too_little(curve: Curve, limits: Limits) -> _Verdict | None:
    """Name the kind of context at whose floor the loss came to rest."""
    next_step = say("change one earlier input token and see whether the logits move")
    if _rests_at(curve, limits, limits.unigram):
        return (
            "overfit.stuck_at_unigram",
            Status.FAIL,
            say(
                "the loss rests at {last} nats, which counting the targets gives: no input is used",
                last=curve.losses[-1],
            ),
            (say("every position gets the same logits: the input does not reach the head"),),
            next_step,
        )
    if _rests_at(curve, limits, limits.position):
        return (
            "overfit.stuck_at_position",
            Status.FAIL,
            say(
                "the loss rests at {last} nats, which the position alone gives: no token is used",
                last=curve.losses[-1],
            ),
            (say("the token embedding does not reach the blocks, or is overwritten"),),
            next_step,
        )
    for k, floor in limits.windows.items():
        if _rests_at(curve, limits, floor):
            return (
                "overfit.short_context",
                Status.WARN,  # a bigram table and a window model are healthy designs
                say(
                    "the model memorises what the last {k:token tells|tokens tell}, no more: the "
                    "loss rests at {last} nats",
                    k=k,
                    last=curve.losses[-1],
                ),
                (
                    say("the model is built to read {k:token|tokens} back", k=k),
                    say(
                        "attention or recurrence passes nothing on: {k:token counts|tokens count}",
                        k=k,
                    ),
                ),
                say("if the model should read further, compare logits with a token changed"),
            )
    return None


def _rests_at(curve: Curve, limits: Limits, floor: Floor) -> bool:
    """Whether the curve has ended at this floor, which must differ from the batch's own."""
    if floor.loss - limits.best.loss < 2 * NEAR_NATS:
        return False
    near = -0.02 <= curve.losses[-1] - floor.loss <= NEAR_NATS
    return near and curve.accuracies[-1] <= floor.accuracy + 0.5 / limits.count


def _incomplete(curve: Curve, limits: Limits, trainable: int, frozen: int) -> _Verdict:
    falling = curve.still_falls(limits.best.loss)
    share = curve.accuracies[-1] / limits.best.accuracy
    causes: list[Text] = []
    if falling:
        causes.append(say("too few steps: the loss was still falling at the end"))
    if frozen:
        causes.append(say("{frozen:number|numbers} of the model are frozen", frozen=frozen))
    if curve.reported[-1] > curve.losses[-1] + 0.25 * (curve.losses[0] - curve.losses[-1]):
        causes.append(
            say(
                "training is noisier than eval mode (loss {train} against {quiet}): dropout that "
                "is written into forward",
                train=curve.reported[-1],
                quiet=curve.losses[-1],
            )
        )
    if trainable < 4 * limits.count:
        causes.append(
            say(
                "the model is small: {trainable:trainable number|trainable numbers} for "
                "{count:target|targets}",
                trainable=trainable,
                count=limits.count,
            )
        )
    return (
        "overfit.incomplete",
        Status.WARN if causes or share >= 0.9 else Status.FAIL,
        say(
            "the loss falls from {first} to {last} nats, but only {share:%} of the learnable "
            "targets are right",
            first=curve.losses[0],
            last=curve.losses[-1],
            share=share,
        ),
        tuple(causes),
        say("raise the steps (--overfit-steps 1000)")
        if falling
        else say("print the targets that stay wrong, with what stands before them"),
    )


def _below_floor(curve: Curve, limits: Limits, numbers: dict[str, Any]) -> CheckResult:
    return verdict(
        Status.FAIL,
        "overfit.below_floor",
        say("the model predicts more of the batch than the tokens before can tell"),
        measured=say("{right:%} of the targets right", right=curve.accuracies[-1]),
        expected=say(
            "at most {ceiling:%}: equal prefixes with different next tokens cannot all be right",
            ceiling=limits.best.accuracy,
        ),
        causes=(
            say("a prediction reads later tokens of its row"),
            say("rows of the batch read one another"),
        ),
        next_step=say("python -m diagnostics --explain causal_independence"),
        numbers=numbers,
    )


def _memorised(curve: Curve, limits: Limits, numbers: dict[str, Any]) -> CheckResult:
    return verdict(
        Status.PASS,
        "overfit.ok",
        say(
            "one batch is memorised after {steps:step|steps}: {right} of {total:target|targets}, "
            "all that can be learnt from it; most silent bugs pass this too",
            steps=curve.steps[-1],
            right=round(curve.accuracies[-1] * limits.count),
            total=limits.count,
        ),
        measured=say("loss {first} -> {last} nats", first=curve.losses[0], last=curve.losses[-1]),
        numbers=numbers,
    )


def _frozen(frozen: int) -> CheckResult:
    return verdict(
        Status.SKIP,
        "overfit.frozen",
        say(
            "not measured: the one number of the model is frozen"
            if frozen == 1
            else "not measured: all {frozen} numbers of the model are frozen",
            frozen=frozen,
        ),
        next_step=say("set requires_grad on what should learn, or give Pipeline make_model"),
        numbers={"trainable": 0, "frozen": frozen},
    )


def _nothing_scored() -> CheckResult:
    return verdict(
        Status.SKIP,
        "overfit.nothing_scored",
        say("not measured: the batch has no scored target, so that there is nothing to memorise"),
        next_step=say("print the targets of one batch, and what the loader sets to ignore_index"),
    )


def _no_gradient() -> CheckResult:
    return verdict(
        Status.FAIL,
        "overfit.no_gradient",
        say("the loss carries no gradient, so nothing can be learnt from it"),
        expected=say("loss.requires_grad is True"),
        causes=(say("no_grad, detach, item or NumPy stands between the weights and the loss"),),
        next_step=say("print logits.requires_grad, then loss.requires_grad"),
    )
