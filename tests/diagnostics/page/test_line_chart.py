"""Curves, their names, their levels, and points that cannot be drawn."""

from __future__ import annotations

import itertools
import math

import pytest

from diagnostics.page._charts import Level, Series, line_chart
from tests.diagnostics.page.drawn import (
    assert_inside,
    finding,
    notes,
    parse,
    paths,
    table,
    texts,
)

NAN, INF = math.nan, math.inf


def draw(*series: Series, levels: tuple[Level, ...] = (), log_y: bool = False) -> str:
    return line_chart(
        "loss",
        "The loss falls",
        x_label="step",
        y_label="loss (nats)",
        series=series,
        levels=levels,
        log_y=log_y,
    )


def test_a_chart_states_its_finding_its_axes_and_its_numbers() -> None:
    markup = draw(Series(label="train", x=[0, 10], y=[4.0, 1.0]))
    assert finding(markup) == "The loss falls"
    assert {"loss (nats)", "step"} <= set(texts(markup))
    assert table(markup) == [["step", "train"], ["0", "4"], ["10", "1"]]
    svg = next(iter(parse(markup).iter("svg")))
    assert svg.get("role") == "img"
    assert svg.get("aria-labelledby") == "loss-title loss-desc"
    assert texts(markup, "title") == ["The loss falls"]
    assert "2 points, from 4 to 1" in texts(markup, "desc")[0]
    details = next(iter(parse(markup).iter("details")))
    assert details.get("open") is None


def test_a_point_lies_where_its_axis_says() -> None:
    """The y axis goes from 0 to 4, so that 2 lies half way between the first and the last line."""
    markup = draw(Series(label="train", x=[0, 1, 2], y=[4, 2, 0]))
    line = paths(markup, "chart-series")[0]
    ends = [point.split() for point in line[1:].split("L")]
    (_, top), (middle_x, middle), (_, bottom) = [(float(x), float(y)) for x, y in ends]
    assert middle == (top + bottom) / 2
    assert top < bottom
    assert middle_x == (float(ends[0][0]) + float(ends[2][0])) / 2


def test_series_differ_by_dash_and_marker_and_have_their_names_beside_them() -> None:
    one = Series(label="train", x=[0, 1], y=[3, 2])
    other = Series(label="validation", x=[0, 1], y=[3, 2.5])
    markup = draw(one, other, levels=(Level(label="ln V", y=4.174),))
    dashes = {p.get("stroke-dasharray") for p in parse(markup).iter("path")}
    assert len(dashes) == 2
    marks = paths(markup, "chart-mark")
    assert "a2.5" in marks[0]
    assert "h6v6" in marks[1]
    assert {"train", "validation", "ln V"} <= set(texts(markup))
    assert texts(markup, "ul") == []


def test_names_of_levels_that_are_close_are_pushed_apart() -> None:
    levels = (
        Level(label="ln V", y=4.17),
        Level(label="unigram", y=4.16),
        Level(label="floor", y=0),
    )
    markup = draw(Series(label="loss", x=[0, 1], y=[4.18, 4.165]), levels=levels)
    heights = sorted(
        float(text.get("y", ""))
        for text in parse(markup).iter("text")
        if "chart-name" in text.get("class", "")
    )
    assert len(heights) == 4
    assert all(b - a >= 14.9 for a, b in itertools.pairwise(heights))
    assert_inside(markup)


def test_long_names_go_into_a_key_with_samples_of_the_lines() -> None:
    names = [f"a series with the long name {n}" for n in range(3)]
    markup = draw(*(Series(label=name, x=[0, 1], y=[n, 2]) for n, name in enumerate(names)))
    key = texts(markup, "li")
    assert [entry.strip() for entry in key] == names
    assert not set(names) & set(texts(markup))


def test_what_is_no_number_is_a_gap_that_is_marked_and_told() -> None:
    """Points 0, 1 and 4, 5 are two pieces of line; nan and None in between are two crosses."""
    markup = draw(Series(label="loss", x=range(6), y=[5, 4, NAN, None, 3, 2]))
    assert paths(markup, "chart-series")[0].count("M") == 2
    assert paths(markup, "chart-cross")[0].count("M") == 2
    assert "2 points of loss without a finite value; the first is nan at step 2" in notes(markup)
    assert ["3", "-"] in table(markup)
    assert ["2", "nan"] in table(markup)


def test_zero_on_a_log_axis_is_marked_at_the_lower_edge_and_told() -> None:
    markup = draw(Series(label="loss", x=range(4), y=[1, 0, -2, 10]), log_y=True)
    assert "2 points of loss at 0 or below" in notes(markup)
    assert len(paths(markup, "chart-mark-1")) == 1


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [], [NAN], [None, None], [INF, -INF], [0.0], [3.0, 3.0], [-1.0, -2.0], [1e30, 1e-30],
        [1.7e308, -1.7e308], [5e-324, 1.0], [1.0, NAN, 2.0],
    ],
)  # fmt: skip
def test_any_values_give_a_drawing_inside_its_canvas(
    values: list[float | None], log_y: bool
) -> None:
    markup = draw(
        Series(label="loss", x=range(len(values)), y=values),
        levels=(Level(label="floor", y=0.0), Level(label="nowhere", y=NAN)),
        log_y=log_y,
    )
    assert_inside(markup)
    assert "nowhere" not in markup


def test_nothing_at_all_is_said() -> None:
    markup = draw()
    assert "no finite value to draw" in texts(markup)
    assert "<details" not in markup


def test_a_long_run_stays_small_and_keeps_its_spikes() -> None:
    """Of 30,000 points at most four for each unit of width are drawn, a lone spike among them."""
    values = [2.0] * 30_000
    values[17_777] = 9.0
    markup = draw(Series(label="loss", x=range(30_000), y=values))
    assert len(markup) < 40_000
    top = min(float(point.split()[1]) for point in paths(markup, "chart-series")[0][1:].split("L"))
    low = max(float(point.split()[1]) for point in paths(markup, "chart-series")[0][1:].split("L"))
    assert low - top > 50
    assert len(table(markup)) == 61
    assert "60 of 30,000 points" in notes(markup)


def test_a_run_that_is_nan_at_every_other_step_stays_small() -> None:
    values = [NAN if step % 2 else 1.0 for step in range(20_000)]
    assert len(draw(Series(label="loss", x=range(20_000), y=values))) < 60_000


def test_hostile_names_stay_text() -> None:
    """Markup is escaped; a reading direction is spelt out."""
    markup = draw(Series(label="<b>\u202e", x=[0], y=[1]), Series(label="</svg>&", x=[0], y=[2]))
    assert "<b>\\u202e" in texts(markup)
    assert "</svg>&" in texts(markup)


def test_equal_input_gives_equal_bytes() -> None:
    series = Series(label="loss", x=[0, 1, 2], y=[3.3, 2.2, NAN])
    assert draw(series) == draw(series)
