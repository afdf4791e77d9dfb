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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._batch_floor import (
    Floor,
    last_tokens,
    measure_floor,
    nothing,
    position_only,
    whole_prefix,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Batch, Probe, ln
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

LEARNING_RATE = 3e-3  # measured on debug models: median 40 steps, worst 50; 2e-2 fails
LARGE_SIZE = 1e6  # parameters beyond which the rate falls with the root of the size (10M: 1e-3)
SLOWER, FASTER = 1 / 3, 10.0  # second try: after trouble, or while the loss still falls
ROWS_MAX, TOKENS_MAX = 8, 32
WORK_MAX = 3e12  # multiplications of a whole attempt, about half a minute of one CPU core
LOOK_EVERY = 5  # steps between two looks: each look waits for the numbers
PATIENCE = 100  # steps without visible progress after which an attempt ends
PROGRESS_MIN = 0.005  # of the way from the first loss to the floor
NEAR_NATS = 0.1  # how close to a hypothesis the loss comes to rest; healthy floors: within 0.05
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16)  # lengths k of the contexts that are tried as explanations
KNOWS_MAX = 0.6  # of the way from ln V to the floor: loss at full accuracy, healthy at most 0.4


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
    return _check(probe, None, None)


@dataclass
class Curve:
    """One attempt. Lists are per look, losses in nats per token."""

    rate: float
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # recomputed from the logits, eval mode
    accuracies: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)  # the model's own loss, train mode
    not_finite_at: int | None = None  # the first step whose loss is not a number
    gave_up: bool = False  # nothing had moved for PATIENCE steps

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Order of success among attempts."""
        return (self.not_finite_at is None, self.accuracies[-1], -self.losses[-1])

    @property
    def bound(self) -> float | None:
        """The value that the model's own loss takes again and again, whatever the honest one is."""
        pairs = list(zip(self.reported, self.losses, strict=True))[1:]
        again = [own for own, honest in pairs if abs(own - honest) > 1e-3]
        return next((own for own in again if again.count(own) >= 3), None)

    def still_falls(self, floor: float) -> bool:
        """Whether the second half still made visible progress when the steps were up."""
        if self.gave_up:
            return False
        half = self.losses[len(self.losses) // 2]
        return half - self.losses[-1] > 0.05 * max(half - floor, 1e-9)


@dataclass(frozen=True)
class Limits:
    """What the batch allows, and what models that read less of it could reach."""

    V: int
    count: int  # scored targets
    best: Floor
    unigram: Floor
    position: Floor
    windows: dict[int, Floor]


def _check(
    probe: Probe,
    rate: float | None,
    make_optimizer: Callable[[nn.Module], Optimizer] | None,
) -> CheckResult:
    if probe.overfit_steps < 1:
        raise ValueError(f"steps must be at least 1, got {probe.overfit_steps}")
    batch = _crop(probe)
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
    if rate is None and make_optimizer is None and not _is_memorised(curve, limits):
        slow = curve.not_finite_at is None and curve.still_falls(limits.best.loss)
        factor = FASTER if slow else SLOWER
        second = measure_curve(probe, batch, limits, first_rate * factor, None)
        curve = max(curve, second, key=lambda attempt: attempt.rank)
    return _judge(curve, limits, batch, probe.pipeline.causal, trainable, frozen)


def measure_limits(probe: Probe, batch: Batch) -> Limits:
    """Compute floors and ceilings of the batch (B, T) by counting."""
    ignore = probe.pipeline.ignore_index
    inputs, targets = batch.inputs, batch.targets
    if probe.pipeline.labels == "same":
        inputs, targets = inputs[:, :-1], targets[:, 1:]

    def floor(context: Any) -> Floor:
        return measure_floor(inputs, targets, context, ignore)

    return Limits(
        V=probe.vocab_size,
        count=int((targets != ignore).sum()),
        best=floor(whole_prefix),
        unigram=floor(nothing),
        position=floor(position_only),
        windows={k: floor(last_tokens(k)) for k in WINDOWS if k < inputs.shape[1]},
    )


def measure_curve(
    probe: Probe,
    batch: Batch,
    limits: Limits,
    rate: float,
    make_optimizer: Callable[[nn.Module], Optimizer] | None,
) -> Curve:
    """Train until everything learnable is learnt, nothing moves any more, or the steps are up."""
    curve = Curve(rate)
    with (
        probe.seeded("overfit"),
        torch.enable_grad(),
        probe.model(train=True, fresh=True) as model,
    ):
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = make_optimizer(model) if make_optimizer else _adamw(parameters, rate)
        with without_dropout(model):
            _look(probe, model, batch, curve, 0, [])
            pending: list[Tensor] = []
            for step in range(1, probe.overfit_steps + 1):
                optimizer.zero_grad(set_to_none=True)
                loss = probe.loss(model, batch)[1]
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                pending.append(loss.detach())
                if step % LOOK_EVERY == 0 or step == probe.overfit_steps:
                    _look(probe, model, batch, curve, step, pending)
                    pending = []
                    curve.gave_up = _has_stalled(curve, limits)
                    if curve.not_finite_at or curve.gave_up or _is_memorised(curve, limits):
                        break
    return curve


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set every dropout probability that a module holds to 0, and put it back.

    Also the plain numbers that functional dropout reads, such as `self.dropout = 0.1`.
    """
    changed: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        for name, value in vars(module).items():
            is_rate = "drop" in name or (
                name == "p" and isinstance(module, nn.modules.dropout._DropoutNd)
            )
            if is_rate and isinstance(value, float):
                changed.append((module, name, value))
    try:
        for module, name, _ in changed:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def _look(
    probe: Probe, model: nn.Module, batch: Batch, curve: Curve, step: int, pending: list[Tensor]
) -> None:
    """Add one point to the curve; the only place that waits for numbers."""
    model.eval()
    with torch.no_grad():
        logits = probe.adapter.logits(model, batch.inputs, batch.attention_mask)
        loss = probe.adapter.cross_entropy(logits, batch.targets)
        targets = batch.targets
        if probe.pipeline.labels == "same":
            logits, targets = logits[:, :-1], targets[:, 1:]
        scored = targets != probe.pipeline.ignore_index
        right = (logits.argmax(-1) == targets)[scored].double().mean()
    model.train()
    reported = torch.stack(
        [part.double().reshape(-1).mean() for part in pending] or [loss.double()]
    )
    curve.steps.append(step)
    curve.losses.append(float(loss))
    curve.accuracies.append(float(right))
    curve.reported.append(float(reported[-1]))
    broken = torch.nonzero(~torch.isfinite(reported)).flatten()
    if len(broken) and pending:
        curve.not_finite_at = step - len(pending) + 1 + int(broken[0])
    elif not math.isfinite(curve.losses[-1]):
        curve.not_finite_at = step


def _is_memorised(curve: Curve, limits: Limits) -> bool:
    """Everything learnable is right, and the loss knows it too."""
    if curve.not_finite_at is not None:
        return False
    start = max(ln(limits.V), limits.best.loss)
    loss_max = limits.best.loss + KNOWS_MAX * (start - limits.best.loss)
    enough = curve.accuracies[-1] >= limits.best.accuracy - 1e-9
    return enough and curve.losses[-1] <= loss_max


def _has_stalled(curve: Curve, limits: Limits) -> bool:
    """Whether neither loss nor accuracy has moved visibly for PATIENCE steps."""
    before = [n for n, step in enumerate(curve.steps) if step <= curve.steps[-1] - PATIENCE]
    if not before:
        return False
    cut = before[-1] + 1
    gained = min(curve.losses[:cut]) - min(curve.losses[cut:])
    way = max(curve.losses[0], ln(limits.V)) - limits.best.loss
    more_right = max(curve.accuracies[cut:]) - max(curve.accuracies[:cut])
    return not (gained > PROGRESS_MIN * way or more_right > PROGRESS_MIN)


def _judge(
    curve: Curve, limits: Limits, batch: Batch, causal: bool, trainable: int, frozen: int
) -> CheckResult:
    first, last, accuracy = curve.losses[0], curve.losses[-1], curve.accuracies[-1]
    numbers: dict[str, Any] = {
        "curve": {"step": curve.steps, "loss": curve.losses, "accuracy": curve.accuracies},
        "reported_loss": curve.reported,
        "steps": curve.steps[-1],
        "initial_loss": first,
        "final_loss": last,
        "final_accuracy": accuracy,
        "learning_rate": curve.rate,
        "floor_loss": limits.best.loss,
        "ceiling_accuracy": limits.best.accuracy,
        "unigram_loss": limits.unigram.loss,
        "uniform_loss": ln(limits.V),
        "shape": list(batch.inputs.shape),
        "trainable": trainable,
        "frozen": frozen,
        "batch_source": batch.source,
    }
    if causal and accuracy > limits.best.accuracy + 0.5 / limits.count:
        return _below_floor(curve, limits, numbers)
    if _is_memorised(curve, limits):
        return _memorised(curve, limits, numbers)
    reason, status, claim, causes, next_step = _explain(curve, limits, trainable, frozen)
    return CheckResult(
        check="overfit",
        status=status,
        reason=reason,
        claim=claim,
        measured=say(
            "loss {first} -> {last}, {right} of {total} targets right after {steps} steps",
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


_Verdict = tuple[str, Status, Text, tuple[Text, ...], Text]


def _explain(curve: Curve, limits: Limits, trainable: int, frozen: int) -> _Verdict:
    """Read the curve; the first story that the numbers fit is told."""
    first, last = curve.losses[0], curve.losses[-1]
    way = max(first, ln(limits.V)) - limits.best.loss
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
            "{share} of the learnable targets are right, and yet the loss rests at {last}",
            share=f"{100 * curve.accuracies[-1] / limits.best.accuracy:.1f} %",
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
                "the loss rests at {last}, which counting the targets gives: no input is used",
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
                "the loss rests at {last}, which the position alone gives: no token is used",
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
                    "the model memorises what the last {k} token(s) tell (loss {last}), no more",
                    k=k,
                    last=curve.losses[-1],
                ),
                (
                    say("the model is built to read {k} token(s) back", k=k),
                    say("attention or recurrence passes nothing on, so only {k} count(s)", k=k),
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
        causes.append(say("{frozen} numbers of the model are frozen", frozen=frozen))
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
                "the model is small: {trainable} trainable numbers for {count} targets",
                trainable=trainable,
                count=limits.count,
            )
        )
    return (
        "overfit.incomplete",
        Status.WARN if causes or share >= 0.9 else Status.FAIL,
        say(
            "the loss falls from {first} to {last}, but only {share} of the learnable targets "
            "are right",
            first=curve.losses[0],
            last=curve.losses[-1],
            share=f"{100 * share:.1f} %",
        ),
        tuple(causes),
        say("raise the steps (--overfit-steps 1000)")
        if falling
        else say("print the targets that stay wrong, with what stands before them"),
    )


def _below_floor(curve: Curve, limits: Limits, numbers: dict[str, Any]) -> CheckResult:
    return CheckResult(
        check="overfit",
        status=Status.FAIL,
        reason="overfit.below_floor",
        claim=say("the model predicts more of the batch than the tokens before can tell"),
        measured=say("{right} of targets right", right=curve.accuracies[-1]),
        expected=say(
            "at most {ceiling}: equal prefixes with different next tokens cannot all be right",
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
    return CheckResult(
        check="overfit",
        status=Status.PASS,
        reason="overfit.ok",
        claim=say(
            "one batch is memorised after {steps} steps: {right} of {total} targets, all that can "
            "be learnt from it; most silent bugs pass this too",
            steps=curve.steps[-1],
            right=round(curve.accuracies[-1] * limits.count),
            total=limits.count,
        ),
        measured=say("loss {first} -> {last}", first=curve.losses[0], last=curve.losses[-1]),
        numbers=numbers,
    )


def _frozen(frozen: int) -> CheckResult:
    return CheckResult(
        check="overfit",
        status=Status.SKIP,
        reason="overfit.frozen",
        claim=say("not measured: all {frozen} numbers of the model are frozen", frozen=frozen),
        next_step=say("set requires_grad on what should learn, or give Pipeline make_model"),
        numbers={"trainable": 0, "frozen": frozen},
    )


def _no_gradient() -> CheckResult:
    return CheckResult(
        check="overfit",
        status=Status.FAIL,
        reason="overfit.no_gradient",
        claim=say("the loss carries no gradient, so nothing can be learnt from it"),
        expected=say("loss.requires_grad is True"),
        causes=(say("no_grad, detach, item or NumPy stands between the weights and the loss"),),
        next_step=say("print logits.requires_grad, then loss.requires_grad"),
    )


def _crop(probe: Probe) -> Batch:
    """Return the columns with the most scored targets, and as many rows as are affordable."""
    batch = probe.batch
    size = sum(parameter.numel() for parameter in probe.pipeline.model.parameters())
    affordable = int(WORK_MAX / (6 * max(1, size) * probe.overfit_steps))
    rows = max(2, min(ROWS_MAX, affordable // min(batch.inputs.shape[1], TOKENS_MAX)))
    return batch.crop(rows, TOKENS_MAX, probe.pipeline.ignore_index)


def _adamw(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, fused=fused)
