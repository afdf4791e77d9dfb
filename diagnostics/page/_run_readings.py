"""Readings of a run: what its numbers point to, and what to do next.

A reading names a cause only where the numbers point to it; elsewhere it says what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._run_findings import (
    NOISE_NATS,
    TREND_POINTS,
    broken_finding,
    distance,
    finite,
    is_broken,
    shown_rate,
    still_falls,
)
from diagnostics.page._run_history import RunHistory, plain_events
from diagnostics.page._thinning import Point

OVERFIT_GAP_NATS = 0.1  # with a rise: as `python -m minigpt.train` judges at the end of a run
INITIAL_NATS = 0.5  # a fresh GPT-2 initialisation lies within 0.1 of ln V
NEAR_NATS = 0.03  # from the entropy of single tokens, as the monitor's plateau
CONSTANT_CLIPPING = 0.95
USUAL_CLIPPING = 0.5  # more than that is no more than a fact: a limit may be meant so
DIVERGED_NATS = 0.5  # above where training began; the monitor's limit
TOO_HIGH = ("loss_spike", "loss_diverges", "updates_too_large", "gradient_explodes")
TOO_LOW = ("updates_too_small",)
USUAL_MOVE = 0.001  # of its size, a weight in one update; what the monitor expects
FACTOR_MAX = 1000.0  # a rate that is further off was not meant
FALL_SHARE = 0.1  # of where the loss began, where nothing is known of its unit


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


def _broken_loss(run: RunHistory) -> Reading | None:
    claim = broken_finding(run)
    if claim is None:
        return None
    path = run.state.postmortem
    where = say("read {path}, which says where it began", path=path) if path else None
    return Reading("fail" if is_broken(run) else "warn", claim, where)


def _context(run: RunHistory) -> Reading | None:
    """Compare the loss with the entropy of single tokens: a model that uses no context has that.

    A small validation part may lie below it by its choice of tokens, and a model that has learnt
    its text by heart far above: so the training loss has a say, where it is known.
    """
    points, entropy = finite(run.points("validation_loss")), run.unigram_entropy
    if not points or entropy is None or points[-1][0] == 0 or is_broken(run):
        return None
    step, loss = points[-1]
    training = dict(finite(run.points("training_loss"))).get(step)
    facts = {"loss": loss, "step": step, "entropy": entropy, "training": training}
    limit = entropy - NEAR_NATS
    if loss < limit and (training is None or training < limit):
        claim = say(
            "the validation loss {loss} at step {step} is below {entropy}, what the frequencies of "
            "single tokens give: the context is used",
            **facts,
        )
        return Reading("pass", claim)
    if training is not None and training < limit:
        claim = say(
            "the training loss {training} at step {step} is below {entropy}, what the frequencies "
            "of single tokens give, and the validation loss {loss} is not: what is learnt does not "
            "hold for the validation text",
            **facts,
        )
        return Reading("warn", claim)
    if loss < limit:
        claim = say(
            "the training loss {training} at step {step} is not below {entropy}, what the "
            "frequencies of single tokens give, and the validation loss {loss} is: that says "
            "nothing of the model, the validation text has other frequencies",
            **facts,
        )
        return Reading("warn", claim)
    claim = say(
        "the validation loss {loss} at step {step} is not below {entropy}, what the frequencies of "
        "single tokens give: the context is not used yet",
        **facts,
    )
    return Reading("none" if run.state.kind == "running" else "warn", claim)


def _gap(run: RunHistory) -> Reading | None:
    """Over- or underfitting, from two losses of the last evaluation that were measured alike."""
    points, gaps = finite(run.points("validation_loss")), finite(run.gap())
    if not gaps or points[-1][0] != gaps[-1][0] or points[-1][0] == 0 or is_broken(run):
        return None
    best, training = min(points, key=lambda point: point[1]), dict(run.points("training_loss"))
    rise, gap, now = points[-1][1] - best[1], gaps[-1][1], training[points[-1][0]]
    facts = {"gap": distance(gap), "rise": rise, "best": best[0], "now": now}
    then = training.get(best[0])
    if rise > NOISE_NATS and then is not None and now - then > rise / 2:
        claim = say(
            "the validation loss is {rise} above its lowest, at step {best}, and the training loss "
            "rose since then, from {then} to {now}: that is no overfitting",
            then=then,
            **facts,
        )
        return Reading("warn", claim)
    if rise > NOISE_NATS and gap > OVERFIT_GAP_NATS:
        claim = say(
            "overfitting: validation is {gap} training, and {rise} above its lowest, at step "
            "{best}",
            **facts,
        )
        better = say("use the weights of step {best}", **facts)
        if run.best_path is not None and run.best == best:
            better = say("use {path}, the weights of step {best}", path=run.best_path, **facts)
        return Reading("warn", claim, better)
    if not _has_learnt(run, points, now):
        return None  # neither is a word for a model that has not begun to learn
    return _fit(run, points, gap)


def _has_learnt(run: RunHistory, points: Sequence[Point], training: float) -> bool:
    if run.unigram_entropy is not None:
        return training < run.unigram_entropy - NEAR_NATS
    return points[0][0] != 0 or training < points[0][1] - INITIAL_NATS


def _fit(run: RunHistory, points: Sequence[Point], gap: float) -> Reading:
    facts = {"gap": distance(gap)}
    if not still_falls(points):
        claim = say("neither over- nor underfitting shows: validation is {gap} training", **facts)
        return Reading("pass", claim)
    if gap > OVERFIT_GAP_NATS:
        claim = say(
            "no overfitting so far: validation is {gap} training, and still falling", **facts
        )
        return Reading("none", claim)
    claim = say("underfitting so far: validation is still falling, and {gap} training", **facts)
    longer = run.state.kind in ("finished", "early") and _event_of(run, TOO_HIGH) is None
    return Reading("none", claim, say("train again with more steps") if longer else None)


def _rate(run: RunHistory) -> Reading | None:
    """Signs of a rate that is too high or too low, where there are any."""
    points = finite(run.points("learning_rate"))
    if not points:
        return None
    peak = max(value for _, value in points)
    if peak <= 0:
        return Reading(
            "warn", say("the learning rate is {peak}: no update moves a weight", peak=peak)
        )
    (first, start), (last, now) = _begin_and_end(run)
    ends = {"start": start, "first": f"{first:,}", "now": now, "last": f"{last:,}"}
    facts = {"peak": shown_rate(peak), **ends}
    sign = _claim(_event_of(run, TOO_HIGH))
    if sign is None and now > start + DIVERGED_NATS:
        sign = say(
            "the training loss is {now} up to step {last}, more than the {start} from step {first}",
            **facts,
        )
    if sign is not None:
        claim = say("a sign of too high a learning rate, peak {peak}: {sign}", sign=sign, **facts)
        again = say("train again with a peak of {third}", third=shown_rate(peak / 3))
        return Reading("warn", claim, again)
    event = _event_of(run, TOO_LOW)
    if event is not None:
        claim = say(
            "a sign of too low a learning rate, peak {peak}: {sign}", sign=_claim(event), **facts
        )
        return Reading("warn", claim, _higher_rate(peak, event.get("measured")))
    if is_broken(run) or not _fell(run, start, now):
        return None
    claim = say(
        "the training loss fell from {start} (from step {first}) to {now} (up to step {last}) at "
        "learning rates up to {peak}; whether others do better, only a run with them can tell",
        **facts,
    )
    return Reading("none", claim)


def _higher_rate(peak: float, moved: object) -> Text | None:
    """Return the step to a rate that moves weights as usual, where that is not absurdly far."""
    if not isinstance(moved, float) or not USUAL_MOVE / FACTOR_MAX <= moved < USUAL_MOVE:
        return say("compare the learning rate with the one that was meant")
    return say("train again with a peak of {rate}", rate=f"{peak * USUAL_MOVE / moved:.1g}")


def _fell(run: RunHistory, start: float, now: float) -> bool:
    """Tell whether the training loss fell as a loss does that is learnt from, not just began to."""
    if run.unigram_entropy is not None:
        return now < min(start, run.unigram_entropy) - NEAR_NATS
    return start - now > FALL_SHARE * abs(start)


def _clipping(run: RunHistory) -> Reading | None:
    share = run.clipped_share
    norms = [value for _, value in finite(run.points("grad_norm"))]
    if share is None or not run.clip_norm or not norms or run.judged_updates < TREND_POINTS:
        return None
    facts = {"share": share, "limit": float(run.clip_norm), "n": run.judged_updates}
    if share < CONSTANT_CLIPPING:
        claim = say("{share:%} of {n} updates were clipped at {limit}", **facts)
        return Reading("pass" if share < USUAL_CLIPPING else "none", claim)
    claim = say(
        "{share:%} of {n} updates were clipped: the limit {limit}, and not the gradient, rules "
        "their size; that may hide a problem where the loss does not fall well",
        **facts,
    )
    usual = statistics.median(norms)
    if not usual > 1.01 * run.clip_norm:  # norms after clipping: nothing to compare with
        return Reading("none", claim)
    return Reading("none", claim, say("compare with a limit of {usual}, a usual norm", usual=usual))


def _event_of(run: RunHistory, reasons: Sequence[str]) -> Mapping[str, Any] | None:
    wanted = {f"monitor.{reason}" for reason in reasons}
    return next((e for e in plain_events(run.events) if e.get("reason") in wanted), None)


def _claim(event: Mapping[str, Any] | None) -> str | None:
    return None if event is None else str(event.get("claim", ""))


def _begin_and_end(run: RunHistory) -> tuple[Point, Point]:
    """Return the first step and the median of three losses, the last one and that of ten.

    The medians are NaN where there are too few.
    """
    points = finite(run.points("train_loss"))
    if len(points) < TREND_POINTS:
        return (0, math.nan), (0, math.nan)
    values = [value for _, value in points]
    begin, end = statistics.median(values[:3]), statistics.median(values[-10:])
    return (points[0][0], begin), (points[-1][0], end)
