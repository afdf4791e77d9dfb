"""A page that is written while a loop trains, of any model.

    page = RunPage("run.html", total_steps=1000, vocab_size=65, clip_norm=1.0)
    with page:
        for step in range(1, 1001):
            ...
            page.log(step, loss=loss, learning_rate=rate, grad_norm=norm, clipped=norm > 1.0)

`TrainingMonitor(..., page=page)` logs what it is told and its messages, so that nothing but
`page.sample` is left to call. A page costs the run some milliseconds every few seconds, draws no
random numbers, and never ends it: a page that cannot be written is one message, and so is a value
that is no number. Threads may share a page. A process that is killed says nothing: then the time on
the page stands still.
"""

from __future__ import annotations

import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any

from diagnostics._text import say
from diagnostics.page._replace_text import replace_text, require_replaceable
from diagnostics.page._run_history import NAME_LENGTH, RunHistory, read_log
from diagnostics.page._run_memory import agrees, read_memory, recall
from diagnostics.page._run_numbers import STEP_MAX
from diagnostics.page._run_page import render_run_page

SHARE_MAX = 0.02  # of the time, at most, goes into rewriting a page that has grown large
SOON_SECONDS = 1.0  # a message is shown that soon after the last writing
MESSAGE_MAX = 1000  # characters of an error's own words
FACT_MAX = 2000  # characters of one fact


def to_stderr(text: str) -> None:
    """Write a sentence to standard error; a stream that is closed costs the sentence only."""
    if sys.stderr is not None:
        with suppress(OSError, ValueError):
            sys.stderr.write(f"{text}\n")
            sys.stderr.flush()


class RunPage:
    """The page of one run at `path`, rewritten in one piece while it trains.

    title: plain text.    total_steps: updates in the whole run, for the progress.
    vocab_size, unigram_entropy: V and nats, for the levels that a loss is compared with.
    clip_norm: the limit of the gradient norm.    best_path: where the best weights are kept.
    facts: name -> text, what the run was started with: sizes, device, data.
    every_seconds: how often the page is written at most; messages and the end come sooner. A
        browser loads it again twice as seldom, and no more once the run is over.
    on_warning: gets one sentence when the page cannot be written, and no second one; likewise for
        a value that cannot be shown.
    Raises OSError where no file can be written at `path`, ValueError for `total_steps` below 1;
    once it is made, it raises nothing. As a context manager it notes how the block ended and lets
    every exception through.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "Training run",
        total_steps: int | None = None,
        vocab_size: int | None = None,
        unigram_entropy: float | None = None,
        clip_norm: float | None = None,
        best_path: str | None = None,
        facts: Mapping[str, str] | None = None,
        every_seconds: float = 5.0,
        on_warning: Callable[[str], object] = to_stderr,
    ) -> None:
        if not 0 <= every_seconds < math.inf:
            raise ValueError(f"every_seconds must be a number >= 0, got {every_seconds}")
        if total_steps is not None and not 1 <= total_steps <= STEP_MAX:
            raise ValueError(f"total_steps must be a whole number >= 1, got {total_steps}")
        self.path = Path(path)
        self.every_seconds, self.on_warning = every_seconds, on_warning
        self.run = RunHistory(
            title=str(title),
            total_steps=None if total_steps is None else int(total_steps),
            vocab_size=vocab_size,
            unigram_entropy=unigram_entropy,
            clip_norm=clip_norm,
            best_path=None if best_path is None else str(best_path),
            facts={str(name): str(text)[:FACT_MAX] for name, text in (facts or {}).items()},
        )
        self._begin = monotonic()
        self._written = -math.inf  # when, and what it cost
        self._cost = 0.0
        self._warned: set[str] = set()  # what was warned of, each once
        self._lock = threading.RLock()  # a message may come from a thread, or from within
        self.path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(self.path)

    def log(self, step: int, **numbers: Any) -> None:
        """Take note of numbers after `step` updates; write the page where it is time to.

        Known names: `train_loss` (or `loss`, of an update's batches), `validation_loss`,
        `training_loss` (of an evaluation, measured like the validation loss), `learning_rate`,
        `grad_norm` (before clipping), `clipped` (true or false), `tokens_per_second`. Any other
        gets a chart of its own. None is left out, and so is what is no number, with a warning; a
        tensor on a GPU is waited for. After the end a later step opens the page again.
        """
        with self._lock:
            before = self.run.step
            self._take(self.run.add, step, numbers)
            self._note_progress(before)
            self._write(wait=self.every_seconds)

    def event(self, event: object) -> None:
        """Show a message: an `Event` of the monitor, whose count stays current, or a sentence."""
        with self._lock:
            self._take(self.run.add_event, event)
            self._write(wait=min(SOON_SECONDS, self.every_seconds))

    def sample(self, step: int, text: str, *, prompt: str = "") -> None:
        """Show a text that the model wrote after `step` updates, and what it was given to go on."""
        with self._lock:
            self._take(self.run.add_sample, step, text, prompt)
            self._write(wait=self.every_seconds)

    def go_on(
        self,
        step: int,
        *,
        log: str | os.PathLike[str] | None = None,
        clipped_updates: int | None = None,
    ) -> None:
        """Continue the page of a run that goes on after `step`; before anything else is logged.

        log: a `.jsonl` of the run, whose rows up to `step` are shown. What the page at `path` has
            beyond them (samples, messages, updates between the rows) is kept where its numbers are
            those of the log; without a log, wherever there is such a page.
        clipped_updates: of the first `step`; None: what rows and page know.
        """
        run = self.run
        memory = read_memory(self.path)
        rows = [] if log is None else _rows_until(step, log)
        if memory is not None and (log is None or agrees(memory, rows)):
            recall(run, memory, step)
        else:
            run.gaps.append(
                str(
                    say(
                        "Samples and messages from before step {step} are not known: no page with "
                        "the numbers of this run was here. The curves until there are from its "
                        "log.",
                        step=step,
                    )
                )
            )
        known = run.step
        for row in rows:
            if not run.series or row["step"] > known:
                run.add_row(row)
        if clipped_updates is not None:
            run.clipped_updates, run.judged_updates = clipped_updates, step
        run.step = step
        run.state.resumed_after = step
        run.state.counted_from = (step, monotonic() - self._begin)

    def finish(
        self, kind: str = "finished", message: str = "", *, postmortem: object = None
    ) -> None:
        """Write the page for the last time; the first call counts, later ones do nothing.

        kind: "finished", "early", "paused", "interrupted" or "failed"; another word is shown as it
            is.    message: the reason.
        postmortem: the path of the file that says what broke, where there is one.
        """
        with self._lock:
            state = self.run.state
            if state.kind != "running":
                return
            state.kind, state.message = str(kind)[:NAME_LENGTH], str(message)[:MESSAGE_MAX]
            state.postmortem = None if postmortem is None else str(postmortem)
            self._write(wait=-math.inf)

    def fail(self, error: BaseException, *, postmortem: object = None) -> None:
        """Write the page for the last time, of a run that ended with this error or with Ctrl-C."""
        kind, message = "failed", _words_of(error)
        if isinstance(error, KeyboardInterrupt):
            kind, message = "interrupted", ""
        elif isinstance(error, SystemExit) and error.code in (None, 0):
            kind, message = "interrupted", str(say("The program ended itself."))
        self.finish(kind, message, postmortem=postmortem)

    def __enter__(self) -> RunPage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.fail(error)
        self.finish()

    def _note_progress(self, before: int) -> None:
        """Begin to count with the first step; after the end, a later one says that it goes on."""
        run, state = self.run, self.run.state
        if state.counted_from is None:
            state.counted_from = (run.step, monotonic() - self._begin)
        if state.kind != "running" and run.step > before:
            state.kind, state.message, state.postmortem = "running", "", None

    def _take(self, add: Callable[..., object], *values: object) -> None:
        try:
            add(*values)
        except Exception as error:  # any: what a text's own str() raises, for example
            words = str(error) if isinstance(error, TypeError) else _words_of(error)
            self._warn_once("value", say("the page leaves out a value: {words}", words=words))

    def _write(self, wait: float) -> None:
        """Write the page unless it was written a moment ago; whatever goes wrong, the run goes on.

        wait: seconds since the last time. A page that took long to write waits longer.
        """
        start = monotonic()
        if start - self._written < max(wait, self._cost / SHARE_MAX if wait > 0 else wait):
            return
        state = self.run.state
        state.seconds = start - self._begin
        state.written = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        try:
            seconds = max(1, round(2 * self.every_seconds))
            replace_text(self.path, render_run_page(self.run, refresh_seconds=seconds))
        except Exception as error:  # any: the page is a courtesy, and hours of training are not
            self._warn(error)
        self._written = monotonic()
        self._cost = self._written - start

    def _warn(self, error: Exception) -> None:
        words = getattr(error, "strerror", None) or _words_of(error)
        self._warn_once(
            "page",
            say(
                "the page {path} cannot be written ({words}); the training goes on, and the page "
                "with it as soon as that is mended",
                path=str(self.path),
                words=words,
            ),
        )

    def _warn_once(self, about: str, sentence: str) -> None:
        if about not in self._warned:
            self._warned.add(about)
            with suppress(Exception):  # any: a listener that fails is no reason to stop
                self.on_warning(sentence)


def _words_of(error: BaseException) -> str:
    """Return class and message; an error may fail to say what it is."""
    message = ""
    with suppress(Exception):
        message = str(error)[:MESSAGE_MAX]
    return f"{type(error).__name__}: {message}" if message else type(error).__name__


def _rows_until(step: int, log: str | os.PathLike[str]) -> list[dict[str, Any]]:
    try:
        return [row for row in read_log(log) if row["step"] <= step]
    except OSError:
        return []
