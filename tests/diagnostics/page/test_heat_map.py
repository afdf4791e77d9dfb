"""Matrices as shades: steps of darkness, outlines, cells without a value, size in bytes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import pytest

from diagnostics.page._charts import heat_map
from tests.diagnostics.page.drawn import assert_inside, notes, paths, table, texts

NAN, INF = math.nan, math.inf


def draw(
    cells: Sequence[Sequence[float | None]],
    *,
    flagged: Callable[[int, int], bool] = lambda row, column: False,
    step: int = 1,
    nothing_up_to: float = 0.0,
) -> str:
    return heat_map(
        "map",
        "finding",
        x_label="token",
        y_label="position",
        cells=cells,
        x_step=step,
        y_step=step,
        flagged=flagged,
        flag="leak",
        nothing_up_to=nothing_up_to,
    )


def test_equal_neighbours_are_one_run() -> None:
    """Of [[2, 2, 0], [0.02, 2, 2]] two runs are dark, one is light, and 0 is blank."""
    markup = draw([[2, 2, 0], [0.02, 2, 2]])
    assert paths(markup, "chart-heat-5") == ["M0 0h2v1h-2zM1 1h2v1h-2z"]
    assert sum(len(paths(markup, f"chart-heat-{n}")) for n in range(1, 5)) == 1
    assert texts(markup, "li")[0].strip() == "exactly 0"


def test_each_shade_is_told_in_numbers() -> None:
    """From 0.001 to 5 are 3.7 decades, so that a shade is a factor of ten."""
    markup = draw([[5, 0.5], [0.05, 0.001]])
    key = [entry.strip() for entry in texts(markup, "li")]
    assert key == ["below 0.001", "0.001 to 0.01", "0.01 to 0.1", "0.1 to 1", "1 and more"][1:]


def test_rounding_is_left_blank_where_a_limit_is_given() -> None:
    markup = draw([[1, 1e-12], [1, 1]], nothing_up_to=1e-9)
    assert [entry.strip() for entry in texts(markup, "li")] == ["at most 1e-9", "1 and more"]


def test_flagged_cells_are_outlined_once_around() -> None:
    """Cells (0, 1) and (0, 2) touch: no line is drawn between them."""
    markup = draw([[1, 1, 1], [1, 1, 1]], flagged=lambda row, column: row == 0 and column > 0)
    assert paths(markup, "chart-outline")[0] == "M1 0h2M1 1h2M1 0v1M3 0v1"
    assert "leak" in texts(markup, "li")[-1]


def test_cells_without_a_number_are_marked_and_told() -> None:
    markup = draw([[NAN, INF], [None, 1.0]])
    assert paths(markup, "chart-cross")[0].count("M") == 2
    assert paths(markup, "chart-hatch")[0] == "M0 2l1 -1"
    assert "2 cells are no finite number" in notes(markup)
    assert {"nan or infinite", "not measured"} <= {entry.strip() for entry in texts(markup, "li")}


def test_a_small_map_has_its_matrix_as_table() -> None:
    assert table(draw([[1, 0.25], [None, NAN]])) == [
        ["position", "0", "1"],
        ["0", "1", "0.25"],
        ["1", "-", "nan"],
    ]


def test_a_large_map_lists_what_is_flagged_and_what_is_largest() -> None:
    cells = [
        [float(row == 13 and column == 2) + 0.001 for column in range(20)] for row in range(20)
    ]
    markup = draw(cells, flagged=lambda row, column: (row, column) == (3, 9), step=4)
    assert table(markup)[1] == ["12", "36", "0.001", "yes"]
    assert table(markup)[2] == ["52", "8", "1.001", ""]
    assert len(table(markup)) == 41
    assert "40 largest of 400 cells" in notes(markup)


def test_ticks_count_in_steps_of_the_cells() -> None:
    markup = draw([[1.0] * 64] * 64, step=4)
    ticks = [int(text) for text in texts(markup) if text.isdigit()]
    assert max(ticks) <= 252
    assert all(tick % 4 == 0 for tick in ticks)


def test_noise_in_64_by_64_cells_stays_below_100_kilobytes() -> None:
    """The worst case: no two neighbours share a shade, so that each cell is a run of its own."""
    cells = [[10.0 ** -((row * 7 + column * 3) % 5) for column in range(64)] for row in range(64)]
    assert len(draw(cells)) < 100_000


@pytest.mark.parametrize(
    "cells",
    [[], [[]], [[0.0]], [[NAN]], [[None]], [[1e30, 1e-30]], [[-1.0], [5e-324]], [[1, 2], [3]]],
)
def test_any_cells_give_a_drawing_inside_its_canvas(cells: list[list[float | None]]) -> None:
    assert_inside(draw(cells, flagged=lambda row, column: True))
