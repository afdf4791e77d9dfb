"""`--fix`: the file is written once, verified as often as wanted, and hints open by trying."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from exercises import _judging, _repair
from exercises._contract_proof import module_from
from exercises._exercise import Exercise
from exercises._progress import read_progress
from exercises.break_shift import EXERCISE
from exercises.contracts._contract import Contract, first_fault
from exercises.contracts._private import contract_of
from exercises.contracts._starter import starter_source
from exercises.isolation.judge import FixJudgement
from minigpt._cli import CommandError

PATH = Path("work") / "fix_shift.py"
BROKEN = "targets = data[places]"


class JudgeHere:
    """Examines the file in this process; the real one is proved where it is tested."""

    def fix(self, contract: Contract, path: Path) -> FixJudgement:
        torch.manual_seed(0)
        try:
            module = module_from(path.read_text(encoding="utf-8"), path.parent, "fix_here")
        except SyntaxError as error:
            return FixJudgement(problem="SyntaxError: no", problem_line=error.lineno)
        return FixJudgement(fault=first_fault(contract, module.implementation), output="hello\n")


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def practice() -> Iterator[JudgeHere]:
        yield JudgeHere()

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(_judging, "practice", practice)


def fix(name: str = "", *, again: bool = False, exercise: Exercise = EXERCISE) -> int:
    return _repair.repair(exercise, name, again=again, watch=False)


def edit(new: str, old: str = BROKEN) -> None:
    source = PATH.read_text(encoding="utf-8")
    assert source.count(old + "\n") == 1
    PATH.write_text(source.replace(old + "\n", new + "\n"), encoding="utf-8")


def opened() -> int:
    record = read_progress()[0].of("shift").repairs["identical"]
    return _repair._opened(record)


def test_the_first_call_writes_the_file_and_tells_what_it_promises(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert fix() == 1
    contract = contract_of("shift")
    assert PATH.read_text(encoding="utf-8") == starter_source(contract, contract.wrongs[0])
    out = capsys.readouterr().out
    assert "Written: work/fix_shift.py" in out
    assert "implementation(data: Tensor)" in out
    assert "not yet" not in out
    assert opened() == 0
    assert max(map(len, out.splitlines())) <= 60


def test_the_hints_open_one_by_one_by_trying(capsys: pytest.CaptureFixture[str]) -> None:
    """Verifying opens the first; code that differs opens the second; other code the third."""
    fix()
    assert fix() == 1
    out = capsys.readouterr().out
    assert "moved by 0, expected 1" in out.replace("\n       ", " ")
    assert "still as it was given" in out
    assert opened() == 1
    edit(BROKEN + "  # I looked at this line")
    fix()
    assert opened() == 1, "a comment is no attempt, and asking again opens nothing"
    edit("targets = data[places + 2 - 2]", BROKEN + "  # I looked at this line")
    capsys.readouterr()
    fix()
    assert opened() == 2
    assert "Hint 2: what is wrong: targets are cut where" in capsys.readouterr().out
    fix()
    assert opened() == 2, "the same attempt again is no other attempt"
    edit("targets = data[places + 0]", "targets = data[places + 2 - 2]")
    capsys.readouterr()
    fix()
    assert opened() == 3
    assert "Hint 3: it is line 21 of the file as it was given" in capsys.readouterr().out


def test_hints_are_shown_as_far_as_they_are_open(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CommandError, match="--fix` writes it"):
        _repair.show_hints(EXERCISE)
    fix()
    capsys.readouterr()
    assert _repair.show_hints(EXERCISE) == 0
    out = capsys.readouterr().out
    assert "1." not in out
    assert "Hint 1 is opened by the first verification." in out
    fix()
    capsys.readouterr()
    _repair.show_hints(EXERCISE)
    out = capsys.readouterr().out
    assert "1. as it was given to you, targets are not one token after" in out
    assert "2." not in out
    assert "a comment is no attempt" in out.replace("\n", " ")


def test_what_is_no_python_is_said_and_opens_no_hint_beyond_the_first(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fix()
    edit("targets = = data")
    assert fix() == 1
    out = capsys.readouterr().out
    assert "[FAIL] work/fix_shift.py, line 21 cannot be used" in out
    assert "Mend that, or start afresh with --fix --again" in out
    assert opened() == 1


def test_a_repair_ends_with_the_lines_the_lesson_and_what_is_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    fix()
    edit("targets = data[1 + places]")
    capsys.readouterr()
    assert fix() == 0
    out = capsys.readouterr().out
    assert "[OK] repaired" in out
    assert "  - targets = data[places]\n  + targets = data[places + 1]\n" in out
    assert "  +     targets = data[1 + places]\n" in out
    assert "Lesson: " in out
    assert "guide: The check shift, data/guide.txt line " in out
    assert out.splitlines()[-1] == "Next: python -m exercises.break_shift"
    assert read_progress()[0].of("shift").repaired
    assert out.isascii()
    assert max(map(len, out.splitlines())) <= 60


def test_a_changed_file_is_never_overwritten(capsys: pytest.CaptureFixture[str]) -> None:
    fix()
    edit("targets = data[places + 3]")
    before = PATH.read_text(encoding="utf-8")
    with pytest.raises(CommandError, match=r"was changed and is another one, identical; add --ag"):
        fix("wrapped")
    assert PATH.read_text(encoding="utf-8") == before
    assert fix("wrapped", again=True) == 1
    assert (PATH.parent / "fix_shift.1.py").read_text(encoding="utf-8") == before
    assert "inputs.roll(-1, 1)" in PATH.read_text(encoding="utf-8")
    assert read_progress()[0].of("shift").repairing == "wrapped"
    assert "kept as work/fix_shift.1.py" in capsys.readouterr().out


def test_a_file_that_was_not_changed_makes_room_for_another_one() -> None:
    fix()
    assert fix("two_ahead") == 1
    assert "data[places + 2]" in PATH.read_text(encoding="utf-8")
    assert [path.name for path in PATH.parent.glob("fix_*")] == ["fix_shift.py"]


def test_starting_afresh_keeps_the_same_implementation() -> None:
    fix("two_ahead")
    edit("targets = data[places + 5]", "targets = data[places + 2]")
    assert fix(again=True) == 1
    assert "data[places + 2]" in PATH.read_text(encoding="utf-8")


def test_without_a_note_of_it_the_file_itself_tells_what_it_was() -> None:
    fix("wrapped")
    (PATH.parent / "progress.json").unlink()
    contract = contract_of("shift")
    assert _repair._current(EXERCISE, contract, PATH).name == "wrapped"


@pytest.mark.parametrize("name", ["backwards", "nothing"])
def test_a_name_that_is_none_or_held_out_is_refused(name: str) -> None:
    """What is kept for grading cannot be asked for."""
    with pytest.raises(CommandError, match=f"no file to repair named '{name}'"):
        fix(name)
    assert not PATH.exists()


def test_watching_verifies_at_once_and_ends_when_it_is_repaired(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from exercises import _watch

    monkeypatch.setattr(
        _watch, "wait_for_save", lambda path, seen: edit("targets = data[places+1]")
    )
    assert _repair.repair(EXERCISE, "", again=False, watch=True) == 0
    out = capsys.readouterr().out
    assert out.index("not yet") < out.index("watching work/fix_shift.py") < out.index("repaired")
