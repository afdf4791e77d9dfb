"""Resume: a run that is stopped and loaded goes on as if it had never stopped.

Why it matters
    A checkpoint of weights alone loads without complaint. The optimizer's moments then start at
    zero, warm-up runs again, the same batches are read twice, or the loaded optimizer still steps
    the model of before: the loss jumps or stands still, and the text on the disk is never wrong.

How it is measured
    A copy is trained for 3 steps, saved with `save_state`, and trained for 3 more. Then it is
    loaded with `load_state`, as another process would, and given the same 3 batches and the same
    random state. Compared are: what saving did to the live run; weights, ties, frozen parameters
    and the buffers that training moves; every tensor and setting of the optimizer, and whose
    parameters it holds; the step; and at last the weights of both runs, which must be equal bit
    for bit. `batches_from(3)` must go on with the batch that `batches_from(0)` gives after 3
    steps.

What it cannot see
    A best loss, a gradient scaler or averaged weights outside the model that are not saved: they
    have no place in these functions. A schedule that lives outside the step. The data order
    beyond the first batches, such as at the end of an epoch. Files written by an older version
    of the code.

Break it
    python -m exercises.break_resume
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn
from torch.optim import Optimizer

from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._resume_trial import (
    STEPS_BEFORE,
    Order,
    make_trip,
    offsets_of,
    read_order,
)
from diagnostics._resume_verdicts import (
    judge_chance,
    judge_future,
    judge_model,
    judge_optimizer,
    judge_saving,
    judge_step,
)
from diagnostics._text import say


def check_resume(
    model: nn.Module,
    save_state: Callable[[nn.Module, Optimizer, int, Path], None],
    load_state: Callable[[Path], tuple[nn.Module, Optimizer, int]],
    make_optimizer: Callable[[nn.Module], Optimizer],
    **parts: Any,
) -> CheckResult:
    """Check that training goes on from a file as it would have without stopping.

    save_state: (model, optimizer, step, path) -> None.    load_state: (path) -> the three.
    make_optimizer: (model) -> optimizer.    parts: other fields of Pipeline, such as train_step.
    """
    pipeline = Pipeline(
        model,
        save_state=save_state,
        load_state=load_state,
        make_optimizer=make_optimizer,
        **parts,
    )
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Stop and resume a short run; compare it with the run that went on, and the data order."""
    pipeline = probe.pipeline
    has_state = pipeline.save_state is not None and pipeline.load_state is not None
    if not has_state and pipeline.batches_from is None:
        raise MissingPartError(
            "save_state and load_state", "batches_from", why="no run can be stopped and resumed"
        )
    findings: list[CheckResult] = []
    if has_state:
        trip = make_trip(probe)
        findings += [
            *judge_saving(trip),
            *judge_model(trip),
            *judge_optimizer(probe, trip),
            *judge_step(trip),
            *judge_future(trip),
            *judge_chance(trip),
        ]
    if pipeline.batches_from is not None:
        findings += _judge_order(read_order(probe))
    failures = [finding for finding in findings if finding.status is Status.FAIL]
    if failures or findings:
        return (failures or findings)[0]
    return _passed(has_state, pipeline.batches_from is not None)


def _passed(has_state: bool, has_order: bool) -> CheckResult:
    seen = [
        *(["weights, optimizer and step"] if has_state else []),
        *(["the order of batches"] if has_order else []),
    ]
    unseen = [
        *([] if has_state else ["save_state and load_state"]),
        *([] if has_order else ["batches_from"]),
    ]
    return verdict(
        Status.PASS,
        "resume.ok",
        say("a resumed run goes on as one that never stopped: {seen}", seen=", and ".join(seen)),
        measured=say("equal bit for bit after {n} more steps", n=STEPS_BEFORE)
        if has_state
        else say("batch {n} follows batch {m}", n=STEPS_BEFORE, m=STEPS_BEFORE - 1),
        next_step=say("give {parts} to have the rest checked", parts=" and ".join(unseen))
        if unseen
        else "",
    )


# ---- the questions, in order ---------------------------------------------------------------


def _judge_order(order: Order) -> Iterator[CheckResult]:
    """The batches from step 3 on are those that follow the first three steps."""
    repeatable = len(order.start) == len(order.start_again) and all(
        a.shape == b.shape and bool((a == b).all())
        for a, b in zip(order.start, order.start_again, strict=True)
    )
    offsets = offsets_of(order)
    if order.later and order.wanted in offsets and repeatable:
        return
    if not repeatable:
        yield verdict(
            Status.WARN,
            "resume.fresh_order",
            say("the order of batches depends on the global random state: it is new each time"),
            measured=say("batches_from(0) differs under another seed"),
            expected=say("the same batches from the same step on, whatever happened before"),
            causes=(say("batches are drawn from the global generator"),),
            next_step=say("seed a torch.Generator from (seed, step) for each step"),
        )
        return
    replays = 0 in offsets
    yield verdict(
        Status.FAIL,
        "resume.data_replayed" if replays else "resume.data_order",
        say("a resumed run reads the first batches again")
        if replays
        else say("a resumed run does not go on with the batch that comes next"),
        measured=say(
            "batches_from({n}) begins with batch {k} of the run", n=STEPS_BEFORE, k=offsets[0]
        )
        if offsets
        else say(
            "batches_from({n}) gives {k:batch|batches}, none that comes next",
            n=STEPS_BEFORE,
            k=len(order.later),
        ),
        expected=say("batch {k}", k=order.wanted),
        causes=(say("the step is ignored: the order starts with the seed again"),)
        if replays
        else (say("the place is off by one, or counts micro-batches as steps"),)
        if offsets
        else (),
        next_step=say("derive the batch from (seed, step), or skip the batches that were read"),
        numbers={"offsets": offsets, "wanted": order.wanted},
    )


# ---- helpers -------------------------------------------------------------------------------
