"""The lock of a folder: one holder, freed by any death, and a message that names the holder."""

import errno
import json
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from minigpt import _lock
from minigpt._lock import LOCK_NAME, FolderBusyError, FolderLock, require_free, try_lock

HOLD = (
    "import sys, time\n"
    "from minigpt._lock import FolderLock\n"
    "with FolderLock(sys.argv[1]):\n"
    "    print('held', flush=True)\n"
    "    sys.stdin.read()\n"
)


def hold_elsewhere(folder: Path) -> subprocess.Popen[str]:
    """Return another process that has the lock, until its input ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(folder)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


def test_it_creates_the_folder_and_leaves_nothing(tmp_path: Path) -> None:
    """Inside the block the file is there, with its text; afterwards the folder is empty."""
    folder = tmp_path / "new" / "folder"
    with FolderLock(folder) as lock:
        assert lock.problem is None
        assert lock.stands()
        text = json.loads((folder / LOCK_NAME).read_text())
        assert (text["process"], text["machine"]) == (os.getpid(), socket.gethostname())
    assert list(folder.iterdir()) == []


def test_a_link_to_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """The folder is made where the link points to, and locked: nobody else gets in by either."""
    (tmp_path / "link").symlink_to(tmp_path / "far" / "away")
    with FolderLock(tmp_path / "link") as lock:
        assert lock.problem is None
        with pytest.raises(FolderBusyError), FolderLock(tmp_path / "far" / "away"):
            pass


def test_the_message_names_process_and_time(tmp_path: Path) -> None:
    """Who is refused reads which process it is, since when, where, and what to do."""
    process = hold_elsewhere(tmp_path)
    pattern = (
        rf"the trainer with process id {process.pid}, since \d{{4}}-\d\d-\d\d \d\d:\d\d:\d\d, "
        rf"writes into {re.escape(str(tmp_path))}; wait until it ends, or give another folder"
    )
    for _ in range(2):
        with pytest.raises(FolderBusyError, match=pattern), FolderLock(tmp_path):
            pass
        with pytest.raises(FolderBusyError, match=pattern):
            require_free(tmp_path)
    process.communicate("")
    with FolderLock(tmp_path):
        pass


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs SIGKILL")
def test_a_killed_holder_holds_nothing(tmp_path: Path) -> None:
    """SIGKILL leaves the file and no lock; the next holder takes it and cleans up."""
    process = hold_elsewhere(tmp_path)
    process.kill()
    process.communicate()
    assert (tmp_path / LOCK_NAME).exists()
    require_free(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_one_process_cannot_hold_it_twice(tmp_path: Path) -> None:
    """Two trainers in one notebook write into one folder as two processes would."""
    with FolderLock(tmp_path):
        with pytest.raises(FolderBusyError, match=rf"id {os.getpid()} \(this one\), since"):
            FolderLock(tmp_path).__enter__()
        assert (tmp_path / LOCK_NAME).exists()


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{", '{"process": "x"}', '{"process": 1, "machine": 2, "since": 3}', "[" * 999],
)
def test_the_text_is_not_trusted(tmp_path: Path, text: str) -> None:
    """Whatever stands in the file, the lock decides and the message is a sentence."""
    with FolderLock(tmp_path):
        (tmp_path / LOCK_NAME).write_text(text)
        with pytest.raises(FolderBusyError, match=r"^another trainer writes into"):
            FolderLock(tmp_path).__enter__()


def test_another_machine_is_named(tmp_path: Path) -> None:
    """On a shared file system the process id alone would be looked for in vain."""
    text = {"process": 7, "machine": "far\x1b[31m", "since": "2026-01-02 03:04:05+00:00"}
    with FolderLock(tmp_path):
        (tmp_path / LOCK_NAME).write_text(json.dumps(text))
        with pytest.raises(FolderBusyError, match=r"id 7 on far\\x1b\[31m, since 2026-01-02 03:"):
            FolderLock(tmp_path).__enter__()


def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It goes on, and says what is missing."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_lock, "_lock", refuse)
    with FolderLock(tmp_path) as lock, FolderLock(tmp_path) as other:
        assert [str(each.problem) for each in (lock, other)] == [
            "[Errno 37] No locks available"
        ] * 2
        assert lock.stands()


def test_a_removed_folder_is_noticed(tmp_path: Path) -> None:
    """Removed, or removed and made again by another: the lock no longer stands."""
    folder = tmp_path / "folder"
    with FolderLock(folder) as lock:
        (folder / LOCK_NAME).unlink()
        folder.rmdir()
        assert not lock.stands()
        with FolderLock(folder):
            assert not lock.stands()
            lock.__exit__(None, None, None)
            assert (folder / LOCK_NAME).exists()  # it is the other one's


def test_a_free_folder_is_left_alone(tmp_path: Path) -> None:
    """Asking creates neither file nor folder."""
    require_free(tmp_path / "folder")
    require_free(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_does_not_keep_it(tmp_path: Path) -> None:
    """A forked worker that outlives its killed trainer locks nobody out."""
    program = (
        "import os, signal, sys, time\n"
        "from minigpt._lock import FolderLock\n"
        "with FolderLock(sys.argv[1]):\n"
        "    if os.fork() == 0:\n"
        "        print('forked', flush=True)\n"
        "        time.sleep(60)\n"
        "        os._exit(0)\n"
        "    time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "forked\n"
    with pytest.raises(FolderBusyError):
        require_free(tmp_path)
    process.kill()
    process.wait()
    try:
        require_free(tmp_path)
    finally:
        os.killpg(process.pid, signal.SIGKILL)


def test_a_file_that_was_removed_meanwhile_is_not_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last holder removes it between our open and our lock: a new file is locked instead."""
    taken: list[int] = []

    def remove_first(descriptor: int) -> bool:
        if not taken:
            (tmp_path / LOCK_NAME).unlink()
        taken.append(descriptor)
        return try_lock(descriptor)

    monkeypatch.setattr(_lock, "try_lock", remove_first)
    with FolderLock(tmp_path) as lock:
        assert len(taken) == 2
        assert lock.stands()
