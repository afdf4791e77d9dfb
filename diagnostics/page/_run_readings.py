"""Readings of a run: what its numbers point to, and what to do next.

A reading names a cause only where the numbers point to it; elsewhere it says what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._run_findings import (
    TREND_POINTS,
    broken_finding,
    finite,
    is_broken,
    shown_rate,
)
from diagnostics.page._run_fit import context_reading, gap_reading
from diagnostics.page._run_history import RunHistory
from diagnostics.page._run_reading import INITIAL_NATS, NEAR_NATS, TOO_HIGH, Reading, event_of
from diagnostics.page._thinning import Point

CONSTANT_CLIPPING = 0.95
USUAL_CLIPPING = 0.5  # more than that is no more than a fact: a limit may be meant so
DIVERGED_NATS = 0.5  # above where training began; the monitor's limit
TOO_LOW = ("updates_too_small",)
USUAL_MOVE = 0.001  # of its size, a weight in one update; what the monitor expects
FACTOR_MAX = 1000.0  # a rate that is further off was not meant
FALL_SHARE = 0.1  # of where the loss began, where nothing is known of its unit


def readings(run: RunHistory) -> list[Reading]:
    """Return what can be read from the numbers so far, in the order in which to look at it."""
    found = (
        _initial_loss(run),
        _broken_loss(run),
        context_reading(run),
        gap_reading(run),
        _rate(run),
        _clipping(run),
    )
    return [reading for reading in found if reading is not None]


def _initial_loss(run: RunHistory) -> Reading | None:
    start = next((value for step, value in run.points("validation_loss") if step == 0), None)
    if start is None or run.vocab_size is None or run.vocab_size < 2:
        return None
    facts = {"loss": start, "V": run.vocab_size, "guess": math.log(run.vocab_size)}
    if abs(start - math.log(run.vocab_size)) <= INITIAL_NATS:
        return Reading(
            "pass",
            say(
                "the validation loss began at {loss}, near ln {V} = {guess}: a blind guess", **facts
            ),
        )
    return Reading(
        "warn",
        say(
            "the validation loss began at {loss}, not near ln {V} = {guess}, a blind guess", **facts
        ),
        say("run the checks initial_loss and shift on this model"),
    )


def _broken_loss(run: RunHistory) -> Reading | None:
    claim = broken_finding(run)
    if claim is None:
        return None
    path = run.state.postmortem
    where = say("read {path}, which says where it began", path=path) if path else None
    return Reading("fail" if is_broken(run) else "warn", claim, where)


def _rate(run: RunHistory) -> Reading | None:
    """Signs of a rate that is too high or too low, where there are any."""
    points = finite(run.points("learning_rate"))
    if not points:
        return None
    peak = max(value for _, value in points)
    if peak <= 0:
        return Reading(
            "warn", say("the learning rate is {peak}: no update moves a weight", peak=peak)
        )
    (first, start), (last, now) = _begin_and_end(run)
    ends = {"start": start, "first": f"{first:,}", "now": now, "last": f"{last:,}"}
    facts = {"peak": shown_rate(peak), **ends}
    sign = _claim(event_of(run, TOO_HIGH))
    if sign is None and now > start + DIVERGED_NATS:
        sign = say(
            "the training loss is {now} up to step {last}, more than the {start} from step {first}",
            **facts,
        )
    if sign is not None:
        claim = say("a sign of too high a learning rate, peak {peak}: {sign}", sign=sign, **facts)
        again = say("train again with a peak of {third}", third=shown_rate(peak / 3))
        return Reading("warn", claim, again)
    event = event_of(run, TOO_LOW)
    if event is not None:
        claim = say(
            "a sign of too low a learning rate, peak {peak}: {sign}", sign=_claim(event), **facts
        )
        return Reading("warn", claim, _higher_rate(peak, event.get("measured")))
    if is_broken(run) or not _fell(run, start, now):
        return None
    claim = say(
        "the training loss fell from {start} (from step {first}) to {now} (up to step {last}) at "
        "learning rates up to {peak}; whether others do better, only a run with them can tell",
        **facts,
    )
    return Reading("none", claim)


def _higher_rate(peak: float, moved: object) -> Text | None:
    """Return the step to a rate that moves weights as usual, where that is not absurdly far."""
    if not isinstance(moved, float) or not USUAL_MOVE / FACTOR_MAX <= moved < USUAL_MOVE:
        return say("compare the learning rate with the one that was meant")
    return say("train again with a peak of {rate}", rate=f"{peak * USUAL_MOVE / moved:.1g}")


def _fell(run: RunHistory, start: float, now: float) -> bool:
    """Tell whether the training loss fell as a loss does that is learnt from, not just began to."""
    if run.unigram_entropy is not None:
        return now < min(start, run.unigram_entropy) - NEAR_NATS
    return start - now > FALL_SHARE * abs(start)


def _clipping(run: RunHistory) -> Reading | None:
    share = run.clipped_share
    norms = [value for _, value in finite(run.points("grad_norm"))]
    if share is None or not run.clip_norm or not norms or run.judged_updates < TREND_POINTS:
        return None
    facts = {"share": share, "limit": float(run.clip_norm), "n": run.judged_updates}
    if share < CONSTANT_CLIPPING:
        claim = say("{share:%} of {n} updates were clipped at {limit}", **facts)
        return Reading("pass" if share < USUAL_CLIPPING else "none", claim)
    claim = say(
        "{share:%} of {n} updates were clipped: the limit {limit}, and not the gradient, rules "
        "their size; that may hide a problem where the loss does not fall well",
        **facts,
    )
    usual = statistics.median(norms)
    if not usual > 1.01 * run.clip_norm:  # norms after clipping: nothing to compare with
        return Reading("none", claim)
    return Reading("none", claim, say("compare with a limit of {usual}, a usual norm", usual=usual))


def _claim(event: Mapping[str, Any] | None) -> str | None:
    return None if event is None else str(event.get("claim", ""))


def _begin_and_end(run: RunHistory) -> tuple[Point, Point]:
    """Return the first step and the median of three losses, the last one and that of ten.

    The medians are NaN where there are too few.
    """
    points = finite(run.points("train_loss"))
    if len(points) < TREND_POINTS:
        return (0, math.nan), (0, math.nan)
    values = [value for _, value in points]
    begin, end = statistics.median(values[:3]), statistics.median(values[-10:])
    return (points[0][0], begin), (points[-1][0], end)
