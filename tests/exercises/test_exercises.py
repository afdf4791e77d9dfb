"""The contract of every exercise, in one parametrised test: the mutation test of the checks."""

from __future__ import annotations

import dataclasses
import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import exercises
from diagnostics import CATALOG, _rank_group
from diagnostics._rank_group import NoWorkersError
from exercises.__main__ import NAMES
from exercises._exercise import (
    MARK,
    Bug,
    Exercise,
    HealthyPipelineError,
    Receipt,
    prove,
    require_healthy,
)
from exercises._lab import Lab
from exercises._run import exit_code, show_receipt
from exercises._verify import healed_bug

FOLDER = Path(exercises.__file__).parent


def all_bugs() -> Iterator[tuple[str, str]]:
    """Every (exercise, bug); read by import, so that a new bug is tested without being listed."""
    for name in NAMES:
        exercise: Exercise = importlib.import_module(f"exercises.{name}").EXERCISE
        for bug in exercise.bugs:
            yield name, bug.name


def the_bug(module: ModuleType, name: str) -> Bug:
    exercise: Exercise = module.EXERCISE
    return next(bug for bug in exercise.bugs if bug.name == name)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def test_the_healthy_pipeline_passes_every_check_and_skips_none(lab: Lab) -> None:
    report = require_healthy(lab)
    assert [result.check for result in report.results] == list(CATALOG)
    assert report.passed


@pytest.mark.parametrize(("exercise_name", "bug_name"), list(all_bugs()))
def test_the_bug_is_applied_executed_caught_for_its_reason_and_undone(
    exercise_name: str, bug_name: str, lab: Lab
) -> None:
    module = importlib.import_module(f"exercises.{exercise_name}")
    receipt = prove(lab, the_bug(module, bug_name))
    assert receipt.problems == ()
    assert receipt.executed >= 1
    assert receipt.result is not None
    assert receipt.result.claim
    assert receipt.result.measured
    assert receipt.result.next_step
    assert exit_code([receipt]) == 0


@pytest.mark.parametrize(("exercise_name", "bug_name"), list(all_bugs()))
def test_healing_the_marked_line_turns_the_exercise_red(
    exercise_name: str, bug_name: str, lab: Lab, tmp_path: Path
) -> None:
    """The healthy code in place of the broken line is executed, and no check fails."""
    original = importlib.import_module(f"exercises.{exercise_name}")
    receipt = prove(lab, healed_bug(the_bug(original, bug_name), tmp_path))
    assert receipt.executed >= 1
    assert any("did not fail" in problem for problem in receipt.problems)
    assert exit_code([receipt]) == 1


@pytest.mark.parametrize("name", NAMES)
def test_an_exercise_is_complete(name: str) -> None:
    exercise: Exercise = importlib.import_module(f"exercises.{name}").EXERCISE
    assert exercise.name == name
    assert exercise.check in CATALOG
    assert exercise.question.endswith(("?", "."))
    assert exercise.hint
    assert exercise.lesson
    assert exercise.bugs
    assert [bug.level for bug in exercise.bugs] == sorted(bug.level for bug in exercise.bugs)
    assert exercise.bugs[0].level == 1
    assert len({bug.name for bug in exercise.bugs}) == len(exercise.bugs)
    assert any(bug.trips == exercise.check for bug in exercise.bugs)
    source = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    assert source.count(MARK) == len(exercise.bugs)


def healed_shift(folder: Path, *, keep_mark: bool) -> Path:
    """Write a copy of break_shift whose first marked line is healed."""
    source = (FOLDER / "break_shift.py").read_text(encoding="utf-8")
    broken = "targets = data[places]  # BROKEN: was targets = data[places + 1]"
    assert source.count(broken) == 1
    healthy = "targets = data[places + 1]" + ("  # BROKEN: was nothing" if keep_mark else "")
    path = folder / "break_shift.py"
    path.write_text(source.replace(broken, healthy), encoding="utf-8")
    return path


@pytest.mark.parametrize("keep_mark", [True, False])
def test_a_healed_exercise_exits_with_1_as_a_process(keep_mark: bool, tmp_path: Path) -> None:
    path = healed_shift(tmp_path, keep_mark=keep_mark)
    done = subprocess.run(
        [sys.executable, str(path), "identical"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env={"PYTHONPATH": str(FOLDER.parent), "PATH": ""},
    )
    assert done.returncode == 1
    assert "Not caught: identical" in done.stdout


def test_a_shipped_exercise_exits_with_0_and_fits_the_terminal(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exercises.break_shift"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(FOLDER.parent)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 88
    assert "shift.identical" in done.stdout
    assert "honest loss" in done.stdout


def test_a_bug_that_never_runs_is_not_caught(lab: Lab) -> None:
    """A marked line in code that nothing calls proves nothing."""
    module = importlib.import_module("exercises.break_shift")
    receipt = prove(lab, dataclasses.replace(module.EXERCISE.bugs[0], break_it=_never_runs))
    assert receipt.executed == 0
    assert "the marked line was never executed" in receipt.problems


def _never_runs(lab: Lab):  # type: ignore[no-untyped-def]  # noqa: ANN202
    def unused() -> int:
        return 1  # BROKEN: was return 2

    return lab.pipeline()


def test_the_wrong_reason_is_not_a_catch(lab: Lab) -> None:
    module = importlib.import_module("exercises.break_shift")
    bug = dataclasses.replace(module.EXERCISE.bugs[0], reason="shift.backward")
    assert prove(lab, bug).problems == ("shift failed for shift.identical, not for shift.backward",)


def test_a_check_that_cannot_run_here_proves_nothing_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where no process can be forked, its own bugs are skipped, and those of others are not."""

    def refuse() -> None:
        raise NoWorkersError("no process can be forked")

    monkeypatch.setattr(_rank_group, "_require_fork", refuse)
    with Lab() as lab:
        lab.proven = dict.fromkeys(CATALOG, frozenset[str]())
        del lab.proven["distributed"]
        receipt = prove(
            lab, importlib.import_module("exercises.break_distributed").EXERCISE.bugs[0]
        )
    assert receipt.skipped == "not measured: no process can be forked"
    assert not receipt.caught
    assert exit_code([receipt]) == 0
    show_receipt(receipt)
    assert capsys.readouterr().out.splitlines() == [
        "receipt of same_samples",
        "  [SKIP] not measured: no process can be forked",
    ]


def test_a_broken_laboratory_is_not_the_students_fault(lab: Lab) -> None:
    """When the healthy pipeline fails, the exercise says so instead of counting a catch."""
    module = importlib.import_module("exercises.break_shift")
    bug: Bug = module.EXERCISE.bugs[0]
    broken = bug.break_it(lab)
    sick = Lab()
    sick.get_batch = broken.get_batch  # type: ignore[assignment, method-assign]
    with pytest.raises(HealthyPipelineError, match=r"shift"):
        prove(sick, bug)
    sick.__exit__(None, None, None)


def test_the_exit_code_is_1_when_one_of_several_is_missed(lab: Lab) -> None:
    module = importlib.import_module("exercises.break_shift")
    good = Receipt(bug=module.EXERCISE.bugs[0], line=None)
    bad = Receipt(bug=module.EXERCISE.bugs[1], line=None, problems=("missed",))
    assert exit_code([good, bad]) == 1
    assert exit_code([good]) == 0
