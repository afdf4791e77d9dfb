"""A file of JSON, read by somebody who trusts nothing in it: its size, its depth, its encoding."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from diagnostics._text import printable

SIZE_MAX_BYTES = 64 * 2**20  # a report of a debug model has 80 KB; one of 10,000 tensors 4 MB
DIGITS_MAX = 4000  # of a whole number; Python itself reads no more than 4,300
DEPTH_MAX = 64  # levels of nesting; our own reports have 6

# UTF-32 begins with the bytes of UTF-16, and is asked for first
_MARKS = (
    (b"\xff\xfe\x00\x00", "utf-32"),
    (b"\x00\x00\xfe\xff", "utf-32"),
    (b"\xff\xfe", "utf-16"),  # what PowerShell's `>` writes
    (b"\xfe\xff", "utf-16"),
    (b"\xef\xbb\xbf", "utf-8-sig"),
)
# JSON begins with ASCII, so that the zeros of four bytes tell the width of a character
_ZEROS = (
    ((False, True, True, True), "utf-32-le"),
    ((True, True, True, False), "utf-32-be"),
    ((False, True, False, True), "utf-16-le"),
    ((True, False, True, False), "utf-16-be"),
)


class StoredReportError(ValueError):
    """What was given is no report that can be read; the message says what came instead."""


def load_json(path_or_text: str | os.PathLike[str]) -> tuple[str, Any]:
    """Return what to call the source in a message, and the values in it.

    path_or_text: as in `load_report`. Raises StoredReportError, as there.
    """
    if isinstance(path_or_text, str) and path_or_text.lstrip("\ufeff \t\r\n")[:1] in ("{", "["):
        name, text = "the text", path_or_text.lstrip("\ufeff")
        if len(text) > SIZE_MAX_BYTES:
            raise StoredReportError(_too_large(name))
    else:
        name = printable(os.fspath(path_or_text)) or "a path of no characters"
        text = _decode(_read(path_or_text, name), name)
    return name, _parse(text, name)


def _read(path: str | os.PathLike[str], name: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            raw = file.read(SIZE_MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StoredReportError(f"{name} cannot be read: {why}") from error
    if len(raw) > SIZE_MAX_BYTES:
        raise StoredReportError(_too_large(name))
    return raw


def _too_large(name: str) -> str:
    return f"{name} is larger than {SIZE_MAX_BYTES // 2**20} MB, which no report is"


def _decode(raw: bytes, name: str) -> str:
    zeros = tuple(byte == 0 for byte in raw[:4])
    marked = (encoding for mark, encoding in _MARKS if raw.startswith(mark))
    guessed = (encoding for pattern, encoding in _ZEROS if pattern == zeros)
    encoding = next(marked, None) or next(guessed, "utf-8")
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError as error:
        raise StoredReportError(
            f"{name} is no {encoding.upper()} text: byte {error.start} does not fit"
        ) from error


def _parse(text: str, name: str) -> Any:
    if not text.strip():
        raise StoredReportError(f"{name} is empty")
    try:
        content = json.loads(
            text,
            object_pairs_hook=_unique,
            parse_constant=_refused_constant,
            parse_float=_finite,
            parse_int=_whole,
        )
    except RecursionError as error:
        raise StoredReportError(_too_deep(name)) from error
    except json.JSONDecodeError as error:
        raise StoredReportError(f"{name} is no JSON: {_place(error)}{_hint(text)}") from error
    except ValueError as error:  # from the hooks
        raise StoredReportError(f"{name} is no JSON of ours: {error}") from error
    if _depth_exceeds(content, DEPTH_MAX):
        raise StoredReportError(_too_deep(name))
    return content


def _too_deep(name: str) -> str:
    return f"{name} is nested deeper than {DEPTH_MAX} levels, which no report is"


def _place(error: json.JSONDecodeError) -> str:
    reason = error.msg[:1].lower() + error.msg[1:]
    return f"{reason.removesuffix(' at')} at line {error.lineno}, column {error.colno}"


def _hint(text: str) -> str:
    if "[OK]" in text or "[FAIL]" in text:
        return "; it looks like what a terminal shows, and `--json FILE` writes the report"
    return ""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _refused_constant(word: str) -> Any:
    raise ValueError(f'{word} is a bare word; a report writes such numbers as "nan" or "inf"')


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"the number {digits[:40]} is too large for a float")
    return number


def _whole(digits: str) -> int:
    if len(digits) > DIGITS_MAX:
        raise ValueError(f"a whole number has {len(digits):,} digits")
    return int(digits)


def _depth_exceeds(content: Any, limit: int) -> bool:
    """Look level by level, so that no depth can exhaust the stack."""
    level = [content]
    for _ in range(limit):
        level = [part for value in level for part in _parts(value) if isinstance(part, dict | list)]
        if not level:
            return False
    return True


def _parts(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, list):
        yield from value
