"""One bar for each layer or module, its name above it, so that long paths stay readable."""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnostics._text import Text, say
from diagnostics.page._bar_rows import LEFT, RIGHT, draw_levels, draw_rows, layout
from diagnostics.page._chart_parts import (
    CHARACTER,
    LINE,
    WIDTH,
    Bar,
    Box,
    Level,
    Table,
    at,
    axis_name,
    base_line,
    figure,
    path,
    tick_label,
)
from diagnostics.page._markup import Child, Markup
from diagnostics.page._scales import Scale, finite, fitting_scale, number, shown

BARS_MAX = 40  # drawn; the table has up to ROWS_MAX of them
TABLE_MAX = 200


def bar_chart(
    name: str,
    finding: str,
    *,
    label: str,
    x_label: str,
    bars: Sequence[Bar],
    log_x: bool = False,
    levels: Sequence[Level] = (),
    note: str = "",
) -> Markup:
    """Return horizontal bars from the top down, in the order given.

    label: what a bar stands for, such as "layer".    flag: of a bar, stands beside its value.
    Of more than 40 bars those that are flagged and an even choice of the others are drawn.
    """
    drawn = _chosen(bars)
    levels = [level for level in levels if _stands(number(level.y), log_x)]
    values = [bar.value for bar in drawn] + [level.y for level in levels]
    options = {"below": True} if log_x else {"zero": True}
    scale = fitting_scale(
        values, width=WIDTH - LEFT - RIGHT, character=CHARACTER, log=log_x, **options
    )
    top = 8.0 + (LINE + 2) * len(levels)
    rows, height = layout(drawn)
    box = Box(LEFT, top, WIDTH - RIGHT, top + max(height, LINE) + 2)
    return figure(
        name,
        finding,
        drawing=[
            _grid(box, scale, x_label),
            draw_rows(box, scale, rows),
            draw_levels(box, scale, levels, rows),
        ],
        height=box.bottom + 2 * LINE + 9,
        description=_describe(bars, label, x_label),
        table=_table(bars, levels, label, x_label),
        notes=[note, *_notes(bars, drawn, label, log_x)],
        kind="chart-narrow",
    )


def _stands(value: float | None, log: bool) -> bool:
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def _chosen(bars: Sequence[Bar]) -> list[Bar]:
    """Return at most BARS_MAX bars: the flagged ones first, then evenly, in their own order."""
    if len(bars) <= BARS_MAX:
        return list(bars)
    flagged = [index for index, bar in enumerate(bars) if bar.flag][:BARS_MAX]
    others = [index for index, bar in enumerate(bars) if not bar.flag]
    room = BARS_MAX - len(flagged)
    if room and others:
        stride = len(others) / room
        flagged += [others[int(place * stride)] for place in range(min(room, len(others)))]
    return [bars[index] for index in sorted(set(flagged))]


def _grid(box: Box, scale: Scale, x_label: str) -> list[Child]:
    lines = [f"M{at(box.x(tick.at))} {at(box.top)}V{at(box.bottom + 4)}" for tick in scale.ticks]
    return [
        path(lines, "chart-grid"),
        base_line(box),
        [tick_label(box, box.x(tick.at), tick.label) for tick in scale.ticks],
        axis_name(box, x_label),
    ]


def _describe(bars: Sequence[Bar], label: str, x_label: str) -> str:
    known = [(value, bar) for bar in bars if (value := _finite(bar)) is not None]
    told = [say("Bars, one for each {label}: {x}.", label=label, x=x_label)]
    if known:
        low, high = min(known, key=_first), max(known, key=_first)
        told.append(
            say(
                "{n:value|values}, from {low} ({first}) to {high} ({last}).",
                n=len(known),
                low=low[0],
                first=low[1].label,
                high=high[0],
                last=high[1].label,
            )
        )
    return " ".join(told)


def _first(pair: tuple[float, Bar]) -> float:
    return pair[0]


def _finite(bar: Bar) -> float | None:
    kept = finite([bar.value])
    return kept[0] if kept else None


def _notes(bars: Sequence[Bar], drawn: Sequence[Bar], label: str, log: bool) -> list[Text]:
    notes: list[Text] = []
    if len(drawn) < len(bars):
        notes.append(
            say(
                "{drawn} of {all} bars are drawn, every flagged one among them where there are "
                "at most {drawn}; the numbers below have more",
                drawn=len(drawn),
                all=shown(len(bars)),
            )
        )
    values = [number(bar.value) for bar in drawn]
    missing = sum(value is None for value in values)
    if missing:
        notes.append(say("x in place of a bar: {n:value is|values are} missing", n=missing))
    bad = sum(value is not None and not math.isfinite(value) for value in values)
    if bad:
        notes.append(say("x in place of a bar: {n:value is|values are} no finite number", n=bad))
    below = sum(value is not None and math.isfinite(value) and value <= 0 for value in values)
    if log and below:
        notes.append(
            say(
                "a tick in place of a bar: {n:value is|values are} 0 or below, off the axis",
                n=below,
            )
        )
    return notes


def _table(bars: Sequence[Bar], levels: Sequence[Level], label: str, x_label: str) -> Table:
    kept = list(bars) if len(bars) <= TABLE_MAX else list(bars[:TABLE_MAX])
    flags = any(bar.flag for bar in kept)
    rows = [[bar.label, shown(bar.value), *([bar.flag] if flags else [])] for bar in kept]
    rows += [[level.label, shown(level.y), *([""] if flags else [])] for level in levels]
    left_out = (
        say("the first {kept} of {all}", kept=len(kept), all=shown(len(bars)))
        if len(kept) < len(bars)
        else ""
    )
    return Table([label, x_label, *(["remark"] if flags else [])], rows, left_out)
