"""Learning rates by hand, against a warm-up of 10 updates and a linear fall to 0 at 100."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from diagnostics.monitor.events import Speaker
from diagnostics.monitor.rates import RateWatch


def schedule(index: int) -> float:
    return 1e-3 * min((index + 1) / 10, max(0.0, (100 - index) / 90))


def feed(rate: Callable[[int], float], steps: int = 60, *, exact: bool = True) -> Speaker:
    speaker = Speaker(None)
    watch = RateWatch(speaker, schedule)
    for step in range(1, steps + 1):
        watch.see(step, [rate(step - 1)], exact=exact)
    return speaker


def test_the_declared_rate_is_silent() -> None:
    assert feed(schedule).events == []


def test_one_update_late_is_the_place_of_the_call_unless_the_loop_says_the_rate() -> None:
    def late(index: int) -> float:
        return schedule(index + 1)

    assert feed(late, exact=False).events == []
    assert [e.cause for e in feed(late).events] == ["the schedule runs 1 updates early"]


@pytest.mark.parametrize(
    ("rate", "cause"),
    [
        (lambda index: 1e-3, "it never changes: scheduler.step() is not called"),
        (lambda index: 10 * schedule(index), "it is 10 times the schedule"),
        (lambda index: schedule(index + 20), "the schedule runs 20 updates early"),
    ],
)
def test_causes_fit_the_numbers(rate: Callable[[int], float], cause: str) -> None:
    """A rate that ran wrong for ten updates in a row is reported, once."""
    events = feed(rate, 100).events
    assert [event.reason for event in events][:1] == ["monitor.rate_off_schedule"]
    assert str(events[0].cause).startswith(cause)
    assert events[0].count > 1


def test_zero_may_begin_a_warm_up_and_not_go_on() -> None:
    assert [e.step for e in feed(lambda index: 0.0).events if "zero" in e.reason] == [3]
    assert [e.step for e in feed(lambda index: math.nan).events if "zero" in e.reason] == [3]


def test_beyond_its_end_a_schedule_may_be_zero_for_a_while() -> None:
    """Index 100 is the first with rate 0, in update 101; the twentieth is 120."""
    assert [(e.reason, e.step) for e in feed(schedule, 125).events] == [("monitor.rate_zero", 120)]


def test_warming_up_is_a_rate_that_rises() -> None:
    watch = RateWatch(Speaker(None))
    seen = []
    for step in range(1, 41):
        watch.see(step, [min(step, 10) * 1e-4], exact=True)
        seen.append(watch.warming_up)
    assert seen[1:28] == [True] * 27  # update 29 is the first to be compared with update 10
    assert seen[28:] == [False] * 12


def test_a_declared_list_that_ends_with_the_run() -> None:
    """The place after the last one is asked for too, and what is not declared is not judged."""
    rates = [schedule(index) for index in range(60)]
    assert feed(schedule, 60, exact=False).events == []
    speaker = Speaker(None)
    watch = RateWatch(speaker, rates.__getitem__)
    for step in range(1, 81):
        watch.see(step, [schedule(step - 1)], exact=False)
    assert speaker.events == []
