"""Tracebacks as IPython and Jupyter print them, from version 5 to 9."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._text import HEADER, Line, Stream
from diagnostics.help.traceback._trace import FRAMES_MOST, Trace, read_connector

_HEAD = re.compile(rf"^([A-Za-z_][\w.]*) {{2,}}{re.escape(HEADER)}\s*$")
_CELL = re.compile(
    r"^\s*(?P<file>(?:Cell |Input )?In ?\[\d+\])(?:, line (?P<line>\d+))?"
    r"(?:,? in (?P<function>[^\s(][^(]*?)(?:\(.*)?)?(?::\s*)?$"
)
_FILE = re.compile(
    r"^\s*File (?P<file>.+?):(?P<line>\d+)(?:,? in (?P<function>[^\s(]+)(?:\(.*)?)?\s*$"
)
_OLD = re.compile(
    r"^(?P<file>(?:<ipython-input-|[~/.]|[A-Za-z]:\\).*?) in (?P<function>[^\s(]+)\(.*$"
)
_ARROW = re.compile(r"^\s*-+> (\d+) ?(.*)$")
_SYNTAX = re.compile(r"^((?:_Incomplete)?(?:SyntaxError|IndentationError|TabError)): (.*)$")
_MESSAGE_LINES_MOST = 200


def parse_notebook(stream: Stream) -> list[Trace]:
    """Return the notebook's tracebacks of a stream, joined ones as one, in their order."""
    found: list[Trace] = []
    lines, at, joined = stream.lines, 0, ""
    while at < len(lines):
        text = lines[at].text
        head = _HEAD.match(text) if HEADER in text else None
        if head is None:
            syntax = _read_syntax(lines, at, stream.rank) if "In" in text and "[" in text else None
            if syntax:
                found.append(syntax)
            joined = read_connector(text) or (joined if not text.strip() else "")
            at += 1
            continue
        trace, at = _read(lines, at, head.group(1), stream.rank)
        if joined and found:
            trace = replace(trace, raised_from=found.pop(), joined=joined)
        found.append(trace)
        joined = ""
    return found


def _read(lines: Sequence[Line], at: int, kind: str, rank: int | None) -> tuple[Trace, int]:
    start = lines[at].number
    frames: list[Frame] = []
    last = kind.rpartition(".")[2]
    ending = re.compile(rf"^((?:[\w.]+\.)?{re.escape(last)})(?:: ?(.*))?$")
    at += 1
    while at < len(lines):
        text = lines[at].text
        end = ending.match(text)
        if end:
            rest, after = _read_message(lines, at + 1)
            message = "\n".join([end.group(2) or "", *rest]).rstrip()
            return _trace(
                end.group(1), message, frames, start, lines[after - 1].number, rank
            ), after
        if _HEAD.match(text):
            break
        _take(text, frames)
        at += 1
    return _trace("", "", frames, start, lines[at - 1].number, rank), at


def _read_syntax(lines: Sequence[Line], at: int, rank: int | None) -> Trace | None:
    """Read a cell that could not be compiled, for which there is no header."""
    match = _CELL.match(lines[at].text)
    if not match or not match["line"]:
        return None
    for line in lines[at + 1 : at + 6]:
        error = _SYNTAX.match(line.text)
        if error:
            code = lines[at + 1].text.strip()
            frame = Frame(file=match["file"], line=int(match["line"][:9]), code=code)
            return _trace(error[1], error[2], [frame], lines[at].number, line.number, rank)
    return None


def _take(text: str, frames: list[Frame]) -> None:
    """Add the frame of a line, or give the last frame its code."""
    match = _CELL.match(text) or _FILE.match(text) or _OLD.match(text)
    arrow = _ARROW.match(text)
    if match and not arrow:
        parts = match.groupdict()
        line = parts.get("line")
        function = (parts.get("function") or "<module>").strip()
        if len(frames) < FRAMES_MOST:
            frames.append(
                Frame(
                    file=parts["file"],
                    line=int(line[:9]) if line else None,
                    function="<module>" if function.startswith("<") else function,
                )
            )
    elif arrow and frames and not frames[-1].code:
        number, code = arrow.groups()
        frames[-1] = replace(frames[-1], line=int(number[:9]), code=code.strip())
    elif frames and not frames[-1].code and text[:4] == "    " and not text.strip()[:1].isdigit():
        frames[-1] = replace(frames[-1], code=text.strip())  # the plain mode has no arrows


def _read_message(lines: Sequence[Line], at: int) -> tuple[list[str], int]:
    rest: list[str] = []
    while at < len(lines) and len(rest) < _MESSAGE_LINES_MOST:
        text = lines[at].text
        following = lines[at + 1].text if at + 1 < len(lines) else ""
        if _HEAD.match(text) or read_connector(text) or text.startswith("-" * 20):
            break
        if _CELL.match(text) or (not text.strip() and following[:1] not in {"\t", " "}):
            break
        rest.append(text)
        at += 1
    return rest, at


def _trace(
    kind: str, message: str, frames: list[Frame], start: int, end: int, rank: int | None
) -> Trace:
    return Trace(
        kind=kind, message=message, frames=tuple(frames), start=start, end=end, rank=rank,
        form="notebook",
    )  # fmt: skip
