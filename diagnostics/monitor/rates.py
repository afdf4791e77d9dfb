"""The learning rate of each update, against the schedule that was declared."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from diagnostics._text import Text, say
from diagnostics.monitor.events import Speaker

Schedule = Callable[[int], float]  # (updates made before, 0 for the first) -> rate
OFF_STEPS = 10  # a wrong rate for so many updates in a row is no accident
TOLERANCE = 1e-3  # relative; a rate kept in float32 is within 1e-7
ZERO_STEPS = 3  # a warm-up may begin at 0
ZERO_DECLARED = 20  # beyond the end of a schedule that ends at 0
RISING_STEPS = 20  # a rate higher than so many updates ago is still warming up
SHIFT_MAX = 10_000  # updates by which a schedule may run early or late and still be recognised


@dataclass
class RateWatch:
    """Judges the rates of one update after the other.

    exact: the loop said the rate itself. What is read from the optimizer may already be that of
    the next update, where the monitor is called after `scheduler.step()`; then a neighbour counts.
    """

    speaker: Speaker
    schedule: Schedule | None = None
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=RISING_STEPS))
    _zeros: int = 0
    _off: list[tuple[int, float]] = field(default_factory=list)  # (update, rate) in a row

    def see(self, step: int, rates: Sequence[float], *, exact: bool) -> None:
        """Judge the rates of all parameter groups in update `step`, 1 for the first."""
        if not rates:
            return
        self._judge_zero(step, max(rates))
        self._judge_schedule(step, rates, exact)
        self.recent.append(max(rates))

    @property
    def warming_up(self) -> bool:
        """Whether the rate is higher than some updates ago."""
        return len(self.recent) > 1 and self.recent[-1] > self.recent[0] * (1 + 1e-6)

    def _declared(self, index: int) -> float:
        if self.schedule is None or index < 0:
            return math.nan
        try:
            return float(self.schedule(index))
        except Exception:  # any: the user's function, such as a list that ends with the run
            return math.nan

    def _judge_zero(self, step: int, rate: float) -> None:
        self._zeros = 0 if rate > 0 else self._zeros + 1  # NaN counts too
        limit = ZERO_DECLARED if self._declared(step - 1) == 0 else ZERO_STEPS
        if self._zeros >= limit:
            self.speaker.speak(
                "rate_zero",
                step,
                say("the learning rate has been {rate} for {n} updates", rate=rate, n=self._zeros),
                say("a rate above 0"),
                cause=say("the schedule has ended, or the optimizer was given no rate"),
                measured=rate,
            )

    def _judge_schedule(self, step: int, rates: Sequence[float], exact: bool) -> None:
        if self.schedule is None:
            return
        declared = self._declared(step - 1)
        if math.isnan(declared):
            return  # nothing is declared for this update
        wanted = [declared] if exact else [self._declared(step - 2), declared, self._declared(step)]
        if any(_close(rate, want) for rate in rates for want in wanted):
            self._off.clear()
            return
        self._off.append((step, rates[0]))
        if len(self._off) < OFF_STEPS:
            return
        self.speaker.speak(
            "rate_off_schedule",
            step,
            say(
                "the learning rate is {rate}, and has not been what was declared for {n} updates",
                rate=rates[0],
                n=len(self._off),
            ),
            say("{rate} at this update", rate=self._declared(step - 1)),
            cause=None if self.speaker.said("rate_off_schedule") else self._cause(step),
            measured=rates[0],
            declared=self._declared(step - 1),
        )
        del self._off[:-OFF_STEPS]

    def _cause(self, step: int) -> Text | None:
        """Name what fits all the rates in a row: constant, scaled, early or late."""
        places = [place for place, _ in self._off]
        rates = [rate for _, rate in self._off]
        wanted = [self._declared(place - 1) for place in places]
        if all(_close(rate, rates[0]) for rate in rates) and not _close(wanted[0], wanted[-1]):
            return say("it never changes: scheduler.step() is not called, or acts on another")
        ratio = rates[0] / wanted[0] if wanted[0] else math.nan
        if all(_close(r, ratio * w) for r, w in zip(rates, wanted, strict=True)):
            return say("it is {ratio} times the schedule", ratio=ratio)
        shift = self._shift(places, rates)
        if shift is not None:
            word = "early" if shift > 0 else "late"
            return say("the schedule runs {n} updates {word}", n=abs(shift), word=word)
        return None

    def _shift(self, places: list[int], rates: list[float]) -> int | None:
        furthest = max(2 * places[-1], 1000)
        for size in range(1, min(furthest, SHIFT_MAX)):
            for shift in (size, -size):
                moved = (self._declared(place - 1 + shift) for place in places)
                if all(_close(r, w) for r, w in zip(rates, moved, strict=True)):
                    return shift
        return None


def _close(a: float, b: float) -> bool:
    return math.isclose(a, b, rel_tol=TOLERANCE, abs_tol=1e-12)
