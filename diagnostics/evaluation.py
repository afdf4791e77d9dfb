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
    the one that fits is named. Then again under another seed, and in train mode. Weights, buffers,
    gradients, modes and global random states are compared before and after.

What it cannot see
    An evaluation that runs parts of the model without calling it: then only a copy whose logits
    are all equal is used, which must score ln V, and wrong weights of batches stay unseen. Whether
    your ids are the right ones: `split` says that. Perplexity or accuracy printed beside the loss.

Break it
    python -m exercises.break_evaluation
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._evaluation_trace import (
    Recorder,
    fitting_formula,
    scored_places,
    token_mean,
)
from diagnostics._evaluation_words import FORMULAS, result
from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, MissingPartError, Probe, ln
from diagnostics._result import CheckResult, Status
from diagnostics._side_effects import Leftovers, Watch, is_reset, random_states, watched
from diagnostics._state import read_state
from diagnostics._text import say
from diagnostics._trace import declared_dropout
from diagnostics.shift import locate

SCALE = 3.0  # of the weights: nats of a fresh model then differ by more than any rounding
WINDOWS = (131, 9)  # most and fewest; 131 gives batches of 64 and of 32 a last one that is short
TOKENS_MAX = 16_384
REPEAT = 1e-6  # relative; the same windows give the same loss bit for bit on a CPU
READ_SHARE_MIN = 0.5  # dropping an unfinished batch of at most 64 windows still reads 97 %


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
    """Watch three evaluations and judge what they computed and what they left behind."""
    if probe.pipeline.evaluate is None:
        raise MissingPartError("evaluate", why="there is no evaluation to look at")
    with probe.model(jitter=JITTER_STD, scale=SCALE) as model:
        first = _first_call(probe, model)
        if isinstance(first, CheckResult):
            return first
        second = _call(probe, model, first.ids, "second evaluation")
    with probe.model(train=True, jitter=JITTER_STD, scale=SCALE) as model:
        trained = _call(probe, model, first.ids, "evaluation")
        drops = bool(declared_dropout(model)) or any(
            "drop" in type(module).__name__.lower() for module in model.modules()
        )
    findings = [
        *_judge_leftovers(first, second, trained),
        *_judge_finite(first),
        *_judge_modes(first, trained, drops),
        *_judge_repeats(first, second),
        *_judge_value(probe, first),
        *_judge_manners(first),
    ]
    failures = [finding for finding in findings if finding.status is Status.FAIL]
    return (failures or findings or [_passed(first)])[0]


@dataclass(frozen=True)
class Call:
    """One evaluation: what it returned, what it read, and what it left behind."""

    ids: Tensor  # (N,)
    value: float
    recorder: Recorder
    watch: Watch
    leftovers: Leftovers
    drew_random: bool
    random_after: tuple[bytes, ...]

    @property
    def share_read(self) -> float:
        """Share of the next tokens in the ids that were scored; NaN when nothing was seen."""
        if not self.recorder.rows:
            return float("nan")
        return len(scored_places(self.recorder)) / (len(self.ids) - 1)

    @property
    def windows(self) -> list[int]:
        """Where in the ids each row started."""
        return [row.start for row in self.recorder.rows]


class _NotANumberError(TypeError):
    pass


def _first_call(probe: Probe, model: nn.Module) -> Call | CheckResult:
    """Evaluate on random ids; on more of them, or the user's own, where that many do not do."""
    outcome: Call | Exception | None = None
    for ids in _ids_to_try(probe):
        try:
            outcome = _call(probe, model, ids, "evaluation", score=True)
        except _NotANumberError as error:
            return result(
                Status.FAIL,
                "not_a_number",
                say("evaluate must return one number and returns {came}", came=str(error)),
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
    windows = min(WINDOWS[0], max(WINDOWS[1], TOKENS_MAX // T))
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


def _judge_leftovers(first: Call, second: Call, trained: Call) -> Iterator[CheckResult]:
    """Weights, buffers, gradients and random states belong to the training run."""
    for reason, what, found, cause in (
        ("changes_weights", "weights", "weights", "an optimizer step is made while evaluating"),
        (
            "changes_buffers",
            "buffers",
            "buffers",
            "running statistics are updated: batch norm in train mode, or counters of one's own",
        ),
        (
            "changes_gradients",
            "gradients",
            "gradients",
            "backward() or zero_grad() is called: it breaks a gradient that is being accumulated",
        ),
    ):
        for call in (first, trained):
            names: list[str] = getattr(call.leftovers, found)
            if names:
                yield result(
                    Status.FAIL,
                    reason,
                    say("evaluating changes {n} of the model's {what}", n=len(names), what=what),
                    measured=say("{name} differs after the call", name=names[0]),
                    expected=say("all {what} as they were, bit for bit", what=what),
                    where=say("{n} tensors; first is {name}", n=len(names), name=names[0]),
                    causes=(say(cause),),
                    next_step=say("evaluate under torch.no_grad() in eval mode, without stepping"),
                    numbers={"changed": names},
                )
    if is_reset(first.random_after, second.random_after):
        yield result(
            Status.FAIL,
            "resets_random_state",
            say("evaluating sets the global random state: training repeats itself afterwards"),
            measured=say("two calls under different seeds leave the same random state"),
            expected=say("different states, as before the calls"),
            causes=(say("a manual_seed call inside the evaluation"),),
            next_step=say(
                "draw windows from a generator of their own: torch.Generator().manual_seed(1337)"
            ),
        )


def _judge_modes(first: Call, trained: Call, drops: bool) -> Iterator[CheckResult]:
    """A model in train mode is evaluated in eval mode, and gets its mode back."""
    inside = sorted(trained.watch.training)
    moved = abs(trained.value - first.value)
    if first.watch.training or (inside and not moved <= REPEAT * max(1.0, abs(first.value))):
        yield result(
            Status.FAIL,
            "train_mode",
            say("the model is evaluated in train mode, so that dropout falsifies the loss"),
            measured=say(
                "loss {trained} for a model in train mode, {first} in eval mode",
                trained=trained.value,
                first=first.value,
            ),
            expected=say("the same loss, whatever mode the model came in"),
            where=say(
                "{n} modules ran in train mode; first is {path}",
                n=len(inside),
                path=(inside or sorted(first.watch.training))[0],
            ),
            causes=(say("model.eval() is not called before the batches are read"),),
            next_step=say("call model.eval() first, and give the mode back afterwards"),
            numbers={"train_mode_loss": trained.value, "eval_mode_loss": first.value},
        )
    elif inside and drops:
        yield result(
            Status.WARN,
            "eval_missing",
            say("the model is evaluated in train mode, which changes nothing while dropout is 0"),
            measured=say("{n} modules ran in train mode", n=len(inside)),
            expected=say("eval mode, for the day that dropout is used"),
            next_step=say("call model.eval() first, and give the mode back afterwards"),
        )
    for status, reason, mode, paths, cause in (
        (
            Status.FAIL,
            "left_in_eval",
            "eval",
            trained.leftovers.left_in_eval,
            "model.eval() is called and model.train() is not called at the end",
        ),
        (
            Status.WARN,
            "left_in_train",
            "train",
            first.leftovers.left_in_train,
            "model.train() at the end, also for a model that came in eval mode",
        ),
    ):
        if paths:
            yield result(
                status,
                reason,
                say("evaluating leaves the model in {mode} mode", mode=mode),
                measured=say("{n} modules changed their mode", n=len(paths)),
                expected=say("every module in the mode in which it came"),
                where=say("{n} modules; first is {path}", n=len(paths), path=paths[0]),
                causes=(say(cause),),
                next_step=say("note each module.training before, and write it back afterwards"),
            )


def _judge_repeats(first: Call, second: Call) -> Iterator[CheckResult]:
    """Two calls on the same ids give the same."""
    if abs(first.value - second.value) <= REPEAT * max(1.0, abs(first.value)):
        return
    numbers = {"first": first.value, "second": second.value, "share_read": first.share_read}
    measured = say("{a}, then {b}", a=first.value, b=second.value)
    if first.windows != second.windows:
        yield result(
            Status.WARN,
            "random_windows",
            say("two evaluations of the same model on the same ids differ: windows are drawn"),
            measured=measured,
            expected=say("the same number, or a spread that is known and small"),
            causes=(say("windows come from the global random state"),),
            next_step=say("draw the windows with a generator that is seeded at each call"),
            numbers=numbers,
        )
        return
    yield result(
        Status.FAIL,
        "not_repeatable",
        say("two evaluations of the same windows by the same model differ"),
        measured=measured,
        expected=say("the same number, bit for bit"),
        next_step=say("see `modes`: something random or remembered is active in eval mode"),
        numbers=numbers,
    )


def _judge_finite(first: Call) -> Iterator[CheckResult]:
    """The value is a number."""
    if not math.isfinite(first.value):
        yield result(
            Status.FAIL,
            "not_finite",
            say("evaluate returns {value}", value=first.value),
            measured=say("{n} rows were read", n=len(first.recorder.rows)),
            expected=say("a finite number of nats"),
            next_step=say("print the loss of each batch; an empty list of batches has no mean"),
        )


def _judge_value(probe: Probe, first: Call) -> Iterator[CheckResult]:
    """The value is the mean nats of the next tokens that were read."""
    if not math.isfinite(first.value):
        return
    recorder = first.recorder
    if recorder.foreign_rows and not recorder.rows:
        yield _ignores_ids(probe, recorder)
        return
    if not recorder.rows:
        yield from _judge_from_outside(probe, first.ids)
        return
    reason = fitting_formula(recorder, first.value)
    expected = token_mean(recorder)
    if reason == "":
        return
    unsure = bool(recorder.foreign_rows or recorder.unreadable) and reason is None
    told, cause, cure = FORMULAS[reason or "value"]
    yield result(
        Status.WARN if unsure else Status.FAIL,
        "partly_seen" if unsure else reason or "value",
        say(told),
        measured=say("{value} for {n} rows", value=first.value, n=len(recorder.rows)),
        expected=say("{nats} nats, the mean over their next tokens", nats=expected),
        where=say("{n} forward calls on {N} ids", n=recorder.calls, N=len(first.ids)),
        causes=(say(cause),) if cause else (),
        next_step=say(cure),
        numbers={"value": first.value, "token_mean": expected, "share_read": first.share_read},
    )


def _ignores_ids(probe: Probe, recorder: Recorder) -> CheckResult:
    row = recorder.foreign_rows[0]
    source = next(
        (
            name
            for name in ("train_ids", "val_ids")
            if (ids := getattr(probe.pipeline, name)) is not None
            and locate(torch.as_tensor(ids).cpu(), row).numel()
        ),
        None,
    )
    return result(
        Status.FAIL,
        "ignores_ids",
        say("the evaluation reads {what}, not the ids it is given", what=source or "other tokens"),
        measured=say("none of {n} rows occurs in the given ids", n=len(recorder.foreign_rows)),
        expected=say("windows of the given ids"),
        where=say("the first row begins with {tokens}", tokens=str(row[:6].tolist())),
        causes=(
            say("the data is taken from a global name or a loader, not from the argument"),
            *((say("the loader of the other split is used"),) if source == "train_ids" else ()),
        ),
        next_step=say("cut the windows from the argument `ids`"),
        numbers={"foreign_rows": len(recorder.foreign_rows)},
    )


def _judge_from_outside(probe: Probe, ids: Tensor) -> Iterator[CheckResult]:
    """No call of the model was seen: a model whose logits are all equal must score ln W."""
    with probe.model() as model:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.zero_()
        logits = probe.logits(model, probe.tokens(2, 2))
        if not bool((logits == logits[..., :1]).all()):
            return
        value = _call(probe, model, ids, "evaluation").value
    expected = ln(logits.shape[2])
    if not abs(value - expected) <= 1e-3 * expected:
        told, _, cure = FORMULAS["value"]
        yield result(
            Status.FAIL,
            "value",
            say(told),
            measured=say("{value} for a model whose logits are all equal", value=value),
            expected=say("ln {W} = {nats} nats", W=logits.shape[2], nats=expected),
            next_step=say(cure),
            numbers={"value": value, "uniform": expected},
        )


def _judge_manners(first: Call) -> Iterator[CheckResult]:
    """Habits that a healthy evaluation can have."""
    if first.watch.gradients_recorded:
        yield result(
            Status.WARN,
            "records_gradients",
            say("the evaluation records gradients that nobody uses: memory for every batch"),
            measured=say("gradients are enabled in forward calls"),
            expected=say("disabled"),
            next_step=say("put @torch.no_grad() above evaluate"),
        )
    if first.share_read < READ_SHARE_MIN:
        yield result(
            Status.WARN,
            "reads_part",
            say("the evaluation reads {share} of the ids it is given", share=first.share_read),
            measured=say("{n} windows of {N} ids", n=len(first.windows), N=len(first.ids)),
            expected=say("all of them, or a part that was chosen on purpose"),
            causes=(
                say("a fixed number of batches, which may be meant"),
                say("the loop returns or breaks after its first batches"),
            ),
            next_step=say("spread the windows evenly over the ids if only some are to be read"),
            numbers={"share_read": first.share_read},
        )
    if first.drew_random:
        yield result(
            Status.WARN,
            "draws_random",
            say(
                "the evaluation draws from the global random state: how often it runs changes"
                " the training"
            ),
            measured=say("the state differs after the call"),
            expected=say("the state as it was"),
            next_step=say("draw from a torch.Generator of its own"),
        )


def _passed(first: Call) -> CheckResult:
    if not first.recorder.rows:
        return result(
            Status.PASS,
            "ok",
            say("equal logits score ln V, and nothing is left behind (seen from outside only)"),
            measured=say("{value} on random ids", value=first.value),
            numbers={"value": first.value},
        )
    return result(
        Status.PASS,
        "ok",
        say(
            "the value is the mean of {n} next tokens, {share} of the ids; nothing is left behind",
            n=len(scored_places(first.recorder)),
            share=first.share_read,
        ),
        measured=say("{value} nats in both modes and in both calls", value=first.value),
        numbers={"value": first.value, "share_read": first.share_read},
    )
