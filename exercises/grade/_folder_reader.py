"""Listing a folder without following a link, so that nobody hands in somebody else's file."""

from __future__ import annotations

import os
import stat
from functools import partial
from pathlib import Path

from exercises.grade._file_rules import (
    Parts,
    SubmissionLimits,
    is_junk,
    left_out,
    split_name,
    why_set_aside,
)
from exercises.grade._listing import CHUNK_BYTES, Entry, LeftOutError, Listing
from exercises.grade._results import Note

# A link that takes a file's place between listing and reading is refused, a pipe does not block.
OPEN_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
)


def list_folder(folder: Path, limits: SubmissionLimits) -> Listing:
    """Return what lies in a folder. Raises RefusedError for too many files."""
    listing = Listing()
    _walk(folder, (), listing, limits)
    return listing


def _walk(folder: Path, above: Parts, listing: Listing, limits: SubmissionLimits) -> None:
    try:
        with os.scandir(folder) as found:
            items = sorted(found, key=lambda item: os.fsencode(item.name))
    except OSError as error:
        listing.notes.append(_unreadable(above or (".",), error))
        return
    for item in items:
        parts = split_name("/".join([*above, item.name]), limits)
        if isinstance(parts, Note):
            listing.notes.append(parts)
            continue
        try:
            _add(item, parts, listing, limits)
        except OSError as error:  # gone since, or in a folder that may be listed and not entered
            listing.notes.append(_unreadable(parts, error))


def _add(item: os.DirEntry[str], parts: Parts, listing: Listing, limits: SubmissionLimits) -> None:
    if is_junk(parts):
        return
    if (aside := why_set_aside(parts)) is not None:
        listing.notes.append(aside)
    elif item.is_symlink() or _is_junction(item):
        listing.notes.append(left_out("submission.link", parts))
    elif item.is_dir(follow_symlinks=False):
        _walk(Path(item.path), parts, listing, limits)
    elif item.is_file(follow_symlinks=False):
        size = item.stat(follow_symlinks=False).st_size
        read = partial(_read, Path(item.path), parts)
        listing.add(Entry(parts, size, size, read), limits.files)
    else:
        listing.notes.append(left_out("submission.special", parts))


def _is_junction(item: os.DirEntry[str]) -> bool:
    """Tell a Windows junction, a folder that is a link under another name."""
    attributes = getattr(item.stat(follow_symlinks=False), "st_file_attributes", 0)
    return bool(attributes & stat.FILE_ATTRIBUTE_REPARSE_POINT)


def _read(path: Path, parts: Parts, limit: int) -> bytes:
    content = bytearray()
    try:
        with os.fdopen(os.open(path, OPEN_FLAGS), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise LeftOutError(left_out("submission.special", parts))
            while len(content) <= limit and (chunk := file.read(CHUNK_BYTES)):
                content += chunk
    except OSError as error:
        raise LeftOutError(_unreadable(parts, error)) from error
    if len(content) > limit:
        raise LeftOutError(left_out("submission.too_large", parts, size=len(content), limit=limit))
    return bytes(content)


def _unreadable(parts: Parts, error: OSError) -> Note:
    return left_out("submission.unreadable", parts, why=error.strerror or "no reason given")
