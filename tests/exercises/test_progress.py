"""What a student did is in one file, and no crash and no second process loses an entry of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import exercises
from exercises._progress import Entry, Progress, Repair, Score, read_progress, update_progress

ROOT = Path(exercises.__file__).parents[1]


def test_an_entry_comes_back_as_it_was_written(tmp_path: Path) -> None:
    def change(entry: Entry) -> None:
        entry.caught["identical"] = True
        entry.predicted["identical"] = False
        entry.repairing = "wrapped"
        entry.repairs["wrapped"] = Repair(verified=2, attempts=["ab"], repaired=True)
        entry.check = Score(accepted=3, rights=3, caught=2, wrongs=4)

    written = update_progress("shift", change, tmp_path)
    expected = Entry(
        caught={"identical": True},
        predicted={"identical": False},
        repairing="wrapped",
        repairs={"wrapped": Repair(verified=2, attempts=["ab"], repaired=True)},
        check=Score(accepted=3, rights=3, caught=2, wrongs=4),
    )
    assert written == expected
    assert read_progress(tmp_path) == (Progress({"shift": expected}), "")


def test_no_file_is_no_progress_and_no_problem(tmp_path: Path) -> None:
    assert read_progress(tmp_path) == (Progress(), "")
    assert list(tmp_path.iterdir()) == []


def test_another_check_keeps_its_entry(tmp_path: Path) -> None:
    update_progress("shift", lambda entry: entry.caught.update(a=True), tmp_path)
    update_progress("range", lambda entry: entry.caught.update(b=True), tmp_path)
    assert {name: entry.caught for name, entry in read_progress(tmp_path)[0].checks.items()} == {
        "shift": {"a": True},
        "range": {"b": True},
    }


def test_two_processes_at_once_lose_no_entry(tmp_path: Path) -> None:
    """Both write 25 entries each into one file, and all 50 are there."""
    code = (
        "import sys; from pathlib import Path; from exercises._progress import update_progress\n"
        "for n in range(25):\n"
        "    change = lambda entry: entry.caught.update({f'{sys.argv[1]}{n}': True})\n"
        "    update_progress('shift', change, Path(sys.argv[2]))\n"
    )
    writers = [
        subprocess.Popen([sys.executable, "-c", code, name, str(tmp_path)], cwd=ROOT)
        for name in "ab"
    ]
    assert [writer.wait(timeout=120) for writer in writers] == [0, 0]
    caught = read_progress(tmp_path)[0].of("shift").caught
    assert caught == {f"{name}{n}": True for name in "ab" for n in range(25)}


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is damaged"),
        (b'{"version": 1, "checks": {"shift": {"caught": 3}}}', "is damaged"),
        (b'{"version": 2, "checks": {}}', "is of version 2, newer than the 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_said_and_kept(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Reading leaves it where it is; the next entry moves it, and never over an earlier one."""
    path = tmp_path / "progress.json"
    earlier = tmp_path / "progress.1.json"
    path.write_bytes(content)
    earlier.write_bytes(b"earlier")
    progress, problem = read_progress(tmp_path)
    assert progress == Progress()
    assert said in problem
    assert path.read_bytes() == content
    update_progress("shift", lambda entry: entry.caught.update(a=True), tmp_path)
    assert said in capsys.readouterr().err
    assert (tmp_path / "progress.2.json").read_bytes() == content
    assert earlier.read_bytes() == b"earlier"
    assert json.loads(path.read_bytes())["checks"]["shift"]["caught"] == {"a": True}


def test_where_nothing_can_be_written_the_run_goes_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file stands where the folder should be."""
    folder = tmp_path / "work"
    folder.write_text("a file", encoding="utf-8")
    entry = update_progress("shift", lambda entry: entry.caught.update(a=True), folder)
    assert entry.caught == {"a": True}
    error = capsys.readouterr().err
    assert error.startswith("note: progress was not kept: ")
    assert error.count("\n") == 1


def test_no_lock_is_left_behind_by_a_process_that_was_killed(tmp_path: Path) -> None:
    """The lock is the system's, not the file's: an old lock file blocks nobody."""
    (tmp_path / ".progress.lock").write_text(str(os.getpid()), encoding="utf-8")
    update_progress("shift", lambda entry: entry.caught.update(a=True), tmp_path)
    assert read_progress(tmp_path)[0].of("shift").caught == {"a": True}
