"""Putting a text in the place of a file, so that a reader sees the old one or the new one whole."""

from __future__ import annotations

import errno
import os
import secrets
import sys
import time
from contextlib import suppress
from pathlib import Path

# Windows replaces no file that a browser is just reading. Seconds; elsewhere there is no wait.
WAITS_FOR_READERS = (0.01, 0.05, 0.2) if sys.platform == "win32" else ()


def replace_text(path: Path, text: str) -> None:
    """Put UTF-8 text in the place of the file at once; half of a surrogate pair becomes an escape.

    Where `path` is a symbolic link, what it points to is replaced. Raises OSError, and leaves the
    old file as it was. The bytes are not forced to the disk, which would cost more than all the
    rest: after a power cut an empty file may be left, and this is for files that come again.
    """
    target = _target(path)
    temporary = _beside(target)
    try:
        temporary.write_bytes(text.encode("utf-8", errors="backslashreplace"))
        for seconds in WAITS_FOR_READERS:
            with suppress(PermissionError):
                temporary.replace(target)
                return
            time.sleep(seconds)
        temporary.replace(target)
    except BaseException:  # Ctrl-C included: no half-written file may stay behind
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def require_replaceable(path: Path) -> None:
    """Raise OSError where no file can be written at `path`; leaves everything as it was."""
    temporary = _beside(_target(path))
    try:
        temporary.touch(exist_ok=False)
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _target(path: Path) -> Path:
    """Return the file behind the name; refuse what a rename would destroy."""
    target = Path(os.path.realpath(path))
    if not target.exists():
        return target
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, "wanted a file to write, got a folder", str(path))
    if not target.is_file():
        raise OSError(errno.EINVAL, "wanted an ordinary file to write, got a device", str(path))
    if not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file is write-protected", str(path))
    return target


def _beside(target: Path) -> Path:
    return target.with_name(f".{target.name[:60]}.{secrets.token_hex(4)}.tmp")
