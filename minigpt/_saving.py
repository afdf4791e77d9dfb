"""What a run does when it cannot write: stand still, say so, try again, and only then give up.

A disk that is full for one minute must not end a run of hours, so the first failure ends nothing.
Training on meanwhile would be worse than waiting: the best weights so far would be trained away
before they were saved, and hours might pass whose steps nobody can keep. A run that stands still
loses nothing, and what it writes in the end is what it would have written without the failure.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

from minigpt._lock import FolderBusyError, FolderLock
from minigpt._training_state import LAST_NAME, SaveError

RETRY_SECONDS = 5.0
POLL_SECONDS = 0.5  # how soon a Ctrl-C ends the waiting
MENDS = {
    errno.ENOSPC: "Free some space",
    errno.EDQUOT: "Free some space",
    errno.EACCES: "Make the folder writable",
    errno.EPERM: "Make the folder writable",
    errno.EROFS: "Make the folder writable",
    errno.ENOTDIR: "Move the file that is in the folder's place",
    errno.EISDIR: "Move the folder that is in the file's place",
    errno.EFBIG: "Lift the limit on the size of files",
}


class RunFolder:
    """The folder that a run writes into: locked for it, patient when writing fails.

    wait_seconds: how long a run stands still before it gives up; 0 gives up at once.
    should_stop: asked while waiting; a user who wants to stop does not want to wait.
    on_warning: gets one sentence when the waiting starts and one when it has helped.
    last_good: path and step of the newest checkpoint that was written or read.
    """

    def __init__(
        self,
        folder: Path,
        *,
        wait_seconds: float,
        should_stop: Callable[[], bool],
        on_warning: Callable[[str], None],
    ) -> None:
        self.path, self.wait_seconds = folder, wait_seconds
        self.should_stop, self.on_warning = should_stop, on_warning
        self.last_good: tuple[Path, int] | None = None
        self._lock: FolderLock | None = None
        self._warned = False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other trainers out of the block; raises FolderBusyError when one is in already."""
        lock = FolderLock(self.path)
        with lock:
            self._lock = lock
            try:
                yield
            finally:
                self._lock = None

    def write(
        self, path: Path, write: Callable[[], None], *, step: int, patient: bool = True
    ) -> None:
        """Call `write`, which writes `path`, until it works; SaveError when it never does.

        patient: False gives up at once, for a user who has just started the run and sees it.
        """
        failed_at: float | None = None
        stopping = self.should_stop()
        limit = self.wait_seconds if patient else 0.0
        while True:
            try:
                self._require_folder()
                write()
            except FolderBusyError:
                raise
            except OSError as error:
                if failed_at is None:
                    failed_at = monotonic()
                    if limit > 0:
                        self.on_warning(self._waiting_text(path, error, step))
                if not monotonic() - failed_at < limit or not self._pause(stopping):
                    raise self.save_error(path, error, step) from error
            else:
                break
        if failed_at is not None:
            seconds = monotonic() - failed_at
            self.on_warning(f"{path} is written, after {seconds:.0f} s; the run goes on")
        self._warn_without_lock()

    def save_error(self, path: Path, error: OSError, step: int) -> SaveError:
        """Return the error that names path, cause, last good checkpoint and what to do."""
        mend = MENDS.get(error.errno or 0, "Mend that")
        path_good = None if self.last_good is None else self.last_good[0]
        then = "start again"
        if path_good is not None and path_good.exists():
            then = "--resume" if path_good == self.path / LAST_NAME else f"--resume {path_good}"
        return SaveError(f"{self._failure_text(path, error, step)} {mend}, then {then}")

    def where_to_go_on(self) -> str:
        """Return the sentence about the last good checkpoint."""
        if self.last_good is None:
            return "There is no checkpoint of this run yet."
        path, step = self.last_good
        if not path.exists():
            return f"Its last checkpoint, {path} (step {step}), is gone."
        return f"Last good checkpoint: {path} (step {step})."

    def _waiting_text(self, path: Path, error: OSError, step: int) -> str:
        mend = MENDS.get(error.errno or 0, "Mend that")
        return (
            f"{self._failure_text(path, error, step)} {mend}: the run stands still and tries "
            f"again every {RETRY_SECONDS:.0f} s, for {self.wait_seconds:.0f} s"
        )

    def _failure_text(self, path: Path, error: OSError, step: int) -> str:
        cause = error.strerror or str(error)
        elsewhere = error.filename not in (None, str(path))
        where = f" ({error.filename})" if elsewhere else ""
        return f"cannot write {path} at step {step}: {cause}{where}. {self.where_to_go_on()}"

    def _require_folder(self) -> None:
        """Make the folder once more, with its lock, where somebody has removed it."""
        lock = self._lock
        if lock is None or lock.stands():
            return
        lock.close()
        lock.__enter__()
        if self.path.is_dir():  # if not, writing fails next and gives the reason
            self.on_warning(
                f"{self.path} was removed during the run and is made again; the log and the "
                "checkpoints in it are lost, and the best one comes back when it is beaten"
            )

    def _warn_without_lock(self) -> None:
        """Say once that nothing keeps a second trainer out, where all else works."""
        problem = None if self._lock is None else self._lock.problem
        if problem is not None and not self._warned:
            self._warned = True
            self.on_warning(
                f"{self.path} cannot be locked ({problem.strerror or problem}); nothing keeps a "
                "second trainer out of it, so start none"
            )

    def _pause(self, stopping: bool) -> bool:
        """Wait for the next try; False when the user asks to stop meanwhile."""
        end = monotonic() + RETRY_SECONDS
        while monotonic() < end:
            sleep(POLL_SECONDS)
            if self.should_stop() and not stopping:
                return False
        return True
