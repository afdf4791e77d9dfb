"""Sentences and their order: a fault is one event, and what it leads to is a note."""

from __future__ import annotations

import io
import sys

import pytest

from diagnostics._text import say
from diagnostics.monitor.events import Event, Speaker, to_stderr


def speak(speaker: Speaker, reason: str, step: int, key: str = "") -> None:
    speaker.speak(reason, step, say("x"), say("y"), key=key)


def reasons(events: list[Event]) -> list[str]:
    return [event.reason.removeprefix("monitor.") for event in events]


def test_what_a_problem_leads_to_is_a_note() -> None:
    speaker = Speaker(None)
    speak(speaker, "updates_too_large", 2, key="group 0")
    speak(speaker, "loss_diverges", 10)
    speak(speaker, "optimizer_misses", 20)
    assert reasons(speaker.events) == ["updates_too_large", "optimizer_misses"]
    assert reasons(speaker.notes) == ["loss_diverges"]


def test_long_after_it_is_a_problem_of_its_own() -> None:
    """200 updates after the first was seen last; a note leads to nothing."""
    speaker = Speaker(None)
    speak(speaker, "updates_too_large", 2, key="group 0")
    speak(speaker, "updates_too_large", 10, key="group 0")
    speak(speaker, "loss_spike", 210)
    speak(speaker, "loss_diverges", 211)
    assert reasons(speaker.notes) == ["loss_spike"]
    assert reasons(speaker.events) == ["updates_too_large", "loss_diverges"]


def test_code_keeps_its_letters_at_the_start_of_a_sentence() -> None:
    def told(cause: str) -> str:
        speaker = Speaker(None)
        return str(speaker.speak("a", 1, say("b"), say("c"), cause=say(cause)))

    assert told("zero_grad() is not called").startswith(
        "[monitor] step 1: b; expected c. zero_grad() is not"
    )
    assert told("the loop ends").startswith("[monitor] step 1: b; expected c. The loop ends")


def test_a_closed_stream_does_not_end_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    event = Event(reason="monitor.a", step=1, claim=say("b"), expected=say("c"))
    stream = io.StringIO()
    stream.close()
    monkeypatch.setattr(sys, "stderr", stream)
    to_stderr(event)
    monkeypatch.setattr(sys, "stderr", None)
    to_stderr(event)
