"""The names of curves and levels: beside their right ends, or in a key below the chart."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics.page._chart_parts import (
    BOLD,
    LINE,
    WIDTH,
    Box,
    Level,
    at,
    label,
    path,
    shorten,
    text_width,
)
from diagnostics.page._line_marks import DASHES, Curve, marker
from diagnostics.page._markup import Child, Markup, element
from diagnostics.page._scales import Scale, shown

SIDE_CHARACTERS, SIDE_LINES = 12, 2  # of a name at the right end of its curve


class Names:
    """Names beside the right ends of curves and levels, or in a key below where they do not fit.

    A curve that stands alone needs no name: the axis has it.
    """

    def __init__(self, curves: Sequence[Curve], levels: Sequence[Level], height: int) -> None:
        self._curves = curves
        entries: list[tuple[float, str, str]] = []
        if len(curves) + len(levels) > 1:
            entries += [
                (curve.points[-1][1], curve.label, f"chart-name-{index % 3 + 1}")
                for index, curve in enumerate(curves)
                if curve.points
            ]
        entries += [(level.y, level.label, "chart-name-0") for level in levels]
        self._entries = [(y, _wrapped(text), kind) for y, text, kind in entries]
        lines = [lines for _, lines, _ in self._entries]
        room = height // LINE
        self._beside = sum(map(len, lines)) <= room and all(
            len(one) <= SIDE_LINES and all(len(line) <= SIDE_CHARACTERS for line in one)
            for one in lines
        )
        longest = max(
            (
                text_width(line) * (1.0 if kind == "chart-name-0" else BOLD)
                for _, one, kind in self._entries
                for line in one
            ),
            default=0.0,
        )
        self.width = longest + 10 if self._beside and lines else 0.0

    def draw(self, box: Box, scale: Scale) -> list[Child]:
        """Return the names, pushed apart where they would cover one another, with their leaders."""
        if not self._beside:
            return []
        entries = sorted(self._entries, key=lambda entry: -scale.place(entry[0]))
        heights = [LINE * len(lines) for _, lines, _ in entries]
        wanted = [box.y(scale.place(y)) for y, _, _ in entries]
        places = _apart(wanted, heights, box.top - 6, box.bottom + 6)
        return [
            _name(box.right, line_y, place, lines, kind)
            for (_, lines, kind), line_y, place in zip(entries, wanted, places, strict=True)
        ]

    @property
    def key(self) -> Child:
        """Return the key below the drawing, where the names do not fit beside it."""
        if self._beside or not self._entries:
            return None
        samples = [
            element("li", _sample(index), " ", curve.label)
            for index, curve in enumerate(self._curves)
        ]
        levels = [
            element("li", _sample(None), " ", " ".join(lines), " ", shown(y))
            for y, lines, kind in self._entries
            if kind == "chart-name-0"
        ]
        return element("ul", samples, levels, class_="chart-key")


def _wrapped(text: str) -> list[str]:
    """Return the words of a name in lines that fit beside the plot."""
    lines: list[str] = []
    for word in text.split() or [text]:
        if lines and len(lines[-1]) + 1 + len(word) <= SIDE_CHARACTERS:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _apart(
    wanted: Sequence[float], heights: Sequence[float], low: float, high: float
) -> list[float]:
    """Return centres as near to the wanted ones as heights allow, in the same order."""
    centres = list(wanted)
    edge = low
    for place, height in enumerate(heights):
        centres[place] = max(centres[place], edge + height / 2)
        edge = centres[place] + height / 2
    edge = high
    for place in reversed(range(len(heights))):
        centres[place] = min(centres[place], edge - heights[place] / 2)
        edge = centres[place] - heights[place] / 2
    return centres


def _name(
    right: float, line_y: float, centre: float, lines: Sequence[str], kind: str
) -> list[Child]:
    first = centre - LINE * (len(lines) - 1) / 2 + 4
    leader = f"M{at(right)} {at(line_y)}L{at(right + 7)} {at(centre)}"
    texts: list[Child] = [
        label(right + 9, first + LINE * row, shorten(line, WIDTH), kind=f"chart-name {kind}")
        for row, line in enumerate(lines)
    ]
    return [path([leader], "chart-leader"), texts]


def _sample(index: int | None) -> Markup:
    """Return a short piece of the line, as it is drawn in the chart."""
    line = (
        path(["M0 6H26"], "chart-level")
        if index is None
        else [
            path(
                ["M0 6H26"],
                f"chart-series chart-series-{index % 3 + 1}",
                stroke_dasharray=DASHES[index % len(DASHES)],
            ),
            path(
                [marker(13, 6, index)],
                f"chart-mark chart-series chart-series-{index % 3 + 1} chart-mark-{index % 3}",
            ),
        ]
    )
    return element("svg", line, viewBox="0 0 26 12", width=26, height=12, aria_hidden="true")
