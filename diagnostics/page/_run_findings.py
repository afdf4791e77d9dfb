"""What the numbers of a run say, in one sentence each: the headings of its charts."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence

from diagnostics._text import Text, say
from diagnostics.page._run_history import LOSSES, RunHistory
from diagnostics.page._thinning import Point

NOISE_NATS = 0.01  # between two evaluations on the same windows; a smaller change is called level
LEVEL_NATS = 0.1  # a change that chance can hide; where it can hide more, nothing is said
MEDIAN_ERROR = 1.2533  # standard error of a median over that of a mean, of normal numbers
LOSS_WORDS = {
    "train_loss": "training",
    "training_loss": "training",
    "validation_loss": "validation",
}
TREND_POINTS = 20  # fewer losses of single updates say nothing about a trend


def loss_finding(run: RunHistory) -> Text:
    """Say where the loss is and where it goes; validation before training, where it is known."""
    broken = broken_finding(run)
    if broken is not None:
        return broken
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


def broken_finding(run: RunHistory) -> Text | None:
    """Say which loss first was no finite number, and whether it is one again."""
    found = first_broken(run)
    if found is None:
        return None
    series, (step, value) = found
    facts = {"name": f"the {LOSS_WORDS[series]} loss", "x": value, "step": step}
    last, now = run.points(series)[-1]
    if not math.isfinite(now):
        return say("{name} became {x} at step {step}", **facts)
    return say(
        "{name} was {x} at step {step}; it is {now} at step {last}", now=now, last=last, **facts
    )


def is_broken(run: RunHistory) -> bool:
    """Tell whether the latest value of a loss is no finite number."""
    return any(not math.isfinite(run.points(name)[-1][1]) for name in LOSSES if run.points(name))


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
    if shown_rate(now) == shown_rate(peak) and top != last:
        since = _since(points, lambda value: shown_rate(value) == shown_rate(now))
        if since == top:
            return say(
                "the learning rate rose to {now}, and is that since step {since}",
                since=since,
                **facts,
            )
        return say("the learning rate fell from {peak}, and is that again at step {last}", **facts)
    if top == last:
        return say("the learning rate is still rising: {now} at step {last}", **facts)
    if top == first:
        return say(
            "the learning rate fell from {peak} at step {top} to {now} at step {last}", **facts
        )
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
        facts = {"x": broken[1], "step": broken[0], "now": points[-1][1], "last": points[-1][0]}
        if not math.isfinite(points[-1][1]):
            return say("the gradient norm became {x} at step {step}", **facts)
        return say("the gradient norm was {x} at step {step}; it is {now} at step {last}", **facts)
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
    since = _since(points, lambda value: abs(value - loss) <= NOISE_NATS)
    trend = ""
    if still_falls(points):
        trend = ", still falling"
    elif since < step:
        trend = say(", level since step {since}", since=since)
    return say("validation loss {loss} at step {step}{trend}", loss=loss, step=step, trend=trend)


def still_falls(points: Sequence[Point]) -> bool:
    """Tell whether a loss is lower than all it was until a quarter of its values ago."""
    late = max(1, len(points) // 4)
    before = [value for _, value in points[:-late]]
    return bool(before) and points[-1][1] < min(before) - NOISE_NATS


def _since(points: Sequence[Point], alike: Callable[[float], bool]) -> int:
    """Return the step from which on all values are alike."""
    since = points[-1][0]
    for step, value in reversed(points):
        if not alike(value):
            break
        since = step
    return since


def _trend(points: Sequence[Point]) -> str:
    """Compare the late losses with as many before; less than chance moves them is no trend."""
    if len(points) < TREND_POINTS:
        return ""
    width = max(5, len(points) // 10)
    late = [value for _, value in points[-width:]]
    before = [value for _, value in points[-2 * width : -width]]
    change = statistics.median(late) - statistics.median(before)
    spread = (statistics.variance(late) + statistics.variance(before)) / width
    chance = 3 * MEDIAN_ERROR * math.sqrt(spread)
    if abs(change) > max(chance, NOISE_NATS):
        return ", still falling" if change < 0 else ", rising"
    return ", level by now" if chance <= LEVEL_NATS else ""


def distance(gap: float) -> Text:
    if gap < 0:
        return say("{gap} nats below", gap=-gap)
    return say("{gap} nats above", gap=gap)


def first_broken(run: RunHistory) -> tuple[str, Point] | None:
    """Return the series of the first loss that is not finite, and its point."""
    found = [
        (series, point)
        for series in LOSSES
        for point in run.points(series)
        if not math.isfinite(point[1])
    ]
    return min(found, key=lambda one: one[1][0], default=None)


def finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point[1])]
