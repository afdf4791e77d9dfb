"""Long series in few points: nothing that stands out is lost."""

import math
import random

import pytest

from diagnostics.page._thinning import POINTS_MAX, spread, thin


def wave(count: int) -> list[tuple[int, float]]:
    """A series without any peak: step, and a value between 0 and 1."""
    return [(step, random.Random(step).random()) for step in range(count)]


def test_few_points_stay_as_they_are() -> None:
    points = wave(POINTS_MAX)
    assert thin(points) == points
    assert thin([]) == []


def test_every_single_peak_and_valley_stays() -> None:
    """One update in 100,000 that jumped is what a person looks for."""
    points = wave(100_000)
    points[54_321], points[77_777] = (54_321, 90.0), (77_777, -90.0)
    kept = thin(points)
    assert len(kept) <= POINTS_MAX
    assert {(54_321, 90.0), (77_777, -90.0)} <= set(kept)
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert kept == sorted(kept)


def test_what_is_not_finite_stays_beside_the_extremes() -> None:
    points = wave(10_000)
    points[5_000], points[5_001], points[5_002] = (5_000, math.nan), (5_001, 7.0), (5_002, -7.0)
    kept = thin(points)
    assert len(kept) <= POINTS_MAX
    assert {(5_001, 7.0), (5_002, -7.0)} <= set(kept)
    assert any(math.isnan(value) for _, value in kept)


def test_thinning_as_it_grows_keeps_the_extremes_too() -> None:
    points: list[tuple[int, float]] = []
    for point in wave(20_000):
        points.append((point[0], 5.0) if point[0] == 123 else point)
        if len(points) >= 800:
            points = thin(points)
    assert (123, 5.0) in points
    assert min(value for _, value in points) == min(value for _, value in wave(20_000))


@pytest.mark.parametrize("points", [[(3, 1.0)] * 900, [(-step, 1.0) for step in range(900)]])
def test_steps_that_stand_still_or_go_back_are_no_error(points: list[tuple[int, float]]) -> None:
    assert 0 < len(thin(points)) <= POINTS_MAX


def test_the_evenly_chosen_lie_evenly() -> None:
    """Ten of a hundred: the middle of each tenth, from 0 to 99."""
    assert spread(range(100), 10) == [5, 15, 25, 35, 45, 54, 64, 74, 84, 94]
    assert spread([4, 9], 10) == [0, 1]
