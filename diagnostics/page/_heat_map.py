"""A matrix as shades: darker is larger, each step of darkness a factor.

One path holds all cells of a shade, in runs of equal neighbours, so that 64 x 64 cells stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from diagnostics._text import Text, say
from diagnostics.page._chart_parts import (
    CHARACTER,
    LINE,
    WIDTH,
    Box,
    Table,
    at,
    axis_name,
    cross,
    figure,
    label,
    nothing_to_draw,
    path,
    shorten,
    text_width,
    tick_label,
)
from diagnostics.page._heat_shades import SHADES, edges_of, key, shade_of
from diagnostics.page._markup import Child, Markup, element
from diagnostics.page._scales import finite, number, shown

MATRIX_MAX = 12  # rows and columns up to which the table is the matrix itself
LISTED_MAX = 40  # cells that the table lists otherwise
SIDE = 250  # units of the longer side of the plot

Flagged = Callable[[int, int], bool]
Kind = TypeVar("Kind")


def _none(row: int, column: int) -> bool:
    return False


def heat_map(
    name: str,
    finding: str,
    *,
    x_label: str,
    y_label: str,
    cells: Sequence[Sequence[float | None]],
    x_step: float = 1,
    y_step: float = 1,
    flagged: Flagged = _none,
    flag: str = "outlined",
    nothing_up_to: float = 0.0,
    note: str = "",
) -> Markup:
    """Return a map of cells[row][column], row 0 at the top.

    x_step, y_step: what one column and one row stand for, such as 4 tokens.
    flagged: (row, column) -> whether a cell is outlined.    flag: what that means.
    nothing_up_to: what is no larger, such as rounding, is left blank. Values are shown by their
    size, whatever their sign; what is no finite number has an x.
    """
    rows = [[number(value) for value in row] for row in cells]
    height, width = len(rows), max((len(row) for row in rows), default=0)
    left = text_width(f"{max(0, height - 1) * y_step:g}") + 7
    size = min(SIDE, WIDTH - left - 8) / max(1, height, width)
    box = Box(left, 22, left + size * max(1, width), 22 + size * max(1, height))
    edges = edges_of(rows, nothing_up_to)
    shades = [[shade_of(value, edges, nothing_up_to) for value in row] for row in rows]
    marked = [[bool(flagged(r, c)) for c in range(len(row))] for r, row in enumerate(rows)]
    drawing: list[Child] = [
        label(0, 11, shorten(y_label, 0.93 * WIDTH), kind="chart-axis"),
        _grid(box, shades, marked, size),
        _y_ticks(box, height, y_step, size),
        _x_ticks(box, width, x_step, size),
        axis_name(box, x_label),
        None if width else nothing_to_draw(box),
    ]
    return figure(
        name,
        finding,
        drawing=drawing,
        height=box.bottom + 2 * LINE + 9,
        description=_describe(rows, x_label, y_label),
        table=_table(rows, flagged, (x_label, y_label), (x_step, y_step)),
        notes=[note, *_notes(rows)],
        key=key(
            edges,
            {s for row in shades for s in row},
            nothing_up_to,
            flag if any(map(any, marked)) else "",
        ),
    )


def _grid(
    box: Box, shades: Sequence[Sequence[int | None]], marked: Sequence[Sequence[bool]], size: float
) -> Markup:
    """Return the cells in units of one cell, moved and scaled into the box."""
    runs: dict[tuple[int | None, bool], list[str]] = {}
    for row, line in enumerate(shades):
        both = list(zip(line, marked[row], strict=False))
        for kind, begin, length in _runs(both):
            runs.setdefault(kind, []).append(f"M{begin} {row}h{length}v1h-{length}z")
    height, width = len(shades), max((len(line) for line in shades), default=0)
    spots = [
        cross(column + 0.5, row + 0.5, 0.3)
        for row, line in enumerate(shades)
        for column, shade in enumerate(line)
        if shade == -1
    ]
    hatches = [
        f"M{column} {row + 1}l1 -1"
        for row, line in enumerate(shades)
        for column, shade in enumerate(line)
        if shade is None
    ]
    outline = _outline(marked)
    return element(
        "g",
        path([f"M0 0h{width}v{height}h-{width}z"], "chart-heat-frame"),
        [
            path(runs.get((shade, on), ()), f"chart-heat-{shade}{' chart-heat-flagged' * on}")
            for shade in range(1, SHADES + 1)
            for on in (False, True)
        ],
        path(hatches, "chart-hatch"),
        path(outline, "chart-outline"),
        path(spots, "chart-cross"),
        transform=f"translate({at(box.left)} {at(box.top)}) scale({size:.3f})",
    )


def _runs(line: Sequence[Kind]) -> Iterator[tuple[Kind, int, int]]:
    begin = 0
    for end in range(1, len(line) + 1):
        if end == len(line) or line[end] != line[begin]:
            yield line[begin], begin, end - begin
            begin = end


def _outline(marked: Sequence[Sequence[bool]]) -> list[str]:
    """Return the border between cells that are flagged and cells that are not."""
    height, width = len(marked), max((len(row) for row in marked), default=0)

    def inside(row: int, column: int) -> bool:
        return 0 <= row < height and 0 <= column < len(marked[row]) and marked[row][column]

    parts: list[str] = []
    for row in range(height + 1):
        border = [inside(row - 1, column) != inside(row, column) for column in range(width)]
        parts += [f"M{begin} {row}h{length}" for on, begin, length in _runs(border) if on]
    for column in range(width + 1):
        border = [inside(row, column - 1) != inside(row, column) for row in range(height)]
        parts += [f"M{column} {begin}v{length}" for on, begin, length in _runs(border) if on]
    return parts


def _stride(count: int, step: float, room: float) -> int:
    """Return from how many cells to how many a label stands: a round number of them that fits."""
    stride, power = 1, 0
    while count / stride > room:
        power += 1
        stride = (
            2**power
            if float(step).is_integer() and count <= 64
            else (1, 2, 5)[power % 3] * (10 ** (power // 3))
        )
    return stride


def _y_ticks(box: Box, count: int, step: float, size: float) -> list[Child]:
    stride = _stride(count, step, max(2.0, (box.bottom - box.top) / (2.2 * LINE)))
    places = range(0, count, stride)
    marks = [f"M{at(box.left)} {at(box.top + (row + 0.5) * size)}h-4" for row in places]
    return [
        path(marks, "chart-base"),
        [
            label(
                box.left - 6,
                box.top + (row + 0.5) * size + 4,
                f"{row * step:g}",
                anchor="end",
                kind="chart-tick",
            )
            for row in places
        ],
    ]


def _x_ticks(box: Box, count: int, step: float, size: float) -> list[Child]:
    widest = text_width(f"{max(0, count - 1) * step:g}") + 2 * CHARACTER
    stride = _stride(count, step, max(1.0, (box.right - box.left) / widest))
    places = range(0, count, stride)
    marks = [f"M{at(box.left + (c + 0.5) * size)} {at(box.bottom)}v4" for c in places]
    return [
        path(marks, "chart-base"),
        [tick_label(box, box.left + (c + 0.5) * size, f"{c * step:g}") for c in places],
    ]


def _describe(rows: Sequence[Sequence[float | None]], x_label: str, y_label: str) -> str:
    known = [value for row in rows for value in finite(row)]
    told = [say("Map of {y} (rows) by {x} (columns).", y=y_label, x=x_label)]
    if known:
        told.append(
            say(
                "{n:cell|cells}, from {low} to {high}.",
                n=len(known),
                low=min(known),
                high=max(known),
            )
        )
    return " ".join(told)


def _notes(rows: Sequence[Sequence[float | None]]) -> list[Text]:
    bad = sum(value is not None and not math.isfinite(value) for row in rows for value in row)
    return [say("x: {n:cell is|cells are} no finite number", n=bad)] if bad else []


def _table(
    rows: Sequence[Sequence[float | None]],
    flagged: Flagged,
    names: tuple[str, str],
    steps: tuple[float, float],
) -> Table:
    """Return the matrix where it is small, else the flagged and then the largest cells."""
    x_label, y_label = names
    x_step, y_step = steps
    width = max((len(row) for row in rows), default=0)
    if max(len(rows), width) <= MATRIX_MAX:
        heads = [y_label, *(f"{column * x_step:g}" for column in range(width))]
        lines = [[f"{r * y_step:g}", *map(shown, row)] for r, row in enumerate(rows)]
        return Table(heads, lines)
    cells: list[tuple[bool, float, int, int, Any]] = [
        (bool(flagged(r, c)), _size(value), r, c, value)
        for r, row in enumerate(rows)
        for c, value in enumerate(row)
        if value is not None
    ]
    cells.sort(key=lambda cell: (not cell[0], -cell[1], cell[2], cell[3]))
    listed = cells[:LISTED_MAX]
    marked = any(cell[0] for cell in listed)
    lines = [
        [f"{r * y_step:g}", f"{c * x_step:g}", shown(value), *(["yes" if on else ""][:marked])]
        for on, _, r, c, value in listed
    ]
    return Table(
        [y_label, x_label, "value", *(["outlined"][:marked])],
        lines,
        say(
            "the {n} largest of {all} cells, outlined ones first",
            n=len(listed),
            all=shown(len(cells)),
        ),
    )


def _size(value: float) -> float:
    return abs(value) if math.isfinite(value) else math.inf
