"""Losses beside what knows nothing: the initial loss, and training on tokens of known entropy."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from diagnostics._text import Text, say
from diagnostics.page._charts import Bar, Level, Series, bar_chart, line_chart
from diagnostics.page._figure_parts import Figure, Found, find, floats, mapped, whole
from diagnostics.page._scales import number

SAMPLES = 20  # about so many points of a curve are stored


def draw_initial_loss(content: Mapping[str, Any]) -> Figure | None:
    """Draw the loss of the model beside those of a constant and of a random predictor."""
    found = find(content, "initial_loss")
    numbers = found.numbers
    fresh = numbers.get("judged_as") == "fresh"
    own = mapped(numbers.get("own_batch")) if fresh else numbers
    loss = number(numbers.get("loss_random") if fresh else numbers.get("loss"))
    uniform = number(numbers.get("baseline") if fresh else numbers.get("uniform"))
    if loss is None or uniform is None:
        return None
    here = say("this model, on random tokens") if fresh else say("this model, on its own batch")
    losses = {
        here: loss,
        say("this model, on its own batch"): number(own.get("loss")),
        say("frequencies only (unigram)"): number(own.get("unigram")),
        say("equal odds (ln V)"): uniform,
    }
    markup = bar_chart(
        "figure-initial-loss",
        _initial_finding(fresh, loss, uniform, number(own.get("unigram"))),
        label="predictor",
        x_label="loss (nats per token)",
        bars=[Bar(label=name, value=value) for name, value in losses.items() if value is not None],
    )
    return Figure("figure-initial-loss", "initial_loss", markup)


def _initial_finding(fresh: bool, loss: float, uniform: float, unigram: float | None) -> Text:
    facts = {"loss": loss, "uniform": uniform}
    if not math.isfinite(loss):
        return say("The loss before training is {loss}, no finite number", **facts)
    if fresh:
        return say(
            "Before training the model scores {loss} nats on random tokens; knowing nothing "
            "scores ln V = {uniform}",
            **facts,
        )
    if unigram is None:
        return say("The model scores {loss} nats; knowing nothing scores {uniform}", **facts)
    return say(
        "The model scores {loss} nats; the frequencies of tokens alone give {unigram}, knowing "
        "nothing {uniform}",
        unigram=unigram,
        **facts,
    )


def draw_honesty(content: Mapping[str, Any]) -> Figure | None:
    """Draw the losses on new tokens, above the entropies that none may fall below."""
    found = find(content, "honesty")
    curves: list[tuple[str, int, list[float | None]]] = []
    levels: list[Level] = []
    by_step = True
    for key, label, level in (("uniform", "uniform", "ln V'"), ("chain", "chain", "ln 2")):
        trial = mapped(found.numbers.get(key))
        losses, entropy = floats(trial.get("curve")), number(trial.get("entropy"))
        steps = whole(trial.get("steps"))
        if not losses or entropy is None or steps is None:
            continue
        stride = max(1, steps // SAMPLES)
        by_step &= len(losses) == -(-steps // stride)  # else the trial ended before its last step
        curves.append((label, stride, losses))
        levels.append(Level(label=level, y=entropy))
    if not curves:
        return None
    series = [
        Series(
            label=label, x=[(stride if by_step else 1) * n for n in range(len(losses))], y=losses
        )
        for label, stride, losses in curves
    ]
    markup = line_chart(
        "figure-honesty",
        _honesty_finding(found),
        x_label="step" if by_step else "sample of the steps",
        y_label="loss on new tokens (nats per token)",
        series=series,
        levels=levels,
        note=say(
            "Uniform: tokens drawn at random from V' symbols, of which nobody can predict one "
            "better than ln V'. Chain: each token has two equally likely successors, ln 2. A "
            "single batch may lie a little below by luck; the mean of the last steps is judged."
        ),
    )
    return Figure("figure-honesty", "honesty", markup)


def _honesty_finding(found: Found) -> Text:
    told: list[Text] = []
    below = False
    for key, name in (("uniform", "uniform tokens"), ("chain", "the chain")):
        trial = mapped(found.numbers.get(key))
        entropy = number(trial.get("entropy"))
        losses = {kind: number(trial.get(kind)) for kind in ("recomputed", "reported", "honest")}
        known = {kind: loss for kind, loss in losses.items() if loss is not None}
        if entropy is None or not known:
            continue
        kind = min(known, key=known.__getitem__) if found.status == "fail" else next(iter(known))
        below |= found.status == "fail" and known[kind] < entropy
        told.append(
            say(
                "{loss} nats on {name} ({what}entropy {entropy})",
                loss=known[kind],
                name=name,
                what=_KINDS[kind] if found.status == "fail" else "",
                entropy=entropy,
            )
        )
    reached = " and ".join(told)
    if below:
        return say("A loss ends below the entropy of its tokens: {reached}", reached=reached)
    return say("On new tokens the loss ends at {reached}", reached=reached)


_KINDS = {
    "recomputed": "recomputed from the logits; ",
    "reported": "as the model reports it; ",
    "honest": "against the next token; ",
}
