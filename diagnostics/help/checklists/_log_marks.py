"""Measurements of a run's log for the checklist during training.

Each takes what is known of a run and returns a mark: right, wrong, or not measured.
"""

from __future__ import annotations

import math

from diagnostics._text import say
from diagnostics.help.checklists._mark import OPEN, RIGHT, WRONG, Facts, Mark
from diagnostics.help.checklists._run_log import as_number

CONSTANT_CLIPPING = 0.95  # share of clipped steps from which a training run says so itself
ROWS_MIN = 5  # fewer logged steps say nothing about a share
GAP_NATS, RISE_NATS = 0.1, 0.01  # as a training run says "overfitting" at its end
LATE = 5  # evaluations in a row without a better loss: the usual patience


def rate_logged(facts: Facts) -> Mark:
    return _logged(facts, "learning_rate", "a rate")


def norm_logged(facts: Facts) -> Mark:
    return _logged(facts, "grad_norm", "a norm")


def _logged(facts: Facts, name: str, what: str) -> Mark:
    updates = facts.log.updates
    if not updates:
        return Mark(OPEN)
    found = [value for row in updates if (value := as_number(row.get(name))) is not None]
    if len(found) < len(updates):
        text = say(
            "{n} of {total} rows of the log hold {what}",
            n=len(found),
            total=len(updates),
            what=what,
        )
        return Mark(WRONG, text)
    text = say(
        "all {total:row|rows} of the log hold {what}, from {low} to {high}",
        total=len(updates),
        what=what,
        low=min(found),
        high=max(found),
    )
    return Mark(RIGHT, text)


def clipped_share(facts: Facts) -> Mark:
    known = [row["clipped"] for row in facts.log.updates if isinstance(row.get("clipped"), bool)]
    if len(known) < ROWS_MIN:
        return Mark(OPEN)
    clipped = sum(known)
    text = say("{n} of {total} logged steps were clipped", n=clipped, total=len(known))
    if clipped < CONSTANT_CLIPPING * len(known):
        return Mark(RIGHT, text)
    more = "if the loss falls well, raise the limit; if not, clipping hides what makes it large"
    return Mark(WRONG, say("{text}: {more}", text=text, more=more))


def finite(facts: Facts) -> Mark:
    if facts.log.postmortem is not None:
        return Mark(WRONG, say("a post-mortem says: {text}", text=facts.log.postmortem))
    if not facts.log.rows:
        return Mark(OPEN)
    names = ("train_loss", "training_loss", "validation_loss", "grad_norm")
    for row in facts.log.rows:
        for name in names:
            value = as_number(row.get(name))
            if value is not None and not math.isfinite(value):
                return Mark(
                    WRONG,
                    say("{name} is {value} at step {s}", name=name, value=value, s=row["step"]),
                )
    last = facts.log.rows[-1]["step"]
    n = len(facts.log.rows)
    return Mark(RIGHT, say("finite in all {n:row|rows}, to step {last}", n=n, last=last))


def events(facts: Facts) -> Mark:
    if not facts.log.events:
        return Mark(OPEN)
    return Mark(WRONG, say("it said: {text}", text=facts.log.events[0]))


def loss_falls(facts: Facts) -> Mark:
    losses = facts.log.losses("training_loss", "train_loss")
    if len(losses) < 2:
        return Mark(OPEN)
    (first_step, first), (last_step, last) = losses[0], losses[-1]
    text = say(
        "{first} nats at step {a}, {last} at step {b}",
        first=first,
        a=first_step,
        last=last,
        b=last_step,
    )
    return Mark(RIGHT if last < first else WRONG, text)


def gap(facts: Facts) -> Mark:
    pairs = facts.log.pairs
    if not pairs:
        return Mark(OPEN)
    training, validation, alike = pairs[-1]
    gap = validation - training
    rise = validation - min(loss for _, loss in facts.log.validation)
    text = say(
        "validation - training = {v} - {t} = {gap} nats{how}; validation is {rise} above its best",
        v=validation,
        t=training,
        gap=gap,
        how="" if alike else " (training on one batch)",
        rise=rise,
    )
    return Mark(WRONG if gap > GAP_NATS and rise > RISE_NATS else RIGHT, text)


def best_checkpoint(facts: Facts) -> Mark:
    best, own = facts.log.best, facts.setting("checkpoint_step")
    if best is None:
        return Mark(OPEN)
    step, loss = best
    if own is None:
        return Mark(
            OPEN, say("the lowest validation loss is {loss} at step {s}", loss=loss, s=step)
        )
    text = say(
        "the checkpoint is of step {own}; validation is lowest at step {s}, with {loss} nats",
        own=int(own) if own.is_integer() else own,
        s=step,
        loss=loss,
    )
    return Mark(RIGHT if own == step else WRONG, text)


def early_stopping(facts: Facts) -> Mark:
    best = facts.log.best
    if best is None:
        return Mark(OPEN)
    since = sum(step > best[0] for step, _ in facts.log.validation)
    text = say(
        "{n:evaluation|evaluations} since the best one, at step {step}", n=since, step=best[0]
    )
    if since == 0:
        return Mark(RIGHT, say("the last evaluation is the best one, at step {s}", s=best[0]))
    return Mark(WRONG if since >= LATE else OPEN, text)
