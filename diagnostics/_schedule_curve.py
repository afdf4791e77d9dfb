"""A learning rate schedule, read as a curve: places, peak, floor, neighbours."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

PLACES_MAX = 4000  # steps of a run that are read one by one; longer runs at places spread over it
EDGE = 64  # first and last steps that are always read one by one
HORIZON = 1000  # steps that are read where the length of the run is unknown
OFFSETS_MAX = 400  # places at which a counter inside a step may already stand
SAME = 1e-6  # relative
TURN = 1e-3  # of the peak: a rise after the end of the decay
MIRROR_MIN = 5  # steps after the turn that tell a curve which turns back


@dataclass(frozen=True)
class Curve:
    """The rates by step. changed: (step, rate, rate when asked again) where they differ."""

    rates: dict[int, float]
    max_steps: int | None
    changed: tuple[int, float, float] | None = None

    @cached_property
    def inside(self) -> list[int]:
        """The steps of the run that were read."""
        end = self.max_steps or HORIZON
        return [step for step in self.rates if step < end]

    @cached_property
    def peak_step(self) -> int:
        """The first step of the run with the highest rate."""
        return max(self.inside, key=lambda step: (self.rates[step], -step))

    @property
    def peak(self) -> float:
        """The highest rate of the run."""
        return self.rates[self.peak_step]

    @property
    def last(self) -> float:
        """The rate of the last step of the run."""
        return self.rates[self.inside[-1]]

    @property
    def floor(self) -> float:
        """The rate on which the run ends: that of its last step."""
        return self.last

    @cached_property
    def floor_step(self) -> int:
        """The first step from which the rate stays at its last value until the end."""
        first = self.inside[-1]
        for step in reversed(self.inside):
            if abs(self.rates[step] - self.last) > SAME * self.peak:
                break
            first = step
        return first

    @property
    def facts(self) -> dict[str, Any]:
        """What every sentence about the curve may name."""
        return {"peak": self.peak, "peak_step": self.peak_step, "steps": self.max_steps or 0}

    def describe(self) -> dict[str, Any]:
        """Return the curve as plain numbers."""
        shown = self.inside[:: max(1, len(self.inside) // 64)]
        return {
            "curve": {"step": shown, "rate": [self.rates[step] for step in shown]},
            "peak": self.peak,
            "peak_step": self.peak_step,
            "last": self.last,
            "max_steps": self.max_steps,
        }

    def neighbours(self) -> Iterator[tuple[int, float, float]]:
        """Yield (step, rate before, rate) for steps of the run that were read side by side."""
        for step in self.inside:
            if step - 1 in self.rates and step > 0:
                yield step, self.rates[step - 1], self.rates[step]

    @cached_property
    def turn(self) -> int | None:
        """The step of the run at which its one decay ends and a rise up to the last step begins.

        None where the rate falls to the end, stays at its floor, or goes through several cycles.
        """
        after = [step for step in self.inside if step >= self.peak_step]
        low = min(after, key=lambda step: (self.rates[step], step))
        slack = SAME * self.peak
        rise = [self.rates[step] for step in after if step >= low]
        fall = [self.rates[step] for step in after if step <= low]
        if rise[-1] - rise[0] <= TURN * self.peak:
            return None
        falls = all(b <= a + slack for a, b in itertools.pairwise(fall))
        rises = all(a <= b + slack for a, b in itertools.pairwise(rise))
        return low if falls and rises else None

    def is_mirrored(self, turn: int) -> bool:
        """Whether the rates after a step are those before it, backwards, as a cosine has them."""
        pairs = [(self.rates[s], self.rates.get(2 * turn - s)) for s in self.inside if s > turn]
        known = [(after, before) for after, before in pairs if before is not None]
        return len(known) >= MIRROR_MIN and all(
            abs(after - before) <= 1e-4 * self.peak for after, before in known
        )

    def moves(self, count: int) -> bool:
        """Whether the rate changes within the first steps."""
        return len({self.rates[step] for step in range(count) if step in self.rates}) > 1

    def place(self, rate: float) -> int | None:
        """Return the one early step that has this rate; None where it is none, or several."""
        near = [s for s in range(OFFSETS_MAX) if abs(self.rates.get(s, -1.0) - rate) <= SAME * rate]
        return near[0] if len(near) == 1 else None

    def follows(self, used: Sequence[float], stride: int) -> bool:
        """Whether rates are the curve's, up to one factor, from some place on, by `stride` steps.

        The factor is that of a group; the place, where a counter in the step stands already.
        """
        for offset in range(OFFSETS_MAX):
            wanted = [self.rates.get(offset + stride * n) for n in range(len(used))]
            if None in wanted:
                return False
            factors = [u / w for u, w in zip(used, wanted, strict=True) if u and w]
            zeros = all((u == 0) == (w == 0) for u, w in zip(used, wanted, strict=True))
            if zeros and factors and max(factors) - min(factors) <= 1e-5 * abs(max(factors)):
                return True
        return False


def read_curve(schedule: Callable[[int], float], max_steps: int | None) -> Curve:
    """Read a schedule along the run and beyond, then again at a few places, backwards.

    A schedule may refuse steps beyond the end of its run.
    """
    end = max_steps or HORIZON
    steps = range(end)
    if end > PLACES_MAX:
        spread = {end * n // PLACES_MAX for n in range(PLACES_MAX)}
        pairs = spread | {step + 1 for step in spread}
        edges = {*range(max(EDGE, OFFSETS_MAX + EDGE)), *range(end - EDGE, end)}
        steps = sorted(step for step in pairs | edges if step < end)  # type: ignore[assignment]
    rates = {step: _number(schedule(step)) for step in steps}
    if max_steps is not None:
        for step in (end, end + 1, end + end // 4, end + end // 2, 2 * end, 3 * end):
            try:
                rates[step] = _number(schedule(step))
            except (ValueError, IndexError, AssertionError, ZeroDivisionError):
                break
    inside = [step for step in rates if step < end]
    for step in (inside[-1], inside[len(inside) // 2], inside[min(5, len(inside) - 1)], 0):
        again = _number(schedule(step))
        if abs(again - rates[step]) > SAME * max(abs(again), abs(rates[step])):
            return Curve(rates, max_steps, (step, rates[step], again))
    return Curve(rates, max_steps)


def _number(rate: Any) -> float:
    return rate if type(rate) is float else float(torch.as_tensor(rate).detach())
