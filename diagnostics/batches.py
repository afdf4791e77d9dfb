"""Batches: the right shape, type and device; they vary, and they cover the data.

Why it matters
    A loader that gives the same batch at every step, or only ever reads the first tenth of the
    data, trains without complaint and reports a falling loss. A validation loader that reads the
    training file reports a wonderful one.

How it is measured
    One batch as it came: (B, T) int64 on one device, no longer than the block. Then `get_batch`
    is called many times on counting data (every value is its own position), so that each row
    says where it starts: rows must be consecutive tokens, differ within a batch and from call to
    call, and reach every part of the data. On counting data as long as train_ids, starts must
    not come again far more often than independent draws do. On data with three windows all three
    must turn up; on data with none, none may be made up. A loader bound to its data is called as
    well, and its rows are looked up in train_ids and val_ids. A healthy random sampler fails one
    of these with a probability below 1e-9; sequential readers are recognised, and no coverage is
    asked of them. Every batch must have a target. A loader that reads the data in passes is read
    for two of them, if one has at most 256 batches: the second should not have the first one's
    order.

What it cannot see
    Whether targets belong to their inputs: that is for `shift`; ids out of range: for `range`.
    The order of documents, and windows that cross from one to the next. Rows of one batch that
    overlap, because they start one token apart. Repeats that begin after some hundred batches.
    Processes that read the same rows: that is for `distributed`. Random samplers that know an
    eighth of the places or more, or are coarse only on more than 4 million ids. Repeats of a
    loader whose few tokens make few different rows: they are natural there.

Break it
    python -m exercises.break_batches
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diagnostics._batch_draws import (
    FALSE_ALARM,
    Draws,
    counting_data,
    draw_counting,
    draw_own,
    draw_short,
    unit_steps,
)
from diagnostics._batch_epochs import find_pass, judge_order, judge_padding
from diagnostics._batch_form import describe, fault, judge_one, wrong_device
from diagnostics._batch_places import judge_places
from diagnostics._probe import Batch, MissingPartError, Probe, read_batch
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics.shift import locate

SHORT_ROWS = 64  # three starts, one missed by chance in 64 draws: 3 * (2/3)**64 = 2e-11
UNIT_SHARE_MIN = 0.5  # loaders that add markers to their rows keep more neighbours than this
REPEATED_SHARE = 0.6  # of draws that differ: two workers with one state give a half
VAL_ROWS_MIN = 4
LENGTH_MIN = 8  # shorter rows can be found by chance
DOUBTFUL_LENGTH = 16  # shorter rows of characters occur in both splits by nature


def check_batches(
    inputs: Any,
    targets: Any,
    *,
    vocab_size: int | None = None,
    block_size: int | None = None,
    device: torch.device | str | None = None,
    attention_mask: Tensor | None = None,
    ignore_index: int = -100,
    pad_id: int | None = None,
) -> CheckResult:
    """Check one batch: inputs and targets (B, T), int64, on `device`, T <= block_size.

    vocab_size, block_size, device, pad_id: None: not judged.    attention_mask: (B, T) or None.
    What is not a tensor, or has another shape, is reported, not raised.
    """
    wrong = judge_one(
        inputs,
        targets,
        attention_mask,
        vocab_size=vocab_size,
        block_size=block_size,
        device=None if device is None else torch.device(device),
        ignore_index=ignore_index,
        pad_id=pad_id,
    )
    if wrong is not None:
        return wrong
    B, T = inputs.shape
    return verdict(
        Status.PASS,
        "batches.ok",
        say("inputs and targets are ({B}, {T}) int64 on {device}", B=B, T=T, device=inputs.device),
        measured=describe(inputs, targets, attention_mask),
        numbers={"B": B, "T": T},
    )


def run(probe: Probe) -> CheckResult:
    """Judge one batch, then what many of them have in common."""
    pipeline = probe.pipeline
    try:
        raw: Batch | None = probe.raw_batch
    except TypeError as error:
        return verdict(
            Status.FAIL,
            "batches.not_tensors",
            say("the loader does not give a batch of tensors"),
            measured=say("{error}", error=str(error)[:200]),
            expected=say("(inputs, targets), or a dict with input_ids and labels"),
            next_step=say("print type(batch), and each key with its shape and dtype"),
        )
    except MissingPartError:
        if pipeline.get_batch is None:
            raise
        raw = None  # it is still probed with counting data
    questions: list[Callable[[], CheckResult | None]] = []
    if raw is not None:
        questions.append(lambda: _judge_in_pipeline(probe, raw))
    if pipeline.get_batch is not None:
        questions.append(lambda: _judge_sampler(probe))
    if callable(pipeline.batch):
        questions += [lambda: _judge_loader(probe), lambda: _judge_splits(probe)]
    if raw is not None:
        questions.append(lambda: _judge_memory(raw))
    warning: CheckResult | None = None
    for ask in questions:
        result = ask()
        if result is not None and result.failed:
            return result
        warning = result if warning is None else warning
    return warning if warning is not None else _pass(probe, raw)


def _pass(probe: Probe, raw: Batch | None) -> CheckResult:
    shown = say("not looked at") if raw is None else describe(raw.inputs, raw.targets, None)
    many = probe.pipeline.get_batch is not None or callable(probe.pipeline.batch)
    return verdict(
        Status.PASS,
        "batches.ok",
        say("batches are well formed, differ from call to call and reach all of the data")
        if many
        else say("the batch is well formed: {shown}", shown=shown),
        measured=shown,
        numbers={} if raw is None else {"B": raw.inputs.shape[0], "T": raw.inputs.shape[1]},
    )


# ---- one batch -----------------------------------------------------------------------------


def _judge_in_pipeline(probe: Probe, raw: Batch) -> CheckResult | None:
    pipeline = probe.pipeline
    wrong = judge_one(
        raw.inputs,
        raw.targets,
        raw.attention_mask,
        vocab_size=None,  # ids out of range are for `range`
        block_size=probe.block_size,
        device=None,
        ignore_index=pipeline.ignore_index,
        pad_id=pipeline.pad_id,
    )
    if wrong is not None:
        return wrong
    if raw.inputs.device != probe.device:  # the loop may move it
        return wrong_device(Status.WARN, "batch", raw.inputs.device, "model", probe.device)
    return None


# ---- many batches --------------------------------------------------------------------------


def _judge_sampler(probe: Probe) -> CheckResult | None:
    """Judge get_batch on counting data, or on train_ids where it cannot read that."""
    draws = draw_counting(probe)
    if draws is None:
        ids = probe.pipeline.train_ids
        if ids is None:
            return None
        own = draw_own(probe, lambda: _as_pair(probe.draw_batch(ids)), ids)
        return _judge_draws(probe, own, lambda: probe.draw_batch(ids))
    wrong = _judge_windows(probe, draws)
    if wrong is not None:
        return wrong if wrong.status is not Status.SKIP else None
    data = counting_data(probe, draws.N)[0]
    wrong = _judge_draws(probe, draws, lambda: probe.draw_batch(data))
    wrong = judge_places(probe, draws) if wrong is None else wrong
    if wrong is not None:
        return wrong
    if draws.stride == 1 and not draws.advances:
        return _judge_ends(probe, draws.T)
    return None


def _judge_loader(probe: Probe) -> CheckResult | None:
    """Judge a loader that is bound to its data."""
    loader = probe.pipeline.batch
    assert callable(loader)
    draws = draw_own(probe, lambda: loader("train"), probe.pipeline.train_ids)
    return _judge_draws(probe, draws, lambda: read_batch(loader("train"), "batch"))


def _judge_windows(probe: Probe, draws: Draws) -> CheckResult | None:
    """Are rows of counting data consecutive, and inside the data? SKIP: rows of its own kind."""
    inputs = torch.cat([batch.inputs.cpu() for batch in draws.batches])  # (K * B, T)
    share = unit_steps(inputs)
    if share < 1.0:
        return _judge_odd_windows(probe, inputs, share)
    outside = (inputs[:, 0] < draws.offset) | (inputs[:, -1] >= draws.offset + draws.N)
    if not bool(outside.any()):
        return None
    row = inputs[outside][0] - draws.offset
    return fault(
        "batches.outside_data",
        say("a window holds ids that are not in the data it was cut from"),
        say("a row runs from place {a} to {b}", a=int(row[0]), b=int(row[-1])),
        say("places 0 to {last}", last=draws.N - 1),
        where=say("{count} of {all:row|rows}", count=int(outside.sum()), all=len(inputs)),
    )


def _judge_odd_windows(probe: Probe, inputs: Tensor, share: float) -> CheckResult | None:
    for modulus, kind in ((2**8, "8-bit"), (2**16, "16-bit")):
        walked = (inputs - inputs[:, :1] - torch.arange(inputs.shape[1])) % modulus
        if bool((walked == 0).all()):
            if probe.vocab_size <= modulus:
                return verdict(
                    Status.SKIP,
                    "batches.not_counted",
                    say("not counted: the loader keeps its ids in a small type"),
                )
            return fault(
                "batches.wrapped_ids",
                say(
                    "the loader keeps ids in a type of {n} values, and V is {V}: ids wrap round",
                    n=modulus,
                    V=probe.vocab_size,
                ),
                say("ids {n} apart come out equal", n=modulus),
                say("every id as it is in the data"),
                causes=(say("an array or tensor of {kind} ids on the way", kind=kind),),
                next_step=say("convert ids to int64 before anything is done with them"),
            )
    if share >= UNIT_SHARE_MIN:
        return verdict(
            Status.SKIP,
            "batches.not_counted",
            say("not counted: the rows hold markers of the loader's own"),
        )
    steps = inputs[:, 1:] - inputs[:, :-1]
    common = int(steps.flatten().mode().values)
    same = float((steps == common).double().mean())
    down = float((inputs[1:] - inputs[:-1] == 1).double().mean()) if len(inputs) > 1 else 0.0
    causes: tuple[Text, ...] = ()
    if same > 0.9 and common == -1:
        causes = (say("rows are cut backwards, or flipped"),)
    elif down > 0.5:
        causes = (say("time runs down the columns: the batch is (T, B), or reshaped that way"),)
    elif same > 0.9:
        causes = (
            say("rows take every {k}th token: a reshape or a stride mixes the axes", k=common),
        )
    return fault(
        "batches.not_contiguous",
        say("the rows are not consecutive tokens of the data"),
        say("{share:%} of neighbours in a row are neighbours in the data", share=share),
        say("100 %"),
        causes=causes,
        next_step=say("call get_batch(torch.arange(1000)) and read the first two rows"),
        numbers={"unit_share": share, "common_step": common, "common_share": same},
    )


def _judge_draws(probe: Probe, draws: Draws, draw: Callable[[], Batch]) -> CheckResult | None:
    """Do rows differ within a batch and between calls, and do they cover the data?"""
    batches = draws.batches
    padding = judge_padding(batches, probe.pipeline.ignore_index)
    if padding is not None:
        return padding
    B = batches[0].inputs.shape[0]
    windows = draws.windows if draws.N else None
    if not min(draws.kinds, draws.windows if draws.N else math.inf) > 4 * B:
        return None  # nearly the whole data, or all that its tokens make, is one batch
    if all(_equal(batch, batches[0]) for batch in batches[1:]):
        return _always_the_same(probe, draws, draw)
    rows = [batch.inputs for batch in batches]
    if B > 1 and all(bool((x == x[:1]).all()) for x in rows) and _improbable(windows, B):
        return fault(
            "batches.same_rows",
            say("all {B} rows of a batch are the same", B=B),
            say("in {K} of {K} batches", K=len(batches)),
            say("rows that start at places of their own"),
            causes=(say("one start is drawn for the whole batch"),),
            next_step=say("draw one start for each row: torch.randint(high, (B,))"),
        )
    if not draws.N:
        return None
    with probe.seeded("batches pass"):
        length = find_pass(draws, draw)
    if length is not None:
        return judge_order(draws, length)
    repeats = _judge_repeats(draws)
    return repeats if repeats is not None else _judge_coverage(draws)


def _judge_repeats(draws: Draws) -> CheckResult | None:
    """Are rows or whole batches drawn again far more often than by chance?"""
    # n draws from n**2 places collide n / 2 times with a probability below 1e-18 for n >= 32
    sample = draws.known[: int(min(draws.windows, draws.kinds) ** 0.5)]
    batches = [tuple(batch.inputs.flatten().tolist()) for batch in draws.batches[:32]]
    if draws.batches[0].inputs.shape[0] > 1 and len(set(batches)) <= REPEATED_SHARE * len(batches):
        sample = [hash(batch) for batch in batches]  # two equal batches: below 1e-4 by chance
    elif len(sample) < 32:
        return None
    distinct = len(set(sample))
    if distinct > REPEATED_SHARE * len(sample):
        return None
    return fault(
        "batches.repeats",
        say("of the first {n:draw|draws} only {d} are different", n=len(sample), d=distinct),
        say("{d:distinct draw|distinct draws}", d=distinct),
        say("nearly {n}: the data has {all:window|windows}", n=len(sample), all=draws.windows),
        causes=(say("workers share one random state, or the loader starts over too often"),),
        next_step=say("print the starts of ten batches; seed each worker differently"),
        numbers={"distinct": distinct, "rows": len(sample)},
    )


def _judge_coverage(draws: Draws) -> CheckResult | None:
    starts = torch.tensor(draws.known)
    n, windows = len(starts), draws.windows
    if n < SHORT_ROWS or draws.advances:
        return None
    # at either end a share f is missed by chance with probability (1 - f)**n
    missable = 1 - (FALSE_ALARM / 4) ** (1 / n)
    low, high = float(starts.min()) / windows, float(starts.max()) / windows
    numbers = {"first": low, "last": high, "rows": n, "stride": draws.stride}
    if low > missable or high < 1 - missable:
        return fault(
            "batches.part_of_data",
            say(
                "batches read only the part of the data from {low} to {high} of its length",
                low=low,
                high=high,
            ),
            say(
                "{n} rows start between {a} and {b} of {all}",
                n=n,
                a=int(starts.min()),
                b=int(starts.max()),
                all=windows,
            ),
            say("starts from 0 to 1; by chance at most {f} is missed at an end", f=missable),
            causes=(say("the bound of the random starts is not taken from len(data)"),),
            next_step=say("starts = torch.randint(len(data) - T, (B,))"),
            numbers=numbers,
        )
    if draws.stride > draws.T:
        return verdict(
            Status.WARN,
            "batches.gaps",
            say(
                "windows start every {s} tokens and are {T} long: some tokens are never targets",
                s=draws.stride,
                T=draws.T,
            ),
            measured=say(
                "{share:%} of the data is never a target", share=1 - draws.T / draws.stride
            ),
            expected=say("a stride of at most T"),
            next_step=say("start windows every T tokens; each takes T + 1"),
            numbers=numbers,
        )
    return None


def _judge_ends(probe: Probe, T: int) -> CheckResult | None:
    """On data with three windows all three must turn up; with none, none may be made up."""
    draws, errors = draw_short(probe, T, SHORT_ROWS)
    if not draws.batches:
        return None  # it wants more data than three windows, and says so
    if errors:
        error = errors[0]
        return fault(
            "batches.past_the_end",
            say(
                "some draws from short data raise {kind}: a window runs past the end",
                kind=type(error).__name__,
            ),
            say(
                "{bad} of {all} draws raise: {message}",
                bad=len(errors),
                all=len(errors) + len(draws.batches),
                message=str(error).split("\n")[0][:120],
            ),
            say("none: {N} ids have 3 windows of {T}", N=T + 3, T=T),
            causes=(say("the largest start leaves no room for the last target"),),
            next_step=say("draw starts below len(data) - T"),
            numbers={"raising": len(errors)},
        )
    seen = {start: draws.known.count(start) for start in sorted(set(draws.known))}
    ignore = probe.pipeline.ignore_index
    # a row whose last target is not scored needs no token after it
    open_ended = all(bool((b.targets[:, -1] == ignore).all()) for b in draws.batches)
    last = 2 if probe.pipeline.labels == "next" and not open_ended else 3
    beyond = [s for s in seen if s > last or s < 0]
    if beyond:
        return fault(
            "batches.past_the_end",
            say("windows start at {start}, where no target is left", start=beyond[0]),
            say("starts {seen}", seen=seen),
            say("starts 0, 1 and 2 in {N} ids with T={T}", N=T + 3, T=T),
            causes=(say("the data is padded or wrapped round to fill the last window"),),
            next_step=say("draw starts below len(data) - T"),
            numbers={"starts": {str(s): n for s, n in seen.items()}},
        )
    missing = [start for start in (0, 1, 2) if start not in seen]
    if missing:
        return _never_drawn(missing, seen, len(draws.known), T)
    return _judge_too_short(probe, T)


def _never_drawn(missing: list[int], seen: dict[int, int], rows: int, T: int) -> CheckResult:
    last = missing == [2]
    return fault(
        "batches.start_never_drawn",
        say(
            "of the three windows in {N} ids the {which} is never drawn",
            N=T + 3,
            which="last" if last else "first" if missing == [0] else "others",
        ),
        say("starts {seen} in {rows} rows", seen=seen, rows=rows),
        say("0, 1 and 2; one is missed by chance with probability {p}", p=3 * (2 / 3) ** rows),
        causes=(say("the bound of the starts is one too small: randint leaves its end out"),)
        if last
        else (),
        next_step=say("starts = torch.randint(len(data) - T, (B,)): 0 to len(data) - T - 1"),
        numbers={"missing": missing, "starts": {str(s): n for s, n in seen.items()}},
    )


def _judge_too_short(probe: Probe, T: int) -> CheckResult | None:
    """T ids hold T - 1 pairs: a row of T targets would be made up."""
    if probe.pipeline.labels != "next":
        return None
    data, _ = counting_data(probe, T)
    try:
        with probe.seeded("batches too short"):
            batch = probe.draw_batch(data)
    except Exception:  # any: raising is right, whatever the words
        return None
    scored = batch.targets != probe.pipeline.ignore_index
    right = batch.targets == batch.inputs + 1
    if batch.inputs.numel() and bool((right | ~scored).all()):
        return None  # shorter rows, or a last target that is not scored
    return fault(
        "batches.short_data",
        say("from {T} ids, too few for one window, the loader makes up a batch", T=T),
        describe(batch.inputs, batch.targets, None),
        say("an error: T inputs and their targets take T + 1 = {n} ids", n=T + 1),
        causes=(say("the number of windows is clamped, or a negative bound counts from the end"),),
        next_step=say("raise a ValueError when len(data) < T + 1, with both numbers"),
    )


def _always_the_same(probe: Probe, draws: Draws, draw: Callable[[], Batch]) -> CheckResult:
    causes: tuple[Text, ...] = ()
    if _resets_random_state(probe, draw):
        causes = (say("manual_seed is called inside the loader, before each draw"),)
    elif draws.known and draws.known[0] == 0:
        causes = (say("next(iter(loader)) builds a new iterator at each step: its first batch"),)
    elif draws.known:
        causes = (say("the starts are drawn once, or from a generator made anew at each call"),)
    return fault(
        "batches.always_the_same",
        say("{K} calls in a row give the very same batch", K=len(draws.batches)),
        say("1 distinct batch in {K} calls", K=len(draws.batches)),
        say("a new batch at each call; hand over the pair itself if one fixed batch is meant"),
        causes=causes,
        next_step=say("make the iterator, or seed the generator, once before the loop"),
        numbers={"calls": len(draws.batches), "distinct": 1},
    )


def _resets_random_state(probe: Probe, draw: Callable[[], Batch]) -> bool:
    states = []
    for name in ("one", "two"):
        with probe.seeded(f"batches {name}"):
            draw()
            states.append(torch.get_rng_state())
    return torch.equal(*states)


# ---- splits and memory ---------------------------------------------------------------------


def _judge_splits(probe: Probe) -> CheckResult | None:
    """Does each split come from its own data?"""
    loader = probe.pipeline.batch
    assert callable(loader)
    try:
        with probe.seeded("split"):
            val = [read_batch(loader("val"), "batch") for _ in range(2)]
        with probe.seeded("split"):
            train = [read_batch(loader("train"), "batch") for _ in range(2)]
    except Exception:  # any: a loader without a validation split
        return None
    train_ids, val_ids = probe.pipeline.train_ids, probe.pipeline.val_ids
    for split, batches, own, foreign, other in (
        ("val", val, val_ids, train_ids, "train"),
        ("train", train, train_ids, val_ids, "val"),
    ):
        if foreign is None:
            continue
        rows = [row.cpu() for batch in batches for row in batch.inputs]
        away = [row for row in rows if own is None or not _holds(own, row)]
        strange = [row for row in away if _holds(foreign, row)]
        # without the split's own ids, rows that occur in both by nature look foreign
        length_min, share_min = (LENGTH_MIN, 0.5) if own is not None else (DOUBTFUL_LENGTH, 1.0)
        enough = len(rows) >= VAL_ROWS_MIN and len(rows[0]) >= length_min
        if enough and len(strange) >= share_min * len(rows):
            return _reads_other(split, other, len(strange), len(rows))
    if train_ids is None and all(_equal(a, b) for a, b in zip(train, val, strict=True)):
        return fault(
            "batches.split_ignored",
            say('batch("val") gives the very rows of batch("train")'),
            say("equal batches under equal seeds"),
            say("rows of the validation data"),
            causes=(say("the argument that names the split is not used"),),
            next_step=say("select the data by the split inside the loader"),
        )
    return None


def _reads_other(split: str, other: str, count: int, total: int) -> CheckResult:
    return fault(
        "batches.val_reads_train" if split == "val" else "batches.train_reads_val",
        say('batch("{split}") reads {other}_ids', split=split, other=other),
        say(
            "{count} of {total:row is|rows are} found in {other}_ids and not in {split}_ids",
            count=count,
            total=total,
            other=other,
            split=split,
        ),
        say("every row from {split}_ids", split=split),
        causes=(say("both splits were given the same file or tensor"),),
        next_step=say("print the path that the {split} loader opens", split=split),
        numbers={"foreign_rows": count, "rows": total},
    )


def _judge_memory(raw: Batch) -> CheckResult | None:
    """Do inputs and targets share memory, so that masking targets would change the inputs?"""
    a, b = raw.inputs, raw.targets
    if a.untyped_storage().data_ptr() != b.untyped_storage().data_ptr() or not a.numel():
        return None
    (a_first, a_last), (b_first, b_last) = _span(a), _span(b)
    if a_last < b_first or b_last < a_first:
        return None
    return verdict(
        Status.WARN,
        "batches.aliased",
        say("inputs and targets are views of one memory: writing into one changes the other"),
        measured=say("overlapping storage"),
        expected=say("memory of their own, if targets are ever masked in place"),
        next_step=say("targets = targets.clone() before targets[mask] = -100"),
    )


# ---- small helpers -------------------------------------------------------------------------


def _span(tensor: Tensor) -> tuple[int, int]:
    """Return the places of the first and the last element in the storage."""
    reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return int(tensor.storage_offset()), int(tensor.storage_offset() + reach)


def _holds(data: Tensor, row: Tensor) -> bool:
    return locate(data.cpu(), row).numel() > 0


def _equal(a: Batch, b: Batch) -> bool:
    return torch.equal(a.inputs, b.inputs)


def _as_pair(batch: Batch) -> tuple[Tensor, Tensor]:
    return batch.inputs, batch.targets


def _improbable(windows: int | None, B: int) -> bool:
    """Whether B equal rows in each of 8 batches are beyond chance, with `windows` to draw from."""
    return windows is None or windows ** (8.0 * (B - 1)) > 1 / FALSE_ALARM
