"""Which of a text's tracebacks is the one to read, and what has to be said about the others."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from diagnostics._text import say
from diagnostics.help.traceback._cause_processes import is_echo
from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._notebook import parse_notebook
from diagnostics.help.traceback._parse import parse_python
from diagnostics.help.traceback._pytest import parse_pytest
from diagnostics.help.traceback._single import read_message
from diagnostics.help.traceback._text import Line, Stream
from diagnostics.help.traceback._trace import KNOWN_ENDING, Trace, read_exception

_ROOT_CAUSE = re.compile(r"Root Cause \(first observed failure\):[^=]{0,400}?\brank +: (\d{1,6})")
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) \S+(?:::\S+)* - (.*)$")
_COMMAND_ERROR = re.compile(r"^(?:[\w.-]+(?: \w+)?: )?error: (\S.*)$")
_KILLED = re.compile(
    r"^(?:\S+: line \d+: +\d+ )?(Killed|Segmentation fault|Bus error)\b(?: "
    r"*\(core dumped\))?.{0,80}$"
    r"|^(?:zsh: )?(killed) +\S.*$"
)
_ASSERTED = re.compile(r"\.cuh?:\d+: .*Assertion `.+` failed")
_WATCHDOG = re.compile(r"(Watchdog caught collective operation timeout: .*)$")
_TAIL_LINES = 400  # where a lone last line is looked for


@dataclass(frozen=True)
class Selection:
    """The traceback to read, how many there are, and remarks on what was passed over."""

    trace: Trace
    count: int
    notes: tuple[str, ...]


def find_traces(streams: Sequence[Stream]) -> list[Trace]:
    """Return the tracebacks of all streams and forms in the order of their ends."""
    found = [
        trace
        for stream in streams
        for parse in (parse_python, parse_notebook, parse_pytest)
        for trace in parse(stream)
    ]
    return sorted(found, key=lambda trace: (trace.end, trace.start))


def select(streams: Sequence[Stream], text: str) -> Selection | None:
    """Return the traceback to read: the last complete one, or the first rank that failed.

    None where the text holds nothing that ends a Python program.
    """
    traces = find_traces(streams)
    complete = [trace for trace in traces if trace.is_complete]
    lone = _last_words(streams)
    if lone is not None and (not complete or lone.kind == "Killed") and _is_after(lone, complete):
        return Selection(lone, len(complete), ())
    if not complete:
        return _incomplete(traces)
    causes = [t for t in complete if not t.is_ignored and not is_echo(t.kind, t.message)]
    if not causes:
        return Selection(complete[-1], len(complete), ())
    if len({trace.rank for trace in complete if trace.rank is not None}) or len(causes) < len(
        complete
    ):
        return _first_rank(complete, causes, text)
    chosen, notes = causes[-1], []
    if len(complete) > 1:
        notes.append(
            say(
                "{count} tracebacks are in this text; this is the last complete one",
                count=len(complete),
            )
        )
    if traces[-1] is not chosen and not traces[-1].kind and traces[-1].start > chosen.end:
        notes.append(
            say("a later traceback has no last line: the text ends inside it, or it was cut")
        )
    return Selection(chosen, len(complete), tuple(notes))


def _first_rank(complete: Sequence[Trace], causes: Sequence[Trace], text: str) -> Selection:
    """Several processes: torchrun names the first that failed, else the first error is it."""
    ranks = sorted({trace.rank for trace in causes if trace.rank is not None})
    named = _ROOT_CAUSE.findall(text)
    of_named = [trace for trace in causes if named and trace.rank == int(named[-1])]
    if of_named:
        chosen = of_named[0]
        how = say("torchrun observed rank {rank} as the first failure", rank=chosen.rank)
    elif ranks:
        chosen = min((t for t in causes if t.rank is not None), key=lambda trace: trace.start)
        how = say("rank {rank} is the first in this text whose error is its own", rank=chosen.rank)
    else:
        chosen = causes[-1]
        how = say("what only tells of another process, or what Python ignored, was passed over")
    notes = [how]
    if len(ranks) > 1:
        others = ", ".join(str(rank) for rank in ranks if rank != chosen.rank)
        notes.append(say("other ranks with errors of their own: {others}", others=others))
    if len(complete) > 1:
        notes.append(say("{count} tracebacks are in this text", count=len(complete)))
    return Selection(chosen, len(complete), tuple(notes))


def _incomplete(traces: Sequence[Trace]) -> Selection | None:
    cut = [trace for trace in traces if trace.frames]
    if not cut:
        return None
    note = say("the last line of this traceback is missing, which says what went wrong")
    return Selection(cut[-1], 0, (note,))


def _is_after(lone: Trace, complete: Sequence[Trace]) -> bool:
    return not complete or lone.start > complete[-1].end


def _last_words(streams: Sequence[Stream]) -> Trace | None:
    """Return a last line that stands alone: an exception, `Killed`, an `error:` of a command."""
    found: list[Trace] = []
    for stream in streams:
        lines = [line for line in stream.lines[-_TAIL_LINES:] if line.text.strip()]
        trace = next((t for line in reversed(lines) if (t := _lone(line, stream.rank))), None)
        if trace is not None:
            if trace.kind not in {"Killed", "error"}:
                at = next(at for at, line in enumerate(lines) if line.number == trace.start)
                rest, _ = read_message(lines, at + 1)
                trace = replace(trace, message="\n".join([trace.message, *rest]))
            found.append(trace)
        elif any(_ASSERTED.search(line.text) for line in lines):
            number = lines[-1].number
            message = "device-side assert triggered"
            found.append(_bare("CUDA error", message, number, stream.rank))
    return max(found, key=lambda trace: trace.start, default=None)


def _lone(line: Line, rank: int | None) -> Trace | None:
    text = line.text.strip()
    if match := _KILLED.match(text):
        kind = match[1] or "Killed"
        return _bare("Killed" if kind == "Killed" else kind, text, line.number, rank)
    if match := _COMMAND_ERROR.match(text):
        return _bare("error", match[1], line.number, rank)
    if match := _WATCHDOG.search(text):
        return _bare("DistBackendError", match[1], line.number, rank)
    if match := _SUMMARY.match(text):
        text = match[1]
    exception = (
        read_exception(text) if line.text[:1] not in {" ", "\t"} or "Error" in text else None
    )
    if exception is None or not KNOWN_ENDING.search(exception[0]) or "Warning" in exception[0]:
        return None
    return _bare(exception[0], exception[1], line.number, rank)


def _bare(kind: str, message: str, number: int, rank: int | None) -> Trace:
    frames: tuple[Frame, ...] = ()
    return Trace(
        kind=kind, message=message, frames=frames, start=number, end=number, rank=rank,
        start_is_cut=True,
    )  # fmt: skip
