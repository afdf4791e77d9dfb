"""What the numbers of a run say, in one sentence each: headings of charts, and readings.

A reading names a cause only where the numbers point to it; elsewhere it says what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics._text import Text, say
from diagnostics.page._run_history import RunHistory, plain_events
from diagnostics.page._thinning import Point

NOISE_NATS = 0.01  # between two evaluations on the same windows; a smaller change is called level
OVERFIT_GAP_NATS = 0.1  # with a rise: as `python -m minigpt.train` judges at the end of a run
INITIAL_NATS = 0.5  # a fresh GPT-2 initialisation lies within 0.1 of ln V
NEAR_NATS = 0.03  # from the entropy of single tokens, as the monitor's plateau
CONSTANT_CLIPPING = 0.95
DIVERGED_NATS = 0.5  # above where training began; the monitor's limit
TREND_POINTS = 20  # fewer losses of single updates say nothing about a trend
TOO_HIGH = ("loss_spike", "loss_diverges", "updates_too_large", "gradient_explodes")
TOO_LOW = ("updates_too_small",)


@dataclass(frozen=True)
class Reading:
    """A sentence about the run, how serious it is ("pass", "warn", "fail", "none"), what to do."""

    status: str
    claim: Text
    next_step: Text | None = None


def readings(run: RunHistory) -> list[Reading]:
    """Return what can be read from the numbers so far, in the order in which to look at it."""
    found = (
        _initial_loss(run),
        _broken_loss(run),
        _context(run),
        _gap(run),
        _rate(run),
        _clipping(run),
    )
    return [reading for reading in found if reading is not None]


def loss_finding(run: RunHistory) -> Text:
    """Say where the loss is and where it goes; validation before training, where it is known."""
    broken = _first_broken(run)
    if broken is not None:
        name, (step, value) = broken
        return say("{name} became {x} at step {step}", name=name, x=value, step=step)
    points = _finite(run.points("validation_loss"))
    if points:
        return _validation_finding(points)
    points = _finite(run.points("train_loss"))
    if not points:
        return say("no loss has been logged yet")
    step, loss = points[-1]
    return say(
        "training loss {loss} at step {step}{trend}", loss=loss, step=step, trend=_trend(points)
    )


def gap_finding(run: RunHistory) -> Text:
    """Say how far validation lies above training, in the last evaluation."""
    step, gap = run.gap()[-1]
    return say("validation is {gap} training at step {step}", gap=_distance(gap), step=step)


def rate_finding(run: RunHistory) -> Text:
    """Say where the learning rate peaked and where it is now."""
    points = _finite(run.points("learning_rate"))
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
    if run.clip_norm and run.clipped_share is not None:
        if not run.clipped_updates:
            return say(
                "none of {n} updates was clipped at {limit}",
                n=run.judged_updates,
                limit=float(run.clip_norm),
            )
        return say(
            "{share:%} of {n:update|updates} {were} clipped at {limit}",
            share=run.clipped_share,
            n=run.judged_updates,
            were="was" if run.judged_updates == 1 else "were",
            limit=float(run.clip_norm),
        )
    top_step, top = max(points, key=lambda point: point[1])
    return say(
        "the gradient norm is {norm} at step {step}, and was at most {top}, at step {top_step}",
        norm=points[-1][1],
        step=points[-1][0],
        top=top,
        top_step=top_step,
    )


def speed_finding(run: RunHistory) -> Text:
    """Say how many tokens a second are usual, and how few they were at worst."""
    points = _finite(run.points("tokens_per_second"))
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


def _initial_loss(run: RunHistory) -> Reading | None:
    start = next((value for step, value in run.points("validation_loss") if step == 0), None)
    if start is None or run.vocab_size is None:
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


def _context(run: RunHistory) -> Reading | None:
    """Compare the loss with the entropy of single tokens: a model that uses no context has that."""
    points, entropy = _finite(run.points("validation_loss")), run.unigram_entropy
    if not points or entropy is None or points[-1][0] == 0 or _first_broken(run) is not None:
        return None
    step, loss = points[-1]
    facts = {"loss": loss, "step": step, "entropy": entropy}
    if loss < entropy - NEAR_NATS:
        claim = say(
            "the validation loss {loss} at step {step} is below {entropy}, what the frequencies of "
            "single tokens give: the context is used",
            **facts,
        )
        return Reading("pass", claim)
    claim = say(
        "the validation loss {loss} at step {step} is not below {entropy}, what the frequencies of "
        "single tokens give: the context is not used yet",
        **facts,
    )
    return Reading("none" if run.state.kind == "running" else "warn", claim)


def _broken_loss(run: RunHistory) -> Reading | None:
    if _first_broken(run) is None:
        return None
    state = run.state
    where = say("read {path}, which says where it began", path=state.postmortem)
    return Reading("fail", loss_finding(run), where if state.postmortem else None)


def _gap(run: RunHistory) -> Reading | None:
    """Over- or underfitting, from two losses of the last evaluation that were measured alike."""
    points, gaps, best = _finite(run.points("validation_loss")), _finite(run.gap()), run.best
    if not gaps or best is None or points[-1][0] != gaps[-1][0]:
        return None
    rise, gap = points[-1][1] - best[1], gaps[-1][1]
    facts = {"gap": _distance(gap), "rise": rise, "best": best[0]}
    if gap > OVERFIT_GAP_NATS and rise > NOISE_NATS:
        claim = say(
            "overfitting: validation is {gap} training, and {rise} above its lowest, at step "
            "{best}",
            **facts,
        )
        return Reading("warn", claim, say("go on from the weights of step {best}", **facts))
    if best[0] == points[-1][0]:
        claim = say("underfitting so far: validation is at its lowest, and {gap} training", **facts)
        over = run.state.kind in ("finished", "early")
        return Reading("none", claim, say("train again with more steps") if over else None)
    claim = say("neither over- nor underfitting shows: validation is {gap} training", **facts)
    return Reading("pass", claim)


def _distance(gap: float) -> Text:
    if gap < 0:
        return say("{gap} nats below", gap=-gap)
    return say("{gap} nats above", gap=gap)


def _rate(run: RunHistory) -> Reading | None:
    """Signs of a rate that is too high or too low, where there are any."""
    points = _finite(run.points("learning_rate"))
    if not points:
        return None
    peak = max(value for _, value in points)
    start, now = _begin_and_end(run)
    facts = {"peak": shown_rate(peak), "start": start, "now": now}
    again = say("train again with a peak of {third}", third=shown_rate(peak / 3))
    sign = _event_of(run, TOO_HIGH)
    if sign is None and now > start + DIVERGED_NATS:
        sign = say("the training loss is {now}, more than the {start} it began at", **facts)
    if sign is not None:
        claim = say("a sign of too high a learning rate, peak {peak}: {sign}", sign=sign, **facts)
        return Reading("warn", claim, again)
    sign = _event_of(run, TOO_LOW)
    if sign is not None:
        claim = say("a sign of too low a learning rate, peak {peak}: {sign}", sign=sign, **facts)
        return Reading(
            "warn", claim, say("train again with a peak of {three}", three=shown_rate(3 * peak))
        )
    if now < start - NOISE_NATS and _first_broken(run) is None:
        claim = say(
            "no sign of too high a learning rate, peak {peak}: the training loss fell from "
            "{start} to {now}",
            **facts,
        )
        return Reading("pass", claim)
    return None


def _clipping(run: RunHistory) -> Reading | None:
    share = run.clipped_share
    norms = [value for _, value in _finite(run.points("grad_norm"))]
    if share is None or not run.clip_norm or not norms or run.judged_updates < TREND_POINTS:
        return None
    facts = {"share": share, "limit": float(run.clip_norm), "n": run.judged_updates}
    if share < CONSTANT_CLIPPING:
        return Reading("pass", say("{share:%} of {n} updates were clipped at {limit}", **facts))
    claim = say(
        "{share:%} of {n} updates were clipped: the limit {limit}, and not the gradient, rules "
        "their size; that may hide a problem where the loss does not fall well",
        **facts,
    )
    usual = statistics.median(norms)
    return Reading("none", claim, say("compare with a limit of {usual}, a usual norm", usual=usual))


def _event_of(run: RunHistory, reasons: Sequence[str]) -> str | None:
    wanted = {f"monitor.{reason}" for reason in reasons}
    events = plain_events(run.events)
    return next((e["claim"] for e in events if e.get("reason") in wanted), None)


def _begin_and_end(run: RunHistory) -> tuple[float, float]:
    """Return medians of the first three and the last ten losses; NaN where there are too few."""
    values = [value for _, value in _finite(run.points("train_loss"))]
    if len(values) < TREND_POINTS:
        return math.nan, math.nan
    return statistics.median(values[:3]), statistics.median(values[-10:])


def _first_broken(run: RunHistory) -> tuple[str, Point] | None:
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


def _finite(points: Sequence[Point]) -> list[Point]:
    return [point for point in points if math.isfinite(point[1])]
