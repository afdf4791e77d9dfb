"""A reading of a traceback as lines for a terminal: ASCII words, at most 80 columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnostics._text import say
from diagnostics.help._lines import lines_of
from diagnostics.help.traceback._rules import short

if TYPE_CHECKING:
    from diagnostics.help.traceback import TracebackReading

MESSAGE_SHOWN = 240  # characters of the last line
_LABEL_WIDTH = 11


def render(reading: TracebackReading) -> str:
    """Return the reading as lines for a terminal, at most 80 columns wide."""
    if not reading.found:
        return "\n".join(_render_nothing(reading))
    lines: list[str] = []
    last = f"{reading.kind}: {reading.message}" if reading.message else reading.kind
    lines += _field("what", _beginning(last) or "the last line is missing")
    lines += _field("where", _where(reading))
    lines += _field("which way", " > ".join(reading.way))
    for earlier in reading.raised_from:
        lines += _field("earlier", earlier)
    for member in reading.members:
        lines += _field("inside", member)
    lines += _render_explanation(reading)
    for note in reading.notes:
        lines += _field("note", note)
    return "\n".join(lines)


def _where(reading: TracebackReading) -> str:
    frame = reading.where
    if frame is None:
        if reading.surfaced is None:
            return ""
        return say(
            "no frame of your own code; it surfaced in {library}, {place}",
            library=reading.surfaced.library,
            place=reading.surfaced.place,
        )
    inside = f", in {frame.function}" if frame.function not in {"", "<module>"} else ""
    code = f": {short(frame.code, 160)}" if frame.code else ""
    return f"{frame.place}{inside}{code}"


def _render_explanation(reading: TracebackReading) -> list[str]:
    told = reading.explanation
    if told is None:
        return [
            *_field(
                "cause",
                say(
                    "no rule fits this message; the text does not point to a cause that is "
                    "known here"
                ),
            ),
            *_field("next", _general_step(reading)),
        ]
    lines = _field("cause", told.cause)
    if told.others:
        lines += _field("", told.others_are or say("or, which the text cannot tell apart"))
    for number, other in enumerate(told.others, 1):
        lines += lines_of(" " * _LABEL_WIDTH + f"{number}. ", other)
    if reading.told_by:
        lines += _field("", say("(this explains the earlier {told_by})", told_by=reading.told_by))
    lines += _field("evidence", told.evidence)
    return lines + _field("next", told.next_step)


def _general_step(reading: TracebackReading) -> str:
    if reading.surfaced is None:
        return say("paste all of what the program printed, down to its last line: 2> error.txt")
    if reading.where is None:
        return say("read the frames from the bottom to the first one that is yours")
    return say(
        "print the values that the line {place} uses, on the line before it",
        place=reading.where.place,
    )


def _render_nothing(reading: TracebackReading) -> list[str]:
    lines = lines_of(
        "",
        say(
            "no traceback found: neither the line `Traceback (most recent call last)`, "
            "nor a notebook's or pytest's form of it, nor a last line such as "
            "`ValueError: ...`"
        ),
    )
    for note in reading.notes:
        lines += _field("note", note)
    return lines + _field(
        "next", say("paste all of what the program printed, down to its last line: 2> error.txt")
    )


def _field(label: str, text: str) -> list[str]:
    return lines_of(f"{label:<{_LABEL_WIDTH}}", text) if text else []


def _beginning(text: str) -> str:
    """Return the start of a message on one line: its later lines are lists and advice."""
    line = " ".join(text[: 20 * MESSAGE_SHOWN].split())
    return line if len(line) <= MESSAGE_SHOWN else line[:MESSAGE_SHOWN].rpartition(" ")[0] + " ..."
