"""Errors of the student's code, told over the wire and raised again under their own names."""

from __future__ import annotations

import linecache
import traceback
from pathlib import Path
from typing import Any, NoReturn

from diagnostics._trace import MixedDevicesError, user_frame
from exercises.isolation.channel import RemoteError

Place = tuple[str, int, str, str]  # file, line, function, code
LINES_MAX = 20_000  # of a file that an error names
BASES: dict[str, type[Exception]] = {
    kind.__name__: kind
    for kind in (
        ArithmeticError, AssertionError, AttributeError, EOFError, IndexError, KeyError,
        LookupError, MemoryError, NotImplementedError, OSError, FileNotFoundError, OverflowError,
        RuntimeError, StopIteration, TypeError, ValueError, ZeroDivisionError,
    )
}  # fmt: skip


def describe_error(error: BaseException) -> dict[str, Any]:
    """Describe an error: its class, the usual classes below it, its message, the student's line."""
    names = [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins"]
    frames = traceback.extract_tb(error.__traceback__)
    place: list[Any] = ["", 0, "", ""]
    if isinstance(error, Exception) and user_frame(error) is not None:
        place = _student_frame(frames, user_frame(error))
    return {
        "name": type(error).__name__[:100],
        "bases": names,
        "message": _message(error)[:2000],
        "place": place,
        "where": str(getattr(error, "place", ""))[:200],
    }


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # any: of an exception class of the student's
        return ""


def _student_frame(frames: traceback.StackSummary, told: str | None) -> list[Any]:
    """Return the innermost frame outside of libraries and of this package."""
    here = Path(__file__).parent
    for frame in reversed(frames):
        path = Path(frame.filename)
        same = told is not None and told.startswith(f"{path.name}:{frame.lineno} ")
        if same and here not in path.parents:
            return [path.name[:100], frame.lineno or 0, frame.name[:100], (frame.line or "")[:200]]
    return ["", 0, "", ""]


def read_error(told: Any) -> tuple[Exception, Place]:
    """Return an error with the class name and message of the other side's, and its place."""
    name, message = str(told["name"])[:100], str(told["message"])[:2000]
    base = next((BASES[known] for known in told["bases"] if known in BASES), None)
    file, line, function, code = told["place"]
    place = _printable(file), min(max(int(line), 1), LINES_MAX), str(function), _printable(code)
    if name == MixedDevicesError.__name__:
        return MixedDevicesError(message, _printable(told["where"])), place
    bases = (RemoteError,) if base is None else (RemoteError, base)
    if not name.isidentifier():
        name = "UnnamedError"
    kind = type(name, bases, {"__str__": lambda self: self.message})
    return kind(name, message, place[1]), place


def raise_at(error: Exception, place: Place) -> NoReturn:
    """Raise from a frame that looks like the student's, so that reports name that line."""
    file, line, function, code = place
    shown = f"/the student's process/{file.rpartition('/')[2] or 'its code'}"
    linecache.cache[shown] = (1, None, ["\n"] * (line - 1) + [code + "\n"], shown)
    compiled = compile("\n" * (line - 1) + "raise error", shown, "exec")
    if function.isidentifier():
        compiled = compiled.replace(co_name=function)
    exec(compiled, {"error": error})  # noqa: S102 - the two words above, in a frame of that name
    raise error


def _printable(text: Any) -> str:
    return "".join(letter for letter in str(text)[:200] if letter.isprintable())
