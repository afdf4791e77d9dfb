"""The page of a training run: how far it is, what its numbers say, charts, samples, messages.

Drawn from a `RunHistory`, or from the log of a run alone. The page carries the history along in a
hidden element, so that a run that goes on after a break finds its own past there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from diagnostics._text import Text, say
from diagnostics.page._frame import document
from diagnostics.page._markup import Child, Markup, element, isolate
from diagnostics.page._parts import facts, prose
from diagnostics.page._run_figures import not_drawn, run_figures
from diagnostics.page._run_history import RunHistory
from diagnostics.page._run_memory import memory_of
from diagnostics.page._run_now import now_card, progress_word, tiles
from diagnostics.page._run_reading import Reading
from diagnostics.page._run_readings import readings
from diagnostics.page._run_style import RUN_STYLE
from diagnostics.page._run_told import messages, samples

READINGS = {  # a symbol and a word, for colour alone tells nothing to one reader in twelve
    "pass": ("\N{CHECK MARK}", "fine"),
    "warn": ("!", "look"),
    "fail": ("\N{BALLOT X}", "broken"),
    "none": ("\N{MIDDLE DOT}", "note"),
}


def render_run_page(
    run: RunHistory | str | os.PathLike[str], *, refresh_seconds: int | None = None
) -> str:
    """Return the page of a run as one file of HTML.

    run: a history, or the path of a `.jsonl` log, such as `checkpoints/mini_gpt_log.jsonl`.
    refresh_seconds: how often a browser loads it again, as long as the run is going on.
    Raises OSError or ValueError where a log cannot be read.
    """
    if not isinstance(run, RunHistory):
        run = RunHistory.from_log(run)
    refresh_seconds = refresh_seconds if run.state.kind == "running" else None
    return document(
        f"{progress_word(run)} - {run.title}",
        element("div", *_parts(run), memory_of(run), class_="run"),
        refresh_seconds=refresh_seconds,
        style=RUN_STYLE,
        footer=_footer(run, refresh_seconds),
    )


def _parts(run: RunHistory) -> Iterator[Child]:
    yield element("h1", isolate(run.title))
    yield now_card(run)
    yield tiles(run)
    said = readings(run)
    if said:
        yield element("h2", "What the numbers say")
        yield element("ul", (_reading(one) for one in said), class_="readings")
    if run.events:
        yield element("h2", "Messages")
        yield messages(run)
    charts = list(run_figures(run))
    if charts:
        yield element("h2", "Curves")
        yield element("div", charts, class_="charts")
        yield not_drawn(run)
    if run.samples:
        yield element("h2", "What the model writes")
        yield samples(run)
    if run.facts:
        yield element("h2", "How it was started")
        pairs = ((name, isolate(text)) for name, text in run.facts.items())
        yield element("div", facts(pairs), class_="card")


def _reading(reading: Reading) -> Markup:
    symbol, word = READINGS[reading.status]
    return element(
        "li",
        element("span", f"{symbol} {word}", class_=f"state {reading.status}"),
        element("div", element("p", prose(reading.claim)), _next(reading.next_step)),
    )


def _next(step: Text | None) -> Markup | None:
    return None if step is None else element("p", element("b", "next"), " ", prose(step))


def _footer(run: RunHistory, refresh_seconds: int | None) -> Markup | None:
    sentences = []
    if run.state.written:
        sentences.append(say("Written at {time}.", time=run.state.written))
    if refresh_seconds is not None:
        sentences.append(
            say(
                "While the run goes on, a browser loads this page again every {n:second|seconds}; "
                "if the time stands still, the process has ended without a word.",
                n=refresh_seconds,
            )
        )
    return element("p", " ".join(sentences)) if sentences else None
