"""Writing files so that a crash at any instant leaves the last good one.

The bytes go to a hidden temporary file in the same folder (a rename is only atomic inside one
file system), are forced to the disk, and only then take the place of the old file. Without the
first fsync a power cut may leave the new name pointing at an empty file; without the second one,
on the folder, the rename itself may be forgotten.

A killed writer leaves its temporary file. While it lives it holds the system's lock on that file,
which is how `remove_leftovers` tells the dead from the living: neither age nor process ids do, for
clocks jump and ids come back.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from minigpt._lock import is_same_file, try_lock

TEMPORARY_SUFFIX = ".tmp"
ON_WINDOWS = sys.platform == "win32"
# Windows replaces no file that is open elsewhere: a reader, a virus scanner. Seconds, in all 3.
WAITS_FOR_READERS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7, 1.5)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield an open binary file whose bytes become `path` when the block ends without an error.

    The folder of `path` is created when it is missing. Where `path` is a symbolic link, the file
    it points to is replaced and the link stays; permissions stay too. If anything fails, inside
    the block or while writing (disk full, folder or file not writable), the temporary file is
    removed, the old file stays as it was and the error goes to the caller, usually an `OSError`.
    Of several writers at a time the last one to end wins; no file ever mixes their bytes.
    """
    target = Path(os.path.realpath(path))
    _require_replaceable(target, path)
    _make_folder(target.parent, Path(path).parent)
    file, temporary = _create_beside(target, path)
    try:
        yield file
        file.flush()
        os.fsync(file.fileno())
        if ON_WINDOWS:
            file.close()  # elsewhere it stays open, and so locked, until it is in its place
        with suppress(FileNotFoundError):  # a new file keeps the usual permissions
            shutil.copymode(target, temporary)
        _replace(temporary, target)
    except BaseException as error:  # Ctrl-C included: no half-written file may stay behind
        with suppress(OSError):
            file.close()  # writes what is left, on a full disk in vain
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk does not say which file it was
        raise
    file.close()
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text in one piece as `atomic_write` does; a device, `/dev/stdout`, directly."""
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        Path(path).write_text(text, encoding="utf-8")
        return
    with atomic_write(path) as file:
        file.write(text.encode())


def remove_leftovers(path: str | os.PathLike[str]) -> None:
    """Remove what killed writers of `path` left half-written; a living writer's file stays.

    Where the file system has no locks everything stays, since nothing tells the two apart.
    """
    target = Path(os.path.realpath(path))
    name = re.compile(re.escape(_hidden_start(target)) + "[0-9a-f]{8}" + TEMPORARY_SUFFIX)
    with suppress(OSError):  # what cannot be listed or removed is in nobody's way
        for found in sorted(target.parent.iterdir()):
            if name.fullmatch(found.name):
                _remove_if_abandoned(found)


def _remove_if_abandoned(temporary: Path) -> None:
    if ON_WINDOWS:
        temporary.unlink(missing_ok=True)  # refused, with an OSError, while anybody has it open
        return
    with suppress(OSError), temporary.open("r+b") as file:
        if try_lock(file.fileno()):
            temporary.unlink()


def _require_replaceable(target: Path, path: str | os.PathLike[str]) -> None:
    """Refuse what a rename would destroy: a folder, a device, a file that is write-protected."""
    if not target.exists():
        return
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "wanted a file to write, got a folder", str(path))
    if not target.is_file():
        raise OSError(errno.EINVAL, "wanted an ordinary file to write, got a device", str(path))
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is write-protected", str(path))


def _make_folder(folder: Path, name: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError as error:  # "File exists" would sound like good news
        reason = "wanted a folder, got a file"
        raise NotADirectoryError(errno.ENOTDIR, reason, str(name)) from error


def _create_beside(target: Path, path: str | os.PathLike[str]) -> tuple[BinaryIO, Path]:
    """Return a new file, locked where that is possible, and its name."""
    while True:
        temporary = target.parent / (
            f"{_hidden_start(target)}{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"
        )
        try:
            file = temporary.open("xb")  # x: never write into a file that somebody else made
        except OSError as error:
            error.filename = str(path)
            raise
        if ON_WINDOWS or _is_ours(file, temporary):
            return file, temporary
        file.close()


def _is_ours(file: BinaryIO, temporary: Path) -> bool:
    """Lock the new file; False when `remove_leftovers` was quicker, between creation and lock."""
    try:
        return try_lock(file.fileno()) and is_same_file(file.fileno(), temporary)
    except OSError:
        return True  # no locks here, so nothing removes it either


def _hidden_start(target: Path) -> str:
    # names have a limit of 255 bytes, and a character takes up to 4
    return f".{target.name[:60]}."


def _replace(temporary: Path, target: Path) -> None:
    for seconds in WAITS_FOR_READERS if ON_WINDOWS else ():
        try:
            temporary.replace(target)
        except PermissionError:
            time.sleep(seconds)
        else:
            return
    temporary.replace(target)


def _sync_folder(folder: Path) -> None:
    """Force the folder's own entry to the disk, where the system allows folders to be opened."""
    with suppress(OSError):  # Windows and some network file systems refuse; the file is safe
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
