"""What is done and what comes next: words, one command, and no torch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import exercises
from diagnostics._catalog import CATALOG
from exercises.__main__ import main
from exercises._outline import bug_levels
from exercises._progress import Entry, Progress, Repair, Score
from exercises._status import next_step, show_summary, words_of

ROOT = Path(exercises.__file__).parents[1]
SCORE = {"accepted": 3, "rights": 3, "wrongs": 3}


def worked(check: str, *, caught: int = 99, repaired: bool = True, checked: bool = True) -> Entry:
    return Entry(
        caught=dict.fromkeys(list(bug_levels(check))[:caught], True),
        repairs={"some": Repair(repaired=True)} if repaired else {},
        check=Score(**SCORE, caught=3) if checked else None,
    )


def test_bugs_and_levels_are_read_from_the_source() -> None:
    assert bug_levels("shift") == {"identical": 1, "two_ahead": 1, "wrapped": 2}


@pytest.mark.parametrize("check", CATALOG)
def test_what_is_read_from_the_source_is_what_is_imported(check: str) -> None:
    import importlib

    exercise = importlib.import_module(f"exercises.break_{check}").EXERCISE
    assert dict(bug_levels(check)) == {bug.name: bug.level for bug in exercise.bugs}


def test_each_column_has_a_word() -> None:
    assert words_of("shift", Entry()) == {
        "level 1": "open", "level 2": "open", "level 3": "open", "repair": "open",
    }  # fmt: skip
    entry = Entry(
        caught={"identical": True, "two_ahead": False},
        repairs={"identical": Repair(verified=1)},
        check=Score(**SCORE, caught=2),
    )
    assert words_of("shift", entry) == {
        "level 1": "begun", "level 2": "open", "level 3": "begun", "repair": "begun",
    }  # fmt: skip
    assert set(words_of("shift", worked("shift")).values()) == {"done"}


def test_the_next_command_goes_through_a_check_before_the_next_one() -> None:
    first = next(iter(CATALOG))
    run = f"python -m exercises.break_{first}"
    assert next_step(Progress()) == run
    bugs = list(bug_levels(first))
    assert next_step(Progress({first: worked(first, caught=1)})) == f"{run} {bugs[1]}"
    assert next_step(Progress({first: worked(first, repaired=False)})) == f"{run} --fix"
    second = list(CATALOG)[1]
    done = Progress({first: worked(first, checked=False)})
    assert next_step(done) == f"python -m exercises.break_{second}"


def test_after_work_on_a_check_its_own_next_step_comes_first() -> None:
    progress = Progress({"shift": worked("shift", repaired=False)})
    assert next_step(progress, "shift") == "python -m exercises.break_shift --fix"
    progress = Progress({"shift": worked("shift")})
    assert next_step(progress, "shift") == "python -m exercises.break_batches"


def test_level_3_comes_after_all_else_and_then_the_cases() -> None:
    everything = {check: worked(check, checked=False) for check in CATALOG}
    first = next(iter(CATALOG))
    assert next_step(Progress(everything)) == (
        f"python -m exercises.break_{first} --check work/check_{first}.py"
    )
    complete = {check: worked(check) for check in CATALOG}
    assert next_step(Progress(complete)) == "python -m exercises.cases"


def test_the_table_fits_60_columns_and_names_each_check_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    assert main(["--status"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    rows = [line.split() for line in lines if len(line.split()) == 5 and line.startswith("  ")]
    assert rows == [[check, "open", "open", "open", "open"] for check in CATALOG]
    assert lines[-1] == f"Next: python -m exercises.break_{next(iter(CATALOG))}"
    assert list(tmp_path.iterdir()) == [], "looking writes nothing"


def test_what_is_done_is_counted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two checks are complete, one of them guessed right once of two times."""
    monkeypatch.chdir(tmp_path)
    progress = Progress({check: worked(check) for check in ("shift", "range")})
    progress.of("shift").predicted = {"identical": True, "two_ahead": False}
    show_summary(progress)
    assert capsys.readouterr().out.splitlines()[:2] == [
        "Done, of 33 checks: 2 at level 1, 2 at level 2, 2 at level 3; 2 repaired.",
        "Predicted right: 1 of 2.",
    ]


def test_a_damaged_file_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "progress.json").write_text("{", encoding="utf-8")
    assert main(["--status"]) == 0
    assert "[WARN] work/progress.json is damaged" in capsys.readouterr().out


def test_status_does_not_wait_for_torch(tmp_path: Path) -> None:
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['exercises', '--status']; "
        "runpy.run_module('exercises', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Next: " in done.stdout
