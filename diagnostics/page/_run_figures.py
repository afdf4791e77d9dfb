"""The charts of a run, each with what it shows as its heading."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from diagnostics._text import say
from diagnostics.page._charts import Level, Series, line_chart
from diagnostics.page._markup import Markup, element
from diagnostics.page._parts import facts
from diagnostics.page._run_findings import (
    gap_finding,
    loss_finding,
    norm_finding,
    rate_finding,
    speed_finding,
)
from diagnostics.page._run_history import KNOWN, LOSSES, RunHistory
from diagnostics.page._thinning import Point

OTHERS_MAX = 12  # charts of numbers that the page has no words for
LOSS_NAMES = {
    "train_loss": "training, each update",
    "training_loss": "training",
    "validation_loss": "validation",
}
STEP = "step"
DECADES = 20.0  # from this ratio of largest to smallest on, an axis is logarithmic


def run_figures(run: RunHistory) -> Iterator[Markup]:
    """Yield the charts that there are numbers for, the loss first."""
    losses = [name for name in LOSSES if run.points(name)]
    if losses:
        yield _loss_chart(run, losses)
    if _drawable(run.points("learning_rate")):
        yield _chart("rate", rate_finding(run), "learning rate", run.points("learning_rate"))
    if _drawable(run.gap()):
        note = say("Validation loss - training loss of the same evaluation, measured alike.")
        gap = run.gap()
        yield _chart("gap", gap_finding(run), "gap, nats", gap, note=note, zero=True)
    if _drawable(run.points("grad_norm")):
        yield _norm_chart(run)
    if _drawable(run.points("tokens_per_second")):
        points = run.points("tokens_per_second")
        yield _chart("speed", speed_finding(run), "tokens per second", points)
    for number, name in enumerate(_others(run)[:OTHERS_MAX]):
        points = run.points(name)
        step, value = points[-1]
        finding = say("{name} is {value} at step {step}", name=name, value=value, step=step)
        yield _chart(f"other-{number}", finding, name, points)


def not_drawn(run: RunHistory) -> Markup | None:
    """Return the latest values of what there are too many names of to draw."""
    latest = [(name, run.points(name)[-1]) for name in _others(run)[OTHERS_MAX:]]
    if not latest:
        return None
    pairs = [
        (name, say("{value} at step {step}", value=value, step=f"{step:,}"))
        for name, (step, value) in latest
    ]
    head = say("{n:number|numbers} without a chart", n=len(pairs))
    return element("details", element("summary", head), facts(pairs))


def _others(run: RunHistory) -> list[str]:
    return [name for name in run.series if name not in KNOWN and _drawable(run.points(name))]


def _loss_chart(run: RunHistory, names: Sequence[str]) -> Markup:
    levels = []
    if run.vocab_size is not None and run.vocab_size > 1:
        levels.append(Level(label=f"ln {run.vocab_size}", y=math.log(run.vocab_size)))
    if run.unigram_entropy is not None:
        levels.append(Level(label="single tokens", y=run.unigram_entropy))
    meanings = []
    if run.vocab_size is not None and run.vocab_size > 1:
        meanings.append(say("ln {V} is a blind guess.", V=run.vocab_size))
    if run.unigram_entropy is not None:
        meanings.append(say("Single tokens: a model that knows how frequent each token is."))
    series = [_series(LOSS_NAMES[name], run.points(name)) for name in names]
    return line_chart(
        "loss",
        loss_finding(run),
        x_label=STEP,
        y_label="loss, nats per token",
        series=series,
        levels=levels,
        log_y=_spans_decades([value for one in series for value in one.y]),
        note=" ".join(meanings),
    )


def _norm_chart(run: RunHistory) -> Markup:
    points = run.points("grad_norm")
    levels = [] if not run.clip_norm else [Level(label="limit", y=float(run.clip_norm))]
    values = [value for _, value in points]
    return line_chart(
        "norm",
        norm_finding(run),
        x_label=STEP,
        y_label="gradient norm",
        series=[_series("gradient norm", points)],
        levels=levels,
        log_y=_spans_decades([*values, *(level.y for level in levels)]),
    )


def _chart(
    name: str,
    finding: str,
    y_label: str,
    points: Sequence[Point],
    *,
    note: str = "",
    zero: bool = False,
) -> Markup:
    return line_chart(
        name,
        finding,
        x_label=STEP,
        y_label=y_label,
        series=[_series(y_label, points)],
        levels=[Level(label="no gap", y=0.0)] if zero else (),
        note=note,
    )


def _series(label: str, points: Sequence[Point]) -> Series:
    return Series(label=label, x=[step for step, _ in points], y=[value for _, value in points])


def _spans_decades(values: Sequence[float | None]) -> bool:
    """Tell whether small values would vanish beside large ones: 590 and 0.4.

    A logarithm has no place for a negative value, which some losses have.
    """
    if any(value is not None and -math.inf < value < 0 for value in values):
        return False
    positive = [value for value in values if value is not None and 0 < value < math.inf]
    return bool(positive) and max(positive) > DECADES * min(positive)


def _drawable(points: Sequence[Point]) -> bool:
    return any(math.isfinite(value) for _, value in points)
