"""Distributed: many processes train one model, as one process with all their data would.

Why it matters
    Each process runs happily on its own. Without the reduction of gradients N models are trained
    and one of them is saved; without a sampler that knows its rank, N processes learn from the
    same rows; with a sum in place of a mean the rate is N times too high, which Adam hides. No
    error is raised, and the loss that rank 0 prints looks as usual.

How it is measured
    In a job of torchrun every rank calls the check; in one ordinary process on Linux it forks two
    workers, joined by gloo on the CPU. Each rank begins with other weights, and must hold equal
    ones once `replicate` has run, unless make_model gives every rank the same. Then each makes
    steps on tokens of its own, with dropout silenced, and the gradient that its optimizer is about
    to use is written as a sum of the gradients of all ranks: their weights tell the mean from a
    sum, from the rank's own data alone, and from micro-batches that were never sent around. In one
    call the ranks score unequal numbers of tokens with gradients of unequal size, in one
    gradients are too small for any clipping. Weights and buffers are compared after the steps, and
    so is what evaluate gives. The rows of `rank_batches` are compared rank by rank, and shown.

What it cannot see
    Parameters in pieces, as FSDP and tensor parallelism keep them. What several machines add:
    other libraries, lost connections, clocks. Rows that two ranks share after the first 24
    batches, unequal ends after 128, and a sampler that forgets its epoch, if an epoch is longer
    than 12 batches. A single row in two shares, which padding gives as well. What is done to the
    weights after the step, if it is the same on all ranks. Weights that are averaged less often
    than at every third step, as local SGD may do, fail here, on purpose or not. Whether rank 0
    alone writes files. Speed. A seed that your script sets before rank_batches or make_model is
    called, in forked workers: set it inside. In a job whose time-out cannot be shortened, a rank
    waits as long as the job says for one that has failed.

Break it
    python -m exercises.break_distributed
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from diagnostics import _distributed_words as words
from diagnostics._fault import Fault, found
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._rank_group import (
    ENDED,
    Failure,
    Group,
    NoWorkersError,
    RanksFailedError,
    in_a_job,
    in_workers,
    joined,
)
from diagnostics._rank_samples import Samples, draw_samples, epoch_length, overlap, same_share
from diagnostics._rank_trial import Plan, Start, Step, measure_start, measure_steps
from diagnostics._rank_verdicts import (
    Call,
    compare_ranks,
    judge_after,
    judge_gradients,
    judge_start,
    numbers_of,
)
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._step_trial import random_pair, reference
from diagnostics._text import say

PROCESSES = 2
SIZE_MAX = 50_000_000  # parameters; a worker holds some six copies, 1.2 GB of float32
# read in this process too, where it can be seen that they are read
READ_BY_RANKS = (
    *("rank_batches", "make_model", "evaluate", "val_ids", "tokenizer", "learning_rate"),
    *("max_steps", "micro_batches", "pad_id", "ignore_index", "labels"),
)
EVALUATED = 4  # blocks of text on which evaluate is compared
SAME_VALUE = 1e-3  # relative
RUNS_ON = 0.9  # share of rows that go on where the last one ends: data read in order
PART = "describe that part to Pipeline"
WHOLE = "keep the model of a wrapper of your own in self.module; FSDP cannot be measured"
COMMAND = "torchrun --nproc-per-node 2 your_script.py"

Tell = Callable[..., CheckResult]


def check_distributed(
    model: nn.Module,
    replicate: Callable[[nn.Module], nn.Module] | None = None,
    make_optimizer: Callable[[nn.Module], Any] | None = None,
    train_step: Callable[..., Any] | None = None,
    *,
    processes: int = PROCESSES,
    **parts: Any,
) -> CheckResult:
    """Check that `processes` ranks train one model on data of their own.

    replicate: (model) -> the model as one rank trains it, such as DistributedDataParallel(model).
    processes: how many are forked; within a job its size counts, and every rank has to call this.
    parts: other fields of Pipeline, such as rank_batches, accumulate, make_model or forward.
    Every rank of a job gets the same result.
    Raises ValueError for fewer than two processes.
    """
    if processes < 2:
        raise ValueError(f"processes must be 2 or more, got {processes}")
    pipeline = Pipeline(
        model,
        replicate=replicate,
        make_optimizer=make_optimizer,
        train_step=train_step,
        **parts,
    )
    return run(Probe(pipeline), processes=processes)


def run(probe: Probe, *, processes: int = PROCESSES) -> CheckResult:
    """Measure on every rank, judge on rank 0."""
    pipeline = probe.pipeline
    if pipeline.replicate is None and pipeline.rank_batches is None:
        raise MissingPartError(
            "replicate", "rank_batches", why="nothing says how many processes would train"
        )
    probe.require_choice()
    try:
        if not in_a_job():
            _require_small(probe)
            plans = _prepare(probe)
            return in_workers(lambda group: _examine(probe, group, plans), processes)
        with joined() as group:
            if group.size == 1:
                raise NoWorkersError("the job has one process, and one cannot differ from itself")
            plans = group.meet(lambda: _prepare(probe))[group.rank]
            return _examine(probe, group, plans, separate=True)
    except NoWorkersError as error:
        return _skip(str(error))
    except RanksFailedError as error:
        return _failed(probe, error.failures)


def _require_small(probe: Probe) -> None:
    """Raise NoWorkersError for a model that forked workers cannot take, or not twice."""
    if probe.device.type != "cpu":
        raise NoWorkersError(f"the model is on {probe.device.type}, not on the CPU")
    size = sum(parameter.numel() for parameter in probe.pipeline.model.parameters())
    if size > SIZE_MAX:
        raise NoWorkersError(f"copies of {size:,} parameters in each worker need too much memory")


def _prepare(probe: Probe) -> list[Plan]:
    """Find out, before any fork, all that every rank would have to find out for itself."""
    pipeline = probe.pipeline
    for name in READ_BY_RANKS:
        getattr(pipeline, name)
    if pipeline.replicate is None or pipeline.make_optimizer is None:
        return []
    plans = []
    shrunk = all(p.dtype is not torch.float16 for p in pipeline.model.parameters())
    if pipeline.train_step is not None:
        plans += [Plan("train_step", shrunk=shrunk), Plan("train_step", unequal=True)]
    if pipeline.accumulate is not None:
        plans.append(Plan("accumulate", shrunk=shrunk))
    if plans:
        # making any optimizer imports torch's compiler: for seconds, and once in every fork
        importlib.import_module("torch._dynamo")
        _ = (probe.adapter, probe.usable_vocab_size, probe.probe_length)
        _ = probe.copies_are_independent
    return plans


def _examine(
    probe: Probe, group: Group, plans: list[Plan], *, separate: bool = False
) -> CheckResult:
    """Do on each rank what all do at once; every rank returns the same result."""
    rank, size = group.rank, group.size
    starts: list[Start] = []
    samples: list[Samples] = []
    steps: list[list[Step]] = []
    if probe.pipeline.replicate is not None:
        starts = group.meet(lambda: measure_start(probe, rank))
    if probe.pipeline.rank_batches is not None:
        samples = group.meet(lambda: draw_samples(probe, rank, size))
    if plans:
        steps = group.meet(lambda: measure_steps(probe, rank, plans))
    values = group.meet(lambda: _evaluated(probe))

    def judge() -> CheckResult | None:
        return _judge(starts, samples, steps, values, separate) if rank == 0 else None

    result = group.meet(judge)[0]
    assert result is not None
    return result


def _evaluated(probe: Probe) -> float | None:
    """Return what the user's evaluate gives here on some blocks of validation ids."""
    evaluate, ids = probe.pipeline.evaluate, probe.pipeline.val_ids
    if evaluate is None or ids is None or probe.pipeline.replicate is None:
        return None
    with probe.model() as model, probe.seeded("evaluate"):
        value = evaluate(model, ids[: EVALUATED * (probe.block_size or 64) + 1])
    return None if value is None else float(value)


# ---- verdicts ----------------------------------------------------------------------------------


def _judge(
    starts: list[Start],
    samples: list[Samples],
    steps: list[list[Step]],
    values: list[float | None],
    separate: bool,
) -> CheckResult:
    numbers: dict[str, Any] = {"processes": max(len(starts), len(samples)), "values": values}
    calls = compare_ranks(steps) if steps else []
    if samples:
        numbers["first_rows"] = [each.first for each in samples]
        numbers["batches"] = [each.length for each in samples]
    if steps:
        numbers |= numbers_of(calls, steps)

    def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
        return found(fault, measured, numbers, **facts)

    warning: CheckResult | None = None
    for finding in _findings(tell, starts, samples, steps, calls, values, separate):
        if finding.failed:
            return finding
        warning = finding if warning is None else warning
    return _passed(starts, samples, steps, numbers) if warning is None else warning


def _findings(
    tell: Tell,
    starts: list[Start],
    samples: list[Samples],
    steps: list[list[Step]],
    calls: list[Call],
    values: list[float | None],
    separate: bool,
) -> Iterator[CheckResult]:
    """Judge in the order in which faults hide one another."""
    if starts:
        finding = judge_start(tell, starts, separate=separate)
        if finding is not None:
            yield finding
    if samples:
        yield from _judge_samples(tell, samples)
    if steps:
        yield from judge_gradients(tell, calls, [each.scored for each in samples])
        yield from judge_after(tell, steps)
    known = [(value, rank) for rank, value in enumerate(values) if value is not None]
    if len(known) > 1:
        (low, low_rank), (high, high_rank) = min(known), max(known)
        if not high - low <= SAME_VALUE * abs(high):
            ends = {"low_rank": low_rank, "high_rank": high_rank}
            yield tell(words.EVALUATION, "", low=low, high=high, **ends)


def _judge_samples(tell: Tell, samples: list[Samples]) -> Iterator[CheckResult]:
    shown = _first_rows(samples)
    size = len(samples)
    pairs = [(a, b) for b in range(size) for a in range(b)]
    for first, second in pairs:
        a, b = samples[first], samples[second]
        ranks = {"first": first, "second": second, "size": size}
        share = same_share(a, b)
        if share == 1:
            by_chance = sorted(a.elsewhere) != sorted(b.elsewhere)
            yield tell(words.SEEDED_ALIKE if by_chance else words.SAME_SAMPLES, shown, **ranks)
            return
        shared, chance, rows = overlap(a, b)
        # size - 1 rows are doubled where the data are padded to equal shares
        if shared > 4 * chance + size + 0.1 * rows:
            yield tell(words.OVERLAP, shown, shared=shared, chance=chance, rows=rows, **ranks)
    yield from _judge_forms(tell, samples, shown)


def _judge_forms(tell: Tell, samples: list[Samples], shown: str) -> Iterator[CheckResult]:
    """Judge how many batches there are, their shapes, and whether they come again."""
    lengths = [math.inf if each.length is None else each.length for each in samples]
    if min(lengths) < max(lengths):
        most = "more" if max(lengths) == math.inf else int(max(lengths))
        ends = {"short": lengths.index(min(lengths)), "long": lengths.index(max(lengths))}
        yield tell(words.UNEVEN, shown, fewest=int(min(lengths)), most=most, **ends)
    for second, each in enumerate(samples[1:], 1):
        for batch, (a, b) in enumerate(zip(samples[0].shapes, each.shapes, strict=False)):
            if a != b:
                yield tell(words.SHAPES, shown, batch=batch, a=a, b=b, first=0, second=second)
                break
    epochs = [epoch_length(each) for each in samples]
    if all(epochs) and all(each.runs_on < RUNS_ON for each in samples):
        yield tell(words.SAME_EPOCH, shown, count=epochs[0])


def _first_rows(samples: list[Samples]) -> str:
    return "; ".join(
        say("rank {rank} begins {row}", rank=rank, row=each.first)
        for rank, each in enumerate(samples)
    )


def _passed(
    starts: list[Start],
    samples: list[Samples],
    steps: list[list[Step]],
    numbers: dict[str, Any],
) -> CheckResult:
    told = []
    if starts:
        told.append("hold equal weights")
    if steps and numbers["weights"]:
        told.append("step with the gradient of one process on all their data")
    elif steps:
        told.append("keep them equal in steps whose gradient, inside a closure, is not seen")
    if samples:
        rows = ", ".join(each.first for each in samples)
        told.append(say("learn from rows of their own ({rows})", rows=rows))
    return verdict(
        Status.PASS,
        "distributed.ok",
        say("{n} processes {told}", n=numbers["processes"], told=", ".join(told)),
        measured=say(
            "largest misfit {misfit}", misfit=max(numbers.get("misfits", ()), default=0.0)
        ),
        numbers=numbers,
    )


def _skip(why: str, next_step: str | None = None) -> CheckResult:
    return verdict(
        Status.SKIP,
        "distributed.no_workers",
        say("not measured: {why}", why=why),
        next_step=next_step
        or say(
            "call check_distributed in a script, after init_process_group, and run `{command}`",
            command=COMMAND,
        ),
    )


def _failed(probe: Probe, failures: list[Failure]) -> CheckResult:
    """Return the verdict where the work of a rank ended early."""
    first = failures[0]
    numbers = {"failures": [[f.rank, f.kind, f.message] for f in failures]}
    where = say("rank {rank}: {frame}", rank=first.rank, frame=first.frame) if first.frame else ""
    if first.kind == MissingPartError.__name__:
        return _skip(first.message, WHOLE if "of other names" in first.message else PART)
    if "autograd's threading" in first.message:
        return _skip("autograd runs threads in this process, which a fork does not take along")
    if first.is_echo:
        said = first.message.rpartition("] ")[2]  # gloo begins with the place in its source
        places = [say("rank {rank}: {at}", rank=f.rank, at=f.frame) for f in failures if f.frame]
        hang = found(words.HANG, say("{said}", said=said), numbers)
        return replace(hang, where="; ".join(places))
    if "expected to have finished reduction" in first.message.lower():
        measured = say("at {place}", place=where) if where else ""
        return found(words.UNUSED, measured, numbers, names=_unused(probe))
    message = f"{first.kind}: {first.message}" if first.kind else first.message
    by_hand = "call that part by hand with the same input, read the traceback from the bottom"
    crash = "look for an exit, a crash, or a collective call with other shapes on some ranks"
    return verdict(
        Status.ERROR,
        "distributed.raised",
        say("rank {rank} could not finish: {message}", rank=first.rank, message=message),
        where=where,
        next_step=crash if first.message == ENDED else by_hand,
        numbers=numbers,
    )


def _unused(probe: Probe) -> list[str]:
    """Return the trained parameters that the loss of a batch gives no gradient."""
    with probe.model(train=True) as model:
        _, gradient = reference(probe, model, random_pair(probe, "unused"))
        return [n for n, p in model.named_parameters() if p.requires_grad and n not in gradient]
