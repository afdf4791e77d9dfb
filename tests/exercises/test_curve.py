"""Curves in letters, predicted on paper."""

from __future__ import annotations

import math

import pytest

from exercises._curve import draw_panels, thin


def test_a_rising_line_is_a_diagonal() -> None:
    """Three values, three columns, three rows: (0, 0), (1, 1), (2, 2)."""
    assert draw_panels({"up": {"t": [0.0, 1.0, 2.0]}}, width=12, height=3) == [
        "         up",
        "   2.00 |  t",
        "        | t",
        "   0.00 |t",
    ]


def test_two_panels_share_one_scale_and_lines_that_meet_are_marked() -> None:
    """Left t and h meet in the middle; right t lies flat on the lowest value of both."""
    panels = {"left": {"t": [0.0, 1.0, 2.0], "h": [2.0, 1.0, 0.0]}, "right": {"t": [0.0, 0.0]}}
    assert draw_panels(panels, width=9 + 3 + 2 + 3, height=3) == [
        "         lef  rig",
        "   2.00 |h t",
        "        | #",
        "   0.00 |t h  ttt",
    ]


def test_between_two_values_lies_a_straight_line() -> None:
    """0 and 4 over five columns: one row a column."""
    lines = draw_panels({"": {"t": [0.0, 4.0]}}, width=9 + 5, height=5)
    assert [line[9:] for line in lines[1:]] == ["    t", "   t", "  t", " t", "t"]


def test_what_lies_above_the_ceiling_is_an_arrow_at_the_top() -> None:
    lines = draw_panels({"": {"t": [0.0, 1.0, 50.0]}}, width=12, height=2, ceiling=2.0)
    assert lines == ["", "   2.00 | t^", "   0.00 |t"]


def test_a_value_that_is_not_finite_leaves_its_place_empty() -> None:
    lines = draw_panels({"": {"t": [0.0, math.nan, 1.0]}}, width=12, height=2)
    assert lines == ["", "   1.00 |  t", "   0.00 |t"]


@pytest.mark.parametrize("values", [[], [math.nan], [math.inf, -math.inf]])
def test_nothing_to_draw_is_an_empty_picture(values: list[float]) -> None:
    lines = draw_panels({"": {"t": values}}, width=12, height=2)
    assert lines == ["", "   1.00 |", "   0.00 |"]


def test_a_constant_lies_at_the_bottom() -> None:
    lines = draw_panels({"": {"t": [3.0, 3.0, 3.0]}}, width=12, height=2)
    assert lines == ["", "   3.00 |", "   3.00 |ttt"]


def test_thinning_takes_means_of_neighbours() -> None:
    assert thin([1.0, 3.0, 5.0, 7.0], 2) == [2.0, 6.0]
    assert thin([1.0, 2.0, 3.0, 4.0, 5.0], 2) == [1.5, 4.0]
    assert thin([1.0, 2.0], 5) == [1.0, 2.0]
