"""Gradient norms by hand."""

from __future__ import annotations

import math

from diagnostics.monitor.events import Speaker
from diagnostics.monitor.gradients import GradientWatch


def feed(norms: list[float], *, before_clipping: bool = True, **settings: object) -> Speaker:
    speaker = Speaker(None)
    watch = GradientWatch(speaker, **settings)  # type: ignore[arg-type]
    for step, norm in enumerate(norms, 1):
        watch.see(step, norm, clipped=None, before_clipping=before_clipping)
    return speaker


def reasons(speaker: Speaker) -> list[str]:
    return [f"{event.reason}@{event.step}" for event in speaker.events]


def test_zero_three_times() -> None:
    assert reasons(feed([1.0, 0.0, 0.0, 1.0])) == []
    assert reasons(feed([1.0, 0.0, 0.0, 0.0])) == ["monitor.gradient_zero@4"]


def test_thirty_times_the_median_explodes() -> None:
    """Below 20 norms nothing is usual yet."""
    assert reasons(feed([1.0] * 20 + [29.0])) == []
    assert reasons(feed([1.0] * 20 + [31.0])) == ["monitor.gradient_explodes@21"]
    assert reasons(feed([1.0] * 10 + [31.0])) == []


def test_growth_that_no_window_sees() -> None:
    """Ten percent more in each update: the median of ten is 100 times the first ones at last."""
    events = feed([1.1**step for step in range(100)]).events
    assert [event.reason for event in events] == ["monitor.gradient_explodes"]


def test_non_finite_is_told_to_the_caller_unless_a_scaler_skips() -> None:
    assert GradientWatch(Speaker(None)).see(1, math.inf, clipped=None, before_clipping=True)
    scaled = GradientWatch(Speaker(None), skips_non_finite=True)
    told = [scaled.see(s, math.nan, clipped=None, before_clipping=True) for s in range(1, 22)]
    assert told == [False] * 20 + [True]


def test_clipping_each_time_far_above_the_limit() -> None:
    """A median of 11 times the limit speaks; 4 times is healthy with tiny batches."""
    assert reasons(feed([11.0] * 200, clip_norm=1.0)) == ["monitor.always_clipped@200"]
    assert reasons(feed([4.0] * 200, clip_norm=1.0)) == []
    assert reasons(feed(([11.0] * 9 + [0.5]) * 20, clip_norm=1.0)) == []


def test_norms_after_clipping_are_a_note_only() -> None:
    """What torch leaves is just below the limit: how far it was above is not to be seen."""
    speaker = feed([0.999999] * 200, clip_norm=1.0, before_clipping=False)
    assert reasons(speaker) == []
    assert [note.reason for note in speaker.notes] == ["monitor.always_clipped"]


def test_the_share_counts_all_updates() -> None:
    watch = GradientWatch(Speaker(None), clip_norm=1.0)
    for step, norm in enumerate([2.0, 0.5, 0.5, 3.0], 1):
        watch.see(step, norm, clipped=None, before_clipping=True)
    watch.see(5, 0.1, clipped=True, before_clipping=True)  # the loop knows better
    assert watch.clipped_share == 3 / 5


def test_a_rising_rate_leaves_four_times_the_room() -> None:
    """Weights that begin at 0 have small gradients first: 33 times the usual was measured."""
    speaker = Speaker(None)
    watch = GradientWatch(speaker)
    for step, norm in enumerate([1.0] * 20 + [119.0, 121.0], 1):
        watch.see(step, norm, clipped=None, before_clipping=True, warming_up=True)
    assert reasons(speaker) == ["monitor.gradient_explodes@22"]
