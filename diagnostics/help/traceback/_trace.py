"""What a traceback is made of, whatever printed it; and how its last line is told."""

from __future__ import annotations

import re
from dataclasses import dataclass

from diagnostics.help.traceback._frames import Frame

FRAMES_MOST = 5_000
FRAME = re.compile(r'^(\s*)File "([^"]+)", line (\d+)(?:, in (.+?))?\s*$')
_NAME = r"(?:[A-Za-z_]\w*\.|<locals>\.)*[A-Za-z_]\w*"
EXCEPTION = re.compile(rf"^({_NAME})(?:: ?(.*))?$")
KNOWN_ENDING = re.compile(
    r"(?:Error|Exception|Interrupt|Exit|Timeout|Warning|Group|Failure|Failed|Iteration)$"
)
_CONNECTORS = {
    "The above exception was the direct cause of the following exception:": "from",
    "During handling of the above exception, another exception occurred:": "during",
}


@dataclass(frozen=True, kw_only=True)
class Trace:
    """One traceback. kind is "" where its last line is missing.

    raised_from: the traceback before it, when both are joined; joined: "from" (raise ... from),
    "during" (while that one was handled) or "original" (the error of a worker process).
    members: an exception group's own exceptions. user_frames: what torch.compile calls the user's
    code. is_native: C++ calls were cut from its message. is_ignored: Python printed it and went
    on, as at its exit. start, end: numbers of its first and last line.
    """

    kind: str
    message: str
    frames: tuple[Frame, ...]
    start: int
    end: int
    form: str = "python"
    rank: int | None = None
    start_is_cut: bool = False
    raised_from: Trace | None = None
    joined: str = ""
    members: tuple[Trace, ...] = ()
    user_frames: tuple[Frame, ...] = ()
    is_native: bool = False
    is_ignored: bool = False

    @property
    def short_kind(self) -> str:
        """The exception's class without its module."""
        return self.kind.rpartition(".")[2]

    @property
    def is_complete(self) -> bool:
        """Whether it has frames and a last line."""
        return bool(self.kind) and (bool(self.frames) or bool(self.members))

    @property
    def chain(self) -> tuple[Trace, ...]:
        """The traceback, what it was raised from, and so on; the root last."""
        found, trace = [self], self.raised_from
        while trace is not None:
            found.append(trace)
            trace = trace.raised_from
        return tuple(found)


def read_exception(text: str) -> tuple[str, str] | None:
    """Return class and message of a traceback's last line, or None when it is none."""
    match = EXCEPTION.match(text.strip())
    if match is None:
        return None
    kind, message = match.group(1), match.group(2)
    last = kind.rpartition(".")[2]
    if KNOWN_ENDING.search(last) or (
        last[:1].isupper() and message is not None and last != last.upper()
    ):
        return kind, message or ""
    return (kind, message or "") if "." in kind and last[:1].isupper() else None


def read_connector(text: str) -> str:
    """Return how a line joins two tracebacks, "from" or "during"; "" for any other line."""
    return _CONNECTORS.get(text.strip(), "") if "exception" in text else ""
