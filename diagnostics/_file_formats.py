"""What is wrong with one file, by its content: headers, sizes and pieces, never all at once.

Nothing here runs code from a file, and nothing is read whole into memory.
"""

from __future__ import annotations

import codecs
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from diagnostics._text import Text, say

PIECE_SIZE = 2**20  # bytes read at a time
JSON_MAX = 64 * 2**20  # bytes up to which a .json file is parsed; beyond, only its end is looked at
CRC_MAX = 256 * 2**20  # bytes up to which the checksums of an archive are computed, about 0.3 s
HEADER_MAX = 100_000_000  # bytes; the safetensors library has the same limit
MOJIBAKE_MIN = 3  # places; one or two can be meant

TEXT_SUFFIXES = (".txt", ".text", ".md", ".raw", ".tokens", ".csv", ".tsv")
_LFS = b"version https://git-lfs.github.com/spec/"
_ZIP = b"PK\x03\x04"
_BOMS = {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16 (big-endian)"}
# UTF-8 bytes of a character from U+0080 on, read as Windows-1252: two to four odd characters
_MOJIBAKE = re.compile("(?:\u00c3[\u0080-\u00bf\u0152-\u2122]|\u00c2[\u0080-\u00bf]|\u00e2\u20ac.)")


@dataclass(frozen=True)
class FileFault:
    """reason: such as "files.truncated".    told: the fault, to follow the path in a sentence."""

    reason: str
    told: Text
    cause: Text | None = None
    warn: bool = False  # a healthy file can look like this


def find_fault(path: Path) -> FileFault | None:
    """Return what is wrong with a file that exists and is not empty, or None."""
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(_LFS):
        return FileFault(
            "files.lfs_pointer",
            say("holds a Git LFS pointer of {size:byte|bytes}, not the content", size=_size(path)),
            say("the repository was cloned without git-lfs"),
        )
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")) and path.suffix not in (".html", ".htm"):
        return FileFault(
            "files.html",
            say("holds a web page, not data"),
            say("a download saved the error page or the log-in page of the site"),
        )
    inspect = _INSPECTORS.get(path.suffix.lower())
    if path.suffix.lower() == ".bin" and head.startswith(_ZIP):
        inspect = _archive  # weights, not raw ids
    return None if inspect is None else inspect(path)


def safetensors_header(path: Path) -> dict[str, Any]:
    """Return the parsed header of a .safetensors file. Raises ValueError saying what came."""
    size = _size(path)
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else 0
        if len(start) < 8 or length > HEADER_MAX or start[:4] == _ZIP:
            raise ValueError("it does not start with the length of a header")
        if length > size - 8:
            raise ValueError(f"its header of {length} bytes does not fit into {size} bytes")
        try:
            header = json.loads(file.read(length))
        except (ValueError, RecursionError):
            raise ValueError("its header is not JSON") from None
    if not isinstance(header, dict):
        raise ValueError("its header is not a JSON object")
    return header


def npy_header(path: Path) -> tuple[tuple[int, ...], np.dtype[Any], int]:
    """Return (shape, dtype, bytes before the data) of a .npy file. Raises ValueError."""
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        return shape, dtype, file.tell()


def decode_error(path: Path) -> tuple[int, int, bool] | None:
    """Return (byte offset, byte, whether it is the cut-off end) of the first error in UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = 0
    with path.open("rb") as file:
        while True:
            piece = file.read(PIECE_SIZE)
            pending = len(decoder.getstate()[0])
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                cut_off = not piece or error.reason == "unexpected end of data"
                return offset - pending + error.start, error.object[error.start], cut_off
            if not piece:
                return None
            offset += len(piece)


# ---- one inspector per format ----------------------------------------------------------------


def _npy(path: Path) -> FileFault | None:
    try:
        shape, dtype, start = npy_header(path)
    except (ValueError, EOFError):
        return _wrong_format(path, "a .npy array")
    if dtype.hasobject:
        return FileFault(
            "files.pickled_objects",
            say("holds Python objects, which cannot be read without running code from the file"),
            say("an array of lists was saved"),
        )
    count = int(np.prod(shape, dtype=np.int64))
    return _size_fault(path, start + count * dtype.itemsize, f"{count} values of {dtype}")


def _safetensors(path: Path) -> FileFault | None:
    try:
        header = safetensors_header(path)
        entries = [entry for name, entry in header.items() if name != "__metadata__"]
        end = max((int(entry["data_offsets"][1]) for entry in entries), default=0)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        return _wrong_format(path, "a .safetensors file", str(error))
    with path.open("rb") as file:
        start = 8 + struct.unpack("<Q", file.read(8))[0]
    return _size_fault(path, start + end, f"{len(entries)} tensors")


def _json(path: Path) -> FileFault | None:
    if _size(path) > JSON_MAX:
        with path.open("rb") as file:
            file.seek(-16, 2)
            complete = file.read().rstrip().endswith((b"}", b"]"))
        return (
            None
            if complete
            else FileFault("files.truncated", say("ends in the middle of its JSON"))
        )
    try:
        json.loads(path.read_bytes())
    except UnicodeDecodeError:
        return _text(path)
    except (ValueError, RecursionError) as error:
        position = getattr(error, "pos", 0)
        at_end = isinstance(error, json.JSONDecodeError) and (
            position >= len(error.doc.rstrip()) or "Unterminated" in error.msg
        )
        return FileFault(
            "files.truncated" if at_end else "files.wrong_format",
            say(
                "is no readable JSON: {message}{where}",
                message=getattr(error, "msg", str(error)),
                where=" (the file ends there)" if at_end else f" at character {position}",
            ),
            say("the program that wrote it was stopped, or the disk was full") if at_end else None,
        )
    return None


def _json_lines(path: Path) -> FileFault | None:
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                if line.strip():
                    json.loads(line)
            except (ValueError, RecursionError):
                last = not file.read(1)
                return FileFault(
                    "files.truncated" if last else "files.wrong_format",
                    say(
                        "line {number} is no JSON{end}",
                        number=number,
                        end=" (the last line)" if last else "",
                    ),
                )
    return None


def _archive(path: Path) -> FileFault | None:
    """A .pt, .pth or .npz file: a zip archive, whose index stands at its end."""
    with path.open("rb") as file:
        head = file.read(4)
    if not head.startswith(_ZIP):
        if head[:1] == b"\x80" and path.suffix != ".npz":
            return None  # torch.save before version 1.6 wrote a pickle; its end cannot be judged
        return _wrong_format(path, "a zip archive as torch.save or numpy.savez writes it")
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip() if _size(path) <= CRC_MAX else None
    except zipfile.BadZipFile:
        return FileFault(
            "files.truncated",
            say(
                "is truncated: {size:byte|bytes}, and the archive's index is missing",
                size=_size(path),
            ),
            say("the program that wrote it was stopped, or the disk was full"),
        )
    except (zlib.error, NotImplementedError, RuntimeError, OSError):
        damaged = "a part"
    if damaged is None:
        return None
    return FileFault(
        "files.corrupt",
        say("is damaged: the checksum of {part} does not fit its content", part=damaged),
        say("bits changed on the disk or on the way"),
    )


def _raw_ids(path: Path) -> FileFault | None:
    size = _size(path)
    if size % 2 == 0:
        return None
    return FileFault(
        "files.truncated",
        say("has {size:byte|bytes}, which is no whole number of 16-bit ids", size=size),
        say("the program that wrote it was stopped, or it holds bytes of another type"),
        warn=True,  # ids of a vocabulary up to 256 may be stored in one byte each
    )


def _text(path: Path) -> FileFault | None:
    error = decode_error(path)
    if error is not None:
        return _not_utf8(path, *error)
    counts = {"\ufffd": 0, "\0": 0, "\r\n": 0, "\n": 0, "\r": 0, "mojibake": 0}
    with path.open(encoding="utf-8", newline="") as file:
        starts_with_bom = file.read(1) == "\ufeff"
        file.seek(0)
        rest = ""
        while piece := file.read(PIECE_SIZE):
            piece = rest + piece
            # a line end or a broken character must not fall between two pieces
            piece, rest = (piece[:-4], piece[-4:]) if len(piece) >= PIECE_SIZE else (piece, "")
            _count(piece, counts)
        _count(rest, counts)
    return _text_fault(counts, starts_with_bom)


def _count(piece: str, counts: dict[str, int]) -> None:
    for pattern in ("\ufffd", "\0", "\r\n", "\n", "\r"):
        counts[pattern] += piece.count(pattern)
    if not piece.isascii():
        counts["mojibake"] += len(_MOJIBAKE.findall(piece))


def _text_fault(counts: dict[str, int], starts_with_bom: bool) -> FileFault | None:
    if counts["\0"]:
        return FileFault(
            "files.nul_bytes",
            say("is no text: it holds {count} NUL characters", count=counts["\0"]),
            say("the file is UTF-16, or a stopped program left a hole in it"),
        )
    if counts["\ufffd"]:
        return FileFault(
            "files.replacement_characters",
            say("holds U+FFFD {count} times: characters lost before", count=counts["\ufffd"]),
            say('the text was once decoded with errors="replace"'),
            warn=True,
        )
    if counts["mojibake"] >= MOJIBAKE_MIN:
        return FileFault(
            "files.mojibake",
            say(
                "holds {count:pair|pairs} of odd characters such as U+00C3 U+00A9 in place of one",
                count=counts["mojibake"],
            ),
            say("UTF-8 bytes were decoded as Windows-1252, and the result was saved"),
            warn=True,
        )
    windows = counts["\r\n"]
    unix, mac = counts["\n"] - windows, counts["\r"] - windows
    if (windows > 0) + (unix > 0) + (mac > 0) > 1:
        return FileFault(
            "files.mixed_newlines",
            say(
                "mixes line ends: {windows} CR LF, {unix} LF, {mac} CR alone",
                windows=windows,
                unix=unix,
                mac=mac,
            ),
            say("files of several systems were joined"),
            warn=True,
        )
    if starts_with_bom:
        return FileFault(
            "files.byte_order_mark",
            say("starts with a byte order mark, U+FEFF, which becomes a token of its own"),
            say("a Windows editor wrote it"),
            warn=True,
        )
    return None


def _not_utf8(path: Path, offset: int, byte: int, cut_off: bool) -> FileFault:
    with path.open("rb") as file:
        mark = file.read(2)
    if cut_off:
        return FileFault(
            "files.truncated",
            say("ends in the middle of a character, at byte {offset}", offset=offset),
            say("the text was cut by bytes, not by characters"),
        )
    return FileFault(
        "files.not_utf8",
        say("is not UTF-8: byte 0x{byte} at offset {offset}", byte=f"{byte:02x}", offset=offset),
        say("the file is {encoding}", encoding=_BOMS[mark]) if mark in _BOMS else None,
    )


def _size_fault(path: Path, expected: int, content: str) -> FileFault | None:
    size = _size(path)
    if size == expected:
        return None
    return FileFault(
        "files.truncated" if size < expected else "files.excess_bytes",
        say(
            "has {size:byte|bytes}, but its header promises {expected} ({content})",
            size=size,
            expected=expected,
            content=content,
        ),
        say("the program that wrote it was stopped, or the disk was full")
        if size < expected
        else say("something was appended, or the header was written before the data grew"),
    )


def _wrong_format(path: Path, wanted: str, detail: str = "") -> FileFault:
    with path.open("rb") as file:
        head = file.read(8)
    kinds = {
        _ZIP: "a zip archive, as torch.save writes it",
        b"\x93NUMPY": "a .npy array",
        b"\x80": "a pickle",
        b"{": "JSON",
        b"\x1f\x8b": "a gzip archive",
    }
    looks = next((kind for magic, kind in kinds.items() if head.startswith(magic)), "")
    return FileFault(
        "files.wrong_format",
        say("is not {wanted}{detail}", wanted=wanted, detail=f": {detail}" if detail else ""),
        say("it looks like {looks} under another suffix", looks=looks) if looks else None,
    )


def _size(path: Path) -> int:
    return path.stat().st_size


_INSPECTORS: dict[str, Callable[[Path], FileFault | None]] = {
    ".npy": _npy,
    ".safetensors": _safetensors,
    ".json": _json,
    ".jsonl": _json_lines,
    ".pt": _archive,
    ".pth": _archive,
    ".npz": _archive,
    ".bin": _raw_ids,
    **dict.fromkeys(TEXT_SUFFIXES, _text),
}
