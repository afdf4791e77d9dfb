"""Histograms over ids: columns, ticks at round ids, flags."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest

from diagnostics.page._charts import Bar, column_chart
from tests.diagnostics.page.drawn import assert_inside, notes, paths, table, texts


def draw(columns: Sequence[Bar], *, log_y: bool = False) -> str:
    return column_chart(
        "ids", "finding", x_label="token id", y_label="tokens", columns=columns, log_y=log_y
    )


def ids(*counts: float | None) -> list[Bar]:
    return [Bar(label=str(n), value=count) for n, count in enumerate(counts)]


def test_a_column_is_as_high_as_its_count() -> None:
    """On an axis from 0 to 4, the column of 1 has a quarter of the height of 4."""
    markup = draw(ids(1, 4, 0))
    columns = paths(markup, "chart-column")[0][1:].split("M")
    heights = [float(c.split()[1].split("V")[0]) - float(c.split("V")[1]) for c in columns]
    assert heights[1] == 4 * heights[0]
    assert heights[2] == 0


def test_ticks_stand_at_round_ids() -> None:
    markup = draw(ids(*range(1, 66)))
    assert [text for text in texts(markup) if text.endswith("0")][-7:] == [
        "0", "10", "20", "30", "40", "50", "60",
    ]  # fmt: skip


def test_runs_of_ids_have_ticks_at_round_ids_too() -> None:
    """50,257 ids in runs of 399: ticks at multiples of 10,000 or 20,000, inside their run."""
    columns = [Bar(label=f"{n * 399} to {n * 399 + 398}", value=5.0) for n in range(126)]
    assert {"0", "20,000", "40,000"} <= set(texts(draw(columns)))


def test_words_are_labels_as_they_are() -> None:
    assert {"yes", "no"} <= set(texts(draw([Bar(label="yes", value=1), Bar(label="no", value=2)])))


def test_a_flagged_column_has_its_word_and_a_triangle() -> None:
    markup = draw([*ids(3, 4), Bar(label="2", value=1.0, flag="outside")])
    assert "outside" in texts(markup)
    assert len(paths(markup, "chart-triangle")) == 1
    assert len(paths(markup, "chart-column-flagged")) == 1
    assert table(markup)[-1] == ["2", "1", "outside"]


def test_a_single_count_beside_a_million_still_shows() -> None:
    column = paths(draw(ids(1, 1_000_000)), "chart-column")[0][1:].split("M")[0]
    assert float(column.split()[1].split("V")[0]) - float(column.split("V")[1]) == 0.5


def test_zero_counts_have_no_column_on_a_log_axis_and_that_is_told() -> None:
    markup = draw(ids(0, 1, 1000), log_y=True)
    assert paths(markup, "chart-column")[0].count("M") == 2
    assert "no column where the value is 0 or less: 1 of 3" in notes(markup)


def test_very_many_columns_are_merged_and_that_is_told() -> None:
    markup = draw(ids(*([1] * 10_000)))
    assert len(markup) < 40_000
    assert "the highest of 40 neighbours" in notes(markup)
    assert "128 of 10,000 columns" in notes(markup)


@pytest.mark.parametrize("log_y", [False, True])
@pytest.mark.parametrize(
    "values", [[], [0], [None], [math.nan, math.inf], [1e30], [1e-30], [-5, 5], [7, 7, 7]]
)
def test_any_values_give_a_drawing_inside_its_canvas(
    values: list[float | None], log_y: bool
) -> None:
    assert_inside(draw(ids(*values), log_y=log_y))
