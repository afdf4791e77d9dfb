"""What the numbers of a run say, in one sentence each: the headings of its charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from diagnostics._text import Text, say
from diagnostics.page._run_history import RunHistory
from diagnostics.page._thinning import Point

NOISE_NATS = 0.01  # between two evaluations on the same windows; a smaller change is called level
TREND_POINTS = 20  # fewer losses of single updates say nothing about a trend


def loss_finding(run: RunHistory) -> Text:
    """Say where the loss is and where it goes; validation before training, where it is known."""
    broken = first_broken(run)
    if broken is not None:
        name, (step, value) = broken
        return say("{name} became {x} at step {step}", name=name, x=value, step=step)
    points = finite(run.points("validation_loss"))
    if points:
        return _validation_finding(points)
    points = finite(run.points("train_loss"))
    if not points:
        return say("no loss has been logged yet")
    step, loss = points[-1]
    return say(
        "training loss {loss} at step {step}{trend}", loss=loss, step=step, trend=_trend(points)
    )


def gap_finding(run: RunHistory) -> Text:
    """Say how far validation lies above training, in the last evaluation."""
    step, gap = run.gap()[-1]
    return say("validation is {gap} training at step {step}", gap=distance(gap), step=step)


def rate_finding(run: RunHistory) -> Text:
    """Say where the learning rate peaked and where it is now."""
    points = finite(run.points("learning_rate"))
    (first, _), (last, now) = points[0], points[-1]
    top, peak = max(points, key=lambda point: point[1])
    facts = {"peak": shown_rate(peak), "now": shown_rate(now), "top": top, "last": last}
    if shown_rate(min(value for _, value in points)) == shown_rate(peak):
        return say("the learning rate is {peak} in every logged update", **facts)
    if top == last:
        return say("the learning rate is still rising: {now} at step {last}", **facts)
    if top == first:
        return say("the learning rate fell from {peak} to {now} at step {last}", **facts)
    return say(
        "the learning rate peaked at {peak}, step {top}; it is {now} at step {last}", **facts
    )


def shown_rate(rate: float) -> str:
    """Return a rate as people write it: 0.0001, 3e-05."""
    return f"{rate:.3g}"


def norm_finding(run: RunHistory) -> Text:
    """Say how many updates were clipped; without a limit, how large the gradients are."""
    points = run.points("grad_norm")
    broken = next((point for point in points if not math.isfinite(point[1])), None)
    if broken is not None:
        return say("the gradient norm became {x} at step {step}", x=broken[1], step=broken[0])
    if run.clipped_updates or (run.clip_norm and run.judged_updates):
        return _clipped(run)
    top_step, top = max(points, key=lambda point: point[1])
    return say(
        "the gradient norm is {norm} at step {step}, and was at most {top}, at step {top_step}",
        norm=points[-1][1],
        step=points[-1][0],
        top=top,
        top_step=top_step,
    )


def _clipped(run: RunHistory) -> Text:
    n, limit = run.judged_updates, run.clip_norm
    at = say(" at {limit}", limit=float(limit)) if limit else ""
    if not run.clipped_updates:
        return say("none of {n:update|updates} was clipped{at}", n=n, at=at)
    if n == 1:
        return say("the one update was clipped{at}", at=at)
    return say("{share:%} of {n} updates were clipped{at}", share=run.clipped_share, n=n, at=at)


def speed_finding(run: RunHistory) -> Text:
    """Say how many tokens a second are usual, and how few they were at worst."""
    points = finite(run.points("tokens_per_second"))
    step, slowest = min(points, key=lambda point: point[1])
    return say(
        "{usual} tokens per second are usual; the fewest were {slowest}, at step {step}",
        usual=f"{statistics.median(value for _, value in points):,.0f}",
        slowest=f"{slowest:,.0f}",
        step=step,
    )


def _validation_finding(points: Sequence[Point]) -> Text:
    step, loss = points[-1]
    if step == 0:
        return say("validation loss {loss} before the first update", loss=loss)
    best_step, best = min(points, key=lambda point: point[1])
    if loss > best + NOISE_NATS:
        return say(
            "validation loss {loss} at step {step}, {rise} above its lowest, at step {best}",
            loss=loss,
            step=step,
            rise=loss - best,
            best=best_step,
        )
    falls = len(points) > 1 and loss < points[-2][1] - NOISE_NATS
    trend = ", still falling" if falls else ", level by now" if len(points) > 2 else ""
    return say("validation loss {loss} at step {step}{trend}", loss=loss, step=step, trend=trend)


def _trend(points: Sequence[Point]) -> str:
    if len(points) < TREND_POINTS:
        return ""
    width = max(5, len(points) // 10)
    values = [value for _, value in points]
    late, before = (
        statistics.median(values[-width:]),
        statistics.median(values[-2 * width : -width]),
    )
    if late < before - NOISE_NATS:
        return ", still falling"
    return ", rising" if late > before + 10 * NOISE_NATS else ", level by now"


def distance(gap: float) -> Text:
    if gap < 0:
        return say("{gap} nats below", gap=-gap)
    return say("{gap} nats above", gap=gap)


def first_broken(run: RunHistory) -> tuple[str, Point] | None:
    """Return the name of the first loss that is not finite, and its point."""
    found = [
        (f"the {name} loss", point)
        for name, series in (
            ("training", "train_loss"),
            ("training", "training_loss"),
            ("validation", "validation_loss"),
        )
        for point in run.points(series)
        if not math.isfinite(point[1])
    ]
    return min(found, key=lambda one: one[1][0], default=None)


def finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point[1])]
