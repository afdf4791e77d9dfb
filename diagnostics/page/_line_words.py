"""A line chart in words and numbers: what is missing, what it shows, and its table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._chart_parts import ROWS_MAX, Level, Table, sampled
from diagnostics.page._line_marks import Curve, Series
from diagnostics.page._scales import number, shown


def gap_notes(curves: Sequence[Curve], x_label: str) -> list[Text]:
    """Return a sentence for each kind of point that could not be drawn."""
    notes: list[Text] = []
    for curve in curves:
        if curve.gaps:
            x, y = curve.gaps[0]
            notes.append(
                say(
                    "x at the upper edge: {n:point|points} of {name} without a finite value; the "
                    "first is {value} at {x_label} {x}",
                    n=len(curve.gaps),
                    name=curve.label,
                    value="missing" if y is None else str(y),
                    x_label=x_label,
                    x=shown(x),
                )
            )
        if curve.low:
            notes.append(
                say(
                    "triangle at the lower edge: {n:point|points} of {name} at 0 or below, which "
                    "a logarithmic axis cannot show; the first at {x_label} {x}",
                    n=len(curve.low),
                    name=curve.label,
                    x_label=x_label,
                    x=shown(curve.low[0][0]),
                )
            )
    return notes


def describe(curves: Sequence[Curve], levels: Sequence[Level], x_label: str, y_label: str) -> str:
    """Return the chart for those who do not see it."""
    told = [say("Line chart of {y} over {x}.", y=y_label, x=x_label)]
    for curve in curves:
        points = curve.points
        if not points:
            told.append(say("{name}: no point to draw.", name=curve.label))
            continue
        ys = [y for _, y in points]
        told.append(
            say(
                "{name}: {n:point|points}, from {first} to {last}, between {low} and {high}.",
                name=curve.label,
                n=len(points),
                first=ys[0],
                last=ys[-1],
                low=min(ys),
                high=max(ys),
            )
        )
    told += [say("Level {name}: {y}.", name=level.label, y=float(level.y)) for level in levels]
    return " ".join(told)


def table(series: Sequence[Series], levels: Sequence[Level], x_label: str) -> Table:
    """Return the points by x, a column for each series, then the levels."""
    by_x: dict[float, dict[int, Any]] = {}
    for column, one in enumerate(series):
        for x, y in zip(one.x, one.y, strict=False):
            place = number(x)
            if place is not None and math.isfinite(place):
                by_x.setdefault(place, {})[column] = y
    places = sorted(by_x)
    kept = [places[index] for index in sampled(len(places))]
    rows = [
        [shown(x), *(shown(by_x[x].get(column)) for column in range(len(series)))] for x in kept
    ]
    rows += [[level.label, *([shown(level.y)] * len(series))] for level in levels]
    left_out = (
        say("{kept} of {all} points, evenly chosen", kept=ROWS_MAX, all=shown(len(places)))
        if len(kept) < len(places)
        else ""
    )
    return Table([x_label, *(one.label for one in series)], rows, left_out)
