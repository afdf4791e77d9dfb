"""Measurements behind the items of a checklist that no check ticks, and the habits they show.

Each takes what is known of a run and returns a mark: right, wrong, or not measured.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from diagnostics._text import Text, say
from diagnostics.help.checklists import _log_marks
from diagnostics.help.checklists._mark import OPEN, RIGHT, WRONG, Facts, Mark
from diagnostics.help.checklists._run_log import as_number

IGNORED_NATS = 0.01  # a prompt that changes the predictions by less is ignored
ORDINARY_REPETITION, HEAVY_REPETITION = 0.2, 0.5  # share of 8-character runs; prose is below 0.2


def _baselines(facts: Facts) -> Mark:
    result = facts.results.get("initial_loss")
    if result is None:
        return Mark(OPEN)
    numbers = result.numbers
    own = numbers.get("own_batch")
    own = own if isinstance(own, Mapping) else numbers
    uniform, unigram = as_number(own.get("uniform")), as_number(own.get("unigram"))
    if uniform is None or unigram is None:
        return Mark(OPEN)
    return Mark(
        RIGHT,
        say(
            "a blind guess scores {uniform} nats, a constant predictor {unigram}, on your batch",
            uniform=uniform,
            unigram=unigram,
        ),
    )


def _starts_fresh(facts: Facts) -> Mark:
    result = facts.results.get("initial_loss")
    if result is None or result.numbers.get("judged_as") != "fresh" or not result.passed:
        return Mark(OPEN)
    return Mark(RIGHT, say("initial_loss: {claim}", claim=result.claim))


def _temperature(facts: Facts) -> Mark:
    value = facts.setting("temperature")
    if value is None:
        return Mark(OPEN)
    if not value > 0:
        text = say("temperature {t}: the most probable token is always taken", t=value)
        return Mark(WRONG, text)
    return Mark(RIGHT if value < math.inf else WRONG, say("temperature {t}", t=value))


def _top_k(facts: Facts) -> Mark:
    size = facts.vocab_size
    if "top_k" not in facts.settings or size is None:
        return Mark(OPEN)
    if facts.settings["top_k"] is None:
        return Mark(RIGHT, say("top-k is off; V is {V}", V=size))
    value = facts.setting("top_k")
    if value is None:
        return Mark(OPEN)
    text = say("top-k {k}, V is {V}", k=facts.settings["top_k"], V=size)
    return Mark(RIGHT if 1 <= value <= size else WRONG, text)


def _prompt(facts: Facts) -> Mark:
    nats = facts.setting("prompt_nats")
    if nats is None:
        return Mark(OPEN)
    changed = facts.setting("prompt_changed") or 0
    text = say(
        "a rich prompt changes the predictions by {nats} nats on average"
        + (", and the most probable token {changed:time|times}" if changed else ""),
        nats=nats,
        changed=int(changed),
    )
    used = nats > IGNORED_NATS or (changed > 0 and nats >= 0)  # NaN is no use of a prompt
    return Mark(RIGHT if used else WRONG, text)


def _repetition(facts: Facts) -> Mark:
    rate = facts.setting("repetition_rate")
    if rate is None or not 0 <= rate <= 1:
        return Mark(OPEN)
    meaning = "ordinary prose" if rate < ORDINARY_REPETITION else "more than prose usually has"
    if rate >= HEAVY_REPETITION:
        meaning = "it goes in circles"
    text = say("{rate:%} of the 8-character runs repeat: {meaning}", rate=rate, meaning=meaning)
    return Mark(WRONG if rate >= HEAVY_REPETITION else RIGHT, text)


MEASURES: dict[str, Callable[[Facts], Mark]] = {
    "baselines": _baselines,
    "starts_fresh": _starts_fresh,
    "rate_logged": _log_marks.rate_logged,
    "norm_logged": _log_marks.norm_logged,
    "clipped_share": _log_marks.clipped_share,
    "finite": _log_marks.finite,
    "events": _log_marks.events,
    "loss_falls": _log_marks.loss_falls,
    "gap": _log_marks.gap,
    "best_checkpoint": _log_marks.best_checkpoint,
    "early_stopping": _log_marks.early_stopping,
    "temperature": _temperature,
    "top_k": _top_k,
    "prompt": _prompt,
    "repetition": _repetition,
}


def habits(facts: Facts) -> list[Text]:
    """Return the habits that make debugging harder and that the numbers show; none by guess."""
    found = []
    if _log_marks.clipped_share(facts).box == WRONG:
        found.append(say("clipping as a cure: find out what makes the gradient large"))
    overfit = facts.results.get("overfit")
    left_out = overfit is None and "optimizer" in facts.results  # its neighbour was asked for
    if left_out or (overfit is not None and overfit.status == "skip"):
        found.append(say("skipped small tests: overfit was not run, and it is the cheapest gate"))
    warned = [r.check for r in facts.results.values() if r.status == "warn"]
    if warned:
        names = ", ".join(warned)
        found.append(
            say("warnings that are left open: {names}; judge or declare them", names=names)
        )
    return found
