"""Writing files so that a crash at any instant leaves the last good one.

The bytes go to a hidden temporary file in the same folder (a rename is only atomic inside one
file system), are forced to the disk, and only then take the place of the old file. Without the
first fsync a power cut may leave the new name pointing at an empty file; without the second one,
on the folder, the rename itself may be forgotten.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

TEMPORARY_SUFFIX = ".tmp"


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Yield an open binary file whose bytes become `path` when the block ends without an error.

    The folder of `path` is created when it is missing. Where `path` is a symbolic link, the file
    it points to is replaced and the link stays; permissions stay too. If anything fails, inside
    the block or while writing (disk full, folder or file not writable), the temporary file is
    removed, the old file stays as it was and the error goes to the caller, usually an `OSError`.
    """
    target = Path(os.path.realpath(path))
    _require_replaceable(target, path)
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary_beside(target)
    try:
        with temporary.open("xb") as file:  # x: never write into a file that somebody else made
            yield file
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileNotFoundError):  # a new file keeps the usual permissions
            shutil.copymode(target, temporary)
        temporary.replace(target)
    except BaseException as error:  # Ctrl-C included: no half-written file may stay behind
        with suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.errno and error.filename in (None, str(temporary)):
            error.filename = str(path)  # a full disk does not say which file it was
        raise
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write UTF-8 text in one piece as `atomic_write` does; a device, `/dev/stdout`, directly."""
    if Path(path).exists() and not Path(path).is_file() and not Path(path).is_dir():
        Path(path).write_text(text, encoding="utf-8")
        return
    with atomic_write(path) as file:
        file.write(text.encode())


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


def _temporary_beside(target: Path) -> Path:
    name = target.name[:60]  # names have a limit of 255 bytes, and a character takes up to 4
    return target.parent / f".{name}.{secrets.token_hex(4)}{TEMPORARY_SUFFIX}"


def _sync_folder(folder: Path) -> None:
    """Force the folder's own entry to the disk, where the system allows folders to be opened."""
    with suppress(OSError):  # Windows and some network file systems refuse; the file is safe
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
