"""Every class of a drawing has a look, and every colour is one of the page's."""

from __future__ import annotations

import re

from diagnostics.page._chart_style import CHART_STYLE
from diagnostics.page._charts import (
    Bar,
    Level,
    Series,
    bar_chart,
    column_chart,
    heat_map,
    line_chart,
)
from diagnostics.page._figures import figures
from diagnostics.page._style import LIGHT
from tests.diagnostics.page.drawn import parse
from tests.diagnostics.page.stored_numbers import stored

# marks for tests and scripts, which look like their element or like their other class
PLAIN = {"chart-row", "chart-mark-1", "chart-mark-2", "chart-frame", "chart-heat-5", "pair-input"}


def _drawn() -> list[str]:
    bars = [Bar(label="h.0.a", value=1.0, flag="x"), Bar(label="b", value=None)]
    series = [Series(label=f"{n}", x=[0, 1, 2, 3], y=[1, float("nan"), 0, 3]) for n in range(4)]
    levels = [Level(label="level", y=1.0)]
    cells = [[float("nan"), None, 0, 1, 10, 100, 1e3, 1e4]] * 2
    axes = {"x_label": "x", "y_label": "y"}
    return [
        line_chart("a", "finding", **axes, series=series, levels=levels, log_y=True),
        bar_chart("b", "finding", label="layer", x_label="x", bars=bars, levels=levels),
        column_chart("c", "finding", **axes, columns=bars),
        heat_map("d", "finding", **axes, cells=cells, flagged=lambda row, column: column > 4),
        *(figure.markup for figure in figures(stored())),
    ]


def test_every_class_that_is_drawn_is_styled() -> None:
    used = {
        name
        for markup in _drawn()
        for element in parse(markup).iter()
        for name in element.get("class", "").split()
    }
    styled = set(re.findall(r"\.([a-z][a-z0-9-]*)", CHART_STYLE))
    assert used - styled <= PLAIN


def test_every_colour_is_a_property_of_the_page() -> None:
    assert set(re.findall(r"var\(--([a-z0-9-]+)\)", CHART_STYLE)) <= set(LIGHT)
    assert not re.search(r"#[0-9a-fA-F]{3}|rgb|hsl", CHART_STYLE)
    assert not any(re.search(r"(fill|stroke)=|style=", markup) for markup in _drawn())


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert "url(" not in CHART_STYLE
    assert "@import" not in CHART_STYLE
