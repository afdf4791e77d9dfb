"""The shades of a heat map: each step of darkness is a factor, told in a key.

Shade 0 is nothing, 1 to SHADES a size, -1 no finite number, None no value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from diagnostics._text import Text, say
from diagnostics.page._chart_parts import cross, path
from diagnostics.page._markup import Child, Markup, element
from diagnostics.page._scales import finite

SHADES = 5
DECADES = (0.5, 1.0, 2.0)  # from shade to shade: the least of these that spans the values
THREE = math.log10(3)  # in place of half a decade: edges at 1, 3, 10


def edges_of(rows: Sequence[Sequence[float | None]], nothing: float) -> list[float]:
    """Return the lower edges of the shades above the faintest, from light to dark."""
    sizes = [abs(value) for row in rows for value in finite(row) if abs(value) > nothing]
    if not sizes:
        return []
    high, low = math.log10(max(sizes)), math.log10(min(sizes))
    step = next((step for step in DECADES if SHADES * step >= high - low), DECADES[-1])
    top = math.floor(high / step + 1e-9) * step
    halves = [top - step * place for place in reversed(range(SHADES - 1))]
    return [edge if edge.is_integer() else math.floor(edge) + THREE for edge in halves]


def shade_of(value: float | None, edges: Sequence[float], nothing: float) -> int | None:
    """Return 0 for nothing, 1 to SHADES for a size, -1 for no finite number, None for no value."""
    if value is None:
        return None
    if not math.isfinite(value):
        return -1
    if abs(value) <= nothing:
        return 0
    size = math.log10(abs(value))
    return 1 + sum(size >= edge - 1e-9 for edge in edges)


def key(edges: Sequence[float], used: set[int | None], nothing: float, flag: str) -> Markup | None:
    """Return what each shade stands for, in words and numbers."""
    items: list[Child] = []
    if 0 in used:
        blank = say("at most {limit}", limit=_edge(nothing)) if nothing else say("exactly 0")
        items.append(_item("frame", blank))
    for shade in range(1, SHADES + 1):
        if shade not in used:
            continue
        items.append(_item(str(shade), _span(edges, shade)))
    if -1 in used:
        items.append(_item("bad", say("nan or infinite")))
    if None in used:
        items.append(_item("none", say("not measured")))
    if flag:
        items.append(_item("outline", flag))
    return element("ul", items, class_="chart-key") if items else None


def _span(edges: Sequence[float], shade: int) -> Text:
    if shade == 1:
        return say("below {high}", high=_edge(10 ** edges[0]))
    low = _edge(10 ** edges[shade - 2])
    if shade == SHADES:
        return say("{low} and more", low=low)
    return say("{low} to {high}", low=low, high=_edge(10 ** edges[shade - 1]))


def _edge(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:.1g}" if value < 1 else f"{value:.0f}"
    digits, _, power = f"{value:.0e}".partition("e")
    return f"{digits}e{int(power)}"


def _item(kind: str, text: str) -> Markup:
    frame = path(["M1 1h10v10h-10z"], "chart-heat-frame")
    inner: Child = {
        "frame": None,
        "bad": path([cross(6, 6, 3)], "chart-cross"),
        "none": path(["M1 11l10 -10"], "chart-hatch"),
        "outline": [
            path(["M1 1h10v10h-10z"], "chart-heat-3 chart-heat-flagged"),
            path(["M1 1h10v10h-10z"], "chart-outline"),
        ],
    }.get(kind, path(["M1 1h10v10h-10z"], f"chart-heat-{kind}"))
    sample = element(
        "svg", frame, inner, viewBox="0 0 12 12", width=12, height=12, aria_hidden="true"
    )
    return element("li", sample, " ", text)
