"""One traceback of the interpreter: its frames, its last line and the message's further lines."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from diagnostics.help.traceback._frames import Frame
from diagnostics.help.traceback._text import HEADER, Line
from diagnostics.help.traceback._trace import (
    FRAME,
    FRAMES_MOST,
    Trace,
    read_connector,
    read_exception,
)

MESSAGE_LINES_MOST = 400

_REPEATED = re.compile(r"^\s*\[Previous line repeated (\d+) more times?\]")
_MARKERS = re.compile(r"^[\s^~]+$")
_USER_CODE = "from user code:"
_INNER_FRAMES = (_USER_CODE, "Traceback of TorchScript")  # frames that stand inside a message
_NATIVE = re.compile(r"^\s*(?:Exception raised from .* \(most recent call first\):|frame #\d+: )")
_OTHER_OUTPUT = re.compile(
    r"^[EWIF]\d{4} \d\d:\d\d"  # torch's own log
    r"|^\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
    r"|^(?:INFO|DEBUG|WARNING|ERROR|CRITICAL)[: \[]"
    r"|^\S*[$#%] \S|^\S+@\S+[:~ ].*[$#]\s*$|^PS [A-Z]:\\|^\^C|^>>> |^In \[\d+\]:"  # prompts
    r'|^"""$'  # after the traceback of another process
    r"|^\S.{0,300}\.py:\d+: \w*Warning: |^```"
    r"|^(?:wandb|srun|slurmstepd|make|bash|zsh)(?:\[\d+\])?: "
    r"|^={5,}|^-{20,}|^_{10,}"
    r"|^Exception ignored in|^Fatal Python error|^Killed$|^Segmentation fault"
)
# Paragraphs that belong to the message although an empty line stands before them.
_PARAGRAPHS = (
    "Check the documentation", "Please file an issue", "from user code", "Set TORCH", "You can ",
    "Exception raised from", "frame #", "Unsupported ", "Compile with", "For debugging",
    "CUDA kernel errors", "Device-side assertion", "-- Process", "WeightsUnpickler",
    "The above operation failed", "The following operation failed", "Developer debug",
)  # fmt: skip


def read_trace(
    lines: Sequence[Line], at: int, rank: int | None, *, start: int, is_cut: bool = False
) -> tuple[Trace, int]:
    """Read frames from `at` on, then the exception; returns the index after it."""
    frames, at, base = _read_frames(lines, at)
    trace = Trace(
        kind="", message="", frames=tuple(frames), start=start,
        end=lines[min(at, len(lines)) - 1].number, rank=rank, start_is_cut=is_cut,
    )  # fmt: skip
    if at >= len(lines) or _indent(lines[at].text) > max(base, 0):
        return trace, at
    exception = read_exception(lines[at].text)
    if exception is None:
        return trace, at
    kind, first = exception
    rest, after = read_message(lines, at + 1, base)
    user_frames = _user_frames(rest)
    rest, is_native = _without_native(rest)
    end = lines[after - 1].number
    message = "\n".join([first, *rest]).rstrip()
    return replace(
        trace, kind=kind, message=message, end=end, user_frames=user_frames, is_native=is_native
    ), after


def _read_frames(lines: Sequence[Line], at: int) -> tuple[list[Frame], int, int]:
    """Return frames, the index after them and the indentation of the exception's line."""
    frames: list[Frame] = []
    base = 0
    while at < len(lines):
        text = lines[at].text
        frame = FRAME.match(text)
        repeated = _REPEATED.match(text)
        if frame:
            if not frames:
                base = max(0, len(frame.group(1)) - 2)
            if len(frames) == FRAMES_MOST:  # both ends matter, the middle does not
                del frames[FRAMES_MOST // 2]
            _, file, line, function = frame.groups()
            frames.append(Frame(file=file, line=int(line[:9]), function=function or ""))
        elif repeated and frames:
            frames[-1] = replace(frames[-1], repeats=int(repeated.group(1)[:9]))
        elif not text.strip():
            following = _next_text(lines, at, 2)
            goes_on = FRAME.match(following) or _indent(following) > base + 1
            if not goes_on and not (frames and read_exception(following)):
                break
        elif frames and (_indent(text) > base or _is_flat_code(lines, at)):
            if _MARKERS.match(text) and frames[-1].code:
                marked = _marked(lines[at - 1].text, text)
                frames[-1] = replace(frames[-1], marked=frames[-1].marked or marked)
            elif not frames[-1].code:
                frames[-1] = replace(frames[-1], code=text.strip())
        else:
            break
        at += 1
    return frames, at, base


def _is_flat_code(lines: Sequence[Line], at: int) -> bool:
    """Whether a line without indentation is a frame's code: a chat or a form may cut blanks off."""
    text, before = lines[at].text, lines[at - 1].text if at else ""
    if _MARKERS.match(text):
        return True
    frame = FRAME.match(before)
    return bool(frame) and not before[:1].isspace() and read_exception(text) is None


def _marked(code: str, marks: str) -> str:
    return code[_indent(marks) : len(marks.rstrip())].strip()


def read_message(lines: Sequence[Line], at: int, base: int = 0) -> tuple[list[str], int]:
    """Return the message's further lines and the index after them."""
    rest: list[str] = []
    has_frames = False
    while at < len(lines) and len(rest) < MESSAGE_LINES_MOST:
        text = lines[at].text[base:] if lines[at].text[:base].isspace() else lines[at].text
        if HEADER in text or read_connector(text) or _OTHER_OUTPUT.match(text):
            break
        has_frames = has_frames or text.strip().startswith(_INNER_FRAMES)
        if FRAME.match(text) and not has_frames:
            break
        if not text.strip():
            following = _next_text(lines, at, 3)
            goes_on = following.startswith(_PARAGRAPHS) or _indent(following[base:]) > 0
            if not goes_on or HEADER in following or (FRAME.match(following) and not has_frames):
                break
        rest.append(text)
        at += 1
    return rest, at


def _next_text(lines: Sequence[Line], at: int, most: int) -> str:
    """Return the next line that is not empty, of so many."""
    return next((line.text for line in lines[at + 1 : at + 1 + most] if line.text.strip()), "")


def _user_frames(rest: Sequence[str]) -> tuple[Frame, ...]:
    """Return the frames that torch.compile names as the user's, from inside its message."""
    start = next((at for at, line in enumerate(rest) if line.strip() == _USER_CODE), None)
    if start is None:
        return ()
    frames, _, _ = _read_frames([Line(0, line) for line in rest[start + 1 :]], 0)
    return tuple(frames)


def _without_native(rest: list[str]) -> tuple[list[str], bool]:
    """Cut the C++ stack that torch may append, and say whether there was one."""
    start = next((at for at, line in enumerate(rest) if _NATIVE.match(line)), None)
    return (rest, False) if start is None else (rest[:start], True)


def _indent(text: str) -> int:
    return len(text) - len(text.lstrip())
