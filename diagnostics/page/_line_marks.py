"""A curve as it is drawn and told apart: its pieces, its dash, its marker."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics.page._chart_parts import at
from diagnostics.page._scales import number

DASHES = (None, "7 3", "2 3", "9 3 2 3", "4 4")
_RING = "a{r} {r} 0 1 0 {d} 0a{r} {r} 0 1 0-{d} 0"


@dataclass(frozen=True, kw_only=True)
class Series:
    """One curve.    y: None or a number that is not finite leaves a gap, which is marked."""

    label: str
    x: Sequence[float]
    y: Sequence[float | None]


@dataclass(frozen=True)
class Curve:
    """A series sorted into what can be drawn (x, y) and what can only be marked."""

    label: str
    pieces: tuple[tuple[tuple[float, float], ...], ...]
    gaps: tuple[tuple[float, float | None], ...]  # no finite value
    low: tuple[tuple[float, float], ...]  # 0 or less on a logarithmic axis

    @property
    def points(self) -> list[tuple[float, float]]:
        """All points that can be drawn."""
        return [point for piece in self.pieces for point in piece]


def read_curve(series: Series, log: bool) -> Curve:
    """Return the series sorted; log: what is 0 or less cannot stand on the axis."""
    pieces: list[list[tuple[float, float]]] = [[]]
    gaps: list[tuple[float, float | None]] = []
    low: list[tuple[float, float]] = []
    for raw_x, raw_y in zip(series.x, series.y, strict=False):
        x, y = number(raw_x), number(raw_y)
        if x is None or not math.isfinite(x):
            continue
        if y is not None and can_stand(y, log):
            pieces[-1].append((x, y))
            continue
        if y is None or not math.isfinite(y):
            gaps.append((x, y))
        else:
            low.append((x, y))
        pieces.append([])
    kept = tuple(tuple(piece) for piece in pieces if piece)
    return Curve(series.label, kept, tuple(gaps), tuple(low))


def can_stand(value: float | None, log: bool) -> bool:
    """Whether a value has a place on the axis."""
    return value is not None and math.isfinite(value) and (value > 0 or not log)


def marker(x: float, y: float, index: int) -> str:
    """Return a disc, a square, a triangle or a diamond: shapes differ as the dashes do."""
    shape = index % 4
    if shape == 0:
        return f"M{at(x - 2.5)} {at(y)}" + _RING.format(r="2.5", d="5")
    if shape == 1:
        return f"M{at(x - 3)} {at(y - 3)}h6v6h-6z"
    if shape == 2:
        return f"M{at(x - 3.5)} {at(y + 3)}h7l-3.5 -6.5z"
    return f"M{at(x - 4)} {at(y)}l4 -4l4 4l-4 4z"
