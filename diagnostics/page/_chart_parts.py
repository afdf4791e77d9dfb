"""What all charts share: the frame with finding, note and table, and the axes.

Everything is drawn on a canvas 320 units wide in text of 13 units, which is 11 CSS pixels on the
narrowest phones; on wide screens the picture grows and the text shrinks in turn (`_chart_style`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from diagnostics._text import printable, say
from diagnostics.page._markup import Child, Markup, element, isolate
from diagnostics.page._scales import Scale

WIDTH = 320  # units of the canvas
CHARACTER = 8.0  # units of a character in a wide font (DejaVu Sans, the default of much Linux)
BOLD = 1.12  # bold text is so much wider
NARROW = 24  # characters in a row of a table that fits every phone
BREAKABLE = 9  # characters that the first column keeps on a line; it may break anywhere
LINE = 15  # units from one line of text to the next
FINDING_MAX = 400  # characters of a heading
ROWS_MAX = 60  # rows of a table of numbers


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One bar or column.    flag: a word shown beside one that stands out."""

    label: str
    value: float | None
    flag: str = ""


@dataclass(frozen=True, kw_only=True)
class Level:
    """A reference that values are compared with, such as ln V or the floor of a batch."""

    label: str
    y: float


@dataclass(frozen=True)
class Table:
    """The numbers of a chart: rows of cells under heads, and a word on what was left out."""

    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    left_out: str = ""


@dataclass(frozen=True)
class Box:
    """The rectangle that values are drawn in, in units of the canvas."""

    left: float
    top: float
    right: float
    bottom: float

    def x(self, share: float) -> float:
        """Return the place of a share of the axis, from left to right."""
        return self.left + share * (self.right - self.left)

    def y(self, share: float) -> float:
        """Return the place of a share of the axis, from the bottom up."""
        return self.bottom - share * (self.bottom - self.top)


def figure(
    name: str,
    finding: str,
    *,
    drawing: Iterable[Child],
    height: float,
    description: str,
    table: Table,
    notes: Iterable[str] = (),
    key: Child = None,
    kind: str = "",
) -> Markup:
    """Return the whole figure: finding, drawing, key, notes, and the numbers in a closed list.

    name: makes the ids unique on the page.    height: of the canvas, in units.
    kind: a class of its own.    notes: one paragraph for each line.
    """
    if len(finding) > FINDING_MAX:  # a name of the user's that runs on for pages
        half = FINDING_MAX // 2
        finding = f"{finding[:half]} \N{HORIZONTAL ELLIPSIS} {finding[-half:]}"
    drawn = element(
        "svg",
        element("title", finding, id=f"{name}-title"),
        element("desc", description, id=f"{name}-desc"),
        drawing,
        class_="chart-svg",
        viewBox=f"0 0 {WIDTH} {at(height)}",
        role="img",
        aria_labelledby=f"{name}-title {name}-desc",
    )
    return element(
        "figure",
        element("figcaption", finding, class_="chart-finding"),
        element("div", drawn, class_="chart-frame"),
        key,
        [
            element("p", line, class_="chart-note")
            for note in notes
            for line in note.split("\n")
            if line
        ],
        numbers(table) if table.rows else None,
        class_=f"chart {kind}".rstrip(),
        id=name,
    )


def numbers(table: Table) -> Markup:
    """Return the table inside a closed <details>."""
    head = element("tr", [element("th", head, scope="col") for head in table.heads])
    rows = [
        element("tr", element("th", isolate(row[0]), scope="row"), _cells(row[1:]))
        for row in table.rows
    ]
    summary = say("the numbers ({n:row|rows})", n=len(table.rows))
    grid = element("table", element("thead", head), element("tbody", rows))
    return element(
        "details",
        element("summary", summary),
        element("div", grid, class_="chart-scroll", **_focusable(table, summary)),
        element("p", table.left_out, class_="chart-note") if table.left_out else None,
        class_="chart-numbers",
    )


def _focusable(table: Table, name: str) -> dict[str, str]:
    """A wide table scrolls sideways on a phone, and so has to be reached by keyboard."""
    columns = zip_longest(table.heads, *table.rows, fillvalue="")
    first, *others = (
        max(map(len, printable(" ".join(column)).split()), default=0) for column in columns
    )
    if min(first, BREAKABLE) + sum(others) <= NARROW:
        return {}
    return {"tabindex": "0", "role": "group", "aria_label": name}  # a landmark has its own name


def _cells(texts: Sequence[str]) -> list[Markup]:
    return [element("td", isolate(text)) for text in texts]


def at(value: float) -> str:
    """Return a coordinate, to a tenth of a unit."""
    text = f"{value:.1f}"
    text = text[:-2] if text.endswith(".0") else text
    return "0" if text == "-0" else text


def label(x: float, y: float, content: str, *, anchor: str = "start", kind: str = "") -> Markup:
    """Return a text of the drawing; anchor: start, middle or end.    kind: a class of its own."""
    return element(
        "text",
        content,
        x=at(x),
        y=at(y),
        text_anchor=None if anchor == "start" else anchor,
        class_=kind or None,
    )


def path(commands: Iterable[str], kind: str, **attributes: object) -> Markup | None:
    """Return a <path> of these commands, or None where there are none."""
    joined = "".join(commands)
    return element("path", d=joined, class_=kind, **attributes) if joined else None


def text_width(text: str) -> float:
    """Return a generous estimate of how wide a text is drawn, in units."""
    full = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    broad = sum(text.count(character) for character in "mwMW@%")
    return (len(text) + 0.9 * full + 0.45 * broad) * CHARACTER


def shorten(text: str, width: float) -> str:
    """Return the text, cut in the middle to fit the width: both ends of a path tell most."""
    text = printable(text)
    if text_width(text) <= width:
        return text
    for kept in range(min(len(text), int(width / CHARACTER)) - 1, 1, -1):
        cut = text[: (kept + 1) // 2] + "\N{HORIZONTAL ELLIPSIS}" + text[len(text) - kept // 2 :]
        if text_width(cut) <= width:
            return cut
    return text[:1] + "\N{HORIZONTAL ELLIPSIS}"


def y_axis(box: Box, scale: Scale, name: str) -> list[Child]:
    """Return the horizontal grid, the labels of its lines, and the name of the axis above them."""
    lines = [f"M{at(box.left)} {at(box.y(tick.at))}H{at(box.right)}" for tick in scale.ticks]
    return [
        path(lines, "chart-grid"),
        [
            label(box.left - 5, box.y(tick.at) + 4, tick.label, anchor="end", kind="chart-tick")
            for tick in scale.ticks
        ],
        label(0, 11, shorten(name, 0.93 * WIDTH), kind="chart-axis"),
    ]


def x_axis(box: Box, scale: Scale, name: str, *, grid: bool = False) -> list[Child]:
    """Return the ticks below the box, and the name of the axis below them.

    grid: draw lines over the whole height, for values that are read from left to right.
    """
    up = box.top if grid else box.bottom
    lines = [f"M{at(box.x(tick.at))} {at(up)}V{at(box.bottom + 4)}" for tick in scale.ticks]
    return [
        path(lines, "chart-grid" if grid else "chart-base"),
        [tick_label(box, box.x(tick.at), tick.label) for tick in scale.ticks],
        axis_name(box, name),
    ]


def tick_label(box: Box, x: float, text: str) -> Markup:
    """Return the label below a tick, kept inside the canvas."""
    half = text_width(text) / 2
    x = min(max(x, half), WIDTH - half)
    return label(x, box.bottom + LINE + 1, text, anchor="middle", kind="chart-tick")


def axis_name(box: Box, name: str) -> Markup:
    """Return the name of the horizontal axis, below its ticks."""
    shown = shorten(name, 0.93 * WIDTH)
    middle = max(text_width(shown) / 2, (box.left + box.right) / 2)
    middle = min(middle, WIDTH - text_width(shown) / 2)
    return label(middle, box.bottom + 2 * LINE + 3, shown, anchor="middle", kind="chart-axis")


def nothing_to_draw(box: Box) -> Markup:
    """Return the words that stand where a drawing has not one value."""
    x, y = (box.left + box.right) / 2, (box.top + box.bottom) / 2
    return label(x, y, say("no finite value to draw"), anchor="middle", kind="chart-tick")


def base_line(box: Box) -> Markup | None:
    """Return the line that columns and curves stand on."""
    return path([f"M{at(box.left)} {at(box.bottom)}H{at(box.right)}"], "chart-base")


def cross(x: float, y: float, size: float = 3.5) -> str:
    """Return the commands of an x, which marks a value that is no finite number."""
    side = at(2 * size)
    return f"M{at(x - size)} {at(y - size)}l{side} {side}m-{side} 0l{side} -{side}"


def sampled(count: int, most: int = ROWS_MAX) -> list[int]:
    """Return at most so many indices of `count` things, evenly, with both ends."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})
