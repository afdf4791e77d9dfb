"""Values find their places, with ticks at round numbers, whatever a broken run gave."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diagnostics.page._scales import (
    Scale,
    finite,
    fitting_scale,
    linear_scale,
    log_scale,
    number,
    shown,
)

NAN, INF = math.nan, math.inf


def labels(scale: Scale) -> list[str]:
    return [tick.label for tick in scale.ticks]


def test_numbers_are_read_as_our_json_spells_them() -> None:
    """True is no number, and a whole number that no float can hold is infinite."""
    assert [number(v) for v in (1, 2.5, "inf", "-inf", 10**400, -(10**400))] == [
        1.0, 2.5, INF, -INF, INF, -INF,
    ]  # fmt: skip
    assert math.isnan(number("nan") or 0.0)
    assert [number(v) for v in (True, None, "1", [], {})] == [None] * 5
    assert finite([1, "nan", None, "inf", "x", 2]) == [1.0, 2.0]


def test_an_axis_begins_at_zero_where_that_costs_little() -> None:
    """Losses from 0.08 to 4.19 get an axis from 0 to 5; 95 to 105 does not begin at 0."""
    assert labels(linear_scale([4.19, 0.08])) == ["0", "1", "2", "3", "4", "5"]
    assert labels(linear_scale([95, 105])) == ["94", "96", "98", "100", "102", "104", "106"]
    assert labels(linear_scale([-4, 2], zero=True)) == ["-4", "-2", "0", "2"]
    assert labels(linear_scale([-5, -1])) == ["-5", "-4", "-3", "-2", "-1", "0"]


def test_steps_end_where_the_values_end() -> None:
    scale = linear_scale([0, 45], tight=True)
    assert labels(scale) == ["0", "10", "20", "30", "40"]
    assert scale.place(45) == 1.0
    assert scale.place(9) == 0.2


def test_whole_steps_have_whole_ticks() -> None:
    assert labels(linear_scale([0, 1, 2], tight=True)) == ["0", "1", "2"]
    assert labels(linear_scale([7], tight=True)) == ["6", "7", "8"]


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "values",
    [
        [], [NAN], [INF, -INF], [0], [0, 0], [3, 3], [-3, -3], [1e30], [1e-30], [-1e30, 1e30],
        [1e-30, 2e-30], [1.0, 1.0 + 1e-15], [5e-324], [1.7e308, -1.7e308], [1e-300, 1e300],
        ["nan", None, 4], [1e9, 1e9 + 1], [0, 1e-320],
    ],
)  # fmt: skip
def test_every_set_of_values_has_an_axis(values: list[Any], log: bool) -> None:
    """Two ticks or more, in rising order inside the axis, with labels that differ and are short."""
    for scale in (
        log_scale(values) if log else linear_scale(values),
        fitting_scale(values, width=200, character=8, log=log),
        log_scale(values, below=True) if log else linear_scale(values, tight=True),
    ):
        places = [tick.at for tick in scale.ticks]
        assert places == sorted(set(places))
        assert all(-1e-6 <= place <= 1 + 1e-6 for place in places)
        assert len(places) >= 1
        assert len(set(labels(scale))) == len(places) <= 20
        assert all(len(label) <= 13 for label in labels(scale))
        for value in finite(values):
            assert 0.0 <= scale.place(value) <= 1.0
        assert scale.low < scale.high


def test_a_log_axis_has_decades_or_one_two_five() -> None:
    assert labels(log_scale([0.0012, 900])) == ["0.001", "0.01", "0.1", "1", "10", "100", "1,000"]
    assert labels(log_scale([0.3, 4])) == ["0.2", "0.5", "1", "2", "5"]
    assert labels(log_scale([1e-8, 1])) == ["1e-8", "1e-6", "1e-4", "1e-2", "1e0"]
    assert labels(log_scale([1e-30])) == ["5e-31", "1e-30", "2e-30"]


def test_zero_and_below_stand_at_the_low_end_of_a_log_axis() -> None:
    scale = log_scale([0, -5, 1, 100])
    assert (scale.place(0), scale.place(-5), scale.place(10)) == (0.0, 0.0, 0.5)


def test_the_smallest_bar_of_a_log_axis_has_a_length() -> None:
    assert log_scale([1, 1000], below=True).place(1) > 0.05


def test_what_lies_outside_stands_at_the_edge_and_nan_nowhere() -> None:
    scale = linear_scale([0, 10])
    assert (scale.place(1e308), scale.place(-INF), scale.place(INF)) == (1.0, 0.0, 1.0)
    with pytest.raises(ValueError, match="nan has no place"):
        scale.place(NAN)


def test_labels_are_thinned_until_they_stand_apart() -> None:
    """Labels of "20,000" take 60 of 150 units with their distance, so that two are left."""
    scale = fitting_scale([0, 30_000], width=150, character=8, tight=True)
    assert labels(scale) == ["0", "20,000"]


def test_numbers_are_shown_with_four_digits_and_counts_in_full() -> None:
    assert [shown(v) for v in (0.123456, 1234567, 3.0, None, "nan", NAN, 1e-9, 10**20)] == [
        "0.1235", "1,234,567", "3", "-", "nan", "nan", "1.00e-09", "1.00e+20",
    ]  # fmt: skip
