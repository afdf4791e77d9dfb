"""Readings of a run: what its numbers point to, and what to do next.

A reading names a cause only where the numbers point to it; elsewhere it says what was measured.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from diagnostics._text import Text, say
from diagnostics.page._run_findings import (
    NOISE_NATS,
    TREND_POINTS,
    distance,
    finite,
    first_broken,
    loss_finding,
    shown_rate,
)
from diagnostics.page._run_history import RunHistory, plain_events

OVERFIT_GAP_NATS = 0.1  # with a rise: as `python -m minigpt.train` judges at the end of a run
INITIAL_NATS = 0.5  # a fresh GPT-2 initialisation lies within 0.1 of ln V
NEAR_NATS = 0.03  # from the entropy of single tokens, as the monitor's plateau
CONSTANT_CLIPPING = 0.95
DIVERGED_NATS = 0.5  # above where training began; the monitor's limit
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
    if first_broken(run) is None:
        return None
    state = run.state
    where = say("read {path}, which says where it began", path=state.postmortem)
    return Reading("fail", loss_finding(run), where if state.postmortem else None)


def _context(run: RunHistory) -> Reading | None:
    """Compare the loss with the entropy of single tokens: a model that uses no context has that."""
    points, entropy = finite(run.points("validation_loss")), run.unigram_entropy
    if not points or entropy is None or points[-1][0] == 0 or first_broken(run) is not None:
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


def _gap(run: RunHistory) -> Reading | None:
    """Over- or underfitting, from two losses of the last evaluation that were measured alike."""
    points, gaps, best = finite(run.points("validation_loss")), finite(run.gap()), run.best
    if not gaps or best is None or points[-1][0] != gaps[-1][0]:
        return None
    rise, gap = points[-1][1] - best[1], gaps[-1][1]
    facts = {"gap": distance(gap), "rise": rise, "best": best[0]}
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


def _rate(run: RunHistory) -> Reading | None:
    """Signs of a rate that is too high or too low, where there are any."""
    points = finite(run.points("learning_rate"))
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
    if now < start - NOISE_NATS and first_broken(run) is None:
        claim = say(
            "no sign of too high a learning rate, peak {peak}: the training loss fell from "
            "{start} to {now}",
            **facts,
        )
        return Reading("pass", claim)
    return None


def _clipping(run: RunHistory) -> Reading | None:
    share = run.clipped_share
    norms = [value for _, value in finite(run.points("grad_norm"))]
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
    values = [value for _, value in finite(run.points("train_loss"))]
    if len(values) < TREND_POINTS:
        return math.nan, math.nan
    return statistics.median(values[:3]), statistics.median(values[-10:])
