"""Schedule: the learning rate rises, decays over the run, and is the one that steps use.

Why it matters
    A schedule that ends after a quarter of the run, never reaches its peak, or is computed and
    not written into the optimizer, trains anyway. Only the last loss is worse than it could be.

How it is measured
    `learning_rate(step)` is read at every step of the run (at most 4,000 places) and beyond its
    end, twice and in another order, for it must depend on the step alone. The curve is judged by
    its peak, floor and neighbours, and by a rise after its decay: where that is the decay
    backwards, and begins a warm-up before the end, the warm-up was not subtracted. Then your
    train_step (and accumulate) is called a few times on a copy, and the rates that the optimizer's
    groups hold at each step are compared: do they follow the curve, all groups alike, one place per
    step? Where they do, one call is given an infinite gradient: a step that skips its update should
    keep its place.

What it cannot see
    Rates that the loop around train_step sets, which is usual: then the groups stay where
    make_optimizer put them, and nothing is concluded, unless train_step itself asks for the rate.
    Schedules in tokens or epochs. A rise at the end below a thousandth of the peak. Whether the
    peak suits the model: that is for `optimizer`. What a resumed run does is for `resume`.

Break it
    python -m exercises.break_schedule
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from diagnostics import _schedule_words as words
from diagnostics._fault import Fault, found
from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._schedule_curve import Curve, read_curve
from diagnostics._schedule_rates import Rates, read_rates
from diagnostics._text import say

LOW = 0.1  # of the peak: a floor; recipes end at 0 to a tenth of the peak
EARLY = 0.9  # of the run: a floor that is reached before is reached early
LATE = 0.2  # of the peak: a decay that still goes on so steeply after the end was cut off
JUMP = 0.2  # of the peak, from one step to the next
DROP = 0.02  # of the peak, right after the warm-up
AFTER, STANDS_OUT = 4, 5.0  # steps after it, of which the largest is so many times smaller
NOTHING = 1e-3  # of the peak: a decay to 0, which no tail of a schedule begins at
RISE = 0.01  # of the peak: a rise worth a word where no mistake explains it
FULL = 0.9  # of the peak: a cycle that comes back to the peak is whole
WARM = 6  # first steps, in which a short warm-up may take such steps


def check_schedule(
    learning_rate: Callable[[int], float],
    max_steps: int | None = None,
    *,
    micro_batches: int = 1,
) -> CheckResult:
    """Check the schedule `learning_rate(step)` of a run of max_steps steps, counted from 0.

    max_steps: None leaves out what depends on the end of the run.
    micro_batches: per step; tells a schedule that counts micro-batches.
    Raises ValueError for a max_steps below 1.
    """
    if max_steps is not None and max_steps < 1:
        raise ValueError(f"max_steps must be at least 1, got {max_steps}")
    return _judge(read_curve(learning_rate, max_steps), None, micro_batches)


def run(probe: Probe) -> CheckResult:
    """Judge the curve, then the rates that steps really use."""
    pipeline: Pipeline = probe.pipeline
    if pipeline.learning_rate is None:
        raise MissingPartError("learning_rate", why="there is no schedule to read")
    with probe.seeded("schedule"):
        curve = read_curve(pipeline.learning_rate, pipeline.max_steps)
    rates = read_rates(probe) if pipeline.make_optimizer is not None else None
    return _judge(curve, rates, max(1, pipeline.micro_batches))


def _judge(curve: Curve, rates: Rates | None, micro_batches: int) -> CheckResult:
    numbers: dict[str, Any] = curve.describe()
    if rates is not None:
        numbers |= {"rates_in_use": rates.groups, "asked_inside": rates.asked}

    def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
        return found(fault, measured, numbers, **curve.facts, **facts)

    warning: CheckResult | None = None
    for finding in _findings(tell, curve, rates, micro_batches):
        if finding.failed:
            return finding
        warning = finding if warning is None else warning
    return _passed(curve, numbers) if warning is None else warning


Tell = Callable[..., CheckResult]


def _findings(
    tell: Tell, curve: Curve, rates: Rates | None, micro_batches: int
) -> Iterator[CheckResult]:
    """Judge in the order in which faults hide one another."""
    bad = [(s, r) for s, r in curve.rates.items() if not math.isfinite(r)]
    if bad:
        yield tell(words.NOT_FINITE, say("{rate} at step {step}", step=bad[0][0], rate=bad[0][1]))
        return
    if curve.changed is not None:
        step, first, second = curve.changed
        yield tell(words.NOT_REPEATABLE, say("{a}, then {b}", a=first, b=second), step=step)
        return
    low = min(curve.rates, key=curve.rates.__getitem__)
    if curve.rates[low] < 0:
        yield tell(
            words.NEGATIVE, say("{rate} at step {step}", step=low, rate=curve.rates[low]), step=low
        )
        return
    if curve.peak == 0:
        yield tell(words.ALWAYS_ZERO, say("0 at {n} places", n=len(curve.rates)))
        return
    yield from _judge_end(tell, curve, micro_batches)
    yield from _judge_shape(tell, curve)
    yield from _judge_beyond(tell, curve)
    if rates is not None:
        yield from _judge_rates(tell, curve, rates)


def _judge_end(tell: Tell, curve: Curve, micro_batches: int) -> Iterator[CheckResult]:
    """Judge where peak and floor lie in the run, and what comes after it."""
    end = curve.max_steps
    if end is None or end < 10:
        return
    beyond = {s: r for s, r in curve.rates.items() if s >= end}
    later = max(beyond, key=beyond.__getitem__, default=None)
    if curve.peak_step >= end - 1 and later is not None and beyond[later] > 1.01 * curve.peak:
        yield tell(words.PEAK_NEVER_REACHED, say("{rate} at step {s}", rate=beyond[later], s=later))
        return
    if curve.turn is not None:
        yield from _judge_turn(tell, curve, end, curve.turn)
        return
    floor = curve.floor
    if floor <= LOW * curve.peak and curve.floor_step < EARLY * (end - 1):
        exact = abs(curve.floor_step * micro_batches / end - 1) < 0.1
        measured = say("{rate} from step {step} on", rate=floor, step=curve.floor_step)
        facts: dict[str, Any] = {
            "end": curve.floor_step,
            "micro": micro_batches,
            "share": f"{100 * (1 - curve.floor_step / end):.0f} %",
        }
        if micro_batches > 1 and exact:
            yield tell(words.PER_MICRO_BATCH, measured, **facts)
        else:
            yield tell(
                words.ENDS_AT_ZERO_EARLY if floor == 0 else words.ENDS_EARLY, measured, **facts
            )
    elif later is not None and curve.last - min(beyond.values()) > LATE * curve.peak:
        yield tell(words.ENDS_LATE, say("{rate} at the last step", rate=curve.last))


def _judge_turn(tell: Tell, curve: Curve, end: int, turn: int) -> Iterator[CheckResult]:
    """Judge a rate that rises again inside the run; cycles that reach the peak are a method."""
    low, last = curve.rates[turn], curve.last
    if any(now - before > JUMP * curve.peak for s, before, now in curve.neighbours() if s > turn):
        return  # a restart, which has its own words
    measured = say("{low} at step {turn}, {last} at the last", low=low, turn=turn, last=last)
    warm = next((w for w in (curve.peak_step, curve.peak_step + 1) if w and turn + w == end), None)
    facts: dict[str, Any] = {"turn": turn, "low": low, "warm": warm}
    mirrored = curve.is_mirrored(turn)
    if mirrored and warm is not None:
        yield tell(words.RISES_AGAIN_WARMUP, measured, **facts)
    elif mirrored and last < FULL * curve.peak and low <= NOTHING * curve.peak:
        yield tell(words.RISES_AGAIN, measured, **facts)
    elif last - low > RISE * curve.peak:
        yield tell(words.RISES_AGAIN_MAYBE, measured, **facts)


def _judge_shape(tell: Tell, curve: Curve) -> Iterator[CheckResult]:
    """Judge the first step, and steps between neighbours."""
    if curve.rates[0] == 0:
        yield tell(
            words.ZERO_AT_FIRST_STEP, say("0 at step 0, {r} at step 1", r=curve.rates.get(1, 0.0))
        )
    zeros = [s for s in curve.inside if s > 0 and curve.rates[s] == 0 and s < curve.floor_step]
    if zeros:
        yield tell(words.ZERO_INSIDE, say("{n:place|places}", n=len(zeros)), step=zeros[0])
    for step, before, now in curve.neighbours():
        if step <= WARM or now - before <= JUMP * curve.peak:
            continue
        fell = max(r for s, r in curve.rates.items() if s < step) > 1.5 * before
        measured = say("{before}, then {now}", before=before, now=now)
        yield tell(words.RESTART if fell else words.JUMP, measured, step=step)
        return
    drop = _drop_after_warmup(curve)
    if drop is not None:
        step, before, now = drop
        yield tell(words.DROP_AFTER_WARMUP, say("{a}, then {b}", a=before, b=now), step=step)


def _drop_after_warmup(curve: Curve) -> tuple[int, float, float] | None:
    """Return (step, rate before, rate) of a drop right after the warm-up; later ones are stages.

    It stands out from the steps that follow, as the first step of a steep decay does not.
    """
    if curve.peak_step <= 2:
        return None
    near = [(s, a, b) for s, a, b in curve.neighbours() if 0 < s - curve.peak_step <= 2 + AFTER]
    for place, (step, before, now) in enumerate(near[:2]):
        later = max((abs(a - b) for _, a, b in near[place + 1 :]), default=math.inf)
        if before - now > max(DROP * curve.peak, STANDS_OUT * later):
            return step, before, now
    return None


def _judge_beyond(tell: Tell, curve: Curve) -> Iterator[CheckResult]:
    """Judge what a prolonged run would get."""
    beyond = {s: r for s, r in curve.rates.items() if s >= (curve.max_steps or math.inf)}
    later = max(beyond, key=beyond.__getitem__, default=None)
    if later is not None and beyond[later] > curve.last + LATE * curve.peak:
        yield tell(words.RISES_AFTER_END, say("{rate} at step {s}", rate=beyond[later], s=later))


def _judge_rates(tell: Tell, curve: Curve, rates: Rates) -> Iterator[CheckResult]:
    """Compare the rates in the groups, call by call, with the curve."""
    moving = rates.moving
    if rates.asked and not any(moving) and curve.moves(len(rates.groups)):
        yield tell(words.NOT_APPLIED, say("{r} in every call", r=rates.groups[0][0]))
        return
    if not any(moving):
        return  # the loop around the step sets the rate, or nobody does
    if not all(moving):
        still = moving.index(False)
        measured = say("group {g} stays at {rate}", g=still, rate=rates.groups[0][still])
        yield tell(
            words.ONLY_SOME_GROUPS, measured, count_still=moving.count(False), total=len(moving)
        )
        return
    shown = say("rates {r}", r=", ".join(f"{group[0]:.4g}" for group in rates.groups))
    if not curve.follows([group[0] for group in rates.groups], 1):
        yield tell(words.OTHER_RATES, shown)
        return
    places = [curve.place(group[0]) for group in rates.around_skip if group]
    if len(places) == 2 and places[0] is not None and places[1] == places[0] + 2:
        measured = say("place {a}, an overflow, then place {b}", a=places[0], b=places[1])
        yield tell(words.SKIPPED_COUNTED, measured)
    per_window = [group[0] for group in rates.windows]
    if len(set(per_window)) > 1 and not curve.follows(per_window, 1):
        parts = rates.parts
        if curve.follows(per_window, parts):
            shown = say("rates {r}", r=", ".join(f"{rate:.4g}" for rate in per_window))
            yield tell(words.PER_MICRO_BATCH_SEEN, shown, micro=parts)


def _passed(curve: Curve, numbers: dict[str, Any]) -> CheckResult:
    if curve.floor == curve.peak:
        claim = say("the learning rate is constant at {peak}", peak=curve.peak)
    else:
        claim = say(
            "the learning rate goes from {first} to its peak {peak} at step {step} and ends at "
            "{last}",
            first=curve.rates[0],
            step=curve.peak_step,
            last=curve.last,
            peak=curve.peak,
        )
    return CheckResult(
        check="schedule",
        status=Status.PASS,
        reason="schedule.ok",
        claim=claim,
        measured=say("{n} places read", n=len(curve.rates)),
        numbers=numbers,
    )
