"""A run that cannot save: it stands still, says so, tries again, and gives up in the end."""

import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minigpt import _lock, _saving
from minigpt import trainer as trainer_module
from minigpt._lock import LOCK_NAME, FolderBusyError, FolderLock
from minigpt._saving import RunFolder
from minigpt._training_state import BEST_NAME, LAST_NAME, LOG_NAME, SaveError
from minigpt.checkpoint import load_checkpoint
from tests.minigpt.test_trainer import make_trainer, read_log, resume, without_speed

REASONS = [
    (errno.ENOSPC, "No space left on device", "Free some space"),
    (errno.EROFS, "Read-only file system", "Make the folder writable"),
    (errno.EACCES, "Permission denied", "Make the folder writable"),
    (errno.EIO, "Input/output error", "Mend that"),
]


class Clock:
    """A clock that only sleeping moves, and what happens at some of its seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        self.events: dict[float, Callable[[], object]] = {}
        monkeypatch.setattr(_saving, "monotonic", lambda: self.now)
        monkeypatch.setattr(_saving, "sleep", self.sleep)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        for at in sorted(self.events):
            if at <= self.now - 1000:
                self.events.pop(at)()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The clock of `_saving`."""
    return Clock(monkeypatch)


class Disk:
    """Stands in for `save_checkpoint`; while `error` is set, every save fails with it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error: OSError | None = None
        self.tries, self.save = 0, trainer_module.save_checkpoint
        monkeypatch.setattr(trainer_module, "save_checkpoint", self)

    def __call__(self, path: Path, *args: Any, **options: Any) -> None:
        self.tries += 1
        if self.error is not None:
            raise self.error
        self.save(path, *args, **options)

    def fill(self, number: int = errno.ENOSPC) -> None:
        self.error, self.tries = OSError(number, os.strerror(number)), 0

    def free(self) -> None:
        self.error = None


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    """The disk that the trainer saves to."""
    return Disk(monkeypatch)


def fill_at(step: int, disk: Disk) -> Callable[[Any], None]:
    """Return an `on_step` that fills the disk after an update."""
    return lambda report: disk.fill() if report.step == step else None


def test_a_disk_that_is_full_for_a_minute_changes_nothing(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    """The run ends with the same files and rows as one that never waited; two warnings."""
    whole = make_trainer(tmp_path / "whole")
    whole.run()
    warnings: list[str] = []
    trainer = make_trainer(tmp_path / "run", on_step=fill_at(12, disk), on_warning=warnings.append)
    clock.events[60] = disk.free
    assert trainer.run() == "finished"
    assert disk.tries > 12
    last = tmp_path / "run" / LAST_NAME
    assert warnings == [
        f"cannot write {last} at step 12: No space left on device. Last good checkpoint: {last} "
        "(step 6). Free some space: the run stands still and tries again every 5 s, for 300 s",
        f"{last} is written, after 60 s; the run goes on",
    ]
    for name in (LAST_NAME, BEST_NAME):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    rows = [without_speed(read_log(tmp_path / folder)) for folder in ("run", "whole")]
    assert rows[0] == rows[1]


@pytest.mark.parametrize(("number", "cause", "mend"), REASONS)
def test_it_gives_up_after_the_time_it_was_given(
    tmp_path: Path, clock: Clock, disk: Disk, number: int, cause: str, mend: str
) -> None:
    """12 s are 4 tries: at 0, 5, 10 and 15; path, step, cause, last good file, one action."""
    trainer = make_trainer(tmp_path, save_wait_seconds=12, on_warning=lambda text: None)
    trainer.run(stop_after=6)
    disk.fill(number)
    with pytest.raises(SaveError) as caught:
        trainer.run()
    last = tmp_path / LAST_NAME
    assert str(caught.value) == (
        f"cannot write {last} at step 12: {cause}. Last good checkpoint: {last} (step 6). "
        f"{mend}, then --resume"
    )
    assert (disk.tries, clock.now) == (4, 1015.0)
    assert trainer.state.step == 12  # not one update was made that cannot be kept
    assert load_checkpoint(last).step == 6


def test_after_giving_up_the_same_trainer_goes_on(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    """In a notebook: free the disk, run again; nothing is lost and no bit differs."""
    whole = make_trainer(tmp_path / "whole")
    whole.run()
    trainer = make_trainer(tmp_path / "run", on_step=fill_at(6, disk), save_wait_seconds=0)
    with pytest.raises(SaveError, match=r"no checkpoint of this run yet.*then start again"):
        trainer.run()
    disk.free()
    trainer.on_step = lambda report: None
    assert trainer.run() == "finished"
    for name in (LAST_NAME, BEST_NAME):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_best_and_last_are_mended_after_giving_up_between_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk fills up between the two files: --resume writes the best one from the last."""
    save, names = trainer_module.save_checkpoint, []

    def save_one(path: Path, *args: Any, **options: Any) -> None:
        names.append(path.name)
        if names.count(BEST_NAME) == 1 and path.name == BEST_NAME:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(path, *args, **options)

    whole = make_trainer(tmp_path / "whole")
    whole.run()
    with monkeypatch.context() as patch:
        patch.setattr(trainer_module, "save_checkpoint", save_one)
        with pytest.raises(SaveError, match=rf"{BEST_NAME} at step 6.*{LAST_NAME} \(step 6\)"):
            make_trainer(tmp_path / "run", save_wait_seconds=0).run()
    assert names == [LAST_NAME, BEST_NAME]
    assert not (tmp_path / "run" / BEST_NAME).exists()
    resumed = resume(tmp_path / "run")
    assert resumed.run(stop_after=6) == "paused"
    best, last = (tmp_path / "run" / name for name in (BEST_NAME, LAST_NAME))
    assert best.read_bytes() == last.read_bytes()
    resume(tmp_path / "run").run()
    assert best.read_bytes() == (tmp_path / "whole" / BEST_NAME).read_bytes()


def test_a_user_who_wants_to_stop_does_not_wait(tmp_path: Path, clock: Clock, disk: Disk) -> None:
    """Ctrl-C while it waits ends the waiting within a second."""
    asked: list[bool] = []
    trainer = make_trainer(
        tmp_path,
        on_step=fill_at(6, disk),
        should_stop=lambda: bool(asked),
        on_warning=lambda text: None,
    )
    clock.events[7] = lambda: asked.append(True)
    with pytest.raises(SaveError, match="at step 6"):
        trainer.run()
    assert clock.now == 1007.0


def test_an_interrupted_run_waits_for_its_last_save(
    tmp_path: Path, clock: Clock, disk: Disk
) -> None:
    """Stopped at step 3 with a full disk, it saves step 3 as soon as there is room."""
    asked: list[bool] = []

    def stop(report: Any) -> None:
        if report.step == 3:
            disk.fill()
            asked.append(True)

    clock.events[30] = disk.free
    trainer = make_trainer(
        tmp_path, on_step=stop, should_stop=lambda: bool(asked), on_warning=lambda text: None
    )
    assert trainer.run() == "interrupted"
    assert load_checkpoint(tmp_path / LAST_NAME).step == 3


def test_a_row_that_cannot_be_written_is_written_later(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log waits like a checkpoint; in the end it has every row, once."""
    trainer = make_trainer(tmp_path, on_warning=lambda text: None)
    append, failing = trainer.log.append, [True]

    def append_later(row: dict[str, Any]) -> None:
        if row["step"] == 8 and failing:
            raise OSError(errno.ENOSPC, "No space left on device")
        append(row)

    monkeypatch.setattr(trainer.log, "append", append_later)
    clock.events[20] = failing.clear
    trainer.run()
    assert [row["step"] for row in read_log(tmp_path)] == [0, 4, 6, 8, 12, 16, 18, 20]


@pytest.mark.parametrize("step", [4, 6, 20])
def test_a_row_that_was_given_up_is_written_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    """Between evaluations, at one, at the end: the same log and files as without the failure."""
    make_trainer(tmp_path / "whole").run()
    trainer = make_trainer(tmp_path / "run", save_wait_seconds=0)
    append, failing = trainer.log.append, [True]

    def append_later(row: dict[str, Any]) -> None:
        if row["step"] == step and failing:
            failing.clear()
            raise OSError(errno.ENOSPC, "No space left on device")
        append(row)

    monkeypatch.setattr(trainer.log, "append", append_later)
    with pytest.raises(SaveError, match=f"{LOG_NAME} at step {step}"):
        trainer.run()
    assert trainer.run() == "finished"
    logs = [without_speed(read_log(tmp_path / name)) for name in ("run", "whole")]
    assert logs[0] == logs[1]
    for name in (LAST_NAME, BEST_NAME):
        assert (tmp_path / "run" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_folder_removed_while_training_is_made_again(tmp_path: Path) -> None:
    """The weights in memory are the only ones left: they are saved, and the loss is told."""
    folder, warnings = tmp_path / "checkpoints", []

    def remove(report: Any) -> None:
        if report.step == 13:
            shutil.rmtree(folder)

    trainer = make_trainer(folder, on_step=remove, on_warning=warnings.append)
    assert trainer.run() == "finished"
    assert warnings == [
        f"{folder} was removed during the run and is made again; the log and the checkpoints in "
        "it are lost, and the best one comes back when it is beaten"
    ]
    whole = make_trainer(tmp_path / "whole")
    whole.run()
    theirs = load_checkpoint(tmp_path / "whole" / LAST_NAME).model.state_dict()
    ours = load_checkpoint(folder / LAST_NAME).model.state_dict()
    assert all((ours[name] == theirs[name]).all() for name in theirs)
    assert [row["step"] for row in read_log(folder)] == [16, 18, 20]
    assert LOCK_NAME not in os.listdir(folder)  # noqa: PTH208
    again: list[str] = []
    resume(folder, on_warning=again.append).run()
    assert again == []  # the log is known by its rows since then


def test_a_folder_that_another_run_has_taken_is_left_to_it(tmp_path: Path) -> None:
    """Removed and taken by a second trainer: the first one ends with its name."""
    folder = tmp_path / "checkpoints"
    second = FolderLock(folder)

    def take(report: Any) -> None:
        if report.step == 13:
            shutil.rmtree(folder)
            second.__enter__()

    trainer = make_trainer(folder, on_step=take, on_warning=lambda text: None)
    with pytest.raises(FolderBusyError, match=f"id {os.getpid()}"):
        trainer.run()
    assert os.listdir(folder) == [LOCK_NAME]  # noqa: PTH208
    second.__exit__(None, None, None)


def test_a_file_in_the_folder_s_place(tmp_path: Path) -> None:
    """Seen before the first update, without waiting; the message names the file."""
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SaveError) as caught:
        make_trainer(tmp_path / "file").run()
    assert str(caught.value) == (
        f"cannot write {tmp_path / 'file' / LOG_NAME} at step 0: wanted a folder, got a file "
        f"({tmp_path / 'file'}). There is no checkpoint of this run yet. "
        "Move the file that is in the folder's place, then start again"
    )
    assert (tmp_path / "file").read_text() == "mine"


def test_a_folder_that_allows_no_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read-only media refuse every new file, the lock first: the error is that of the log."""
    opened, os_open = Path.open, os.open

    def refuse(path: Any, mode: Any = "r", *rest: Any, **options: Any) -> Any:
        writing = mode & os.O_CREAT if isinstance(mode, int) else mode != "r"
        if str(path).startswith(str(tmp_path)) and writing:
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return (os_open if isinstance(mode, int) else opened)(path, mode, *rest, **options)

    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(SaveError, match=rf"{LOG_NAME} at step 0: Read-only .*Make the folder w"):
        make_trainer(tmp_path).run()


def test_two_trainers_on_one_folder(tmp_path: Path) -> None:
    """The second one is refused before it writes a byte, and the first one goes on."""
    refused: list[str] = []

    def start_second(report: Any) -> None:
        if report.step == 8:
            before = sorted(path.read_bytes() for path in tmp_path.iterdir())
            with pytest.raises(FolderBusyError) as caught:
                make_trainer(tmp_path).run()
            refused.append(str(caught.value))
            assert sorted(path.read_bytes() for path in tmp_path.iterdir()) == before

    assert make_trainer(tmp_path, on_step=start_second).run() == "finished"
    assert len(refused) == 1
    make_trainer(tmp_path).run(stop_after=1)  # free again


def test_a_folder_without_locks_is_used_and_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A network disk without locks trains all the same."""

    def refuse(descriptor: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_lock, "_lock", refuse)
    warnings: list[str] = []
    assert make_trainer(tmp_path, on_warning=warnings.append).run() == "finished"
    assert warnings == [
        f"{tmp_path} cannot be locked (No locks available); nothing keeps a second trainer out of "
        "it, so start none"
    ]


def test_the_last_good_checkpoint_is_only_named_while_it_is_there(tmp_path: Path) -> None:
    """A path that somebody has removed is no help, and --resume would not find it."""
    files = RunFolder(
        tmp_path, wait_seconds=0, should_stop=lambda: False, on_warning=lambda text: None
    )
    path, error = tmp_path / LAST_NAME, OSError(errno.ENOSPC, "full")
    assert str(files.save_error(path, error, 9)).endswith("Free some space, then start again")
    files.last_good = (tmp_path / "elsewhere.safetensors", 7)
    assert files.where_to_go_on().endswith("elsewhere.safetensors (step 7), is gone.")
    assert str(files.save_error(path, error, 9)).endswith("Free some space, then start again")
    files.last_good[0].write_bytes(b"")
    assert str(files.save_error(path, error, 9)).endswith(f"then --resume {files.last_good[0]}")


def test_a_clock_that_jumps_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock runs backwards by an hour a call: no rate is negative, no decision changes."""
    import time

    times = iter(range(10**9, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: float(next(times)))
    monkeypatch.setattr(time, "perf_counter", lambda: 5.0)  # a clock too coarse for an update
    assert make_trainer(tmp_path).run() == "finished"
    speeds = [json.loads(line)["tokens_per_second"] for line in (tmp_path / LOG_NAME).open()]
    assert speeds[0] is None
    assert all(0 < speed < float("inf") for speed in speeds[1:])
