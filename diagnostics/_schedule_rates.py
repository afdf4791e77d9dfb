"""The learning rates that an optimizer's groups hold while the user's step runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType, FrameType
from typing import Any

from diagnostics._probe import Probe
from diagnostics._step_trial import build_optimizers, call_recorded, random_pair

CALLS, WINDOWS, PARTS = 4, 3, 4


@dataclass
class Rates:
    """groups: per call of train_step, the rate of each group; windows: the same of accumulate.

    asked: whether train_step calls the schedule.    parts: micro-batches per window.
    around_skip: the rates of each group in the calls before and after one whose gradient is
        infinite, where the step skips its update then.
    """

    groups: list[list[float]] = field(default_factory=list)
    windows: list[list[float]] = field(default_factory=list)
    asked: bool = False
    parts: int = PARTS
    around_skip: list[list[float]] = field(default_factory=list)

    @property
    def moving(self) -> list[bool]:
        """For each group, whether its rate changes from call to call."""
        return [len(set(rates)) > 1 for rates in zip(*self.groups, strict=False)]


def read_rates(probe: Probe) -> Rates:
    """Call the user's step and accumulate on copies; what raises is for other checks to report."""
    found = Rates(parts=max(PARTS, probe.pipeline.micro_batches))
    step, schedule = probe.pipeline.train_step, probe.pipeline.learning_rate
    assert schedule is not None
    if step is not None:
        with _calls_noted(_code_of(schedule)) as asked:
            found.groups = _rates(probe, step, CALLS, 0)
        found.asked = asked[0]
        if any(found.moving):
            found.around_skip = _rates_around_skip(probe, step)
    if probe.pipeline.accumulate is not None:
        found.windows = _rates(probe, probe.pipeline.accumulate, WINDOWS, found.parts)
    return found


def _rates(probe: Probe, step: Callable[..., Any], count: int, parts: int) -> list[list[float]]:
    """Return the rates of every call; parts: micro-batches to give, 0 for one plain batch."""
    with probe.model(train=True) as model, probe.seeded("rates"):
        made, optimizers = build_optimizers(probe, model)
        rates = []
        for _ in range(count):
            pair = random_pair(probe, "rates", 2)
            given = ([pair] * parts,) if parts else pair
            call = call_recorded(model, optimizers, lambda given=given: step(model, made, *given))  # type: ignore[misc]
            if call.rates:
                rates.append(call.rates)
    return rates


def _rates_around_skip(probe: Probe, step: Callable[..., Any]) -> list[list[float]]:
    """Give the step a gradient that overflows, between two ordinary ones."""
    with probe.model(train=True) as model, probe.seeded("rates"):
        made, optimizers = build_optimizers(probe, model)
        poisoned = next(p for p in model.parameters() if p.requires_grad)
        rates = []
        for overflows in (False, True, False):
            pair = random_pair(probe, "rates", 2)
            handle = poisoned.register_hook(lambda gradient: gradient * math.inf)
            if not overflows:
                handle.remove()
            try:
                call = call_recorded(model, optimizers, lambda pair=pair: step(model, made, *pair))  # type: ignore[misc]
            except Exception:  # any: a step may refuse to go on after an overflow
                return []
            finally:
                handle.remove()
            if overflows and call.moved:
                return []  # the update was made
            if not overflows:
                rates.append(call.rates)
        return rates


def _code_of(schedule: Callable[[int], float]) -> set[CodeType]:
    """Return the code that a schedule runs: its own, and that of what it calls."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        schedule(1)
    finally:
        sys.setprofile(previous)
    return {code for code in codes if "site-packages" not in code.co_filename}


@contextmanager
def _calls_noted(codes: set[CodeType]) -> Iterator[list[bool]]:
    """Note whether any of this code runs inside the block."""
    seen = [False]

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code in codes:
            seen[0] = True

    previous = sys.getprofile()
    sys.setprofile(note)
    try:
        yield seen
    finally:
        sys.setprofile(previous)
