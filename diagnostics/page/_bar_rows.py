"""The rows of a bar chart: names above their bars, parts of a layer below its name."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics._text import printable
from diagnostics.page._chart_parts import (
    BOLD,
    CHARACTER,
    LINE,
    WIDTH,
    Bar,
    Box,
    Level,
    at,
    cross,
    label,
    path,
    shorten,
    text_width,
)
from diagnostics.page._markup import Child
from diagnostics.page._scales import Scale, number, shown

THICK = 6  # units
GAP = 4  # below a bar
LEFT, RIGHT = 6, 10  # of the bars from the edges of the canvas
INDENT = 10  # of the parts below the name of their layer
_LAYER = re.compile(r"(?:\w+\.)*?\w+\.\d+(?=\.|$)")  # blocks.0, transformer.h.11


@dataclass(frozen=True)
class Row:
    """A bar and where it stands, or the name of a layer above the bars of its parts.

    told: the value and the flag, at the right of the name, or below it where both do not fit.
    """

    top: float
    name: str
    indent: float = 0.0
    bar: Bar | None = None
    told: str = ""
    below: bool = False

    @property
    def height(self) -> float:
        """Units from this row to the next."""
        return LINE * (1 + self.below) + (THICK + GAP if self.bar is not None else 0)


def layout(bars: Sequence[Bar]) -> tuple[list[Row], float]:
    """Return the rows and their height: parts of a numbered layer stand under its name."""
    rows: list[Row] = []
    top, layer = 0.0, ""
    for bar in bars:
        match = _LAYER.match(bar.label)
        inside = match is not None and match.end() < len(bar.label)
        if match and inside and match.group() != layer:
            rows.append(Row(top, match.group()))
            top += LINE
        layer = match.group() if match else ""
        name = bar.label[len(layer) + 1 :] if inside else bar.label
        rows.append(_row(top, name, INDENT if inside else 0.0, bar))
        top += rows[-1].height
    return rows, top


def _row(top: float, name: str, indent: float, bar: Bar) -> Row:
    told = f"{shown(bar.value)}  {bar.flag}" if bar.flag else shown(bar.value)
    room = WIDTH - LEFT - RIGHT - indent - CHARACTER
    below = bool(bar.flag) and BOLD * (text_width(printable(name)) + text_width(told)) > room
    return Row(top, name, indent, bar, told, below)


def draw_rows(box: Box, scale: Scale, rows: Sequence[Row]) -> list[Child]:
    """Return the bars, with a flagged one hollow, and their texts."""
    plain: list[str] = []
    flagged: list[str] = []
    crosses: list[str] = []
    texts: list[Child] = []
    zero = box.x(0.0 if scale.log else scale.place(0.0))
    for row in rows:
        texts.append(_texts(box, row))
        if row.bar is None:
            continue
        bar_y, value = _bar_y(box, row), number(row.bar.value)
        if value is None or not math.isfinite(value):
            crosses.append(cross(zero + 5, bar_y + THICK / 2, 3))
            continue
        end = box.x(scale.place(value))
        left, width = min(zero, end), abs(end - zero)
        if width > 0.05:
            shape = f"M{at(left)} {at(bar_y)}h{at(width)}v{THICK}h-{at(width)}z"
            (flagged if row.bar.flag else plain).append(shape)
        else:
            plain.append(f"M{at(zero)} {at(bar_y)}v{THICK}")
    return [
        path(plain, "chart-bar"),
        path(flagged, "chart-bar chart-bar-flagged"),
        path(crosses, "chart-cross"),
        texts,
    ]


def _texts(box: Box, row: Row) -> list[Child]:
    y = box.top + row.top + LINE - 3
    if row.bar is None:
        return [label(box.left, y, shorten(row.name, WIDTH - 2 * box.left), kind="chart-layer")]
    kind = " chart-flag" if row.bar.flag else ""
    told = shorten(row.told, (box.right - box.left) / BOLD)
    room = box.right - box.left - row.indent
    if not row.below:
        room -= BOLD * text_width(told) + CHARACTER
    name = shorten(row.name, room / BOLD if kind else room)
    told_y = y + LINE * row.below
    return [
        label(box.left + row.indent, y, name, kind=f"chart-row{kind}"),
        label(box.right, told_y, told, anchor="end", kind=f"chart-value{kind}"),
    ]


def draw_levels(
    box: Box, scale: Scale, levels: Sequence[Level], rows: Sequence[Row]
) -> list[Child]:
    """Return a mark across each bar at each level, with its name above: no line crosses a text."""
    drawn: list[Child] = []
    for place, level in enumerate(levels):
        x = box.x(scale.place(level.y))
        y = 12 + place * (LINE + 2)
        name = shorten(level.label, WIDTH)
        left = x + text_width(name) < WIDTH
        spots = [f"M{at(x)} {at(y + 3)}V{at(box.top + 2)}"]
        spots += [f"M{at(x)} {at(_bar_y(box, row) - 2)}v{THICK + 4}" for row in rows if row.bar]
        drawn.append(path(spots, "chart-level-here"))
        drawn.append(
            label(x if left else WIDTH, y, name, anchor="start" if left else "end")
            if left or text_width(name) > x
            else label(x, y, name, anchor="end")
        )
    return drawn


def _bar_y(box: Box, row: Row) -> float:
    return box.top + row.top + LINE * (1 + row.below) + 1
