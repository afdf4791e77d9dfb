"""Evaluation: the reported loss is the model's mean nats per token, and reporting it is harmless.

Why it matters
    The validation loss decides when to stop, what to keep and what to publish. A mean of unequal
    means, dropout left on, or a function that never reads the ids it is given, moves that number
    without any error; an evaluation that leaves the model in eval mode switches off the
    regularisation of all the training that follows.

How it is measured
    `evaluate` is called on random ids with a jittered copy, which is watched from inside: each
    row that the model reads is found again in the ids, so that the nats of every next token are
    known, from the very logits that the evaluation saw. Their mean over tokens is the expected
    value, whatever windows were chosen; where it differs the usual wrong formulas are tried, and
    the one that fits is named. Then again under another seed, on other ids, and in train mode.
    Weights, buffers, gradients, modes and global random states are compared before and after.

What it cannot see
    An evaluation that runs parts of the model without calling it: then only a copy whose logits
    are all equal is used, which must score ln V, and wrong weights of batches stay unseen; where
    no weights make them equal, it is a warning that says so. A weight of batches that moves the
    mean by less than 1e-5 of it, as windows of one length do. Whether
    your ids are the right ones: `split` says that. Perplexity or accuracy printed beside the loss.

Break it
    python -m exercises.break_evaluation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._evaluation_trace import Call, Recorder, scored_places
from diagnostics._evaluation_verdicts import (
    judge_finite,
    judge_leftovers,
    judge_manners,
    judge_modes,
    judge_other_ids,
    judge_repeats,
    judge_value,
)
from diagnostics._evaluation_words import FORMULAS
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, MissingPartError, Probe, ln
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._side_effects import Leftovers, random_states, watched
from diagnostics._state import read_state
from diagnostics._text import say
from diagnostics._trace import declared_dropout

SCALE = 3.0  # of the weights: nats of a fresh model then differ by more than any rounding
WINDOWS = (131, 9)  # most and fewest; 131 gives batches of 64 and of 32 a last one that is short
TOKENS_MAX = 16_384
WORK_MAX = 3e10  # parameters x tokens of one evaluation: about 2 s on one CPU core


def check_evaluation(
    model: nn.Module,
    evaluate: Callable[[nn.Module, Tensor], float],
    *,
    vocab_size: int | None = None,
    **parts: Any,
) -> CheckResult:
    """Check that evaluate(model, ids (N,)) returns mean nats per token and leaves all alone.

    vocab_size: V; None: read from the model.    parts: other fields of Pipeline.
    """
    return run(Probe(Pipeline(model, evaluate=evaluate, vocab_size=vocab_size, **parts)))


def run(probe: Probe) -> CheckResult:
    """Watch four evaluations and judge what they computed and what they left behind."""
    if probe.pipeline.evaluate is None:
        raise MissingPartError("evaluate", why="there is no evaluation to look at")
    with probe.model(jitter=JITTER_STD, scale=SCALE) as model:
        first = _first_call(probe, model)
        if isinstance(first, CheckResult):
            return first
        second = _call(probe, model, first.ids, "second evaluation")
        other = _call(probe, model, first.ids.flip(0), "evaluation", score=True)
    with probe.model(train=True, jitter=JITTER_STD, scale=SCALE) as model:
        trained = _call(probe, model, first.ids, "evaluation")
        drops = bool(declared_dropout(model)) or any(
            "drop" in type(module).__name__.lower() for module in model.modules()
        )
    findings = [
        *judge_leftovers(first, second, trained),
        *judge_finite(first),
        *judge_modes(first, second, trained, drops),
        *judge_repeats(first, second),
        *judge_value(probe, first),
        *judge_other_ids(first, other),
        *_judge_from_outside(probe, first),
        *judge_manners(first),
    ]
    failures = [finding for finding in findings if finding.status is Status.FAIL]
    return (failures or findings or [_passed(first)])[0]


class _NotANumberError(TypeError):
    pass


def _first_call(probe: Probe, model: nn.Module) -> Call | CheckResult:
    """Evaluate on random ids; on more of them, or the user's own, where that many do not do."""
    outcome: Call | Exception | None = None
    for ids in _ids_to_try(probe):
        try:
            outcome = _call(probe, model, ids, "evaluation", score=True)
        except _NotANumberError as error:
            return verdict(
                Status.FAIL,
                "evaluation.not_a_number",
                say("evaluate returns {came} where one number is wanted", came=str(error)),
                measured=say("{came}", came=str(error)),
                expected=say("a float, or a tensor with one element"),
                next_step=say("return the mean loss alone, as a float"),
            )
        except Exception as error:  # any: too few ids for one batch is a usual reason
            outcome = error
            continue
        if math.isfinite(outcome.value):
            break
    if isinstance(outcome, Exception):
        raise outcome
    assert outcome is not None
    return outcome


def _ids_to_try(probe: Probe) -> Iterator[Tensor]:
    T = probe.block_size or probe.probe_length
    given = next(
        (x for x in (probe.pipeline.val_ids, probe.pipeline.train_ids) if x is not None), None
    )
    device = probe.device if given is None else torch.as_tensor(given).device
    parameters = sum(p.numel() for p in probe.pipeline.model.parameters())
    tokens = min(TOKENS_MAX, int(WORK_MAX / max(parameters, 1)))
    windows = min(WINDOWS[0], max(WINDOWS[1], tokens // T))
    for count in (windows, 8 * windows):
        length = count * T + T // 2 + 1  # the last window is half a one
        generator = probe.generator("evaluation")
        yield torch.randint(probe.usable_vocab_size, (length,), generator=generator).to(device)
    if given is not None:
        yield torch.as_tensor(given)


def _call(probe: Probe, model: nn.Module, ids: Tensor, seed: str, *, score: bool = False) -> Call:
    evaluate = probe.pipeline.evaluate
    assert evaluate is not None
    for parameter in model.parameters():
        if parameter.requires_grad and parameter.is_floating_point():
            parameter.grad = torch.full_like(parameter, 0.5)  # seen when cleared or added to
    modes = [(module, module.training) for module in model.modules()]
    before = read_state(model)
    recorder = Recorder(ids, probe.vocab_size, score)
    with probe.seeded(seed):
        state = random_states()
        with watched(model, recorder) as watch, torch.enable_grad():
            raw: Any = evaluate(model, ids.clone())
        after = random_states()
    leftovers = Leftovers.find(model, before)
    for module, training in modes:
        module.training = training
    try:
        value = float(raw)
    except (TypeError, ValueError, RuntimeError):
        raise _NotANumberError(_kind_of(raw)) from None
    return Call(ids, value, recorder, watch, leftovers, state != after, after)


def _kind_of(raw: Any) -> str:
    if isinstance(raw, Tensor):
        return f"a tensor of shape {tuple(raw.shape)}"
    return "nothing" if raw is None else f"a {type(raw).__name__}"


def _judge_from_outside(probe: Probe, first: Call) -> Iterator[CheckResult]:
    """No call of the model was seen: a model whose logits are all equal must score ln W."""
    recorder = first.recorder
    if recorder.rows or recorder.foreign_rows or not math.isfinite(first.value):
        return
    with probe.model() as model:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        logits = probe.logits(model, probe.tokens(2, 2))
        if not bool((logits == logits[..., :1]).all()):
            yield verdict(
                Status.WARN,
                "evaluation.not_recomputed",
                say("the value could not be recomputed: no call of the model could be read"),
                measured=say("{n:call|calls} of the model seen", n=recorder.calls),
                expected=say("calls of model(ids), whose logits can be scored again"),
                next_step=say("let evaluate call the model that it is given, as model(ids)"),
            )
            return
        value = _call(probe, model, first.ids, "evaluation").value
    expected = ln(logits.shape[2])
    if not abs(value - expected) <= 1e-3 * expected:
        told, _, cure = FORMULAS["evaluation.value"]
        yield verdict(
            Status.FAIL,
            "evaluation.value",
            say(told),
            measured=say("{value} for a model whose logits are all equal", value=value),
            expected=say("ln {W} = {nats} nats", W=logits.shape[2], nats=expected),
            next_step=say(cure),
            numbers={"value": value, "uniform": expected},
        )


def _passed(first: Call) -> CheckResult:
    if not first.recorder.rows:
        return verdict(
            Status.PASS,
            "evaluation.ok",
            say("equal logits score ln V, and nothing is left behind (seen from outside only)"),
            measured=say("{value} on random ids", value=first.value),
            numbers={"value": first.value},
        )
    return verdict(
        Status.PASS,
        "evaluation.ok",
        say(
            "the value is the mean over {n} next tokens, {share:%} of the ids; nothing else moved",
            n=len(scored_places(first.recorder)),
            share=first.share_read,
        ),
        measured=say("{value} nats in both modes and in both calls", value=first.value),
        numbers={"value": first.value, "share_read": first.share_read},
    )
