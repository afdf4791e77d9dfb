"""Tracebacks as pytest prints them: `>` before the line that ran, `E` before the error."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._text import Line, Stream
from diagnostics.help.traceback._trace import Trace, read_connector, read_exception

_TITLE = re.compile(r"^_{3,} .* _{3,}$")
_LONG_PLACE = re.compile(
    r"^(?P<file>\S[^:]*(?::[\\/][^:]*)?\.py):(?P<line>\d+): ?(?P<kind>[\w.]*)$"
)
_SHORT_PLACE = re.compile(
    r"^(?P<file>\S[^:]*(?::[\\/][^:]*)?\.py):(?P<line>\d+): in (?P<function>\S+)$"
)
_ONE_LINE = re.compile(
    r"^(?P<file>\S[^:]*(?::[\\/][^:]*)?\.py):(?P<line>\d+): "
    r"(?P<rest>\w[\w.]*(?:Error|Exception): .*)$"
)
_ERROR = re.compile(r"^E(?:   (.*))?$")
_SOURCE = re.compile(r"^> {2,}(.*)$")
_DEFINITION = re.compile(r"^ {4,}(?:async )?def (\w+)\(")


def parse_pytest(stream: Stream) -> list[Trace]:
    """Return pytest's own tracebacks of a stream; one with --tb=native is the interpreter's."""
    found: list[Trace] = []
    lines, at, joined = stream.lines, 0, ""
    start: int | None = None
    for at, line in enumerate(lines):
        text = line.text
        if not text.startswith(("_", "E")) and ".py:" not in text and "exception" not in text:
            continue
        if _TITLE.match(text):
            start, joined = at, ""
        elif connector := read_connector(text):
            joined, start = connector, at
        elif _ERROR.match(text) and not (at + 1 < len(lines) and _ERROR.match(lines[at + 1].text)):
            trace = _read(lines, (at if start is None else start), at, stream.rank)
            if trace is None:
                continue
            if joined and found:
                trace = replace(trace, raised_from=found.pop(), joined=joined)
            found.append(trace)
            start, joined = at + 1, ""
        elif match := _ONE_LINE.match(text):
            kind, message = read_exception(match["rest"]) or ("", "")
            frame = Frame(file=match["file"], line=int(match["line"][:9]))
            if kind:
                found.append(_trace(kind, message, [frame], line.number, line.number, stream.rank))
    return found


def _read(lines: Sequence[Line], start: int, end: int, rank: int | None) -> Trace | None:
    """Read the block that ends with the E line at `end`, and the place after it."""
    first = end
    while first > start and _ERROR.match(lines[first - 1].text):
        first -= 1
    errors = [(_ERROR.match(line.text) or [""])[0][1:] for line in lines[first : end + 1]]
    width = min((len(e) - len(e.lstrip()) for e in errors if e.strip()), default=0)
    said = [error[width:] for error in errors]
    kind, message = read_exception(said[0]) or ("", "")
    frames = _frames(lines, start, first)
    if not kind and said[0].startswith("assert"):
        kind, message = "AssertionError", said[0]
    place = next(
        (p for line in lines[end + 1 : end + 4] if (p := _LONG_PLACE.match(line.text))), None
    )
    if place:
        frames.append(_frame(place, lines, start, first))
        kind = kind or place["kind"]
    if not kind or not frames:
        return None
    text = "\n".join([message, *said[1:]]).rstrip()
    return _trace(kind, text, frames, lines[start].number, lines[end].number, rank)


def _frames(lines: Sequence[Line], start: int, end: int) -> list[Frame]:
    """Return the frames before the error; each one's place stands after its code, or before it."""
    frames: list[Frame] = []
    block = start
    for at in range(start, end):
        text = lines[at].text
        if match := _SHORT_PLACE.match(text):
            code = (
                lines[at + 1].text.strip()
                if at + 1 < end and lines[at + 1].text[:4] == "    "
                else ""
            )
            line = int(match["line"][:9])
            frames.append(
                Frame(file=match["file"], line=line, function=match["function"], code=code)
            )
        elif match := _LONG_PLACE.match(text):
            frames.append(_frame(match, lines, block, at))
            block = at + 1
    return frames


def _frame(match: re.Match[str], lines: Sequence[Line], start: int, end: int) -> Frame:
    code = function = ""
    for line in reversed(lines[start:end]):
        source, definition = _SOURCE.match(line.text), _DEFINITION.match(line.text)
        if source and not code:
            code = source.group(1).strip()
        elif definition:
            function = definition.group(1)
            break
        elif code and _LONG_PLACE.match(line.text):
            break
    return Frame(file=match["file"], line=int(match["line"][:9]), function=function, code=code)


def _trace(
    kind: str, message: str, frames: list[Frame], start: int, end: int, rank: int | None
) -> Trace:
    return Trace(
        kind=kind, message=message, frames=tuple(frames), start=start, end=end, rank=rank,
        form="pytest",
    )  # fmt: skip
