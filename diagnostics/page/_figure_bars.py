"""One bar for each parameter, or for each layer where the parameters are too many to draw."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from diagnostics._text import Text, say
from diagnostics.page._bar_chart import BARS_MAX
from diagnostics.page._charts import Bar
from diagnostics.page._figure_parts import grouped, layer_order
from diagnostics.page._scales import finite

Combine = Callable[[Sequence[float]], float]


def layer_bars(
    values: Mapping[str, float | None], flags: Mapping[str, str], combine: Combine
) -> tuple[list[Bar], bool]:
    """Return a bar for each parameter, or for each layer where there are too many, and which.

    A flagged parameter keeps a bar of its own after its layer's; where those are too many, as in a
    mixture of hundreds of experts, a layer has one for each flag.
    """
    names = sorted(values, key=layer_order)
    if len(names) <= BARS_MAX:
        bars = [Bar(label=name, value=values[name], flag=flags.get(name, "")) for name in names]
        return bars, False
    together = len(flags) > BARS_MAX // 2  # half of the bars are left for the layers
    bars = []
    for layer, members in grouped(names).items():
        known = finite(values[name] for name in members if name not in flags)
        if known:
            bars.append(Bar(label=layer, value=combine(known)))
        flagged = [name for name in members if name in flags]
        if together:
            bars += _by_flag(layer, flagged, values, flags)
        else:
            bars += [Bar(label=name, value=values[name], flag=flags[name]) for name in flagged]
    return bars, True


def _by_flag(
    layer: str,
    names: Sequence[str],
    values: Mapping[str, float | None],
    flags: Mapping[str, str],
) -> list[Bar]:
    bars: list[Bar] = []
    for flag in dict.fromkeys(flags[name] for name in names):
        members = [name for name in names if flags[name] == flag]
        if len(members) == 1:
            bars.append(Bar(label=members[0], value=values[members[0]], flag=flag))
        else:
            label = say("{layer}: {n:parameter|parameters}", layer=layer, n=len(members))
            first = values[members[0]]
            alike = all(str(values[name]) == str(first) for name in members)  # nan is nan
            bars.append(Bar(label=label, value=first if alike else None, flag=flag))
    return bars


def merged_note(per_layer: bool, count: int, how: str) -> Text:
    """Return how parameters became bars, nothing where each has its own."""
    if not per_layer:
        return say("")
    return say(
        "{n} parameters are drawn by layer: {how}; those that stand out have bars of their own.",
        n=count,
        how=how,
    )


def ends(values: Mapping[str, float]) -> tuple[str, str]:
    """Return the names of the smallest and the largest."""
    return min(values, key=values.__getitem__), max(values, key=values.__getitem__)


def root_of_squares(values: Sequence[float]) -> float:
    """Return the L2 norm of parts whose norms these are."""
    return math.hypot(*values)


def median(values: Sequence[float]) -> float:
    """Return the middle value, or the mean of the two in the middle."""
    ordered = sorted(values)
    half = len(ordered) // 2
    return ordered[half] if len(ordered) % 2 else (ordered[half - 1] + ordered[half]) / 2
