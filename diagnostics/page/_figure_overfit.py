"""Learning one batch by heart: the curve, the levels that explain where it rests, the accuracy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._charts import Level, Series, line_chart
from diagnostics.page._figure_parts import Figure, Found, find, floats, listed, mapped, whole
from diagnostics.page._overfit_reading import read_overfit
from diagnostics.page._scales import finite, number

LOG_RATIO = 20  # times ln V: a curve that goes beyond hides everything else on a plain axis
APART = 0.1  # of the way from ln V to the floor: the model's own loss gets a curve of its own
CHECK = "overfit"


def draw_overfit(content: Mapping[str, Any]) -> Figure | None:
    """Draw the loss over the steps with ln V, the unigram level and the floor of the batch."""
    found = find(content, CHECK)
    numbers = found.numbers
    curve = mapped(numbers.get("curve"))
    steps, losses = floats(curve.get("step")), floats(curve.get("loss"))
    places = finite(steps)
    if not places or len(places) != len(steps) or len(losses) != len(steps):
        return None
    uniform, floor = number(numbers.get("uniform_loss")), number(numbers.get("floor_loss"))
    own = floats(numbers.get("reported_loss"))
    series = [Series(label="loss", x=places, y=losses)]
    if _differs(own, losses, uniform, floor):
        series.append(Series(label="the model's own", x=places, y=own))
    highest = max(finite(losses + own), default=0.0)
    log = uniform is not None and uniform > 0 and highest > LOG_RATIO * uniform
    markup = line_chart(
        "figure-overfit",
        _finding(found, places, losses, floor),
        x_label="step",
        y_label="loss (nats per token), log scale" if log else "loss (nats per token)",
        series=series,
        levels=_levels(uniform, number(numbers.get("unigram_loss")), floor),
        log_y=log,
        note=_note(found),
    )
    return Figure("figure-overfit", CHECK, markup)


def draw_accuracy(content: Mapping[str, Any]) -> Figure | None:
    """Draw the share of targets that are right, and the share that can be."""
    numbers = find(content, CHECK).numbers
    curve = mapped(numbers.get("curve"))
    steps, shares = floats(curve.get("step")), floats(curve.get("accuracy"))
    places = finite(steps)
    known = finite(shares)
    if not known or len(places) != len(steps) or len(shares) != len(steps):
        return None
    ceiling = number(numbers.get("ceiling_accuracy"))
    percent = [None if share is None else 100.0 * share for share in shares]
    levels = [] if ceiling is None else [Level(label="ceiling", y=100.0 * ceiling)]
    last_loss = (floats(curve.get("loss")) or [None])[-1]
    told = say("{last:%} of the targets of the batch are right at the end", last=known[-1])
    if last_loss is not None and not math.isfinite(last_loss):
        told = say("Which targets are right says nothing: the loss ends at {loss}", loss=last_loss)
        ceiling = None
    markup = line_chart(
        "figure-accuracy",
        told if ceiling is None else say("{told}; {ceiling:%} can be", told=told, ceiling=ceiling),
        x_label="step",
        y_label="targets that are right (%)",
        series=[Series(label="right", x=places, y=percent)],
        levels=levels,
        note=""
        if ceiling is None or not ceiling < 1.0
        else say(
            "The ceiling is below 100 %: rows of this batch begin alike and go on differently, "
            "and no model that reads only what came before can be right in both."
        ),
        height=90,
    )
    return Figure("figure-accuracy", CHECK, markup)


def _differs(
    own: Sequence[float | None],
    losses: Sequence[float | None],
    uniform: float | None,
    floor: float | None,
) -> bool:
    """Whether the model's own loss ends elsewhere than the recomputed one."""
    if len(own) != len(losses) or uniform is None or floor is None:
        return False
    mine, ours = own[-1], losses[-1]
    if mine is None or ours is None or not math.isfinite(mine) or not math.isfinite(ours):
        return False
    return abs(mine - ours) > APART * max(uniform - floor, 1e-9)


def _levels(uniform: float | None, unigram: float | None, floor: float | None) -> list[Level]:
    named = (("ln V", uniform), ("unigram", unigram), ("floor", floor))
    return [Level(label=label, y=y) for label, y in named if y is not None]


def _finding(
    found: Found, steps: Sequence[float], losses: Sequence[float | None], floor: float | None
) -> Text:
    bad = next(
        (n for n, loss in enumerate(losses) if loss is None or not math.isfinite(loss)), None
    )
    if bad is not None:
        return say("The loss is no finite number at step {step}", step=int(steps[bad]))
    ending = say("; the floor of this batch is {floor}", floor=floor) if floor is not None else ""
    first, last = losses[0], losses[-1]
    if first is None or last is None:  # not reached: both are finite here
        return say("The loss over the steps")
    moved = "reached" if last < first else "went to"
    return say(
        "The loss {moved} {last} nats at step {step}, from {first}{ending}",
        moved=moved,
        last=last,
        step=int(steps[-1]),
        first=first,
        ending=ending,
    )


def _note(found: Found) -> str:
    numbers = found.numbers
    told: list[str] = [
        say("ln V: all tokens equally likely. Unigram: the frequencies of the targets."),
        say("Floor: the best that this batch allows."),
    ]
    shape = [whole(size) for size in listed(numbers.get("shape"))]
    rate = number(numbers.get("learning_rate"))
    if len(shape) == 2 and None not in shape and rate is not None:
        told.append(
            say(
                "Batch {B} x {T} tokens; an optimizer of the check's own, rate {rate}.",
                B=shape[0],
                T=shape[1],
                rate=rate,
            )
        )
    return f"{read_overfit(found)}\n{' '.join(told)}"
