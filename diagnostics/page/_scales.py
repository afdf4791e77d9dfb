"""From values to places on an axis, with ticks at round numbers.

A report holds what a broken run gave: nan, infinities, zeros on a logarithmic axis, a single
value, 1e300. Every one of them gets a place or is left out here, so that no chart has to ask.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._text import show

LARGEST = 1e300  # beyond it, differences overflow; such values stand at the edge
SMALLEST = 1e-300  # below it, steps between ticks underflow; such ranges count as one value
_SPELT = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}  # as our JSON spells them
_LOG_STEPS = (1, 2, 3, 5, 10, 20, 50, 100, 200)  # decades from tick to tick
_ROUND = (1, 2, 5)


def number(value: Any) -> float | None:
    """Return a number of a report as a float, also one spelt "nan" or "inf"; None for all else."""
    if isinstance(value, bool):
        return None
    if isinstance(value, (int, float)):
        try:
            return float(value)
        except OverflowError:
            return math.inf if value > 0 else -math.inf
    return _SPELT.get(value) if isinstance(value, str) else None


def finite(values: Iterable[Any]) -> list[float]:
    """Return those values that are finite numbers."""
    numbers = (number(value) for value in values)
    return [value for value in numbers if value is not None and math.isfinite(value)]


def shown(value: Any) -> str:
    """Return a value as charts and tables print it: four digits, counts in full, "-" for none."""
    if value is None or isinstance(value, bool):
        return "-"
    if isinstance(value, int) or (
        isinstance(value, float) and value.is_integer() and abs(value) < 1e9
    ):
        return f"{int(value):,}" if abs(value) < 1e15 else show(number(value))
    return show(value)


@dataclass(frozen=True)
class Tick:
    """A labelled place on an axis: at is 0 for its low end and 1 for its high end."""

    at: float
    label: str


@dataclass(frozen=True)
class Scale:
    """An axis: low and high are values, or their log10 on a logarithmic one."""

    low: float
    high: float
    log: bool
    ticks: tuple[Tick, ...]

    def place(self, value: float) -> float:
        """Return where a value lies, from 0 to 1; what lies outside stands at the edge."""
        if self.log:
            value = math.log10(value) if value > 0 else -math.inf
        if math.isnan(value):
            raise ValueError("nan has no place on an axis")
        value = min(max(value, self.low), self.high)
        return (value - self.low) / (self.high - self.low)


def linear_scale(
    values: Iterable[Any],
    *,
    tick_count: int = 5,
    zero: bool = False,
    tight: bool = False,
) -> Scale:
    """Return an axis from a round number to a round number that holds all finite values.

    zero: begin at 0, as bars must.    tight: end at the values, as an axis of steps does.
    Without `zero`, 0 is part of the axis where it is near enough to cost little room.
    """
    low, high, whole = _range(values, zero=zero, tight=tight)
    step = _round_step((high - low) / max(1, tick_count), whole=whole and tight)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if tight:
        first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    else:
        low, high = first * step, last * step
    marks = [place * step for place in range(first, last + 1)]
    labels = _linear_labels(marks, step)
    ticks = (
        Tick((mark - low) / (high - low), text) for mark, text in zip(marks, labels, strict=True)
    )
    return Scale(low, high, False, tuple(ticks))


def log_scale(values: Iterable[Any], *, tick_count: int = 6, below: bool = False) -> Scale:
    """Return a logarithmic axis that holds all positive finite values.

    below: leave room under the smallest, so that its bar has a length.
    """
    logs = [math.log10(value) for value in finite(values) if value > 0] or [0.0, 1.0]
    low = _round_below(min(logs) - (0.3 if below else 0.0))
    high = -_mirrored(max(logs))
    if high - low < 0.25:
        low, high = _round_below(low - 0.1), -_mirrored(high + 0.1)
    marks = _log_marks(low, high, tick_count)
    plain = all(-3 <= power <= 5 for _, power in marks)
    ticks = (
        Tick((power + math.log10(digit) - low) / (high - low), _log_label(digit, power, plain))
        for digit, power in marks
    )
    return Scale(low, high, True, tuple(ticks))


def fitting_scale(
    values: Sequence[Any], *, width: float, character: float, log: bool = False, **options: Any
) -> Scale:
    """Return the scale with the most ticks whose labels stand beside one another on `width`."""
    for count in (6, 5, 4, 3, 2):
        make = log_scale if log else linear_scale
        scale = make(values, tick_count=count, **options)
        longest = max((len(tick.label) for tick in scale.ticks), default=0)
        if len(scale.ticks) * (longest + 1.5) * character <= width:
            break
    return scale


def _range(values: Iterable[Any], *, zero: bool, tight: bool) -> tuple[float, float, bool]:
    kept = [min(max(value, -LARGEST), LARGEST) for value in finite(values)] or [0.0]
    low, high = min(kept), max(kept)
    whole = all(value.is_integer() for value in kept)
    size = max(abs(low), abs(high))
    if high - low <= 1e-9 * size or size < SMALLEST:  # one value: the axis begins at 0
        if size < SMALLEST:
            return 0.0, 1.0, whole
        if tight:
            reach = max(1.0, 1e-3 * size) if whole else 0.5 * size
            return low - reach, high + reach, whole
        return min(low, 0.0), max(high, 0.0), whole
    if zero or (not tight and 0 <= low <= 0.4 * high):
        low = min(low, 0.0)
    if zero or (not tight and low <= high <= 0 and high >= 0.4 * low):
        high = max(high, 0.0)
    return low, high, whole


def _round_step(rough: float, *, whole: bool) -> float:
    """Return the next larger of 1, 2 or 5 times a power of ten."""
    power = math.floor(math.log10(rough))
    step = next(d * 10.0**power for d in (1, 2, 5, 10) if d * 10.0**power >= rough * (1 - 1e-9))
    return max(1.0, step) if whole else step


def _linear_labels(marks: Sequence[float], step: float) -> list[str]:
    size = max((abs(mark) for mark in marks), default=0.0)
    power = math.floor(math.log10(step) + 1e-9)
    if 0 < size < 1e-3 or size >= 1e7:
        digits = max(0, math.floor(math.log10(size) + 1e-9) - power)
        return [_short_power(f"{mark:.{digits}e}") if mark else "0" for mark in marks]
    return [f"{mark:,.{max(0, -power)}f}" if mark else "0" for mark in marks]


def _short_power(text: str) -> str:
    digits, _, power = text.partition("e")
    return f"{digits}e{int(power)}"


def _round_below(log: float) -> float:
    """Return the log10 of the next round number (1, 2, 5) at or below."""
    power = math.floor(log + 1e-9)
    return max(m for d in _ROUND if (m := power + math.log10(d)) <= log + 1e-9)


def _mirrored(log: float) -> float:
    """Return minus the log10 of the next round number at or above: 2 and 5 mirror one another."""
    return _round_below(-log)


def _log_marks(low: float, high: float, tick_count: int) -> list[tuple[int, int]]:
    """Return (digit, power) of the ticks: 1, 2 and 5, or powers of ten that are evenly apart."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    choices = [[(digit, power) for power in powers for digit in _ROUND]]
    choices += [[(1, power) for power in powers if power % step == 0] for step in _LOG_STEPS]
    inside: list[tuple[int, int]] = []
    for choice in choices:
        fitting = [
            mark for mark in choice if low - 1e-9 <= mark[1] + math.log10(mark[0]) <= high + 1e-9
        ]
        if not fitting:
            break
        inside = fitting
        if len(inside) <= tick_count + 1:
            break
    return inside


def _log_label(digit: int, power: int, plain: bool) -> str:
    if not plain:
        return f"{digit}e{power}"
    return f"{digit * 10**power:,}" if power >= 0 else f"{digit / 10**-power:.{-power}f}"
