"""From the bytes that somebody pasted to plain lines: encodings, colours, notebooks, log prefixes.

A log writes something before every line (a time, a container, a rank). What stands before the words
`Traceback (most recent call last)` is such a prefix when the next line carries it too; lines with
the same prefix are one stream, so that tracebacks of several processes, printed line by line
between each other, come apart again.
"""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import BinaryIO

LIMIT_BYTES = 2 * 2**20  # the end of a log; a longer start is left out, and that is said
NOTEBOOK_LIMIT_BYTES = 64 * 2**20  # a notebook is one JSON value, which cannot be read from its end
LINE_LIMIT = 200_000  # characters of a line: the names of a large state dict are one line
STREAMS_MOST = 64
FOLLOWING_MOST = 100  # lines after a header in which its prefix must come again
_CHUNK_BYTES = 2**20

HEADER = "Traceback (most recent call last)"
_ANSI = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\|(?=\n)|$)"  # titles and links
    r"|\x1b\[[0-?]*[ -/]*[@-~]"  # colours and cursor movements
    r"|\x1b[ -/]*[0-~]"
    r"|\x9b[0-?]*[ -/]*[@-~]"
)
_RANK = re.compile(
    r"\[(?:rank|default)\s?(\d+)\]:? ?|\brank[ =:]?(\d+)\b|^(\d{1,4}): ", re.IGNORECASE
)
_TIME = re.compile(r"\d{1,4}[-/.]\d\d[-/.]\d\d|\d{1,2}:\d\d(?::\d\d)?(?:[.,]\d+)?")
_STATIC_PREFIX = re.compile(
    r"^\[(?:rank|default)(\d+)\]:\[?[ ]?"  # torch and torchrun write these themselves
    r"|^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?\]? "
)
_BAR = re.compile(  # tqdm draws over its line, so that a bar may stand before or inside another
    r"(?:\r|^)[^\r\n]{0,120}?(?:\d{1,3}%\|[^|\r\n]{0,300}\| ?[^\[\r\n]{0,60}|\b\d+it )"
    r"\[[^\]\r\n]{0,200}\]",
    re.MULTILINE,
)
_ESCAPED = re.compile(r"\\(.)")
_ESCAPED_FRAME = r"\n  File "
_STATIC_STARTS = frozenset("[0123456789")


@dataclass(frozen=True)
class Line:
    """One line without its prefix; number counts from 0 in the whole text."""

    number: int
    text: str


@dataclass(frozen=True)
class Stream:
    """The lines of one source; rank is the number in its prefix, or None."""

    rank: int | None
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Source:
    """Readable text; skipped counts the bytes before it that were not read."""

    text: str
    skipped_bytes: int = 0


def read_source(file: BinaryIO) -> Source:
    """Read the end of a binary file or pipe, at most LIMIT_BYTES of it; a notebook whole."""
    head = file.read(_CHUNK_BYTES)
    is_notebook = head.lstrip()[:1] == b"{" and b'"cells"' in head
    limit = NOTEBOOK_LIMIT_BYTES if is_notebook else LIMIT_BYTES
    content, skipped = _read_end(file, head, limit)
    codec = _codec(head, content)
    if codec.startswith("utf-16") and skipped % 2:
        content = content[1:]
    return Source(content.decode(codec, errors="replace"), skipped)


def _read_end(file: BinaryIO, head: bytes, limit: int) -> tuple[bytes, int]:
    """Return the last bytes, and how many stood before them."""
    if file.seekable():
        total = file.seek(0, io.SEEK_END)
        file.seek(max(0, total - limit))
        content = file.read(limit)
        return content, total - len(content)
    kept, total = bytearray(head), len(head)
    while chunk := file.read(_CHUNK_BYTES):
        total += len(chunk)
        kept += chunk
        if len(kept) > 2 * limit:
            del kept[: len(kept) - limit]
    content = bytes(kept[-limit:])
    return content, total - len(content)


def to_streams(text: str) -> list[Stream]:
    """Return the text's streams, the one without a prefix first; empty ones are left out."""
    lines = _clean(_notebook_text(text) or text).split("\n")
    prefixes = _prefixes(lines)
    if not prefixes:
        return _static_streams(lines)
    streams: dict[tuple[int, int | None], list[Line]] = {}
    for number, line in enumerate(lines):
        for index, prefix in enumerate(prefixes):
            if match := prefix.match(line):
                key, rest = (index, _rank(match.group())), line[match.end() :]
                break
        else:
            key, rest = (-1, None), line
        streams.setdefault(key, []).append(Line(number, rest))
    return [Stream(rank, tuple(found)) for (_, rank), found in sorted(streams.items(), key=_order)]


def _codec(head: bytes, content: bytes) -> str:
    """Tell UTF-16, which `>` of Windows PowerShell writes, from UTF-8; by mark or by zero bytes."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return "utf-16-le" if head[:1] == b"\xff" else "utf-16-be"
    sample = content[:4096]
    odd, even = sample[1::2].count(0), sample[0::2].count(0)
    if len(sample) >= 8 and max(odd, even) > 0.3 * len(sample) / 2:
        return "utf-16-le" if odd >= even else "utf-16-be"
    return "utf-8"


def _clean(text: str) -> str:
    """Return the end of the text without colours, with plain line ends."""
    text = text[-LIMIT_BYTES:]
    text = _BAR.sub("", text) if "%|" in text or "it [" in text else text
    text = text.replace("^C" + HEADER, HEADER)  # the terminal shows the key before it
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    text = _ANSI.sub("", text) if "\x1b" in text or "\x9b" in text else text
    if _ESCAPED_FRAME in text:
        text = "\n".join(
            _unescaped(line) if _ESCAPED_FRAME in line else line for line in text.split("\n")
        )
    text = text.replace("\xa0", " ")  # a web page's or a chat's indentation
    if len(text) <= LINE_LIMIT:
        return text
    return "\n".join(
        line if len(line) <= LINE_LIMIT else line[:LINE_LIMIT] for line in text.split("\n")
    )


def _unescaped(line: str) -> str:
    """Return a line of a structured log, in which a whole traceback is one string, as lines."""
    signs = {"n": "\n", "t": "\t", "r": ""}
    return _ESCAPED.sub(lambda match: signs.get(match[1], match[1]), line)


def _notebook_text(text: str) -> str | None:
    """Return what the error outputs of a notebook file hold, or None for any other text."""
    if not text.lstrip().startswith("{") or '"cells"' not in text:
        return None
    try:
        cells = json.loads(text)["cells"]
        outputs = [output for cell in cells for output in cell.get("outputs", ())]
        errors = [o["traceback"] for o in outputs if o.get("output_type") == "error"]
        return "\n\n".join("\n".join(map(str, error)) for error in errors)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _prefixes(lines: list[str]) -> list[re.Pattern[str]]:
    """Return a pattern for every prefix that stands before a header and before what follows it."""
    found: dict[str, re.Pattern[str]] = {}
    for number, line in enumerate(lines):
        at = line.find(HEADER)
        if at <= 0 or len(found) >= STREAMS_MOST:
            continue
        before = line[:at]
        for word in ("Original ", "+ Exception Group ", "Exception Group "):
            before = before.removesuffix(word)
        if not before.strip() or before.strip() in {"|", "+"} or before in found:
            continue
        following = [
            after for after in lines[number + 1 : number + FOLLOWING_MOST] if after.strip()
        ]
        pattern = _pattern_of(before, following)
        if pattern is not None:
            found[before] = pattern
    unique = {pattern.pattern: pattern for pattern in found.values()}
    return sorted(unique.values(), key=lambda pattern: -len(pattern.pattern))


def _pattern_of(prefix: str, following: Sequence[str]) -> re.Pattern[str] | None:
    """Return the narrowest pattern that fits a following line: times may differ, then numbers.

    Narrow, because the number in a prefix may be the process that the line came from.
    """
    for narrow in (True, False):
        pattern = re.compile(_generalised(prefix, only_times=narrow))
        if any(map(pattern.match, following)):
            return pattern
    return None


def _generalised(prefix: str, *, only_times: bool) -> str:
    """Return a pattern in which times may differ, or all numbers but that of a rank."""
    times = [match.span() for match in _TIME.finditer(prefix)]
    rank = _RANK.search(prefix)
    parts: list[str] = []
    for match in re.finditer(r"[0-9]+|\s+|[^0-9\s]+", prefix):
        piece = match.group()
        in_time = any(start <= match.start() < end for start, end in times)
        in_rank = rank is not None and rank.start() <= match.start() < rank.end()
        if piece.isdigit() and (in_time or (not only_times and not in_rank)):
            parts.append(r"\d+")
        elif piece.isspace() and match.end() < len(prefix):
            parts.append(r"\s+")
        else:
            parts.append(re.escape(piece))
    pattern = "".join(parts)
    # an empty line may come without the prefix's last blank
    return pattern[:-2] + r"(?:\ |$)" if pattern.endswith("\\ ") else pattern


def _rank(prefix: str) -> int | None:
    match = _RANK.search(prefix)
    digits = next((group for group in match.groups() if group), None) if match else None
    return int(digits[:9]) if digits else None


def _static_streams(lines: Iterable[str]) -> list[Stream]:
    """Cut prefixes that need no header to be known, for a text whose start is cut off."""
    streams: dict[tuple[int, int | None], list[Line]] = {}
    for number, line in enumerate(lines):
        match = _STATIC_PREFIX.match(line) if line[:1] in _STATIC_STARTS else None
        rank = int(match.group(1)[:9]) if match and match.group(1) else None
        rest = line[match.end() :] if match else line
        streams.setdefault((0, rank), []).append(Line(number, rest))
    return [Stream(rank, tuple(found)) for (_, rank), found in sorted(streams.items(), key=_order)]


def _order(item: tuple[tuple[int, int | None], list[Line]]) -> tuple[int, int]:
    return item[0][0], -1 if item[0][1] is None else item[0][1]
