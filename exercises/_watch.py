"""Run something again each time a file is saved, by looking at the file a few times a second.

Editors save in many ways: in place, by a new file under the old name, with the file away for a
moment, twice within one tick of the clock. So the content is compared too, and a file that is
being written is left alone until it rests.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from exercises._terminal import put

POLL_SECONDS = 0.2
GONE_SECONDS = 3.0  # an editor that replaces a file needs much less

State = tuple[int, int, str]  # mtime_ns, size, digest of the content


def watch(path: Path, verify: Callable[[], int]) -> int:
    """Call `verify` now and after each save, until it returns 0; return that.

    Ctrl-C ends it with KeyboardInterrupt.
    """
    while True:
        seen = state_of(path)
        code = verify() if seen is not None else 1
        if code == 0:
            return 0
        put(f"watching {path}; save it to run again, Ctrl-C ends")
        _flush()
        wait_for_save(path, seen)
        print()


def wait_for_save(path: Path, seen: State | None) -> None:
    """Return when the file is there and differs from `seen`, and has stopped changing."""
    gone = 0.0
    before: State | None = None
    while True:
        now = state_of(path)
        if now is not None and now != seen and now == before:
            return
        before = now
        gone = gone + POLL_SECONDS if now is None else 0.0
        if GONE_SECONDS <= gone < GONE_SECONDS + POLL_SECONDS:
            put(f"{path} is not there; waiting for it")
            _flush()
        time.sleep(POLL_SECONDS)


def state_of(path: Path) -> State | None:
    """Return what tells one save from another; None when there is no file that can be read."""
    try:
        status = path.stat()
        content = path.read_bytes()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, hashlib.sha256(content).hexdigest()


def _flush() -> None:
    print(end="", flush=True)  # a pipe would keep the line until much more is there
