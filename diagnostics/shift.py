"""Shift: every target is the token right after its input, the last one included.

Why it matters
    A causal model learns whatever the targets say. With targets equal to the inputs it learns to
    copy, with targets two ahead to skip: the loss falls, often faster than it should, and only
    the generated text shows that the model predicts something else than the next token.

How it is measured
    `get_batch` is called on data in which every value is its own position (0, 1, 2, ...), so
    that `targets == inputs + 1` must hold in every place, the last column too. A loader that
    cannot read such data is judged on its own batch: the share of targets that equal the input k
    places later, for k from -3 to 3, and, where train_ids are given, by finding each row in them,
    which says what its last target has to be. With labels="same" (the model shifts inside) the
    targets must equal the inputs. Positions that hold ignore_index are not judged.

What it cannot see
    A second shift inside the model: that is for `loss`. Without get_batch and train_ids the last
    target of a row can only be compared with the usual mistakes (the row's first or last token).
    The last target before padding, which no input shows. Text that repeats itself (one
    character only) fits every shift.

Break it
    python -m exercises.break_shift
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import torch
from torch import Tensor

from diagnostics._probe import Batch, MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._shift_sample import place_to_show, read_sample
from diagnostics._text import Text, say

OFFSETS = range(-3, 4)  # the distances at which a mistaken slice still lands
LUCK_MAX = 5e-3  # chance below which rows that all agree with a wrong last target are judged
LOST_ROWS_MIN = 4  # rows from which a column that is always ignored is no accident
LOCATED_ROWS_MAX = 16  # rows searched for in the data, each a pass over it
COUNTING_LENGTH = 4096  # values in the counting data; more when the block is longer


def check_shift(
    inputs: Tensor,
    targets: Tensor,
    *,
    labels: str = "next",
    ignore_index: int = -100,
    data: Tensor | None = None,
    tokenizer: Any = None,
) -> CheckResult:
    """Check that targets (B, T) are the tokens that follow inputs (B, T).

    labels: "next", or "same" when the model shifts inside and targets must equal inputs.
    data: the (N,) ids that the rows were cut from; lets the last target be judged exactly.
    tokenizer: decodes the ids of the rows that `numbers["sample"]` shows.
    Raises ValueError when the two shapes differ or T < 2.
    """
    _require_pair(inputs, targets)
    result = _judge(inputs, targets, labels, ignore_index, data)
    batch = Batch(inputs, targets, source="given")
    return _with_sample(result, batch, batch, labels, ignore_index, tokenizer)


def _judge(
    inputs: Tensor, targets: Tensor, labels: str, ignore_index: int, data: Tensor | None
) -> CheckResult:
    scored = targets != ignore_index  # (B, T)
    if not scored.any():
        return _nothing_scored(inputs, ignore_index)
    wanted = 0 if labels == "same" else 1
    if wanted == 1:
        targets = _without_row_ends(inputs, targets, ignore_index)
        scored = targets != ignore_index
    agreement = measure_agreement(inputs, targets, ignore_index=ignore_index)
    numbers = {"agreement": {str(k): share for k, share in agreement.items()}, "wanted": wanted}
    # NaN: no target but the last column is scored, which is judged below
    if not agreement[wanted] >= 1.0 and not math.isnan(agreement[wanted]):
        return _misaligned(inputs, targets, scored, agreement, wanted, numbers)
    if wanted == 1:
        wrong_last = _wrong_last_targets(inputs, targets, scored, data)
        if wrong_last is not None:
            return wrong_last
    judged = int(scored.sum())
    whose = "its" if judged == 1 else "their"
    lost = _lost_column(scored)
    if lost is not None:
        return _column_ignored(lost, scored, numbers)
    return CheckResult(
        check="shift",
        status=Status.PASS,
        reason="shift.ok",
        claim=say(
            "the one target is {meaning}" if judged == 1 else "all {judged} targets are {meaning}",
            judged=judged,
            meaning=f"{whose} own input, for a model that shifts inside"
            if wanted == 0
            else f"the token after {whose} input",
        ),
        measured=say("{share:%} of targets equal {place}", share=1.0, place=_place(wanted)),
        numbers=numbers,
    )


def run(probe: Probe) -> CheckResult:
    """Judge counting data where the loader can read it, else the loader's own batch."""
    pipeline = probe.pipeline
    try:
        counted = _counting_batch(probe)
    except MissingPartError:
        raise
    except Exception:  # any: a loader that cannot read foreign data is not at fault
        counted = None
    batch, data = counted or (probe.raw_batch, pipeline.train_ids)
    if batch.inputs.shape[-1] == 1:
        raise MissingPartError("block_size", why="a row of one token has no token after it")
    _require_pair(batch.inputs, batch.targets)
    labels, ignored = pipeline.labels, pipeline.ignore_index
    result = _judge(batch.inputs, batch.targets, labels, ignored, data)
    shown = batch if counted is None else _readable_batch(probe, batch)
    return _with_sample(result, batch, shown, labels, ignored, pipeline.tokenizer)


def measure_agreement(
    inputs: Tensor, targets: Tensor, *, ignore_index: int = -100
) -> dict[int, float]:
    """Return, for each distance k, the share of scored targets[t] that equal inputs[t + k].

    Only places where t and t + k both lie inside the row count; NaN when there is none.
    """
    T = inputs.shape[1]
    shares: dict[int, float] = {}
    for k in OFFSETS:
        first, last = max(0, -k), min(T, T - k)
        if first >= last:
            continue
        judged = targets[:, first:last] != ignore_index
        equal = (targets[:, first:last] == inputs[:, first + k : last + k]) & judged
        shares[k] = int(equal.sum()) / int(judged.sum()) if judged.any() else float("nan")
    return shares


def locate(data: Tensor, row: Tensor) -> Tensor:
    """Return every start s with data[s : s + T] == row, for data (N,) and row (T,)."""
    T = row.shape[0]
    starts = torch.nonzero(data[: max(0, data.shape[0] - T + 1)] == row[0]).flatten()
    for t in range(1, T):
        if starts.numel() == 0:
            break
        starts = starts[data[starts + t] == row[t]]
    return starts


def _without_row_ends(inputs: Tensor, targets: Tensor, ignore_index: int) -> Tensor:
    """Ignore the last target of rows that are filled up with padding: no input can show it.

    Padding is one value in the inputs to the end of the row, twice or more in some row, with
    targets that are ignored.
    """
    later = (targets == ignore_index).flip(1).cumprod(1).flip(1).bool()  # ignored from t on
    filled = later & (inputs == inputs[:, -1:]).flip(1).cumprod(1).flip(1).bool()  # (B, T)
    lengths = filled.sum(1)
    pads = inputs[lengths >= 2, -1].unique()
    ends = targets.shape[1] - 1 - lengths  # the last place that is not filled up
    rows = torch.nonzero((lengths >= 1) & (ends >= 0) & torch.isin(inputs[:, -1], pads)).flatten()
    kept = targets.clone()
    kept[rows, ends[rows]] = ignore_index
    # where only such targets are scored, they are all there is to judge
    return kept if (kept != ignore_index).any() else targets


def _counting_batch(probe: Probe) -> tuple[Batch, Tensor] | None:
    if probe.pipeline.get_batch is None:
        return None
    count = max(COUNTING_LENGTH, 8 * (probe.block_size or 0))
    data = torch.arange(count)
    with probe.seeded("shift"):
        batch = probe.draw_batch(data)
    is_counting = bool((batch.inputs[:, 1:] - batch.inputs[:, :-1] == 1).all())
    return (batch, data) if is_counting else None  # a loader may cut rows in a way of its own


def _readable_batch(probe: Probe, counting: Batch) -> Batch:
    """Return what the same loader makes of the real data; the counting batch where it fails."""
    try:
        batch = probe.raw_batch
        if batch.source != "get_batch" and probe.pipeline.train_ids is not None:
            with probe.seeded("batch"):
                batch = probe.draw_batch(probe.pipeline.train_ids)
        _require_pair(batch.inputs, batch.targets)
    except Exception:  # any: the user's loader; it was judged on the counting data
        return dataclasses.replace(counting, source="counting")
    if batch.source != "get_batch":  # another loader than the one that was judged
        return dataclasses.replace(counting, source="counting")
    return batch


def _with_sample(
    result: CheckResult,
    judged: Batch,
    shown: Batch,
    labels: str,
    ignore_index: int,
    tokenizer: Any,
) -> CheckResult:
    """Add rows that show what was found, to be looked at beside the verdict."""
    wanted = None if result.passed else 0 if labels == "same" else 1
    place = place_to_show(shown.inputs, shown.targets, wanted=wanted, ignore_index=ignore_index)
    if result.reason in _LAST_COLUMN:
        row = result.numbers["first_row"] if shown is judged else 0
        place = (row, shown.inputs.shape[1] - 1)
    elif result.reason == "shift.column_ignored":
        place = (0, result.numbers["column"])
    sample = read_sample(
        shown.inputs,
        shown.targets,
        source=shown.source,
        place=place,
        tokenizer=tokenizer,
        ignore_index=ignore_index,
    )
    return dataclasses.replace(result, numbers={**result.numbers, "sample": sample})


def _wrong_last_targets(
    inputs: Tensor, targets: Tensor, scored: Tensor, data: Tensor | None
) -> CheckResult | None:
    """Judge the last column, which `inputs[:, 1:] == targets[:, :-1]` never looks at."""
    rows = torch.nonzero(scored[:, -1]).flatten().tolist()
    last = targets[:, -1]
    wrong: list[int] = []
    judged = 0
    if data is not None:
        data = data.to(inputs.device)
        for row in rows[:LOCATED_ROWS_MAX]:
            starts = locate(data, inputs[row])
            ends = starts + inputs.shape[1]
            ends = ends[ends < data.shape[0]]
            if ends.numel():
                judged += 1
                if not (data[ends] == last[row]).any():
                    wrong.append(row)
    kinds = {
        "shift.wrapped_last": [r for r in rows if last[r] == inputs[r, 0]],
        "shift.repeated_last": [r for r in rows if last[r] == inputs[r, -1]],
    }
    # how likely it is that every row agrees with a mistake by chance
    luck = _collision_chance(inputs) ** len(rows)
    fits = next(
        (r for r, hits in kinds.items() if len(hits) == len(rows) and luck < LUCK_MAX), None
    )
    if judged:
        if not wrong:
            return None
        fits = next((r for r, hits in kinds.items() if set(wrong) <= set(hits)), "shift.wrong_last")
        return _last_column_failure(fits, wrong[0], len(wrong), judged, inputs, last)
    if fits is None or bool((inputs == inputs[:, :1]).all()):  # constant rows fit everything
        return None
    return _last_column_failure(fits, rows[0], len(rows), len(rows), inputs, last)


def _lost_column(scored: Tensor) -> int | None:
    """Return an inner column that no row scores, although every row scores both neighbours."""
    if len(scored) < LOST_ROWS_MIN:
        return None
    whole = scored.all(dim=0)
    lost = whole[:-2] & ~scored[:, 1:-1].any(dim=0) & whole[2:]
    return int(torch.nonzero(lost)[0]) + 1 if lost.any() else None


def _column_ignored(column: int, scored: Tensor, numbers: dict[str, object]) -> CheckResult:
    return CheckResult(
        check="shift",
        status=Status.WARN,
        reason="shift.column_ignored",
        claim=say(
            "the target at position {column} is ignored in every row, and its neighbours are not",
            column=column,
        ),
        measured=say(
            "{count} of {total:target is|targets are} scored",
            count=int(scored.sum()),
            total=scored.numel(),
        ),
        expected=say(
            "{total} of {total}, unless a document ends there in every row",
            total=scored.numel(),
        ),
        where=say("position {column}", column=column),
        causes=(say("rows are cut into pieces, and each piece is shifted on its own"),),
        next_step=say("shift the whole row first, then cut inputs and targets into pieces"),
        numbers={**numbers, "column": column},
    )


def _collision_chance(inputs: Tensor) -> float:
    """Return the chance that two tokens drawn from the inputs are equal: the sum of p^2."""
    p = torch.unique(inputs, return_counts=True)[1].double() / inputs.numel()
    return float(p.square().sum())


def _last_column_failure(
    reason: str, row: int, count: int, judged: int, inputs: Tensor, last: Tensor
) -> CheckResult:
    told, cause = _LAST_COLUMN[reason]
    return CheckResult(
        check="shift",
        status=Status.FAIL,
        reason=reason,
        claim=say(
            "the last target of {count} of {judged:row|rows} is not the token after the row: "
            "{told}",
            count=count,
            judged=judged,
            told=told,
        ),
        measured=say(
            "row {row} ends with input {end} and has last target {last}",
            row=row,
            end=int(inputs[row, -1]),
            last=int(last[row]),
        ),
        expected=say("the token that follows the row in the data, in every row"),
        where=say(
            "last column of {count} of {judged:row|rows}; first is row {row}",
            count=count,
            judged=judged,
            row=row,
        ),
        causes=(Text(cause, {}),) if cause else (),
        next_step=say("cut T + 1 tokens per row: inputs = window[:-1], targets = window[1:]"),
        numbers={"wrong_rows": count, "judged_rows": judged, "first_row": row},
    )


_LAST_COLUMN = {
    "shift.wrapped_last": (
        "it is the row's own first token",
        "targets = inputs.roll(-1, dims=1), which carries the first token round to the end",
    ),
    "shift.repeated_last": (
        "it is the row's last input again",
        "the window holds T tokens instead of T + 1, and its end was repeated to fill the row",
    ),
    "shift.wrong_last": ("the data never goes on like that after such a row", ""),
}


def _misaligned(
    inputs: Tensor,
    targets: Tensor,
    scored: Tensor,
    agreement: dict[int, float],
    wanted: int,
    numbers: dict[str, object],
) -> CheckResult:
    fitting = [k for k, share in agreement.items() if share >= 1.0]
    reason, claim, cause = _read_agreement(fitting, agreement, wanted, inputs, targets)
    best = _best_fit(agreement)
    last = inputs.shape[1] - wanted
    wrong = (targets[:, :last] != inputs[:, wanted:]) & scored[:, :last]  # (B, T - wanted)
    row, column = (int(i) for i in torch.nonzero(wrong)[0])
    return CheckResult(
        check="shift",
        status=Status.FAIL,
        reason=reason,
        claim=claim,
        measured=_shares_text(agreement, wanted, best),
        expected=say("100 % equal {place}", place=_place(wanted)),
        where=say(
            "{count} of {total:place|places}; first is row {row}, position {column}",
            count=int(wrong.sum()),
            total=int(scored[:, :last].sum()),
            row=row,
            column=column,
        ),
        causes=(cause,) if cause else (),
        next_step=_remedy(reason, wanted, row),
        numbers=numbers,
    )


def _best_fit(agreement: dict[int, float]) -> int:
    """Return the distance with the largest share; among equals one ahead, and the nearest."""
    fits = {k: share for k, share in agreement.items() if not math.isnan(share)}
    return max(fits, key=lambda k: (fits[k], k >= 0, -abs(k)))


def _place(k: int) -> Text:
    if k == 0:
        return say("their own input")
    if k > 0:
        return say("the input {k:place|places} later", k=k)
    return say("the input {k:place|places} earlier", k=-k)


def _shares_text(agreement: dict[int, float], wanted: int, best: int) -> Text:
    share = say("{share:%} of targets equal {place}", share=agreement[wanted], place=_place(wanted))
    if best == wanted:
        return share
    return say(
        "{first}; {best:%} equal {place}",
        first=share,
        best=agreement[best],
        place=_place(best),
    )


def _remedy(reason: str, wanted: int, row: int) -> Text:
    if reason in ("shift.some_wrong", "shift.unrelated"):
        return say("print inputs[{row}] and targets[{row}] one above the other", row=row)
    if reason == "shift.rows_mixed":
        return say("draw the starts once, and cut inputs and targets from the same starts")
    if wanted == 0:
        return say("targets = inputs.clone(); the model shifts them itself")
    return say("inputs = data[start : start + T], targets = data[start + 1 : start + T + 1]")


def _read_agreement(
    fitting: list[int], agreement: dict[int, float], wanted: int, inputs: Tensor, targets: Tensor
) -> tuple[str, Text, Text | None]:
    """Name the mistake that the numbers fit; no cause where they fit none."""
    if fitting:
        return _read_distance(fitting, wanted)
    if _rows_are_permuted(inputs, targets):
        return (
            "shift.rows_mixed",
            say("the targets belong to other rows of the batch than their inputs"),
            say("inputs and targets were drawn or shuffled with different random starts"),
        )
    if agreement[wanted] > 0.5:
        claim = say(
            "{share:%} of the targets are not {place}",
            share=1 - agreement[wanted],
            place=_place(wanted),
        )
        return "shift.some_wrong", claim, None
    return "shift.unrelated", say("the targets fit the inputs at no distance from -3 to 3"), None


def _read_distance(fitting: list[int], wanted: int) -> tuple[str, Text, Text]:
    """Name the mistake that moves every target by the same distance."""
    if wanted == 0 and 1 in fitting:
        return (
            "shift.already_shifted",
            say("the targets are already moved by one, and the model moves them once more"),
            say('labels="same" was declared, yet the loader shifts as well'),
        )
    if 0 in fitting:
        return (
            "shift.identical",
            say("the targets equal the inputs: the model is trained to copy what it reads"),
            say("the slice of the targets starts where the slice of the inputs starts"),
        )
    if max(fitting) > 1:
        k = min(k for k in fitting if k > 1)
        return (
            "shift.too_far",
            say("the targets lie {k} tokens ahead of their inputs instead of 1", k=k),
            say(
                "the shift is applied {k} times, or a slice starts {extra} too late",
                k=k,
                extra=k - 1,
            ),
        )
    return (
        "shift.backward",
        say("the targets lie {k:token|tokens} behind their inputs", k=-max(fitting)),
        say("roll(+1) instead of roll(-1), or inputs and targets swapped"),
    )


def _rows_are_permuted(inputs: Tensor, targets: Tensor) -> bool:
    equal = (targets[:, None, :-1] == inputs[None, :, 1:]).all(dim=2)  # (B, B)
    return bool(equal.any(dim=1).all())


def _nothing_scored(inputs: Tensor, ignore_index: int) -> CheckResult:
    is_padding = bool((inputs == inputs[0, 0]).all())
    return CheckResult(
        check="shift",
        status=Status.FAIL,
        reason="shift.nothing_scored",
        claim=say(
            "every target of the batch is {ignore}, so nothing is learnt from it",
            ignore=ignore_index,
        ),
        measured=say("0 scored targets"),
        expected=say("at least 1"),
        causes=(
            say("the batch is padding only: the loader found nothing that fits into a row")
            if is_padding
            else say("the marker that ends the prompt was not found, so all was masked"),
        ),
        next_step=say("print one decoded example with its labels beside it"),
        numbers={"scored": 0},
    )


def _require_pair(inputs: Tensor, targets: Tensor) -> None:
    if inputs.ndim != 2 or inputs.shape != targets.shape or inputs.shape[1] < 2:
        raise ValueError(
            f"inputs and targets must both have shape (B, T) with T >= 2, "
            f"got {tuple(inputs.shape)} and {tuple(targets.shape)}"
        )
