"""Bars for layers: lengths, flags, names that are long, and values that have no length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from diagnostics.page._charts import Bar, Level, bar_chart
from tests.diagnostics.page.drawn import assert_inside, notes, parse, paths, table, texts

NAN, INF = math.nan, math.inf


def draw(bars: Sequence[Bar], *, log_x: bool = False, levels: Sequence[Level] = ()) -> str:
    return bar_chart(
        "norms", "finding", label="layer", x_label="norm", bars=bars, log_x=log_x, levels=levels
    )


def test_a_bar_is_as_long_as_its_value() -> None:
    """On an axis from 0 to 4, the bar of 2 is half as long as that of 4."""
    markup = draw([Bar(label="a", value=2.0), Bar(label="b", value=4.0)])
    first, second = paths(markup, "chart-bar")[0].split("z")[:2]
    lengths = [float(bar.split("h")[1].split("v")[0]) for bar in (first, second)]
    assert lengths[1] == 2 * lengths[0]
    assert texts(markup)[-4:] == ["a", "2", "b", "4"]


def test_a_negative_bar_goes_to_the_left_of_zero() -> None:
    markup = draw([Bar(label="a", value=-2.0), Bar(label="b", value=2.0)])
    left, right = (float(bar.split()[0]) for bar in paths(markup, "chart-bar")[0].split("M")[1:])
    assert left < right


def test_a_flag_is_a_word_and_another_shape() -> None:
    markup = draw([Bar(label="a", value=1.0), Bar(label="b", value=2.0, flag="too large")])
    assert "2  too large" in texts(markup)
    assert len(paths(markup, "chart-bar-flagged")) == 1
    assert table(markup)[1:] == [["a", "1", ""], ["b", "2", "too large"]]
    assert table(markup)[0] == ["layer", "norm", "remark"]


def test_parts_of_a_layer_stand_under_its_name() -> None:
    """The path is cut to what differs in the drawing, and whole in the table."""
    markup = draw(
        [
            Bar(label="wte.weight", value=1.0),
            Bar(label="h.0.mlp.weight", value=1.0),
            Bar(label="h.0.mlp.bias", value=2.0),
            Bar(label="h.1", value=3.0),
            Bar(label="h.1.mlp.bias", value=4.0),
        ]
    )
    names = [text for text in texts(markup) if text[0].isalpha() and text != "norm"]
    assert names == ["wte.weight", "h.0", "mlp.weight", "mlp.bias", "h.1", "mlp.bias"]
    assert [row[0] for row in table(markup)[1:]][1:3] == ["h.0.mlp.weight", "h.0.mlp.bias"]


def test_a_long_name_is_cut_in_the_middle_and_whole_in_the_table() -> None:
    name = "encoder.some_very_long_module_name.and_another_one.weight"
    markup = draw([Bar(label=name, value=0.5)])
    drawn = next(text for text in texts(markup) if "\u2026" in text)
    assert drawn.startswith("encoder")
    assert drawn.endswith("weight")
    assert table(markup)[1][0] == name


def test_values_without_a_length_are_marked_and_told() -> None:
    markup = draw(
        [
            Bar(label="a", value=1.0),
            Bar(label="b", value=None),
            Bar(label="c", value=NAN),
            Bar(label="d", value=0.0),
        ],
        log_x=True,
    )
    assert paths(markup, "chart-cross")[0].count("M") == 2
    assert "1 value is missing" in notes(markup)
    assert "1 value is no finite number" in notes(markup)
    assert "1 value is 0 or below" in notes(markup)


def test_of_many_bars_the_flagged_ones_are_drawn() -> None:
    """600 parameters: 40 bars, all three flagged ones among them, and the page says so."""
    bars = [
        Bar(label=f"p{n}", value=1.0 + n, flag="zero" if n in (7, 299, 598) else "")
        for n in range(600)
    ]
    markup = draw(bars)
    assert sum("zero" in text for text in texts(markup)) == 3
    assert len(paths(markup, "chart-bar")) == 2
    assert "40 of 600 bars are drawn" in notes(markup)
    assert len(table(markup)) == 201
    assert "the first 200 of 600" in notes(markup)
    assert len(markup) < 60_000


def test_a_level_has_its_name_above_the_bars() -> None:
    markup = draw([Bar(label="a", value=1e-3)], log_x=True, levels=[Level(label="usual", y=1e-3)])
    assert "usual" in texts(markup)
    assert ["usual", "0.001"] in table(markup)
    assert (
        draw([Bar(label="a", value=1.0)], levels=[Level(label="usual", y=NAN)]).count("usual") == 0
    )


@pytest.mark.parametrize("log_x", [False, True])
@pytest.mark.parametrize(
    "values",
    [[], [0.0], [NAN, INF], [1e30, 1e-30], [-1e30, 1e30], [1.7e308], [5e-324], [2.0, 2.0], [-1.0]],
)
def test_any_values_give_a_drawing_inside_its_canvas(values: list[float], log_x: bool) -> None:
    bars = [Bar(label=f"layer {n}", value=v, flag="x" * 50) for n, v in enumerate(values)]
    markup = draw(bars, log_x=log_x, levels=[Level(label="a level with a long name " * 3, y=1.0)])
    assert_inside(markup)


def test_hostile_labels_stay_text() -> None:
    markup = draw([Bar(label="</text><script>", value=1.0, flag="\u202e\ud800&")])
    assert not list(parse(markup).iter("script"))
    assert any("\\u202e\\ud800&" in text for text in texts(markup))
