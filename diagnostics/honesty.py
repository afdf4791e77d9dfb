"""Honesty: on tokens of known entropy, no loss may fall below that entropy.

Why it matters
    A loss that falls is taken for learning. It also falls when targets stand among the inputs,
    when a position reads the future, or when the loss measures something easier. On text nobody
    knows the floor; on tokens that we draw ourselves, it is exact.

How it is measured
    A fresh model (a copy without make_model) is trained by our own AdamW, dropout off, through
    your get_batch and your loss, on new random tokens at every step, so that each training loss
    is one on new data. Uniform tokens from V' symbols: nobody can get below ln V'. Then a chain
    in which each token has two equally likely successors: the loss must fall towards ln 2, and
    never below. Losses are means over the last steps, on few tokens: a failure is more than 0.1
    nats below. Of two tokens no such chain can be made, and only the floor is judged. Three losses
    are compared: the reported one, the one recomputed from logits and targets, and the one against
    the token that really comes next; which of them is too low tells the cause.

What it cannot see
    Bugs that make a model worse and not better, such as missing positions. A leak that needs more
    than these few steps to be learnt (a large model gets fewer), or that opens beyond 32 tokens.
    Whatever your own loop does. A model that is too slow to learn the chain is reported, not
    condemned.

Break it
    python -m exercises.break_honesty
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from diagnostics._honest_trial import (
    LN2,
    STEPS,
    Trial,
    count_symbols,
    measure_chain,
    measure_uniform,
    plan,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

BELOW_NATS = 0.1  # under the entropy; healthy models stay within 0.02 of it
LEARNT_SHARE = 0.25  # of the way from ln V' to ln 2


def check_honesty(
    model: nn.Module,
    get_batch: Callable[[Tensor], Any] | None = None,
    *,
    steps: int = STEPS,
    **parts: Any,
) -> CheckResult:
    """Check that training on tokens of known entropy never gives a loss below it.

    get_batch: (N,) ids -> (inputs, targets); None: pairs of ours, shifted by one.
    steps: on each of the two sources; a large model gets fewer.
    parts: other fields of Pipeline, such as make_model, forward, labels or vocab_size.
    Raises ValueError when steps < 1.
    """
    if steps < 1:
        raise ValueError(f"steps must be at least 1, got {steps}")
    return _check(Probe(Pipeline(model, get_batch=get_batch, **parts)), steps)


def run(probe: Probe) -> CheckResult:
    """Train on uniform tokens, then on a chain."""
    return _check(probe, STEPS)


def _check(probe: Probe, steps: int) -> CheckResult:
    trainable = sum(p.numel() for p in probe.pipeline.model.parameters() if p.requires_grad)
    size = sum(p.numel() for p in probe.pipeline.model.parameters())
    if trainable == 0:
        return _skip("honesty.frozen", say("all weights of the model are frozen"))
    if not probe.pipeline.causal:
        return _skip("honesty.not_causal", say("the model is declared not causal"))
    probe.require_choice()
    if count_symbols(probe) < 2:
        return _skip("honesty.one_symbol", say("one token of the vocabulary is no padding"))
    effort = plan(probe, size, steps)
    if effort is None:
        return _skip(
            "honesty.too_large",
            say("{size} parameters would take more than about 20 seconds", size=size),
        )
    uniform = measure_uniform(probe, effort)
    if (found := _judge(uniform, None)) is not None:
        return found
    chain = measure_chain(probe, effort)
    if (found := _judge(chain, uniform)) is not None:
        return found
    return _judge_learning(uniform, chain)


def _judge(trial: Trial, uniform: Trial | None) -> CheckResult | None:
    """Return the failure of a trial whose loss is too low, or not a number."""
    numbers = trial.describe() if uniform is None else uniform.describe() | trial.describe()
    if trial.not_finite_at is not None:
        return _not_finite(trial, numbers)
    limit = trial.entropy - BELOW_NATS
    if all(loss >= limit for loss in (trial.reported, trial.recomputed, trial.honest)):
        return None
    reason, claim, causes, next_step = _explain(trial, limit)
    return CheckResult(
        check="honesty",
        status=Status.FAIL,
        reason=reason,
        claim=claim,
        measured=say(
            "after {steps:step|steps}: {reported} nats reported, {recomputed} nats from the "
            "logits, {honest} nats against the next token",
            steps=trial.steps,
            reported=trial.reported,
            recomputed=trial.recomputed,
            honest=trial.honest,
        ),
        expected=say(
            "at least {entropy} nats, the entropy of {source}",
            entropy=trial.entropy,
            source=trial.source,
        ),
        causes=causes,
        next_step=next_step,
        numbers=numbers,
    )


def _explain(trial: Trial, limit: float) -> tuple[str, Text, tuple[Text, ...], Text]:
    """Tell the cause from which of the three losses is too low."""
    facts: dict[str, Any] = {
        "source": trial.source,
        "entropy": trial.entropy,
        "reported": trial.reported,
        "recomputed": trial.recomputed,
        "honest": trial.honest,
    }
    if not trial.honest >= limit:
        return (
            "honesty.sees_the_future",
            say(
                "trained on {source}, the model predicts the next token with {honest} nats, which "
                "nothing that it may read can tell",
                **facts,
            ),
            (
                say("a position reads later tokens of its row: no mask, or one that is too wide"),
                say("rows of the batch, which overlap, read one another"),
            ),
            say("python -m diagnostics --explain causal_independence"),
        )
    if not trial.recomputed >= limit:
        return (
            "honesty.targets_are_known",
            say(
                "trained on {source}, the model scores {recomputed} nats on its targets, and "
                "{honest} nats on the token that really comes next",
                **facts,
            ),
            (say("the targets are not the next token: they stand among the inputs already"),),
            say("python -m diagnostics --explain shift"),
        )
    start = trial.first_reported < limit
    return (
        "honesty.loss_is_too_low",
        say(
            "trained on {source}, the model reports {reported} nats, while its logits score "
            "{recomputed} nats",
            **facts,
        ),
        (
            say("the reported loss is divided or scaled: it is too low from the first step on")
            if start
            else say("the loss compares the logits with something easier than the targets"),
        ),
        say("recompute cross_entropy(logits.flatten(0, 1), targets.flatten()) and compare"),
    )


def _not_finite(trial: Trial, numbers: dict[str, Any]) -> CheckResult:
    """The first loss of a trial was measured before any step was taken."""
    untrained = trial.not_finite_at == 0
    return CheckResult(
        check="honesty",
        status=Status.FAIL,
        reason="honesty.not_finite",
        claim=say(
            "on {source} a loss is not a finite number before the first step"
            if untrained
            else "trained on {source}, the loss stops being a number at step {step}",
            source=trial.source,
            step=trial.not_finite_at,
        ),
        measured=say(
            "{reported} nats reported, {recomputed} nats from the logits",
            reported=trial.reports[0],
            recomputed=trial.recomputations[0],
        )
        if untrained
        else say("rate {rate}, gradients clipped to norm 1", rate=trial.rate),
        expected=say("finite losses"),
        next_step=say("python -m diagnostics --only forward_hooks,gradients"),
        numbers=numbers,
    )


def _judge_learning(uniform: Trial, chain: Trial) -> CheckResult:
    """Tell PASS from a model that has hardly learnt the chain."""
    numbers = uniform.describe() | chain.describe()
    start = math.log(chain.V)
    measured = say(
        "uniform tokens: {uniform} nats (floor {floor}); chain: {chain} nats (floor {ln2})",
        uniform=uniform.recomputed,
        floor=uniform.entropy,
        chain=chain.recomputed,
        ln2=LN2,
    )
    # of two tokens both can follow either: such a chain leaves nothing to learn
    if chain.V == 2 or (start - chain.honest) / (start - LN2) >= LEARNT_SHARE:
        return CheckResult(
            check="honesty",
            status=Status.PASS,
            reason="honesty.ok",
            claim=say(
                "on new random tokens no loss falls more than {limit} nats below their entropy, "
                "{ln2} nats; with two tokens there is no chain to learn"
                if chain.V == 2
                else "on new tokens no loss falls more than {limit} nats below their entropy, and "
                "a chain is learnt to {chain} nats where {ln2} are possible",
                limit=BELOW_NATS,
                chain=chain.recomputed,
                ln2=LN2,
            ),
            measured=measured,
            numbers=numbers,
        )
    return CheckResult(
        check="honesty",
        status=Status.WARN,
        reason="honesty.learns_little",
        claim=say(
            "nothing leaks, but after {steps:step|steps} on a chain the model predicts the next "
            "token with {honest} nats, where {ln2} are possible and {start} are knowing nothing",
            steps=chain.steps,
            honest=chain.honest,
            ln2=LN2,
            start=start,
        ),
        measured=measured,
        expected=say(
            "below {limit} nats in these steps, for a model of usual capacity",
            limit=start - LEARNT_SHARE * (start - LN2),
        ),
        causes=(
            say("the targets are not the token after the input, but one that is harder to tell"),
        )
        if chain.recomputed < start - 0.5 * (start - LN2)
        else (),
        next_step=say("compare with `overfit`, which gives one batch more steps"),
        numbers=numbers,
    )


def _skip(reason: str, why: Text) -> CheckResult:
    return CheckResult(
        check="honesty",
        status=Status.SKIP,
        reason=reason,
        claim=say("not measured: {why}", why=why),
        next_step=say("give Pipeline make_model with a smaller configuration of the same model")
        if reason == "honesty.too_large"
        else say("set requires_grad on what should learn, or give Pipeline make_model")
        if reason == "honesty.frozen"
        else say("nothing to do"),
        numbers={},
    )
