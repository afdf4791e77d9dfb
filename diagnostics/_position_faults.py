"""What `positions` says of each fault in a table of positions."""

from __future__ import annotations

from diagnostics._position_tables import PositionTable, RowMap, names_relative_positions
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

EQUAL_ROWS = 0.01  # of a row's size; sound sine tables: 0.3 and more, a slipped exponent: 0.006
STILL_SHARE = 0.25  # of columns without news; sound sine tables: 0, a slipped exponent: 0.8
PHASE_ERROR_MAX = 0.1  # radians at the last position: a sine is then off by up to 0.1


def not_finite(count: int, T: int) -> CheckResult:
    """Logits that are NaN say nothing of positions."""
    return verdict(
        Status.FAIL,
        "positions.not_finite",
        say("some logits are NaN, so that nothing can be said of positions"),
        measured=say("{count} of {T} positions", count=count, T=T),
        expected=say("no NaN at any position"),
        next_step=say("run forward_hooks: it names the first module that gives NaN"),
        numbers={"positions": count, "length": T},
    )


def unused_table(probe: Probe, table: PositionTable, limit: float) -> CheckResult:
    """A table that nothing reads; with rotary positions beside it, only a warning."""
    relative = names_relative_positions(probe.pipeline.model)
    return verdict(
        Status.WARN if relative else Status.FAIL,
        "positions.unused_table",
        say("the position table {path} has no influence on any logit", path=table.path),
        measured=say("noise in any of its {rows} rows moves nothing", rows=table.rows),
        expected=say("a move of more than {limit}", limit=limit),
        causes=(
            say("the embedding is computed but not added to the token embedding"),
            say("it is overwritten, or multiplied by 0, before the first layer"),
            *((say("rotary or relative positions have replaced it"),) if relative else ()),
        ),
        next_step=say("add the output of {path} in forward, or delete the table", path=table.path),
        numbers={"path": table.path, "rows": table.rows},
    )


def shared_rows(
    table: PositionTable, row_map: RowMap, lacking: list[int], status: Status
) -> CheckResult:
    """Positions that read the row of an earlier one."""
    t, T = lacking[0], row_map.T
    constant = len(lacking) == T - 1
    return verdict(
        status,
        "positions.constant" if constant else "positions.shared_rows",
        say(
            "position {t} reads a row of {path} that an earlier position reads already, so that "
            "they look the same",
            t=t,
            path=table.path,
        ),
        measured=say("{count} of {T} positions have no row of their own", count=len(lacking), T=T),
        expected=say("one row for each position"),
        where=say("positions {first} to {last}", first=t, last=lacking[-1])
        if len(lacking) > 1
        else say("position {first}", first=t),
        causes=(
            say("the index is the same for all positions: zeros(T), or arange over the batch"),
            say("the shape of the index broadcasts one row to all positions"),
        )
        if constant
        else (say("the index repeats: clamp, % or // on positions, or a table that is too short"),),
        next_step=say("print the index of {path} for T=4: it must be 0, 1, 2, 3", path=table.path),
        numbers={"lacking": lacking, "rows_used": len(row_map.first), "path": table.path},
    )


def read_by_token(table: PositionTable) -> CheckResult:
    """A position table that is indexed by what stands at the position."""
    return verdict(
        Status.FAIL,
        "positions.read_by_token",
        say("{path} is read by token ids, not by positions", path=table.path),
        measured=say("noise in a row moves the logits first where the token of its number stands"),
        expected=say("row t is read by position t"),
        causes=(say("the table is called with the ids: {path}(ids)", path=table.path),),
        next_step=say("read it with torch.arange(T, device=ids.device)"),
        numbers={"path": table.path, "rows": table.rows},
    )


def table_too_small(table: PositionTable, block: int, offset: int) -> CheckResult:
    """A table that ends before the block does."""
    return verdict(
        Status.FAIL,
        "positions.table_too_small",
        say(
            "{path} has {rows} rows and is read from row {offset}: a block of {block} does not fit",
            path=table.path,
            rows=table.rows,
            offset=offset,
            block=block,
        ),
        measured=say("an IndexError at T = {block}", block=block),
        expected=say("at least {rows} rows", rows=block + offset),
        causes=(say("positions start at {offset} by mistake", offset=offset),)
        if offset
        else (say("the table was sized by another number than the block"),),
        next_step=say("give the table block_size rows and read it with arange(T)"),
        numbers={"rows": table.rows, "offset": offset, "block": block},
    )


def equal_rows(table: PositionTable, a: int, b: int, distance: float) -> CheckResult:
    """Two rows of a fixed table that no model can tell apart."""
    return verdict(
        Status.FAIL,
        "positions.equal_rows",
        say("rows {a} and {b} of the fixed table {path} are the same", a=a, b=b, path=table.path),
        measured=say("they differ by {distance} of a row's size", distance=distance),
        expected=say("more than {limit} between any two rows", limit=EQUAL_ROWS),
        causes=(
            say("the exponent of the frequencies is wrong: 2i / d, where i or -i stands"),
            say("the table was never filled"),
        ),
        next_step=say("print the first four rows of {path}", path=table.path),
        numbers={"rows": [a, b], "distance": distance, "path": table.path},
    )


def still_columns_fault(table: PositionTable, share: float, rows: int) -> CheckResult:
    """Columns of a sine table that never move."""
    return verdict(
        Status.FAIL,
        "positions.still_columns",
        say(
            "{percent} % of the columns of the sine table {path} never change",
            percent=round(100 * share),
            path=table.path,
        ),
        measured=say("over {rows} positions they move by less than 1e-8", rows=rows),
        expected=say("at most {percent} %", percent=round(100 * STILL_SHARE)),
        causes=(say("the exponent lacks its division by d: 10000 ** -2i in place of -2i / d"),),
        next_step=say("divide the exponent by the width of the table"),
        numbers={"share": share, "path": table.path},
    )


def twin_columns_fault(table: PositionTable, share: float) -> CheckResult:
    """Columns of a fixed table that repeat others: sines where cosines belong."""
    return verdict(
        Status.FAIL,
        "positions.twin_columns",
        say(
            "{percent} % of the columns of the fixed table {path} repeat another one",
            percent=round(100 * share),
            path=table.path,
        ),
        measured=say("equal in every row"),
        expected=say("at most {percent} %", percent=round(100 * STILL_SHARE)),
        causes=(say("even and odd columns hold sines both, or the same angles twice"),),
        next_step=say("print row 1 of {path}: sin and cos must take turns", path=table.path),
        numbers={"share": share, "path": table.path},
    )


def rounded_angles(path: str, error: float, T: int) -> CheckResult:
    """Rotary frequencies of which 16 bits are left."""
    return verdict(
        Status.FAIL,
        "positions.rounded_frequencies",
        say("the rotary frequencies in {path} are rounded to 16 bits", path=path),
        measured=say(
            "an angle is off by {error} radians at position {last}", error=error, last=T - 1
        ),
        expected=say("at most {limit} radians", limit=PHASE_ERROR_MAX),
        causes=(say("model.bfloat16() or .half() casts buffers too"),),
        next_step=say("keep {path} in float32, and cast the finished cos and sin", path=path),
        numbers={"error": error, "length": T, "path": path},
    )


def rotary_unused(calls: int) -> CheckResult:
    """Rotary positions that are there and turn nothing."""
    return verdict(
        Status.FAIL,
        "positions.rotary_unused",
        say("the model holds rotary positions, and no query or key is turned by its position"),
        measured=say(
            "for one token repeated, queries and keys are the same at every position, in {count} "
            "of {count:call of attention|calls of attention}",
            count=calls,
        ),
        expected=say("other queries and keys at each position"),
        causes=(
            say("the rotation is computed and not applied, or its result is thrown away"),
            say("the rotation runs over the heads: (B, T, H, D) is taken for (B, H, T, D)"),
        ),
        next_step=say(
            "print queries[0, 0, :3] before and after the rotation, for ids of one token"
        ),
        numbers={"calls": calls},
    )


def rotary_one_sided(calls: int, *, queries: bool) -> CheckResult:
    """Queries are turned and keys are not, or the other way round."""
    turned, still = ("queries", "keys") if queries else ("keys", "queries")
    return verdict(
        Status.WARN,
        "positions.rotary_one_sided",
        say(
            "{turned} are turned by their position and {still} are not, so that no score depends "
            "on the distance alone",
            turned=turned,
            still=still,
        ),
        measured=say(
            "for one token repeated, {still} are the same at every position, in {count} of "
            "{count:call of attention|calls of attention}",
            still=still,
            count=calls,
        ),
        expected=say(
            "both turned, unless only {turned} are meant to know their place", turned=turned
        ),
        causes=(say("the rotation is applied to {turned} only", turned=turned),),
        next_step=say("rotate both: queries, keys = rotate(queries), rotate(keys)"),
        numbers={"calls": calls},
    )


def rotary_not_relative(error: float) -> CheckResult:
    """Scores that change when both tokens move on together: no rotation by the distance."""
    return verdict(
        Status.WARN,
        "positions.rotary_not_relative",
        say(
            "for one token repeated, attention scores depend on where it stands, not on the "
            "distance alone, as rotary positions make them do"
        ),
        measured=say("scores of equal distance differ by {error:%} of the largest", error=error),
        expected=say("equal scores at equal distance, unless a norm with gains follows"),
        causes=(
            say(
                "the pairs that are turned together have two angles: a table for neighbours "
                "(0, 1) is used with halves (0, D / 2), or the other way round"
            ),
            say("a sign of the rotation is wrong: (a cos - b sin, b cos + a sin) is meant"),
        ),
        next_step=say("check that |rotate(x)| = |x| at each position, for random x"),
        numbers={"lag_error": error},
    )
