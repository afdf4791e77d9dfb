"""One trainer per folder: a lock that the system takes back however its holder ends.

A file that merely exists would outlive a killed trainer and lock everybody out. Here the system
locks the open file, so that a `kill -9` or a power cut frees it. The file's text (process, machine,
since when) only serves the message; nothing is decided by it.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import weakref
from datetime import datetime
from pathlib import Path
from types import TracebackType

LOCK_NAME = ".mini_gpt.lock"
BUSY = frozenset({errno.EAGAIN, errno.EWOULDBLOCK, errno.EACCES, errno.EDEADLK})
FAR_BEHIND_THE_TEXT = 2**30  # Windows lets nobody read a locked byte; it may lie beyond the end


class FolderBusyError(OSError):
    """Another trainer writes into the folder; the message names it and says what to do."""


class FolderLock:
    """Keeps a folder for one writer, from `with` to its end or the death of the process.

    problem: after entering, the reason why nothing is locked (a file system without locks, for
    example), None when all is well. Working without a lock is better than not working.
    Raises FolderBusyError where another process, or another part of this one, has the lock.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self.path = self.folder / LOCK_NAME
        self.problem: OSError | None = None
        self._descriptor: int | None = None

    def __enter__(self) -> FolderLock:
        try:
            # A link to a folder that is not there yet: mkdir of the link itself would fail.
            Path(os.path.realpath(self.folder)).mkdir(parents=True, exist_ok=True)
            self._descriptor, self.problem = self._open_locked(), None
        except FolderBusyError:
            raise
        except OSError as error:
            self.problem = error
            return self
        _held.add(self)
        self._write_text()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._descriptor is None:
            return
        if sys.platform != "win32" and self.stands():  # removed while still locked
            self.path.unlink(missing_ok=True)
        self.close()

    def stands(self) -> bool:
        """Tell whether the lock is in its place; not so once somebody has removed the folder."""
        if self._descriptor is None:
            return self.folder.is_dir()
        return is_same_file(self._descriptor, self.path)

    def close(self) -> None:
        """Let go of the file without removing it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)

    def _open_locked(self) -> int:
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if not try_lock(descriptor):
                    raise FolderBusyError(self._describe_holder())
                if is_same_file(descriptor, self.path):
                    return descriptor
            except BaseException:
                os.close(descriptor)
                raise
            # Its last holder removed the file just now: there may be a new one.
            os.close(descriptor)

    def _write_text(self) -> None:
        since = datetime.now().astimezone().isoformat(" ", "seconds")
        text = json.dumps({"process": os.getpid(), "machine": socket.gethostname(), "since": since})
        assert self._descriptor is not None
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, text.encode())
        except OSError:
            pass  # a full disk: the lock holds without its text

    def _describe_holder(self) -> str:
        try:
            text = json.loads(self.path.read_bytes()[:1000])
            process, machine = int(text["process"]), str(text["machine"])[:60]
            since = datetime.fromisoformat(text["since"]).strftime("%Y-%m-%d %H:%M:%S")
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            holder = "another trainer"
        else:
            here = machine == socket.gethostname()
            place = "" if here else f" on {ascii(machine)[1:-1]}"
            same = " (this one)" if here and process == os.getpid() else ""
            holder = f"the trainer with process id {process}{same}{place}, since {since},"
        return (
            f"{holder} writes into {self.folder}; wait until it ends, or give another folder "
            "with --checkpoints"
        )


def require_free(folder: str | os.PathLike[str]) -> None:
    """Raise FolderBusyError where a trainer is at work; creates nothing."""
    lock = FolderLock(folder)
    if lock.path.exists():
        with lock:
            pass


def try_lock(descriptor: int) -> bool:
    """Take the lock of an open file without waiting; False when another one has it.

    Closing the file, or the end of the process, gives it back. Raises OSError on a file system
    that has no locks.
    """
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno in BUSY:
            return False
        raise
    return True


def is_same_file(descriptor: int, path: Path) -> bool:
    """Tell whether `path` still names the open file; not so once it was removed or replaced."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except OSError:
        return False


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        os.lseek(descriptor, FAR_BEHIND_THE_TEXT, os.SEEK_SET)
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        finally:
            os.lseek(descriptor, 0, os.SEEK_SET)

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        # Not lockf: a process loses that one when it closes the file anywhere, and may lock twice.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


_held: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _leave_to_the_parent() -> None:
    """A forked child shares the open file: if it outlived a killed trainer, so would the lock."""
    for lock in list(_held):
        lock.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_the_parent)
