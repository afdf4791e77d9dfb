"""A traceback, read from the bottom: what, where, which way, the likely cause, the next step.

    reading = read_traceback(text)      # pasted text, a log around it, a notebook's, pytest's
    print(render(reading))

The last line says what went wrong. The first frame from the bottom that is your own code says
where; the frames above it are the way there, the ones below it are a library's. A cause is named
only where the text holds the evidence for it. Imports no torch: a person who asks does not wait.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from diagnostics._text import say
from diagnostics.help.traceback._causes import explain
from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._render import render
from diagnostics.help.traceback._rules import Explanation, short
from diagnostics.help.traceback._select import Selection, select
from diagnostics.help.traceback._text import read_source, to_streams
from diagnostics.help.traceback._trace import Trace

__all__ = [
    "TracebackReading",
    "answer_traceback",
    "read_traceback",
    "read_traceback_file",
    "render",
]

SCHEMA_VERSION = 1
STANDARD_INPUT = "-"
EARLIER_SHOWN = 5  # exceptions before this one, and members of a group
WAY_SHOWN = 9  # steps of the way; the middle of a longer one is left out


@dataclass(frozen=True, kw_only=True)
class TracebackReading:
    """What a traceback says.

    kind, message: the exception's class and its whole message; kind is "" where the last line is
    missing.    where: the last own frame, None where all are a library's.    surfaced: the last
    frame of all.    way: the calls from the first to the last, shortened.    raised_from: the
    exceptions before this one, the root last.    members: those of an exception group.
    explanation: the likely cause, or None; told_by: the exception that it explains, where that is
    an earlier one.    rank: of the process, or None.    count: complete tracebacks in the text.
    found: False where there is none to read.
    """

    found: bool
    kind: str = ""
    message: str = ""
    where: Frame | None = None
    surfaced: Frame | None = None
    way: tuple[str, ...] = ()
    raised_from: tuple[str, ...] = ()
    members: tuple[str, ...] = ()
    explanation: Explanation | None = None
    told_by: str = ""
    form: str = ""
    rank: int | None = None
    count: int = 0
    notes: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 where there was something to read, 2 where there was not."""
        return 0 if self.found else 2

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, with the kind of document and its schema's version."""
        content = {key: _plain(value) for key, value in asdict(self).items()}
        return {
            "kind": "diagnostics.traceback",
            "schema_version": SCHEMA_VERSION,
            "reading": content,
        }

    def __str__(self) -> str:
        return render(self)


def read_traceback(text: str, *, skipped_bytes: int = 0) -> TracebackReading:
    """Return what the traceback in the text says; of several the last complete one.

    skipped_bytes: how much stood before the text and was not read; it is only mentioned.
    """
    streams = to_streams(text)
    clean = "\n".join(line.text for stream in streams for line in stream.lines)
    selection = select(streams, clean)
    skipped = (
        (say("the first {size} MiB of the text were not read", size=skipped_bytes / 2**20),)
        if skipped_bytes
        else ()
    )
    if selection is None:
        return TracebackReading(found=False, notes=skipped)
    return _read(selection, clean, skipped)


def read_traceback_file(source: BinaryIO | str | Path) -> TracebackReading:
    """Read a file, or a binary stream such as sys.stdin.buffer; raises OSError.

    Of a long log only the end is read (2 MiB); UTF-16, as PowerShell writes it, is recognised.
    """
    if isinstance(source, (str, Path)):
        with Path(source).open("rb") as file:
            found = read_source(file)
    else:
        found = read_source(source)
    return read_traceback(found.text, skipped_bytes=found.skipped_bytes)


def answer_traceback(path: str) -> tuple[str, int]:
    """Return the text and the exit code of `--traceback PATH`; "-" reads standard input.

    Raises OSError, with the path in it, for a file that cannot be read.
    """
    source = sys.stdin.buffer if path == STANDARD_INPUT else path
    reading = read_traceback_file(source)
    return render(reading), reading.exit_code


def _read(selection: Selection, text: str, skipped: Sequence[str]) -> TracebackReading:
    trace = selection.trace
    told = explain(trace, text) if trace.kind else None
    told_by, explanation = told if told else (trace, None)
    # a group and a wrapper of torch.compile have their frames inside
    frames = (*trace.frames, *trace.user_frames)
    where = _last_own(frames)
    if trace.members:
        where = _last_own(trace.members[0].frames) or where
    if explanation is not None and where is None:
        where = _last_own(told_by.frames)
    return TracebackReading(
        found=True,
        kind=trace.kind,
        message=trace.message,
        where=where,
        surfaced=frames[-1] if frames else None,
        way=_way(frames),
        raised_from=_raised_from(trace),
        members=_members(trace),
        explanation=explanation,
        told_by="" if told_by is trace else _last_line(told_by),
        form=trace.form,
        rank=trace.rank,
        count=selection.count,
        notes=(*_remarks(trace), *selection.notes, *skipped),
    )


def _remarks(trace: Trace) -> Iterator[str]:
    if trace.start_is_cut and trace.frames:
        yield say("the start of this traceback is missing; calls may stand before the first shown")
    elif not trace.frames and not trace.members:
        yield say("there are no frames with it, so that the text does not say where")
    if trace.is_native:
        yield say("a stack of C++ calls was left out: it says nothing about your code")
    if re.search(r"device-side assert|CUDA error|cuda error", trace.message) and trace.frames:
        yield say("a GPU works behind the program, so that the place may be later than the fault")
    repeated = max((frame.repeats for frame in trace.frames), default=0)
    if repeated:
        yield say("the last call came {count:more time|more times} in a row", count=repeated)


def _raised_from(trace: Trace) -> tuple[str, ...]:
    words = {
        "from": say("raised from "),
        "during": say("while handling "),
        "original": say("reported as "),
    }
    found: list[str] = []
    for later, earlier in zip(trace.chain, trace.chain[1:], strict=False):
        own = _last_own(earlier.frames)
        place = f" ({own.place})" if own and later.joined != "original" else ""
        found.append(words[later.joined] + _last_line(earlier) + place)
    return tuple(found[:EARLIER_SHOWN])


def _members(trace: Trace) -> tuple[str, ...]:
    found: list[str] = []
    for member in trace.members[:EARLIER_SHOWN]:
        own = _last_own(member.frames)
        found.append(_last_line(member) + (f" ({own.place})" if own else ""))
    if len(trace.members) > EARLIER_SHOWN:
        found.append(say("and {count} more", count=len(trace.members) - EARLIER_SHOWN))
    return tuple(found)


def _last_line(trace: Trace) -> str:
    first = next((line for line in trace.message.split("\n") if line.strip()), "")
    return short(f"{trace.kind}: {first}" if first else trace.kind or "?", 200)


def _last_own(frames: Sequence[Frame]) -> Frame | None:
    return next((frame for frame in reversed(frames) if frame.is_own), None)


def _way(frames: Sequence[Frame]) -> tuple[str, ...]:
    """Own calls one by one; a library's in a row as one step, the last of all by name."""
    steps: list[str] = []
    run: list[Frame] = []
    for frame in (*frames, None):
        if frame is not None and not frame.is_own and (not run or run[-1].library == frame.library):
            run.append(frame)
            continue
        if run:
            steps.append(_step_of_run(run, is_last=frame is None))
            run = []
        if frame is not None and frame.is_own:
            steps.append(f"{frame.name}:{frame.line} {frame.function}".replace(":None", "").strip())
        elif frame is not None:
            run = [frame]
    steps = [step for at, step in enumerate(steps) if not at or step != steps[at - 1]]
    if len(steps) <= WAY_SHOWN:
        return tuple(steps)
    left_out = len(steps) - WAY_SHOWN + 1
    tail = steps[-(WAY_SHOWN - 3) :]
    return (*steps[:2], say("({count} more)", count=left_out), *tail)


def _step_of_run(run: Sequence[Frame], *, is_last: bool) -> str:
    last = run[-1]
    named = f"{last.name}:{last.line} {last.function}".replace(":None", "").strip()
    if not is_last:
        return say("[{library}: {count:call|calls}]", library=last.library, count=len(run))
    if len(run) == 1:
        return f"[{last.library}] {named}"
    return say(
        "[{library}: {count:call|calls}] {named}", library=last.library, count=len(run), named=named
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return str(value) if isinstance(value, str) else value
