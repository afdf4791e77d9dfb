"""The interpreter's tracebacks of a stream: chained ones, those of worker processes, groups.

A notebook's and pytest's are read in `_notebook.py` and `_pytest.py`. None of
them knows any cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.help.traceback._single import read_trace
from diagnostics.help.traceback._text import HEADER, Line, Stream
from diagnostics.help.traceback._trace import FRAME, Trace, read_connector

_QUOTES = '"""'


def parse_python(stream: Stream) -> list[Trace]:
    """Return the interpreter's tracebacks of a stream, joined ones as one, in their order."""
    lines = stream.lines
    found: list[Trace] = []
    at, joined = 0, ""
    remote: int | None = None  # where in `found` the traceback of another process stands
    while at < len(lines):
        text = lines[at].text
        if "Exception Group " + HEADER in text:
            trace, at = _read_group(lines, at, stream.rank)
        elif _is_header(text):
            before = _text_before(lines, at)
            if "Original " + HEADER in text or before.startswith("-- Process "):
                joined = "original"
            trace, at = read_trace(lines, at + 1, stream.rank, start=lines[at].number)
            trace = replace(trace, is_ignored=before.startswith("Exception ignored in"))
            if before == _QUOTES:
                remote = len(found)
        elif 'File "' in text and FRAME.match(text):
            trace, at = read_trace(lines, at, stream.rank, start=lines[at].number, is_cut=True)
        else:
            joined = read_connector(text) or (joined if not text.strip() else "")
            at += 1
            continue
        if joined and found and remote == len(found) - 1:
            # another process's own traceback, quoted; this one only hands it on
            trace = replace(found.pop(), raised_from=trace, joined="original", end=trace.end)
        elif joined and found:
            trace = replace(trace, raised_from=found.pop(), joined=joined)
        if trace.frames or trace.kind or trace.members:
            found.append(trace)
        joined = ""
    return found


def _is_header(text: str) -> bool:
    """Tell the interpreter's header from a notebook's, which names the exception before it."""
    return HEADER in text and not re.match(r"[\w.]+ {3,}$", text.partition(HEADER)[0])


def _text_before(lines: Sequence[Line], at: int) -> str:
    """Return the last line before that is not empty, of three."""
    before = (line.text.strip() for line in reversed(lines[max(0, at - 3) : at]))
    return next((text for text in before if text), "")


_GROUP_LINE = re.compile(r"^(\s*)[|+](?: |$|-)")
_GROUP_RULE = re.compile(r"^\s*(?:\+-)?\+-{3,}(?: (\d+|\.\.\.) -+)?\s*$")


def _read_group(lines: Sequence[Line], at: int, rank: int | None) -> tuple[Trace, int]:
    """Read an exception group: its own traceback, then those of its members, flattened."""
    start = at
    at += 1
    parts: list[list[Line]] = [[]]
    while at < len(lines) and _GROUP_LINE.match(lines[at].text):
        text = lines[at].text
        if _GROUP_RULE.match(text):
            parts.append([])
        else:
            inner = re.sub(r"^\s*[|+] ?", "", text)
            parts[-1].append(Line(lines[at].number, inner))
        at += 1
    traces = [_read_part(part, rank) for part in parts if any(line.text.strip() for line in part)]
    number = lines[start].number
    if not traces:
        return Trace(kind="", message="", frames=(), start=number, end=number, rank=rank), at
    own, *members = traces
    leaves = [trace for trace in members if not trace.short_kind.endswith("ExceptionGroup")]
    end = lines[at - 1].number
    return replace(own, start=number, end=end, members=tuple(leaves or members)), at


def _read_part(part: list[Line], rank: int | None) -> Trace:
    number = part[0].number
    body = part[1:] if HEADER in part[0].text else part
    if not body:
        return Trace(kind="", message="", frames=(), start=number, end=number)
    return read_trace(body, 0, rank, start=number)[0]
