"""Listing a zip file that may be made to harm: nothing is unpacked before it is known to fit.

`zipfile` reads the table of contents in one piece and builds an object of each entry, so the size
of that piece is limited first. A member is read in chunks, up to what it may have.
"""

from __future__ import annotations

import io
import os
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path

from exercises.grade._file_rules import (
    Parts,
    SubmissionLimits,
    is_junk,
    left_out,
    split_name,
    why_set_aside,
)
from exercises.grade._listing import (
    CHUNK_BYTES,
    Entry,
    LeftOutError,
    Listing,
    RefusedError,
    too_many_files,
)
from exercises.grade._notes import note
from exercises.grade._results import Note

TABLE_BYTES_MAX = 2_000_000  # about 20,000 entries: room for a hidden .git, no room for an attack
LOCAL_HEADER_BYTES = 30  # APPNOTE.TXT 4.3.7, without the name and the extra field
ENCRYPTED = 0x1 | 0x40 | 0x2000  # APPNOTE.TXT 4.4.4: member, strong, masked header
METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)  # the others may ask for gigabytes to unpack

# What a damaged file makes of `zipfile`; it documents BadZipFile only.
BROKEN = (
    zipfile.BadZipFile, zipfile.LargeZipFile, zlib.error, struct.error, EOFError, OSError,
    ValueError, RuntimeError, OverflowError, IndexError, KeyError, TypeError, AttributeError,
)  # fmt: skip


class _TableTooLargeError(Exception):
    """The table of contents is larger than anything that a person packs."""


class _LimitedFile(io.FileIO):
    """A file that refuses to be read in one large piece."""

    def read(self, size: int | None = -1, /) -> bytes:
        """Read as usual. Raises _TableTooLargeError for a piece beyond the limit."""
        left = os.fstat(self.fileno()).st_size - self.tell()
        if min(left, left if size is None or size < 0 else size) > TABLE_BYTES_MAX:
            raise _TableTooLargeError
        return super().read(size) or b""


@contextmanager
def list_zip(path: Path, limits: SubmissionLimits) -> Iterator[Listing]:
    """Yield what lies in a zip file, which stays open for reading inside the block.

    Raises RefusedError for what is no zip file, and for one that is made to harm.
    """
    with _opened(path, limits) as archive:
        listing = Listing()
        infos = archive.infolist()
        if _overlap(infos):
            raise RefusedError(
                note(
                    "submission.zip_bomb",
                    "nothing is taken: members of the zip overlap, so that it unpacks to more "
                    "than it holds; make the zip again",
                )
            )
        for info in infos:
            _add(info, archive, listing, limits)
        yield listing


@contextmanager
def _opened(path: Path, limits: SubmissionLimits) -> Iterator[zipfile.ZipFile]:
    try:
        file = _LimitedFile(path)
    except OSError as error:
        raise _broken(error.strerror or "it cannot be opened") from error
    with file:
        try:
            archive = zipfile.ZipFile(file)
        except _TableTooLargeError as error:
            raise too_many_files(limits.files) from error
        except BROKEN as error:
            raise _broken("its table of contents is damaged") from error
        with archive:
            yield archive


def _broken(why: str) -> RefusedError:
    return RefusedError(
        note(
            "submission.broken_zip",
            "nothing is taken: the zip file cannot be read, {why}; make the zip again",
            why=why,
        )
    )


def _overlap(infos: Sequence[zipfile.ZipInfo]) -> bool:
    """Tell whether two members share bytes of the file; each one is at least this long."""
    places = sorted((info.header_offset, info.compress_size, len(info.filename)) for info in infos)
    return any(
        start + LOCAL_HEADER_BYTES + name + size > following
        for (start, size, name), (following, _, _) in pairwise(places)
    )


def _add(
    info: zipfile.ZipInfo, archive: zipfile.ZipFile, listing: Listing, limits: SubmissionLimits
) -> None:
    """Add a member to the listing: as an entry, as a note, or not at all."""
    parts = split_name(info.orig_filename, limits)  # `filename` ends at the first NUL
    if isinstance(parts, Note):
        listing.notes.append(parts)
    elif is_junk(parts):
        return
    elif (why := _why_not(info, parts)) is not None:
        listing.notes.append(why)
    elif not info.orig_filename.endswith("/"):
        read = partial(_read, archive, info, parts)
        listing.add(Entry(parts, info.file_size, info.compress_size, read), limits.files)


def _why_not(info: zipfile.ZipInfo, parts: Parts) -> Note | None:
    mode = info.external_attr >> 16
    kind = stat.S_IFMT(mode)
    if (aside := why_set_aside(parts)) is not None:
        return aside
    if kind == stat.S_IFLNK:
        return left_out("submission.link", parts)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        return left_out("submission.special", parts)
    if info.flag_bits & ENCRYPTED:
        return left_out("submission.encrypted", parts)
    if info.compress_type not in METHODS:
        return left_out("submission.compression", parts)
    return None


def _read(archive: zipfile.ZipFile, info: zipfile.ZipInfo, parts: Parts, limit: int) -> bytes:
    content = bytearray()
    try:
        with archive.open(info) as file:
            while len(content) <= limit and (chunk := file.read(CHUNK_BYTES)):
                content += chunk
    except (*BROKEN, _TableTooLargeError) as error:
        raise LeftOutError(left_out("submission.broken_file", parts)) from error
    if len(content) > limit:
        raise LeftOutError(left_out("submission.too_large", parts, size=len(content), limit=limit))
    return bytes(content)
