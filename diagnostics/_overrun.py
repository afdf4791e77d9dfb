"""What happens to a row of one token more than the block: refused, cut, or taken, and at what cost.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from torch import Tensor

from diagnostics._position_tables import find_tables, map_rows
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import Bench, bench, bench_tokens, moved, names_experts
from diagnostics._text import Text, say

OFFSETS_MAX = 8  # rows of a table among which position 0 is looked for


def judge_cut(block: int, shape: tuple[int, ...]) -> CheckResult | None:
    """A row that comes back shorter than it went in."""
    if len(shape) != 3 or shape[1] != block:
        return None
    return _overrun(
        "shapes.truncated_silently",
        block,
        say("{T} ids, one more than the block, are accepted and cut to it", T=block + 1),
        say("logits {shape} for {T} ids", shape=shape, T=block + 1),
        (),
        shape=list(shape),
    )


def judge_overrun(probe: Probe, block: int) -> CheckResult | None:
    """Ask whether the token beyond the block does harm; None where nothing shows any.

    Rotary, relative and recurrent positions have no last one, so that taking more is no fault.
    """
    tokens = bench_tokens(probe, 1, block + 1, "overrun")
    with bench(probe) as model_bench:
        if not model_bench.repeats(tokens):
            return None  # `modes` says so
        try:
            logits = model_bench.call(tokens)  # (1, block + 1, W)
            within = model_bench.call(tokens[:, :block])
        except (MissingPartError, RuntimeError):  # the last position only; or not in float64
            return None
        limit = model_bench.limit(within)
        wrapped = _judge_tables(model_bench, tokens, block, limit)
        if wrapped is not None or names_experts(model_bench.model):  # a capacity follows the length
            return wrapped
        return _judge_numbers(logits, within, block, limit)


def _judge_tables(bench: Bench, tokens: Tensor, block: int, limit: float) -> CheckResult | None:
    """A table that holds no row for the next position is wrapped or clamped."""
    for table in find_tables(bench.model):
        rows = list(range(min(table.rows, OFFSETS_MAX)))
        try:
            starts = map_rows(bench, table.path, tokens[:, : min(block, OFFSETS_MAX)], rows, limit)
            offset = starts[0].row_of(0) if starts[0].is_clear else None
            if offset is None:
                continue  # not read by position, or unused: `positions` says so
            beyond = [row for row in (offset + block,) if row < table.rows]
            if map_rows(bench, table.path, tokens, beyond, limit)[0].row_of(block) is not None:
                continue
        except RuntimeError:  # an expanded or shared buffer cannot be written to row by row
            continue
        return _overrun(
            "shapes.overrun",
            block,
            say(
                "{T} ids, one more than the block, are accepted: the last one reads a row of "
                "{path} that belongs to an earlier position",
                T=block + 1,
                path=table.path,
            ),
            say("{path} has {rows} rows", path=table.path, rows=table.rows),
            (say("the index is wrapped or clamped: %, clamp or min on the positions"),),
        )
    return None


def _judge_numbers(logits: Tensor, within: Tensor, block: int, limit: float) -> CheckResult | None:
    """The token beyond must not change what is said before it."""
    change = float(moved(within, logits[:, :block]).max())
    if change <= limit or within.isnan().any():
        return None
    return _overrun(
        "shapes.overrun",
        block,
        say(
            "{T} ids, one more than the block, are accepted and predict otherwise within the block",
            T=block + 1,
        ),
        say("a logit moved by {change}", change=change),
        (
            say(
                "a mask or a table is made for {block:token|tokens}, and another branch runs",
                block=block,
            ),
        ),
    )


def _overrun(
    reason: str,
    block: int,
    claim: Text,
    measured: Text,
    causes: tuple[Text, ...],
    **numbers: object,
) -> CheckResult:
    return verdict(
        Status.WARN,
        reason,
        claim,
        measured=measured,
        expected=say("an error, or positions that go on"),
        causes=causes,
        next_step=say("crop the context to the last {block:id|ids} before each call", block=block),
        numbers={"block_size": block, **numbers},
    )
