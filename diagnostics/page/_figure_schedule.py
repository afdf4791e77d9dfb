"""The learning rate over the steps of a run, and the rates that steps really used."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._charts import Level, Series, line_chart
from diagnostics.page._figure_parts import Figure, find, floats, listed, mapped, whole
from diagnostics.page._scales import number

SAME = 1e-6  # relative: rates that differ less are one
NAME, CHECK = "figure-schedule", "schedule"


def draw_schedule(content: Mapping[str, Any]) -> Figure | None:
    """Draw the schedule with its peak, and the rates of the optimizer while steps ran."""
    numbers = find(content, CHECK).numbers
    curve = mapped(numbers.get("curve"))
    rates = {
        step: rate
        for step, rate in zip(floats(curve.get("step")), floats(curve.get("rate")), strict=False)
        if step is not None and math.isfinite(step) and rate is not None
    }
    peak_step, peak = number(numbers.get("peak_step")), number(numbers.get("peak"))
    if not rates:
        return None
    if peak_step is not None and math.isfinite(peak_step) and peak is not None:
        rates[peak_step] = peak  # which the sampled places may have missed
    end, last = whole(numbers.get("max_steps")), number(numbers.get("last"))
    if end is not None and end - 1 > max(rates) and last is not None:
        rates[end - 1] = last  # the curve is stored at evenly spaced steps, of which it may be none
    steps = sorted(rates)
    series = [Series(label="schedule", x=steps, y=[rates[step] for step in steps])]
    used = [known for call in listed(numbers.get("rates_in_use")) if (known := _known(call))]
    held = sorted({rate for call in used for rate in call})
    levels: list[Level] = []
    if used and _one(held):
        levels = [Level(label="in use", y=held[0])]
    elif used:
        series += [
            Series(label=group, x=range(len(used)), y=[call[index] for call in used])
            for index, group in _groups(used)
        ]
    markup = line_chart(
        NAME,
        _finding(numbers, rates, steps),
        x_label="step",
        y_label="learning rate",
        series=series,
        levels=levels,
        note=_note(numbers, used, held),
    )
    return Figure(NAME, CHECK, markup)


def _known(call: Any) -> list[float]:
    return [rate for rate in floats(call) if rate is not None and math.isfinite(rate)]


def _one(values: Sequence[float]) -> bool:
    return bool(values) and values[-1] - values[0] <= SAME * abs(values[-1])


def _groups(used: Sequence[Sequence[float]]) -> list[tuple[int, str]]:
    """Return the groups whose rates differ, with their names; one where all agree."""
    width = min(map(len, used))
    different: dict[tuple[float, ...], int] = {}
    for index in range(width):
        different.setdefault(tuple(call[index] for call in used), index)
    if len(different) == 1:
        return [(0, "in use")]
    return [(index, f"group {index}") for index in list(different.values())[:3]]


def _finding(
    numbers: Mapping[str, Any], rates: Mapping[float, float], steps: Sequence[float]
) -> Text:
    bad = [step for step in steps if not math.isfinite(rates[step])]
    if bad:
        return say("The learning rate at step {step} is {rate}", step=bad[0], rate=rates[bad[0]])
    end = whole(numbers.get("max_steps"))
    peak_step = max(steps, key=lambda step: (rates[step], -step))
    peak, first, last = rates[peak_step], rates[steps[0]], rates[steps[-1]]
    length = say(" of {end} steps", end=end) if end is not None else say("")
    facts = {"peak": peak, "at": int(peak_step), "first": first, "last": last, "length": length}
    if _one(sorted(rates.values())):
        return say("The learning rate is {peak} at every step{length}", **facts)
    if peak_step == steps[0]:
        return say(
            "The learning rate starts at its peak {peak} and ends at {last}{length}",
            **facts | {"length": say(" after {end} steps", end=end) if end is not None else ""},
        )
    return say(
        "The learning rate rises from {first} to {peak} at step {at} and ends at {last}"
        if last < peak
        else "The learning rate rises from {first} to {peak} at step {at}, where the run ends",
        **facts,
    )


def _note(
    numbers: Mapping[str, Any], used: Sequence[Sequence[float]], held: Sequence[float]
) -> Text:
    asked = numbers.get("asked_inside") is True
    end = whole(numbers.get("max_steps"))
    told: list[str] = []
    if end is None:
        told.append(say("The length of the run (max_steps) is not known."))
    if used and _one(held):
        told.append(
            say(
                "In use: {n:call|calls} of your train_step ran at {rate} throughout.",
                n=len(used),
                rate=held[0],
            )
        )
        if not asked:
            told.append(say("A loop around it may set the rates; that was not run."))
    elif used:
        told.append(
            say(
                "In use: the rates that the groups of the optimizer held in {n:call|calls} of your "
                "train_step, drawn from step 0 on.",
                n=len(used),
            )
        )
    return say("{told}", told=" ".join(told))
