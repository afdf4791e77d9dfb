"""`--verify`: what an author is told before students see an exercise."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from exercises import _verify
from exercises.__main__ import main
from exercises._contract_proof import Margin
from exercises._exercise import HealthyPipelineError
from exercises._lab import Lab
from exercises._outline import NAMES
from exercises._verify import Proof, bug_problems, healed_bug, text_problems
from exercises.break_shift import EXERCISE as SHIFT

GOOD = Proof(name="", bugs=2, rights=3, wrongs=6, margin=Margin(0.0, 0.0, 8.0), problems=())


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


def test_a_good_exercise_has_no_problems(lab: Lab) -> None:
    assert list(text_problems(SHIFT)) == []
    assert list(bug_problems(lab, SHIFT.bugs[0])) == []


def test_a_healed_bug_is_the_same_bug_with_one_line_healthy(lab: Lab, tmp_path: Path) -> None:
    healed = healed_bug(SHIFT.bugs[0], tmp_path)
    assert healed.name == "identical"
    source = (tmp_path / "healed_break_shift_identical.py").read_text(encoding="utf-8")
    line = "        targets = data[places + 1]  # BROKEN: was targets = data[places + 1]\n"
    assert source.count(line) == 1


def test_a_bug_that_is_not_caught_is_said(lab: Lab) -> None:
    bug = dataclasses.replace(SHIFT.bugs[0], reason="shift.backward")
    (said,) = bug_problems(lab, bug)
    assert said == "identical: shift failed for shift.identical, not for shift.backward"


def test_a_solution_that_does_not_pass_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if healing the line left the bug where it is."""
    bug = SHIFT.bugs[0]
    monkeypatch.setattr(_verify, "healed_bug", lambda bug, folder: bug)
    assert list(bug_problems(lab, bug)) == ["identical: its solution does not pass shift"]


def test_every_missing_text_is_said() -> None:
    bug = dataclasses.replace(
        SHIFT.bugs[0], question=" ", hints=("a", "a ", "b"), lesson="", guide="No such heading"
    )
    poor = dataclasses.replace(SHIFT, bugs=(bug,), hint="")
    assert list(text_problems(poor)) == [
        "its hint is empty",
        "it has no bug of level 2",
        "identical: its question is empty",
        "identical: its lesson is empty",
        "identical: it wants 3 different hints",
        "identical: the guide has no heading 'No such heading'",
    ]


@pytest.mark.parametrize("name", NAMES)
def test_no_text_of_an_exercise_is_missing(name: str) -> None:
    assert list(text_problems(importlib.import_module(f"exercises.{name}").EXERCISE)) == []


def test_one_line_each_and_the_margin(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    margin = Margin(noise=1e-9, tolerance=1e-7, nearest=0.25)
    proof = dataclasses.replace(GOOD, name="break_loss", margin=margin)
    monkeypatch.setattr(_verify, "run_all", lambda job, names, jobs: {"break_loss": proof})
    monkeypatch.setenv("COLUMNS", "88")
    assert main(["--verify", "loss"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "bugs, right and wrong implementations; noise / tolerance / nearest bug",
        "[OK]   loss: 2 bugs, 3 right, 6 wrong; 1.00e-09 / 1.00e-07 / 0.25",
        "1 of 1 exercise proved: 2 bugs, 3 right and 6 wrong implementations",
    ]


def test_a_problem_exits_with_1_and_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    proof = dataclasses.replace(GOOD, name="break_loss", problems=("accepts the wrong x",))
    monkeypatch.setattr(_verify, "run_all", lambda job, names, jobs: {"break_loss": proof})
    assert main(["--verify", "loss"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("[FAIL] loss: ")
    assert "       accepts the wrong x" in lines


@pytest.mark.parametrize(("bugs", "code"), [(1, 1), (2, 0)])
def test_all_of_them_together_hold_60_bugs_at_least(
    bugs: int,
    code: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """33 exercises with one bug each are too few, with two they are enough."""
    proof = dataclasses.replace(GOOD, bugs=bugs)
    monkeypatch.setattr(
        _verify,
        "run_all",
        lambda job, names, jobs: {name: dataclasses.replace(proof, name=name) for name in names},
    )
    assert main(["--verify"]) == code
    assert ("bugs in all, wanted 60" in capsys.readouterr().out) is (code == 1)


def test_a_broken_laboratory_exits_with_3(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(job: object, names: list[str], jobs: int) -> None:
        raise HealthyPipelineError("the healthy pipeline does not pass")

    monkeypatch.setattr(_verify, "run_all", fail)
    assert main(["--verify", "loss"]) == 3
    assert "is broken itself" in capsys.readouterr().err


@pytest.mark.slow
def test_the_whole_proof_of_one_exercise_in_another_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--verify", "shift", "--jobs", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("[OK]   shift: 3 bugs, 3 right, 6 wrong; 0 / 0 / ")
