"""The schedule, against values computed by hand."""

import math
from itertools import pairwise

import pytest

from minigpt.schedule import learning_rate_at


def rates(peak: float, warmup_steps: int, max_steps: int, floor: float) -> list[float]:
    """Return the rates of a whole run."""
    return [
        learning_rate_at(
            step, peak=peak, warmup_steps=warmup_steps, max_steps=max_steps, floor=floor
        )
        for step in range(max_steps)
    ]


def test_warm_up_starts_above_zero_and_reaches_the_peak() -> None:
    """Four warm-up steps climb by quarters of the peak; the fourth is the peak itself."""
    assert rates(1.0, 4, 9, 0.0)[:4] == [0.25, 0.5, 0.75, 1.0]


def test_cosine_to_the_floor() -> None:
    """From the peak 1 to the floor 0.2 in four steps: the cosine at 45, 90, 135, 180 degrees."""
    r = math.sqrt(0.5)
    expected = [0.5, 1.0, 0.6 + 0.4 * r, 0.6, 0.6 - 0.4 * r, 0.2]
    assert rates(1.0, 2, 6, 0.2) == pytest.approx(expected, abs=1e-12)


def test_without_warm_up_the_first_step_is_the_peak() -> None:
    """No warm-up: 1, then halfway, then the floor."""
    assert rates(1.0, 0, 3, 0.5) == pytest.approx([1.0, 0.75, 0.5], abs=1e-12)


def test_beyond_the_end_the_floor_stays() -> None:
    """The cosine does not come up again after max_steps."""
    for step in (5, 6, 7, 100):
        rate = learning_rate_at(step, peak=1.0, warmup_steps=2, max_steps=6, floor=0.2)
        assert rate == 0.2


def test_a_run_of_one_step_runs_at_the_peak() -> None:
    """There is no room for a descent."""
    assert rates(1.0, 0, 1, 0.1) == [1.0]
    assert rates(1.0, 1, 1, 0.1) == [1.0]


def test_never_zero_while_the_floor_is_positive_and_never_above_the_peak() -> None:
    """Over 2,000 steps all rates lie in (0, peak]; they rise, then fall, and end at the floor."""
    values = rates(1e-3, 100, 2000, 1e-4)
    assert min(values) == pytest.approx(1e-5)  # step 0: a hundredth of the peak
    assert max(values) == values[99] == 1e-3
    assert values[-1] == 1e-4
    assert all(a < b for a, b in pairwise(values[:100]))
    assert all(a > b for a, b in pairwise(values[99:]))


@pytest.mark.parametrize(
    ("step", "changes", "message"),
    [
        (-1, {}, "step must be >= 0, got -1"),
        (0, {"warmup_steps": 11}, r"warmup_steps must be in 0..max_steps = 10, got 11"),
        (0, {"floor": 2.0}, r"floor must be in 0..peak = 1, got 2"),
        (0, {"floor": -1.0}, "floor"),
    ],
)
def test_arguments_out_of_range(step: int, changes: dict[str, float], message: str) -> None:
    """Each is refused by name, with the value that came."""
    arguments = {"peak": 1.0, "warmup_steps": 2, "max_steps": 10, "floor": 0.1} | changes
    with pytest.raises(ValueError, match=message):
        learning_rate_at(step, **arguments)  # type: ignore[arg-type]
