"""`--check`: a student's check is graded blindly, and told how many, never which."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exercises import _judging, _own_check
from exercises._progress import Score, read_progress
from exercises.break_shift import EXERCISE
from exercises.contracts._contract import Contract
from exercises.contracts._private import contract_of
from exercises.contracts._starter import check_source
from exercises.isolation.judge import CheckJudgement
from exercises.isolation.sandbox import IsolationError
from exercises.isolation.verdict import Verdict
from minigpt._cli import CommandError

PATH = Path("work") / "check_shift.py"
SOURCE = """\
def check(implementation):
    inputs, targets = implementation(DATA)
    assert inputs.shape == targets.shape
    assert (inputs + 1 == targets).all()
"""
RIGHT = ("slices", "index", "unfold")
WRONG = ("identical", "two_ahead", "wrapped")


def judged(rejected: dict[str, str], **fields: object) -> CheckJudgement:
    """A judgement that rejects the named ones, each with what the check said."""
    verdicts = [
        Verdict(
            implementation=name,
            right=name in RIGHT,
            outcome="rejected" if name in rejected else "accepted",
            message=rejected.get(name, ""),
            line=4 if name in rejected else None,
        )
        for name in (*RIGHT, *WRONG)
    ]
    return CheckJudgement(verdicts=tuple(verdicts), **fields)  # type: ignore[arg-type]


@pytest.fixture
def grade(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[CheckJudgement], int]:
    class Judge:
        def check(
            self, contract: Contract, path: Path, progress: Callable[[], object]
        ) -> CheckJudgement:
            progress()
            return answer[0]

    @contextmanager
    def practice() -> Iterator[Judge]:
        yield Judge()

    answer: list[CheckJudgement] = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setattr(_judging, "practice", practice)

    def grade(judgement: CheckJudgement) -> int:
        answer[:] = [judgement]
        PATH.parent.mkdir(exist_ok=True)
        PATH.write_text(SOURCE, encoding="utf-8")
        return _own_check.grade(EXERCISE, PATH, watch=False)

    return grade


def test_a_complete_check_exits_with_0_and_is_kept(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    judgement = judged(dict.fromkeys(WRONG, "no"), lines=frozenset({3, 4}))
    assert grade(judgement) == 0
    assert capsys.readouterr().out.splitlines() == [
        "[OK] accepts 3 of 3 correct, catches 3 of 3 buggy",
        "Next: python -m exercises.break_shift",
    ]
    assert read_progress()[0].of("shift").check == Score(3, 3, 3, 3)


def test_a_valid_one_hears_how_many_it_caught_and_never_which(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    """Line 3 never rejected anything; line 4 did."""
    assert grade(judged({"identical": "no"}, lines=frozenset({4}), output="printed\n")) == 1
    out = capsys.readouterr().out
    assert "[FAIL] accepts 3 of 3 correct, catches 1 of 3 buggy" in out
    assert "line 3 never was the one that rejected:\n    assert inputs.shape" in out
    assert "line 4" not in out
    assert "  it printed\n    printed\n" in out
    assert not any(name in out for name in WRONG)
    assert max(map(len, out.splitlines())) <= 60


def test_an_invalid_one_hears_which_correct_one_it_rejected_and_why(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    said = dict.fromkeys(WRONG, "no") | {"unfold": "AssertionError: \x1b[2J not contiguous"}
    assert grade(judged(said)) == 1
    out = capsys.readouterr().out
    assert "[FAIL] accepts 2 of 3 correct, catches 3 of 3 buggy" in out
    folded = " ".join(out.split())
    assert "it rejects a correct one (a view of all windows) in line 4: AssertionError:" in folded
    assert "\x1b" not in out
    assert not any(name in out for name in WRONG)


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        ("unstable", "its verdict on 1 buggy one changes with the seed"),
        ("timeout", "on a buggy one it took too long; that is no catch"),
        ("not_called", "on a buggy one it never called the implementation"),
        ("error", "on a buggy one its process ended without a verdict"),
    ],
)
def test_what_is_no_catch_is_said(
    outcome: str,
    said: str,
    grade: Callable[[CheckJudgement], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = judged(dict.fromkeys(WRONG[1:], "no"))
    odd = Verdict(implementation="identical", right=False, outcome=outcome)
    kept = tuple(verdict for verdict in good.verdicts if verdict.implementation != "identical")
    assert grade(CheckJudgement(verdicts=(*kept, odd))) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "catches 2 of 3 buggy" in out
    assert said in out


def test_a_check_that_returns_its_verdict_is_told_to_raise(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert grade(judged({}, returned="bool")) == 1
    assert capsys.readouterr().out.splitlines()[-2:] == [
        "  it returned a bool; only raising an error rejects",
        "Next: raise an AssertionError in place of returning a value",
    ]


@pytest.mark.parametrize(
    ("outcome", "remedy"),
    [
        ("not_called", "call implementation(...) in the check, and"),
        ("timeout", "look for a loop that does not end, or try"),
        ("error", "let the check end by returning, or by"),
        ("rejected", "write down what the promise leaves open, and"),
        ("unstable", "write down what the promise leaves open, and"),
    ],
)
def test_the_next_step_fits_what_happened_to_a_correct_one(
    outcome: str,
    remedy: str,
    grade: Callable[[CheckJudgement], int],
    capsys: pytest.CaptureFixture[str],
) -> None:
    good = judged(dict.fromkeys(WRONG, "no")).verdicts
    odd = Verdict(implementation="unfold", right=True, outcome=outcome)
    kept = tuple(verdict for verdict in good if verdict.implementation != "unfold")
    assert grade(CheckJudgement(verdicts=(*kept, odd))) == 1
    assert f"\nNext: {remedy}" in capsys.readouterr().out


def test_a_file_that_cannot_be_used_is_said_with_its_line(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    problem = CheckJudgement(verdicts=(), problem="NameError: no DATA", problem_line=2)
    assert grade(problem) == 1
    assert "work/check_shift.py, line 2 cannot be used: NameError: no DATA" in " ".join(
        capsys.readouterr().out.split()
    )
    assert read_progress()[0].of("shift").check is None


def test_what_is_done_stays_done(grade: Callable[[CheckJudgement], int]) -> None:
    grade(judged(dict.fromkeys(WRONG, "no")))
    assert grade(judged({})) == 1
    assert read_progress()[0].of("shift").check == Score(3, 3, 3, 3)


def test_a_file_that_is_not_there_is_written(
    grade: Callable[[CheckJudgement], int], capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path("mine") / "check.py"
    assert _own_check.grade(EXERCISE, path, watch=False) == 1
    assert path.read_text(encoding="utf-8") == check_source(contract_of("shift"))
    assert "Written: mine/check.py, a starting point." in capsys.readouterr().out
    with pytest.raises(CommandError, match="wants a file of yours, got the folder mine"):
        _own_check.grade(EXERCISE, path.parent, watch=False)


@pytest.mark.slow
@pytest.mark.skipif("sys.platform == 'win32'", reason="practice runs where processes fork")
def test_the_real_judge_sees_what_a_check_and_a_repair_are_worth(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The textbook check never looks at the last column: it catches two of the three."""
    from exercises import _repair

    monkeypatch.chdir(tmp_path)
    source = (
        "import torch\n\n\ndef check(implementation):\n"
        "    inputs, targets = implementation(torch.arange(100))\n"
        "    assert (inputs[:, 1:] == targets[:, :-1]).all()\n"
    )
    PATH.parent.mkdir()
    PATH.write_text(source, encoding="utf-8")
    assert _own_check.grade(EXERCISE, PATH, watch=False) == 1
    assert "accepts 3 of 3 correct, catches 2 of 3 buggy" in capsys.readouterr().out
    fix = PATH.with_name("fix_shift.py")
    assert _repair.repair(EXERCISE, "wrapped", again=False, watch=False) == 1
    assert _repair.repair(EXERCISE, "", again=False, watch=False) == 1
    repaired = fix.read_text(encoding="utf-8").replace("inputs.roll(-1, 1)", "data[places + 1]")
    fix.write_text(repaired, encoding="utf-8")
    assert _repair.repair(EXERCISE, "", again=False, watch=False) == 0


def test_where_code_cannot_be_shut_in_nothing_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """One line that says so, instead of running the file in this process."""

    class NoSandbox:
        def __enter__(self) -> None:
            raise IsolationError("isolation L1 is asked for, this system gives L0")

        def __exit__(self, *exception: object) -> None: ...

    monkeypatch.setattr(_judging, "Sandbox", NoSandbox)
    refused = pytest.raises(CommandError, match="the file was not judged: isolation L1")
    with refused, _judging.practice():
        pytest.fail("there is no judge")


def test_a_job_gets_the_modules_beside_a_file_and_nothing_else(tmp_path: Path) -> None:
    """The folder of a student's file may be a home folder with a data set in it."""
    (tmp_path / "data").mkdir()
    for name in ("check.py", "helper.py", "data/large.py", "large.bin"):
        (tmp_path / name).write_text(name, encoding="utf-8")
    with _judging._alone(tmp_path / "check.py") as file:
        assert file.read_text(encoding="utf-8") == "check.py"
        assert sorted(path.name for path in file.parent.iterdir()) == ["check.py", "helper.py"]
    assert not file.parent.exists()
