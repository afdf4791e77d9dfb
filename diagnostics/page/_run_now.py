"""How far a run is, and the numbers that a person looks for first."""

from __future__ import annotations

import math
from collections.abc import Iterator

from diagnostics._text import printable, say, show
from diagnostics.page._markup import Child, Markup, element, isolate
from diagnostics.page._parts import prose
from diagnostics.page._run_findings import is_broken, shown_rate
from diagnostics.page._run_history import RunHistory

STATES = {  # symbol, class, words
    "running": ("\N{BLACK RIGHT-POINTING TRIANGLE}", "accent", "running"),
    "finished": ("\N{CHECK MARK}", "pass", "finished"),
    "early": ("\N{CHECK MARK}", "pass", "stopped early: no gain any more"),
    "paused": ("\N{DOUBLE VERTICAL LINE}", "warn", "paused"),
    "interrupted": ("\N{DOUBLE VERTICAL LINE}", "warn", "interrupted"),
    "failed": ("\N{BALLOT X}", "fail", "failed"),
    "unknown": ("\N{MIDDLE DOT}", "none", "from its log, which does not say how it ended"),
}
BROKEN = ("\N{BALLOT X}", "fail")


def now_card(run: RunHistory) -> Markup:
    """Return the state of the run: how far, how long, why it ended, where the best weights are."""
    state, total = run.state, run.total_steps
    symbol, kind, words = _words(run)
    bar = None
    if total:
        bar = element(
            "progress", value=min(max(run.step, 0), total), max=total, aria_label="steps made"
        )
    return element(
        "section",
        element(
            "p", element("span", symbol, aria_hidden="true"), f" {words}", class_=f"state {kind}"
        ),
        element("p", _where(run)),
        bar,
        _paragraph(_best(run)),
        _paragraph(state.message and prose(state.message)),
        _paragraph(
            state.postmortem
            and ["What broke, and where: ", element("code", isolate(state.postmortem))]
        ),
        [_paragraph(gap) for gap in run.gaps],
        class_="card now",
        aria_label="state of the run",
    )


def tiles(run: RunHistory) -> Markup | None:
    """Return the latest numbers, each with its unit or step."""
    shown = [
        element("div", element("dt", name), element("dd", value, element("span", note)))
        for name, value, note in _latest(run)
    ]
    return element("dl", shown, class_="tiles") if shown else None


def progress_word(run: RunHistory) -> str:
    """Return what a browser's tab shows first."""
    if run.state.kind == "running" and run.total_steps:
        return f"{min(max(100 * run.step // run.total_steps, 0), 100)}%"  # 100 is the end
    return printable(run.state.kind) if run.state.kind != "unknown" else "log"


def duration(seconds: float) -> str:
    """Return a time as a person says it: `45 s`, `12 min 5 s`, `3 h 2 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _words(run: RunHistory) -> tuple[str, str, str]:
    kind = run.state.kind
    symbol, colour, words = STATES.get(kind, ("\N{MIDDLE DOT}", "none", printable(kind)))
    if kind != "failed" and is_broken(run):  # a run that goes on with nan is not well
        return BROKEN[0], BROKEN[1], say("{words}, with a loss that is no number", words=words)
    if kind == "finished" and run.total_steps and run.step < run.total_steps:
        return STATES["paused"][0], "warn", say("ended before its last step")
    return symbol, colour, words


def _where(run: RunHistory) -> str:
    """Say the step, the time since the start and the time to go."""
    state, total, begin = run.state, run.total_steps, run.state.resumed_after
    parts = [say("step {step}", step=f"{run.step:,}")]
    if total:
        parts[0] = say("step {step} of {total}", step=f"{run.step:,}", total=f"{total:,}")
    if state.seconds is not None:
        since = say("since the start")
        if begin is not None:
            since = say("since it went on after step {step}", step=f"{begin:,}")
        parts.append(say("{time} {since}", time=duration(state.seconds), since=since))
        left = _seconds_left(run)
        if left is not None:
            parts.append(say("about {time} to go", time=duration(left)))
    return ", ".join(parts)


def _seconds_left(run: RunHistory) -> float | None:
    """Return the time to go at the pace so far; None where it is over, or has only begun."""
    state, total = run.state, run.total_steps
    if state.kind != "running" or not total or state.seconds is None:
        return None
    step, before = state.counted_from or (state.resumed_after or 0, 0.0)
    if not step < run.step < total:
        return None
    return (state.seconds - before) / (run.step - step) * (total - run.step)


def _best(run: RunHistory) -> Child:
    if run.best is None:
        return None
    step, loss = run.best
    head = say("Best so far") if run.state.kind == "running" else say("Best")
    facts = {"head": head, "loss": loss, "step": f"{step:,}"}
    best = say("{head}: validation loss {loss} at step {step}", **facts)
    if run.best_path is None:
        return best
    return [best, ", kept in ", element("code", isolate(run.best_path))]


def _latest(run: RunHistory) -> Iterator[tuple[str, str, str]]:
    """Yield (name, value, note)."""
    for name, series, unit in (
        ("validation loss", "validation_loss", "nats, step {step}"),
        ("training loss", "training_loss", "nats, step {step}, as validation"),
        ("loss of one update", "train_loss", "nats, step {step}"),
    ):
        points = run.points(series)
        if points:
            yield name, show(points[-1][1]), say(unit, step=f"{points[-1][0]:,}")
    if run.clipped_updates or (run.clip_norm and run.judged_updates):
        limit = say(", at {limit}", limit=float(run.clip_norm)) if run.clip_norm else ""
        note = say("of {n:update|updates}{limit}", n=run.judged_updates, limit=limit)
        yield "clipped", say("{share:%}", share=run.clipped_share), note
    rates, speeds = run.points("learning_rate"), run.points("tokens_per_second")
    if rates:
        yield (
            "learning rate",
            shown_rate(rates[-1][1]),
            say("step {step}", step=f"{rates[-1][0]:,}"),
        )
    if speeds and math.isfinite(speeds[-1][1]):
        yield "speed", f"{speeds[-1][1]:,.0f}", say("tokens per second")


def _paragraph(content: Child) -> Markup | None:
    return element("p", content) if content else None
