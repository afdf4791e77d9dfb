"""Rows that loaders and training streams give, looked for in the validation part.

Shapes: R rows, T time.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from diagnostics._ngrams import RUN_LENGTH_MIN, Ids, find_runs, hash_runs, power_of_two
from diagnostics._probe import Batch, MissingPartError, Probe, read_batch
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

RUN_LENGTH = 32  # tokens of a row that are looked for
SHORT_RUN_LENGTH = 16  # tokens, where both parts are known by some of their rows only
OVERLAPPING_MIN, OVERLAPPING_SHARE_MIN = 3, 0.02  # rows; at the seam of two parts one may overlap
STREAM_BATCHES = 8  # per place in the run
STREAM_STEPS = (0, 10, 100)  # places at which a run may have been restarted
LOADER_CALLS = 32  # a loader may be an iterator that ends: no more is taken from it than needed
STRANGE_ROWS_MIN = 2
ONE_PART_SHARE = 0.9  # of rows; of windows that were shuffled into two parts fewer are met again
DISTINCT_SHARE_MIN = 0.02  # of different runs; below, the text says one thing again and again


def judge_stream(probe: Probe, train: Ids, val: Ids) -> CheckResult | None:
    """Look for rows of the training stream that only the validation part holds."""
    for name, step, rows in _streams(probe):
        n = power_of_two(min(RUN_LENGTH, rows.shape[1]))
        if n < 2 * RUN_LENGTH_MIN or n > min(len(train), len(val)):
            continue
        queries = hash_runs(rows[:, :n], n)[:, 0]
        in_val = find_runs(val, queries, n).counts > 0
        in_train = find_runs(train, queries, n).counts > 0
        strange = int((in_val & ~in_train).sum())
        wholly = strange >= 0.5 * len(rows) and name == "batch"
        if strange < STRANGE_ROWS_MIN or wholly:  # a loader of the wrong file is for `batches`
            continue
        return _reads_val(name, step, strange, len(rows))
    return None


def _streams(probe: Probe) -> Iterator[tuple[str, int, Ids]]:
    """Yield (part, step, rows (R, T)) of the training stream."""
    pipeline = probe.pipeline
    sources: list[tuple[str, int, Any]] = []
    if pipeline.batches_from is not None:
        sources += [("batches_from", step, pipeline.batches_from) for step in STREAM_STEPS]
    if callable(pipeline.batch):
        sources.append(("batch", 0, pipeline.batch))
    for name, step, source in sources:
        try:
            with probe.seeded(f"split {step}"):
                if name == "batch":
                    drawn = [read_batch(source("train"), name) for _ in range(LOADER_CALLS // 2)]
                else:
                    taken = itertools.islice(source(step), STREAM_BATCHES)
                    drawn = [read_batch(raw, name) for raw in taken]
            yield name, step, _rows(drawn)
        except Exception:  # any: loaders that raise are for `batches` and `resume`
            continue


def _reads_val(name: str, step: int, strange: int, total: int) -> CheckResult:
    restarted = name == "batches_from" and step > 0
    return verdict(
        Status.FAIL,
        "split.redrawn" if restarted else "split.train_reads_val",
        say("a run that is restarted at step {step} trains on rows of val_ids", step=step)
        if restarted
        else say("{name} trains on rows of val_ids", name=name),
        measured=say(
            "{strange} of {total:row stands|rows stand} in val_ids and not in train_ids",
            strange=strange,
            total=total,
        ),
        expected=say("0 rows"),
        causes=(
            say("the parts are drawn anew at each start, without a seed of their own"),
            say("the training rows are cut from the whole text"),
        )
        if restarted
        else (say("the training rows are cut from the whole text, or from another drawing"),),
        next_step=say("split once, store both parts, and read them from then on"),
        numbers={"strange": strange, "rows": total, "step": step},
    )


def judge_loader(probe: Probe) -> CheckResult:
    """Without both parts, compare the rows that a loader gives for each."""
    loader = probe.pipeline.batch
    missing = MissingPartError("val_ids", why="two parts are compared")
    if not callable(loader):
        raise missing
    try:
        with probe.seeded("split"):
            val = [read_batch(loader("val"), "batch") for _ in range(LOADER_CALLS // 2)]
        with probe.seeded("split"):
            train = [read_batch(loader("train"), "batch") for _ in range(LOADER_CALLS)]
    except Exception as error:  # any: a loader without a validation part
        raise missing from error
    if all(torch.equal(a.inputs, b.inputs) for a, b in zip(train, val, strict=False)):
        raise missing  # one part for both: `batches` says so
    train_rows, val_rows = _rows(train), _rows(val)
    n = power_of_two(min(SHORT_RUN_LENGTH, train_rows.shape[1], val_rows.shape[1]))
    if n < RUN_LENGTH_MIN:
        raise missing
    shared, natural = count_overlapping(train_rows, val_rows, n)
    is_chance = shared < max(OVERLAPPING_MIN, OVERLAPPING_SHARE_MIN * len(val_rows), 2 * natural)
    is_toy = len(np.unique(hash_runs(train_rows, n))) < DISTINCT_SHARE_MIN * train_rows.size
    claim = say(
        '{count} of {all:row of batch("val") is|rows of batch("val") are} cut from the same '
        'places as rows of batch("train")',
        count=shared,
        all=len(val_rows),
    )
    measured = say(
        "{count} rows agree with one of {rows} rows of training as far as both reach, {n} tokens "
        "or more; {natural} go on differently, as repeated words do",
        count=shared,
        rows=len(train_rows),
        n=n,
        natural=natural,
    )
    numbers = {"overlapping": shared, "val_rows": len(val_rows), "natural_rows": natural}
    if is_chance or is_toy:
        return verdict(Status.PASS, "split.ok", claim, measured=measured, numbers=numbers)
    return verdict(
        Status.FAIL,
        "split.rows_overlap",
        claim,
        measured=measured,
        expected=say("0 rows: every window of one part ends before the other part begins"),
        causes=(say("the loader gives the same part, whichever split it is asked for"),)
        if shared >= ONE_PART_SHARE * len(val_rows)
        else (
            say("windows were cut first, and shuffled into two parts after that"),
            say("rows were repeated, and then split: each has a copy on the other side"),
        ),
        next_step=say("split the text by documents or ranges first, and cut windows then"),
        numbers=numbers,
    )


def count_overlapping(train: Ids, val: Ids, n: int) -> tuple[int, int]:
    """Count rows of val (R, T) that share n tokens or more with a row of train, in two kinds.

    Windows of one place agree as far as both reach, from edge to edge: those come first. Text that
    repeats itself goes on differently somewhere: those rows come second.
    """
    known: dict[int, list[tuple[int, int]]] = {}
    for row, hashes in enumerate(hash_runs(train, n).tolist()):
        for column, value in enumerate(hashes):
            known.setdefault(value, []).append((row, column))
    of_one_place = by_nature = 0
    for row, hashes in zip(val, hash_runs(val, n).tolist(), strict=True):
        places = {(r, c - k) for k, value in enumerate(hashes) for r, c in known.get(value, ())}
        whole = [_agree(train[r], row, distance) for r, distance in places]
        of_one_place += any(whole)
        by_nature += bool(whole) and not any(whole)
    return of_one_place, by_nature


def _agree(a: Ids, b: Ids, distance: int) -> bool:
    """Whether b, laid over a from place `distance` of a on, equals it as far as both reach."""
    first, last = max(0, distance), min(len(a), distance + len(b))
    return np.array_equal(a[first:last], b[first - distance : last - distance])


def _rows(batches: list[Batch]) -> Ids:
    return torch.cat([batch.inputs for batch in batches]).cpu().long().numpy()  # (R, T)
