"""Curves in letters: runs beside each other on one scale, without colour.

    healthy                    this run
4.4 |##                        ##
    |  ##hhh                     tt#hh
2.5 |    ##tttt                      ttt
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

BOTH = "#"  # where two lines share a place
ABOVE = "^"  # a value above the scale
_LABEL_WIDTH = 9
_GAP = 2

Lines = Mapping[str, Sequence[float]]


def draw_panels(
    panels: Mapping[str, Lines], *, width: int, height: int = 8, ceiling: float = math.inf
) -> list[str]:
    """Return the lines of one picture: panels side by side, their titles above them.

    panels: title -> {mark: values}; a mark is one letter, its values spread from edge to edge.
    ceiling: what lies above it is drawn as `^` at the top, so that one run that explodes leaves
        the other one readable.
    A value that is not finite leaves its columns empty.
    """
    lines = [values for panel in panels.values() for values in panel.values()]
    finite = [value for values in lines for value in values if math.isfinite(value)]
    high = min(max(finite, default=1.0), ceiling)
    low = min(min(finite, default=0.0), high)
    columns = (width - _LABEL_WIDTH - _GAP * (len(panels) - 1)) // len(panels)
    drawn = [_draw(panel, columns, height, low, high) for panel in panels.values()]
    labels = {0: f"{high:.2f}", height - 1: f"{low:.2f}"}
    titles = (" " * _GAP).join(title[:columns].ljust(columns) for title in panels)
    rows = [" " * _LABEL_WIDTH + titles]
    for row in range(height):
        marks = (" " * _GAP).join(panel[row] for panel in drawn)
        rows.append(f"{labels.get(row, ''):>{_LABEL_WIDTH - 2}} |{marks}")
    return [row.rstrip() for row in rows]


def thin(values: Sequence[float], count: int) -> list[float]:
    """Return at most `count` means over neighbouring values, so that noise leaves a line."""
    if len(values) <= count:
        return list(values)
    edges = [index * len(values) // count for index in range(count + 1)]
    return [math.fsum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]


def _draw(panel: Lines, columns: int, height: int, low: float, high: float) -> list[str]:
    grid = [[" "] * columns for _ in range(height)]
    for mark, values in panel.items():
        for column in range(columns):
            value = _value_at(values, column, columns)
            if math.isfinite(value):
                row = _row_of(value, height, low, high)
                shown = ABOVE if value > high else mark
                grid[row][column] = shown if grid[row][column] in (" ", shown) else BOTH
    return ["".join(row) for row in grid]


def _value_at(values: Sequence[float], column: int, columns: int) -> float:
    """Return the value at a column, on the straight line between the two nearest values."""
    if len(values) < 2 or columns < 2:
        return values[0] if values else math.nan
    place = column * (len(values) - 1) / (columns - 1)
    left = min(int(place), len(values) - 2)
    share = place - left
    if share in (0.0, 1.0):  # a neighbour that is not finite does not count here
        return values[left + int(share)]
    return (1 - share) * values[left] + share * values[left + 1]


def _row_of(value: float, height: int, low: float, high: float) -> int:
    if high <= low:
        return 0 if value > high else height - 1
    share = (high - min(value, high)) / (high - low)
    return round(share * (height - 1))
