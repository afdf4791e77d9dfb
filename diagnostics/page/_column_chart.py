"""A histogram: columns side by side over ids, with the ones that stand out marked."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from diagnostics._text import Text, say
from diagnostics.page._chart_parts import (
    LINE,
    WIDTH,
    Bar,
    Box,
    Table,
    at,
    axis_name,
    base_line,
    cross,
    figure,
    label,
    nothing_to_draw,
    path,
    shorten,
    text_width,
    tick_label,
    y_axis,
)
from diagnostics.page._markup import Child, Markup
from diagnostics.page._scales import Scale, finite, linear_scale, log_scale, number, shown

HEIGHT = 150  # units of the plot
COLUMNS_MAX = 256  # drawn: neighbours are merged beyond, as the plot has no more units
TABLE_MAX = 128
_STRIDES = (1, 2, 5)
_START = re.compile(r"\d{1,15}")


def column_chart(
    name: str,
    finding: str,
    *,
    x_label: str,
    y_label: str,
    columns: Sequence[Bar],
    log_y: bool = False,
    note: str = "",
) -> Markup:
    """Return vertical columns from left to right; a flagged one has its word above a triangle.

    The label of a column is an id ("7"), a run of ids ("8-15"), or any word.
    """
    drawn = _merged(columns)
    values = [bar.value for bar in drawn]
    scale = log_scale(values, below=True) if log_y else linear_scale(values, zero=True)
    left = max((text_width(tick.label) for tick in scale.ticks), default=0) + 7
    flagged = any(bar.flag for bar in drawn)
    top = 22.0 + (LINE + 8 if flagged else 0)
    box = Box(left, top, WIDTH - 8, top + HEIGHT)
    return figure(
        name,
        finding,
        drawing=[
            y_axis(box, scale, y_label),
            _columns(box, scale, drawn),
            base_line(box),
            _ticks(box, [bar.label for bar in drawn]),
            axis_name(box, x_label),
            None if finite(values) else nothing_to_draw(box),
        ],
        height=box.bottom + 2 * LINE + 9,
        description=_describe(columns, x_label, y_label),
        table=_table(columns, x_label, y_label),
        notes=[note, *_notes(columns, drawn, log_y)],
    )


def _merged(columns: Sequence[Bar]) -> list[Bar]:
    """Return at most COLUMNS_MAX columns: each stands for the highest of as many neighbours."""
    size = -(-len(columns) // COLUMNS_MAX) or 1
    if size == 1:
        return list(columns)
    merged: list[Bar] = []
    for begin in range(0, len(columns), size):
        part = columns[begin : begin + size]
        known = finite(bar.value for bar in part)
        words = [bar.flag for bar in part if bar.flag]
        merged.append(
            Bar(
                label=part[0].label,
                value=max(known) if known else None,
                flag=words[0] if words else "",
            )
        )
    return merged


def _columns(box: Box, scale: Scale, columns: Sequence[Bar]) -> list[Child]:
    """Return the columns as two paths of thick vertical strokes: plain ones and flagged ones."""
    step = (box.right - box.left) / max(1, len(columns))
    zero = box.y(0.0 if scale.log else scale.place(0.0))
    plain: list[str] = []
    flagged: list[str] = []
    crosses: list[str] = []
    triangles: list[str] = []
    for index, bar in enumerate(columns):
        x = box.left + (index + 0.5) * step
        value = number(bar.value)
        if value is None or not math.isfinite(value):
            crosses.append(cross(x, box.bottom - 5, min(3.0, step / 2)))
        elif value > 0 or not scale.log:
            end = box.y(scale.place(value))
            if value and abs(end - zero) < 0.5:  # a count of 1 beside one of 1,000,000 still shows
                end = zero - math.copysign(0.5, value)
            (flagged if bar.flag else plain).append(f"M{at(x)} {at(zero)}V{at(end)}")
        if bar.flag:
            triangles.append(f"M{at(x - 4)} {at(box.top - 8)}h8l-4 7z")
    wide = at(max(0.8, 0.82 * step))
    return [
        path(plain, "chart-column", stroke_width=wide),
        path(flagged, "chart-column chart-column-flagged", stroke_width=wide),
        path(crosses, "chart-cross"),
        path(triangles, "chart-triangle"),
        _flag_word(box, step, columns),
    ]


def _flag_word(box: Box, step: float, columns: Sequence[Bar]) -> Markup | None:
    """Return the word of the first flagged column, above its triangle."""
    for index, bar in enumerate(columns):
        if bar.flag:
            words = list(dict.fromkeys(one.flag for one in columns if one.flag))
            told = shorten(", ".join(words), WIDTH - 10)
            half = text_width(told) / 2
            x = min(max(box.left + (index + 0.5) * step, half), WIDTH - half)
            return label(x, box.top - 12, told, anchor="middle", kind="chart-flag")
    return None


def _ticks(box: Box, labels: Sequence[str]) -> list[Child]:
    """Label columns at round ids where labels are ids, else at even distances."""
    step = (box.right - box.left) / max(1, len(labels))
    found = [_START.match(text) for text in labels]
    starts = [int(match.group()) for match in found if match]
    chosen: list[tuple[float, str]] = []
    if len(starts) == len(labels) > 1 and starts == sorted(set(starts)):
        chosen = _round_ids(starts, box.right - box.left)
    if not chosen:
        longest = max((text_width(text) for text in labels), default=0) + 10
        room = max(1, int((box.right - box.left) // min(longest, 90)))
        stride = -(-len(labels) // room) or 1
        chosen = [(index + 0.5, labels[index]) for index in range(0, len(labels), stride)]
    marks = [f"M{at(box.left + place * step)} {at(box.bottom)}v4" for place, _ in chosen]
    texts: list[Child] = [
        tick_label(box, box.left + place * step, shorten(text, 85)) for place, text in chosen
    ]
    return [path(marks, "chart-base"), texts]


def _round_ids(starts: Sequence[int], width: float) -> list[tuple[float, str]]:
    """Return (column, label) at multiples of 1, 2 or 5 times a power of ten that fit the width."""
    first, last = starts[0], starts[-1]
    widest = text_width(f"{last:,}") + 12
    room = max(1, int(width // widest))
    power, stride = 0, 1
    while (last - first) // stride + 1 > room:
        power += 1
        stride = _STRIDES[power % 3] * 10 ** (power // 3)
    chosen: list[tuple[float, str]] = []
    for wanted in range(-(-first // stride) * stride, last + 1, stride):
        column = max(index for index, start in enumerate(starts) if start <= wanted)
        following = starts[column + 1] if column + 1 < len(starts) else wanted + 1
        size = max(1, following - starts[column])
        within = (wanted - starts[column]) / size or 0.5 / size  # the middle of a single id
        chosen.append((column + within, f"{wanted:,}"))
    return chosen


def _describe(columns: Sequence[Bar], x_label: str, y_label: str) -> str:
    known = finite(bar.value for bar in columns)
    told = [
        say("Columns of {y} over {x}, {n} of them.", y=y_label, x=x_label, n=len(columns)),
    ]
    if known:
        highest = max(
            (bar for bar in columns if finite([bar.value])), key=lambda bar: finite([bar.value])[0]
        )
        told.append(
            say("Highest: {value} at {label}.", value=shown(highest.value), label=highest.label)
        )
    return " ".join(told)


def _notes(columns: Sequence[Bar], drawn: Sequence[Bar], log: bool) -> list[Text]:
    notes: list[Text] = []
    if len(drawn) < len(columns):
        notes.append(
            say(
                "each drawn column is the highest of {n} neighbours",
                n=-(-len(columns) // len(drawn)),
            )
        )
    numbers = [number(bar.value) for bar in columns]
    bad = sum(value is None or not math.isfinite(value) for value in numbers)
    if bad:
        notes.append(say("x in place of a column: {n:value is|values are} no finite number", n=bad))
    below = sum(value is not None and math.isfinite(value) and value <= 0 for value in numbers)
    if log and below:
        notes.append(
            say("no column where the value is 0 or less: {n} of {all}", n=below, all=len(columns))
        )
    return notes


def _table(columns: Sequence[Bar], x_label: str, y_label: str) -> Table:
    kept = list(columns)
    if len(kept) > TABLE_MAX:
        flagged = [index for index, bar in enumerate(columns) if bar.flag]
        rest = [index for index in range(len(columns)) if not columns[index].flag]
        kept = [columns[index] for index in sorted([*flagged, *rest][:TABLE_MAX])]
    flags = any(bar.flag for bar in kept)
    rows = [[bar.label, shown(bar.value), *([bar.flag] if flags else [])] for bar in kept]
    left_out = (
        say("{kept} of {all} columns", kept=len(kept), all=shown(len(columns)))
        if len(kept) < len(columns)
        else ""
    )
    return Table([x_label, y_label, *(["remark"] if flags else [])], rows, left_out)
