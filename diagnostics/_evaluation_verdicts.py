"""What three watched evaluations say: the value, the mode, and what is left behind, in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from diagnostics._evaluation_trace import Call, Recorder, fitting_formula, token_mean
from diagnostics._evaluation_words import FORMULAS
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._side_effects import is_reset
from diagnostics._text import say
from diagnostics.shift import locate

REPEAT = 1e-6  # relative; the same windows give the same loss bit for bit on a CPU
SAME_MEAN = 1e-4  # nats; two rows of random ids are further apart, unless the model says nothing
READ_SHARE_MIN = 0.5  # dropping an unfinished batch of at most 64 windows still reads 97 %


def judge_leftovers(first: Call, second: Call, trained: Call) -> Iterator[CheckResult]:
    """Weights, buffers, gradients and random states belong to the training run."""
    for reason, what, cause in (
        ("evaluation.changes_weights", "weights", "an optimizer step is made while evaluating"),
        (
            "evaluation.changes_buffers",
            "buffers",
            "running statistics are updated: batch norm in train mode, or counters of one's own",
        ),
        (
            "evaluation.changes_gradients",
            "gradients",
            "backward() or zero_grad() is called: it breaks a gradient that is being accumulated",
        ),
    ):
        for call in (first, trained):
            names: list[str] = getattr(call.leftovers, what)
            if names:
                yield verdict(
                    Status.FAIL,
                    reason,
                    say("evaluating changes {n} of the model's {what}", n=len(names), what=what),
                    measured=say("{name} differs after the call", name=names[0]),
                    expected=say("all {what} as they were, bit for bit", what=what),
                    where=say("{n:tensor|tensors}; first is {name}", n=len(names), name=names[0]),
                    causes=(say(cause),),
                    next_step=say("evaluate under torch.no_grad() in eval mode, without stepping"),
                    numbers={"changed": names},
                )
    if is_reset(first.random_after, second.random_after):
        yield verdict(
            Status.FAIL,
            "evaluation.resets_random_state",
            say("evaluating sets the global random state: training repeats itself afterwards"),
            measured=say("two calls under different seeds leave the same random state"),
            expected=say("different states, as before the calls"),
            causes=(say("a manual_seed call inside the evaluation"),),
            next_step=say(
                "draw windows from a generator of their own: torch.Generator().manual_seed(1337)"
            ),
        )


def judge_modes(first: Call, second: Call, trained: Call, drops: bool) -> Iterator[CheckResult]:
    """A model in train mode is evaluated in eval mode, and gets its mode back."""
    switched = bool(first.watch.training)  # a model that came in eval mode was read in train mode
    inside = sorted(trained.watch.training | first.watch.training)
    # the same seed gives the same dropout: only another seed shows it where both modes have it
    felt = not _agree(trained, first) or (switched and not _agree(second, first))
    if inside and felt:
        yield verdict(
            Status.FAIL,
            "evaluation.train_mode",
            say("the model is evaluated in train mode, which moves its loss, as dropout does"),
            measured=say(
                "loss {a}, then {b} under another seed, for a model that came in eval mode",
                a=first.value,
                b=second.value,
            )
            if switched
            else say(
                "loss {trained} for a model that came in train mode, {first} in eval mode",
                trained=trained.value,
                first=first.value,
            ),
            expected=say("the same loss, whatever mode the model came in"),
            where=say(
                "{n:module|modules} ran in train mode; first is {path}",
                n=len(inside),
                path=inside[0],
            ),
            causes=(
                say("model.train() is called before the batches are read, or for some of them")
                if switched
                else say("model.eval() is not called before the batches are read"),
            ),
            next_step=say("call model.eval() first, and give the mode back afterwards"),
            numbers={"train_mode_loss": trained.value, "eval_mode_loss": first.value},
        )
    elif inside and drops:
        yield verdict(
            Status.WARN,
            "evaluation.eval_missing",
            say("the model is evaluated in train mode, which changes nothing while dropout is 0"),
            measured=say("{n:module|modules} ran in train mode", n=len(inside)),
            expected=say("eval mode, for the day that dropout is used"),
            next_step=say("call model.eval() first, and give the mode back afterwards"),
        )
    yield from _judge_modes_left(first, trained)


def _judge_modes_left(first: Call, trained: Call) -> Iterator[CheckResult]:
    for status, reason, mode, paths, cause in (
        (
            Status.FAIL,
            "evaluation.left_in_eval",
            "eval",
            trained.leftovers.left_in_eval,
            "model.eval() is called and model.train() is not called at the end",
        ),
        (
            Status.WARN,
            "evaluation.left_in_train",
            "train",
            first.leftovers.left_in_train,
            "model.train() at the end, also for a model that came in eval mode",
        ),
    ):
        if paths:
            yield verdict(
                status,
                reason,
                say("evaluating leaves the model in {mode} mode", mode=mode),
                measured=say("{n:module|modules} changed mode", n=len(paths)),
                expected=say("every module in the mode in which it came"),
                where=say("first is {path}", path=paths[0]),
                causes=(say(cause),),
                next_step=say("note each module.training before, and write it back afterwards"),
            )


def _agree(a: Call, b: Call) -> bool:
    return abs(a.value - b.value) <= REPEAT * max(1.0, abs(b.value))


def judge_repeats(first: Call, second: Call) -> Iterator[CheckResult]:
    """Two calls on the same ids give the same."""
    if _agree(first, second):
        return
    numbers = {"first": first.value, "second": second.value, "share_read": first.share_read}
    measured = say("{a}, then {b}", a=first.value, b=second.value)
    if first.windows != second.windows:
        yield verdict(
            Status.WARN,
            "evaluation.random_windows",
            say("two evaluations of the same model on the same ids differ: windows are drawn"),
            measured=measured,
            expected=say("the same number, or a spread that is known and small"),
            causes=(say("windows come from the global random state"),),
            next_step=say("draw the windows with a generator that is seeded at each call"),
            numbers=numbers,
        )
        return
    yield verdict(
        Status.FAIL,
        "evaluation.not_repeatable",
        say("two evaluations of the same windows by the same model differ"),
        measured=measured,
        expected=say("the same number, bit for bit"),
        next_step=say("see `modes`: something random or remembered is active in eval mode"),
        numbers=numbers,
    )


def judge_finite(first: Call) -> Iterator[CheckResult]:
    """The value is a number."""
    if not math.isfinite(first.value):
        yield verdict(
            Status.FAIL,
            "evaluation.not_finite",
            say("evaluate returns {value}", value=first.value),
            measured=say("{n:row was|rows were} read", n=len(first.recorder.rows)),
            expected=say("a finite number of nats"),
            next_step=say("print the loss of each batch; an empty list of batches has no mean"),
        )


def judge_value(probe: Probe, first: Call) -> Iterator[CheckResult]:
    """The value is the mean nats of the next tokens that were read."""
    if not math.isfinite(first.value):
        return
    recorder = first.recorder
    if recorder.foreign_rows and not recorder.rows:
        yield _ignores_ids(probe, recorder)
        return
    if not recorder.rows:
        return  # no call of the model was seen
    reason = fitting_formula(recorder, first.value)
    expected = token_mean(recorder)
    if reason == "":
        return
    unsure = bool(recorder.foreign_rows or recorder.unreadable) and reason is None
    told, cause, cure = FORMULAS[reason or "evaluation.value"]
    yield verdict(
        Status.WARN if unsure else Status.FAIL,
        "evaluation.partly_seen" if unsure else reason or "evaluation.value",
        say(told),
        measured=say("{value} for {n:row|rows}", value=first.value, n=len(recorder.rows)),
        expected=say("{nats} nats, the mean over their next tokens", nats=expected),
        where=say(
            "{n:forward call|forward calls} on {N:id|ids}", n=recorder.calls, N=len(first.ids)
        ),
        causes=(say(cause),) if cause else (),
        next_step=say(cure),
        numbers={"value": first.value, "token_mean": expected, "share_read": first.share_read},
    )


def judge_other_ids(first: Call, other: Call) -> Iterator[CheckResult]:
    """Other ids give another value, where the model says so."""
    if not (first.recorder.rows and other.recorder.rows) or first.value != other.value:
        return
    means = token_mean(first.recorder), token_mean(other.recorder)
    if not abs(means[0] - means[1]) <= SAME_MEAN:
        yield verdict(
            Status.FAIL,
            "evaluation.ignores_ids",
            say("the same value comes back whatever ids are given"),
            measured=say("{value} for two rows of ids", value=first.value),
            expected=say("{a} and {b} nats, as the model has them", a=means[0], b=means[1]),
            causes=(say("the first value is kept and returned again"),),
            next_step=say("compute the value anew in every call"),
            numbers={"value": first.value, "token_means": list(means)},
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
    return verdict(
        Status.FAIL,
        "evaluation.ignores_ids",
        say("the evaluation reads {what}, not the ids it is given", what=source or "other tokens"),
        measured=say("0 of {n:row|rows} occur in the given ids", n=len(recorder.foreign_rows)),
        expected=say("windows of the given ids"),
        where=say("the first row begins with {tokens}", tokens=str(row[:6].tolist())),
        causes=(
            say("the data is taken from a global name or a loader, not from the argument"),
            *((say("the loader of the other split is used"),) if source == "train_ids" else ()),
        ),
        next_step=say("cut the windows from the argument `ids`"),
        numbers={"foreign_rows": len(recorder.foreign_rows)},
    )


def judge_manners(first: Call) -> Iterator[CheckResult]:
    """Habits that a healthy evaluation can have."""
    if first.watch.gradients_recorded:
        yield verdict(
            Status.WARN,
            "evaluation.records_gradients",
            say("the evaluation records gradients that nobody uses: memory for every batch"),
            measured=say("gradients are enabled in forward calls"),
            expected=say("disabled"),
            next_step=say("put @torch.no_grad() above evaluate"),
        )
    if first.share_read < READ_SHARE_MIN:
        yield verdict(
            Status.WARN,
            "evaluation.reads_part",
            say("the evaluation reads {share:%} of the ids it is given", share=first.share_read),
            measured=say(
                "{n:window|windows} of {N:id|ids}", n=len(first.windows), N=len(first.ids)
            ),
            expected=say("all of them, or a part that was chosen on purpose"),
            causes=(
                say("a fixed number of batches, which may be meant"),
                say("the loop returns or breaks after its first batches"),
            ),
            next_step=say("spread the windows evenly over the ids if only some are to be read"),
            numbers={"share_read": first.share_read},
        )
    if first.drew_random:
        yield verdict(
            Status.WARN,
            "evaluation.draws_random",
            say(
                "the evaluation draws from the global random state: how often it runs changes"
                " the training"
            ),
            measured=say("the state differs after the call"),
            expected=say("the state as it was"),
            next_step=say("draw from a torch.Generator of its own"),
        )
