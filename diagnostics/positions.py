"""Positions: every position has a place of its own, and the order of tokens is used.

Why it matters
    Without positions "dog bites man" is "man bites dog". A position table that is made but not
    added, read at one row only, or too short for the block costs quality and raises nothing.

How it is measured
    On a float64 copy with jittered weights. Noise is added to one row of the position table after
    the other: the first logits that move belong to the position that reads the row, and every
    position must have one of its own, at the end of the block too; for random tokens and for a
    repeated one. A table that cannot be trained must not hold two equal rows. Where something is
    named after rotary positions, queries and keys of a repeated token must differ from place to
    place, and their scores must depend on the distance alone. Then two earlier tokens trade
    places: the last prediction must notice, or order is not used.

What it cannot see
    Positions that were left out of a model of two layers or more without a table: causal masking
    tells it the order, and models without positions are a known design. Whether rotary angles
    are paired as in the weights that were loaded. Positions of padded or packed rows.

Break it
    python -m exercises.break_positions
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from diagnostics._attention_faults import repeated_row_calls
from diagnostics._position_faults import (
    EQUAL_ROWS,
    PHASE_ERROR_MAX,
    STILL_SHARE,
    equal_rows,
    not_finite,
    read_by_token,
    rotary_not_relative,
    rotary_one_sided,
    rotary_unused,
    rounded_angles,
    shared_rows,
    still_columns_fault,
    table_too_small,
    twin_columns_fault,
    unused_table,
)
from diagnostics._position_tables import (
    PositionTable,
    RowMap,
    closest_rows,
    find_tables,
    map_rows,
    names_rotary_positions,
    rounded_frequencies,
    still_columns,
    tensor_at,
    twin_columns,
)
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import (
    Bench,
    bench_tokens,
    direct_probe,
    moved,
    not_causal,
    on_bench,
    other_tokens,
)
from diagnostics._text import say

LENGTH_MAX = 16  # positions looked at first; the end of the block is looked at besides
ROWS_BEYOND = 4  # rows after the last position: where a shifted table is read
LAG_ERROR = 1e-3  # measured: 1e-16 in float64, 1e-7 with tables in float32; mixed pairs: 0.3
BLOCK_MAX = 2048  # the longest block whose end is looked at


def check_positions(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that positions are told apart and that the order of tokens is used.

    tokens: (B, T) ids with T >= 3, of which the first row is used; None: random ones.
    vocab_size: V; None: read from the model.    parts: other fields of Pipeline, such as forward.
    Raises ValueError for another shape.
    """
    return _check(direct_probe(model, tokens, vocab_size, parts, length_min=3), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge a row of random tokens, and one of a single token."""
    return _check(probe, None)


def measure_order(bench: Bench, tokens: Tensor) -> tuple[float, float]:
    """Return how far the last logits move when earlier tokens change, and when two trade places.

    tokens: (1, T).
    """
    T = tokens.shape[1]
    before = bench.plain(tokens)[:, -1:]
    changed = other_tokens(bench.probe, tokens)
    changed[:, -1] = tokens[:, -1]
    changes = float(moved(before, bench.call(changed)[:, -1:]).max())
    trades = [0.0]
    for a, b in {(0, 1), (T // 2 - 1, T // 2), (T - 3, T - 2), (0, T - 2)}:
        if a < b < T - 1 and tokens[0, a] != tokens[0, b]:
            traded = tokens.clone()
            traded[0, a], traded[0, b] = tokens[0, b], tokens[0, a]
            trades.append(float(moved(before, bench.call(traded)[:, -1:]).max()))
    return changes, max(trades)


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    if not probe.pipeline.causal:
        return not_causal("positions")
    probe.require_choice()
    if tokens is None:
        tokens = bench_tokens(probe, 1, min(probe.probe_length, LENGTH_MAX), "positions")
    tokens = tokens[:1].to(probe.device)
    if tokens.shape[1] < 3:
        return verdict(
            Status.SKIP,
            "positions.no_order",
            say("not measured: with fewer than three tokens there is no order to lose"),
            next_step=say("nothing to do; a longer block_size would have it measured"),
        )
    tables = find_tables(probe.pipeline.model)
    fault = _judge_values(probe, tables)
    if fault is not None:
        return fault
    return on_bench(probe, "positions", tokens, partial(_judge, tables))


def _judge(tables: list[PositionTable], bench: Bench, tokens: Tensor, limit: float) -> CheckResult:
    broken = bench.plain(tokens).isnan().any(2)  # (1, T)
    if broken.any():
        return not_finite(int(broken.sum()), tokens.shape[1])
    fault = _judge_tables(bench, tables, tokens, limit) if tables else None
    fault = _judge_rotary(bench, tokens, limit) if fault is None else fault
    return _judge_order(bench, tables, tokens, limit) if fault is None else fault


def _judge_tables(
    bench: Bench, tables: list[PositionTable], tokens: Tensor, limit: float
) -> CheckResult | None:
    maps: list[tuple[PositionTable, list[RowMap]]] = []
    for table in tables:
        rows = list(range(min(table.rows, tokens.shape[1] + ROWS_BEYOND)))
        try:
            found = map_rows(bench, table.path, _with_repeated(tokens), rows, limit)
        except RuntimeError:  # an expanded or shared buffer cannot be written to row by row
            continue
        maps.append((table, found))
    if not maps:
        return None
    if not any(row_map.first for _, found in maps for row_map in found):
        return unused_table(bench.probe, maps[0][0], limit)
    clear = [(table, found) for table, found in maps if all(m.is_clear and m.first for m in found)]
    if not clear:
        return None  # no table is read by position: nothing can be said of rows
    table, found = clear[0]
    if all(_is_read_by_token(*pair) for pair in zip(_with_repeated(tokens), found, strict=True)):
        return read_by_token(table)
    lacking = _lacking([m for _, maps_of in clear for m in maps_of])
    if lacking:
        # several tables may share the work, as rows and columns of a grid do
        status = Status.FAIL if len(clear) == 1 else Status.WARN
        return shared_rows(table, found[0], lacking, status)
    return _judge_end(bench, table, found[0], limit)


def _with_repeated(tokens: Tensor) -> Tensor:
    """Return (2, T): the tokens, and one token repeated; none resets positions in both."""
    return torch.cat([tokens, tokens[:, -1:].expand_as(tokens)])


def _is_read_by_token(row: Tensor, row_map: RowMap) -> bool:
    """Whether each row of the table first reaches the place where the token of its number stands.

    row: (T,). A position that happens to hold the token of its own number does not tell.
    """
    told = [(r, t) for r, t in row_map.first.items() if r != t]
    return bool(told) and all(int(row[t]) == r for r, t in told)


def _lacking(maps: list[RowMap]) -> list[int]:
    """Return positions that have a row of their own in no map."""
    return sorted(set.intersection(*(set(row_map.without_row) for row_map in maps)))


def _judge_end(
    bench: Bench, table: PositionTable, row_map: RowMap, limit: float
) -> CheckResult | None:
    """The last position of the block must have a row too, wherever the table starts."""
    block, offset = bench.probe.block_size, row_map.row_of(0) or 0
    if block is None or not row_map.T < block <= BLOCK_MAX:
        return None
    direction = 1 if (row_map.row_of(1) or 1) > offset else -1
    row = min(max(offset + direction * (block - 1), 0), table.rows - 1)
    whole = _with_repeated(bench_tokens(bench.probe, 1, block, "positions end"))[1:]
    try:
        tail = map_rows(bench, table.path, whole, [row], limit)[0]
    except IndexError:
        return table_too_small(table, block, offset)
    if tail.row_of(block - 1) is None:
        return shared_rows(table, tail, [block - 1], Status.FAIL)
    return None


def _judge_values(probe: Probe, tables: list[PositionTable]) -> CheckResult | None:
    """Judge tables that no training will mend, and rotary frequencies that were rounded."""
    for table in tables:
        values = tensor_at(probe.pipeline.model, table.path).double().cpu()
        values = values[: min(probe.block_size or len(values), 1024)]
        if table.trainable or len(values) < 2:
            continue
        a, b, distance = closest_rows(values)
        still = still_columns(values)
        if not distance > EQUAL_ROWS:
            return equal_rows(table, a, b, distance)
        if still is not None and still > STILL_SHARE:
            return still_columns_fault(table, still, len(values))
        twins = twin_columns(values)
        if twins > STILL_SHARE:
            return twin_columns_fault(table, twins)
    T = probe.block_size or probe.probe_length
    rounded = rounded_frequencies(probe.pipeline.model, T)
    if rounded is not None and rounded[1] > PHASE_ERROR_MAX:
        return rounded_angles(*rounded, T)
    return None


def _judge_rotary(bench: Bench, tokens: Tensor, limit: float) -> CheckResult | None:
    """For a token repeated, rotary positions turn queries and keys from one place to the next."""
    if not names_rotary_positions(bench.model):
        return None
    repeated = bench.plain(_with_repeated(tokens)[1:])  # (1, T, W)
    spread = float(moved(repeated[:, :1].expand_as(repeated), repeated).max())
    if spread > limit:
        return None  # other positions tell the places apart as well
    calls = repeated_row_calls(bench, int(tokens[0, -1]), tokens.shape[1])
    if not calls or any(not call.turning for call in calls):
        return None
    if not any(any(call.turning) for call in calls):
        return rotary_unused(len(calls))
    if not any(all(call.turning) for call in calls):
        return rotary_one_sided(len(calls), queries=any(call.turning[0] for call in calls))
    error = min(call.lag_error for call in calls if all(call.turning))
    return None if error <= max(LAG_ERROR, bench.tolerance) else rotary_not_relative(error)


def _judge_order(
    bench: Bench, tables: list[PositionTable], tokens: Tensor, limit: float
) -> CheckResult:
    changes, trades = measure_order(bench, tokens)
    repeated = bench.plain(_with_repeated(tokens)[1:])  # (1, T, W)
    spread = float(moved(repeated[:, :1].expand_as(repeated), repeated).max())
    numbers = {
        "change": changes,
        "trade": trades,
        "repeated_token_spread": spread,
        "tables": [table.path for table in tables],
        "limit": limit,
    }
    if changes > limit and not trades > limit and not spread > limit:
        return verdict(
            Status.WARN,
            "positions.order_unused",
            say("the order of earlier tokens changes nothing: they are read as a bag of words"),
            measured=say(
                "the last logits move by {changes} when earlier tokens change, by {trades} when "
                "two trade places",
                changes=changes,
                trades=trades,
            ),
            expected=say("more than {limit}, unless a bag of words is the design", limit=limit),
            causes=(
                say("position embeddings were left out; one layer of attention then sees no order"),
                say("earlier tokens are averaged"),
            ),
            next_step=say("add position_embedding(arange(T)) to the token embedding"),
            numbers=numbers,
        )
    if not changes > limit:
        claim = say("no earlier token is read, so that there is no order to keep (see context)")
    elif tables and spread > limit:
        claim = say(
            "every position has a row of its own in {path}, and order moves the last logits by "
            "{trades}",
            path=tables[0].path,
            trades=trades,
        )
    else:
        claim = say("the order of earlier tokens moves the last logits by {trades}", trades=trades)
    return verdict(
        Status.PASS,
        "positions.ok",
        claim,
        measured=say("one token repeated: logits spread by {spread} over positions", spread=spread),
        numbers=numbers,
    )
