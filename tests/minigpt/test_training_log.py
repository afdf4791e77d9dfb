"""The log: whole rows whatever happens, and the right run's rows after a resume."""

import errno
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from minigpt._training_log import TrainingLog


def steps_in(path: Path) -> list[int]:
    """Return the steps of the rows."""
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def make_log(path: Path, steps: list[int], **more: Any) -> TrainingLog:
    """Return a log with one row per step."""
    log = TrainingLog(path)
    log.start()
    for step in steps:
        log.append({"step": step, **more})
    return log


def test_a_row_that_does_not_fit_leaves_no_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is full after five bytes: they are taken back, and the next row is whole."""
    log = make_log(tmp_path / "log", [0])
    before, digest = log.path.read_bytes(), log.digest
    opened = Path.open

    class AlmostFull:
        def __init__(self, file: BinaryIO) -> None:
            self.file, self.left = file, 5

        def __enter__(self) -> "AlmostFull":
            return self

        def __exit__(self, *_: object) -> None:
            self.file.close()

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

        def write(self, content: memoryview) -> int:
            if not self.left:
                raise OSError(errno.ENOSPC, "No space left on device")
            written, self.left = self.file.write(content[: self.left]), 0
            return written

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", lambda *args, **kw: AlmostFull(opened(*args, **kw)))
        with pytest.raises(OSError, match="No space left"):
            log.append({"step": 1})
    assert (log.path.read_bytes(), log.digest) == (before, digest)
    log.append({"step": 1})
    assert steps_in(log.path) == [0, 1]


def test_the_digest_is_of_the_rows_but_not_of_their_speed(tmp_path: Path) -> None:
    """Equal rows have equal digests, at any speed; another loss or one row less has another."""
    log = make_log(tmp_path / "a", [0, 1], loss=0.5, tokens_per_second=7.0)
    assert make_log(tmp_path / "b", [0, 1], loss=0.5, tokens_per_second=9.0).digest == log.digest
    assert make_log(tmp_path / "c", [0, 1], loss=0.6, tokens_per_second=7.0).digest != log.digest
    assert make_log(tmp_path / "d", [0], loss=0.5, tokens_per_second=7.0).digest != log.digest
    again = TrainingLog(tmp_path / "a")
    assert again.start_at(1, log.digest) is True
    assert again.digest == log.digest


def test_the_rest_is_dropped(tmp_path: Path) -> None:
    """Later rows, half a row, and what is no row at all go; the rows until the step stay."""
    log = make_log(tmp_path / "log", [0, 4])
    digest = log.digest
    log.append({"step": 8})
    with log.path.open("ab") as file:
        file.write(b'[1]\n{"step": null}\n\xff\n{"step": 4')
    assert TrainingLog(log.path).start_at(4, digest) is True
    assert steps_in(log.path) == [0, 4]


@pytest.mark.parametrize(
    "line",
    [b'{"step": 1' + b"0" * 400 + b"}\n", b"[" * 200_000 + b"\n", b"[3]\n", b"\xff\n", b"{}\n"],
    ids=["beyond float", "nested", "list", "bytes", "empty"],
)
def test_a_line_that_is_no_row_is_dropped(tmp_path: Path, line: bytes) -> None:
    """Whatever stands there, a damaged log ends no run that could go on."""
    log = make_log(tmp_path / "log", [1, 2])
    rows, digest = log.path.read_bytes(), log.digest
    log.path.write_bytes(rows + line)
    assert TrainingLog(log.path).start_at(5, digest)
    assert log.path.read_bytes() == rows


def test_the_log_of_the_run_before_comes_back(tmp_path: Path) -> None:
    """A new run that saved nothing was not to be: resuming the one before finds its rows."""
    path = tmp_path / "log"
    before = make_log(path, [0, 4, 8], loss=1)
    digest = before.digest
    for _ in range(2):  # also when a second new run comes to nothing
        make_log(path, [0], loss=2)
    assert sorted(item.name for item in tmp_path.iterdir()) == ["log", "log.old"]
    assert TrainingLog(path).start_at(8, digest) is True
    assert steps_in(path) == [0, 4, 8]
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_run_forgets_the_one_before_once_it_has_saved(tmp_path: Path) -> None:
    """Until then both logs are there."""
    make_log(tmp_path / "log", [0, 4], loss=1)
    log = make_log(tmp_path / "log", [0], loss=2)
    log.forget_old()
    assert list(tmp_path.iterdir()) == [log.path]
    assert steps_in(log.path) == [0]


def test_a_log_of_another_run_is_told(tmp_path: Path) -> None:
    """Where no log has the rows, what is there is kept; an old checkpoint has no digest."""
    log = make_log(tmp_path / "log", [0, 4])
    assert TrainingLog(log.path).start_at(4, "0" * 64) is False
    assert steps_in(log.path) == [0, 4]
    assert TrainingLog(log.path).start_at(4) is True
    assert TrainingLog(tmp_path / "none").start_at(4, log.digest) is False


def test_a_log_that_was_removed_begins_anew(tmp_path: Path) -> None:
    """The digest is that of the rows in the file, so the rows that follow are recognised."""
    log = make_log(tmp_path / "log", [0, 4])
    log.path.unlink()
    log.append({"step": 8})
    assert log.digest == make_log(tmp_path / "other", [8]).digest


def test_sync_forces_the_rows_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One call for the file; a log that was removed is nothing to force."""
    log = make_log(tmp_path / "log", [0])
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.append(os.fstat(descriptor).st_ino))
    log.sync()
    assert synced == [log.path.stat().st_ino]
    log.path.unlink()
    log.sync()
    assert list(tmp_path.iterdir()) == []
