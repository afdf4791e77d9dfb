"""A curve over steps, or a few of them, with the levels that they are compared with."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics.page._chart_parts import (
    CHARACTER,
    LINE,
    WIDTH,
    Box,
    Level,
    at,
    base_line,
    cross,
    figure,
    nothing_to_draw,
    path,
    sampled,
    text_width,
    x_axis,
    y_axis,
)
from diagnostics.page._line_marks import DASHES, Curve, Series, can_stand, marker, read_curve
from diagnostics.page._line_names import Names
from diagnostics.page._line_words import describe, gap_notes, table
from diagnostics.page._markup import Child, Markup
from diagnostics.page._scales import Scale, finite, fitting_scale, linear_scale, log_scale, number

HEIGHT = 175  # units of the plot, where nothing else is asked for
POINTS_MAX = 480  # of a curve: two for each unit of the plot's width, its low and its high
MARKERS_MAX = 40  # points up to which each has a marker


def line_chart(
    name: str,
    finding: str,
    *,
    x_label: str,
    y_label: str,
    series: Sequence[Series],
    levels: Sequence[Level] = (),
    log_y: bool = False,
    note: str = "",
    height: int = HEIGHT,
) -> Markup:
    """Return a line chart; names stand at the right end of what they name.

    A point that is no finite number is a gap with an x above it; on a logarithmic axis, a point
    at 0 or below is a gap with a triangle at the lower edge. Both are told in words.
    height: of the plot, in units of a canvas that is 320 wide.
    """
    curves = [read_curve(one, log_y) for one in series]
    levels = [level for level in levels if can_stand(number(level.y), log_y)]
    values = [y for curve in curves for _, y in curve.points] + [level.y for level in levels]
    y_scale = log_scale(values) if log_y else linear_scale(values, tick_count=max(2, height // 35))
    left = max((text_width(tick.label) for tick in y_scale.ticks), default=0) + 7
    names = Names(curves, levels, height)
    box = Box(left, 22, WIDTH - (names.width or 8), 22 + height)
    places = [x for one in series for x in finite(one.x)]
    x_scale = fitting_scale(places, width=box.right - left, character=CHARACTER, tight=True)
    drawing: list[Child] = [y_axis(box, y_scale, y_label), x_axis(box, x_scale, x_label)]
    drawing += [base_line(box), _level_lines(box, y_scale, levels)]
    for index, curve in enumerate(curves):
        drawing.append(_draw(box, x_scale, y_scale, curve, index, marked=len(curves) > 1))
    drawing.append(names.draw(box, y_scale))
    if not any(curve.pieces for curve in curves):
        drawing.append(nothing_to_draw(box))
    return figure(
        name,
        finding,
        drawing=drawing,
        height=box.bottom + 2 * LINE + 9,
        description=describe(curves, levels, x_label, y_label),
        table=table(series, levels, x_label),
        notes=[note, *gap_notes(curves, x_label)],
        key=names.key,
    )


def _level_lines(box: Box, scale: Scale, levels: Sequence[Level]) -> list[Child]:
    return [
        path([f"M{at(box.left)} {at(box.y(scale.place(lv.y)))}H{at(box.right)}"], "chart-level")
        for lv in levels
    ]


def _draw(
    box: Box, x_scale: Scale, y_scale: Scale, curve: Curve, index: int, *, marked: bool
) -> list[Child]:
    """Return the line, its markers, and the marks of what is missing."""
    kind = f"chart-series chart-series-{index % 3 + 1}"

    def spot(x: float, y: float) -> tuple[float, float]:
        return box.x(x_scale.place(x)), box.y(y_scale.place(y))

    dense = len(curve.points) > POINTS_MAX
    pieces = [[spot(*point) for point in piece] for piece in curve.pieces]
    spots = [place for piece in pieces for place in piece]
    lines = [
        "M" + "L".join(f"{at(x)} {at(y)}" for x, y in _thinned(piece))
        for piece in pieces
        if len(piece) > 1
    ]
    chosen = _apart([piece[0] for piece in pieces if len(piece) == 1])
    if len(spots) <= MARKERS_MAX:
        chosen = spots
    elif marked:
        chosen += [spots[place] for place in sampled(len(spots), 8)]
    markers = [marker(x, y, index) for x, y in chosen]
    gaps = _apart([(box.x(x_scale.place(x)), box.top + 4) for x, _ in curve.gaps])
    below = _apart([(box.x(x_scale.place(x)), box.bottom - 8) for x, _ in curve.low])
    return [
        path(lines, kind + " chart-dense" * dense, stroke_dasharray=DASHES[index % len(DASHES)]),
        path(markers, f"chart-mark {kind} chart-mark-{index % 3}"),
        path([cross(x, y) for x, y in gaps], "chart-cross"),
        path(
            [f"M{at(x - 4)} {at(y)}h8l-4 7z" for x, y in below], f"chart-mark {kind} chart-mark-1"
        ),
    ]


def _apart(spots: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep one of the spots that share a unit of the canvas: a run of 10,000 may be all nan."""
    return list({(int(x), int(y)): (x, y) for x, y in spots}.values())


def _thinned(piece: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Keep the first, lowest, highest and last of the points that share a unit of the width."""
    if len(piece) <= POINTS_MAX:
        return list(piece)
    kept: list[tuple[float, float]] = []
    begin = 0
    for end in range(1, len(piece) + 1):
        if end < len(piece) and int(piece[end][0]) == int(piece[begin][0]):
            continue
        span = range(begin, end)
        low = min(span, key=lambda place: piece[place][1])
        high = max(span, key=lambda place: piece[place][1])
        kept += [piece[place] for place in sorted({begin, low, high, end - 1})]
        begin = end
    return kept
