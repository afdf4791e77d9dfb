"""Symptom-first cases: the book, the costs by hand, the command, and one case for real."""

from __future__ import annotations

import functools
import inspect
import itertools
import json
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

import exercises
from diagnostics import CATALOG, CheckResult, Report, Status
from exercises import _case_bench, _case_view
from exercises._case_book import CASES, GRADES, Case, load_bug, load_exercise
from exercises._case_file import DEFAULT_PATH, Attempt
from exercises._case_score import (
    LOOKS,
    cost_of,
    cost_of_probe,
    is_named,
    is_solved,
    open_hints,
    probe_names,
)
from exercises._case_session import CHOICES, _causes
from exercises._case_view import Seen
from exercises.cases import main

ROOT = Path(exercises.__file__).parents[1]
SHIFT = Case("shift", "identical", 1)
NUMBER = CASES.index(SHIFT) + 1
HEALTHY = Seen((4.0, 3.0, 2.0), (4.0, 2.0), "'a text'", {"figure": "1"})
BROKEN = Seen((4.0, 1.0, 0.0), (4.0, 6.0), "'xxxxxx'", {"figure": "2"})


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")


def verdict_of(case: Case, name: str) -> CheckResult:
    """Return what a bench says on which the check of a case fails and no other."""
    status = Status.FAIL if name == case.check else Status.PASS
    return CheckResult(
        check=name, status=status, reason=f"{name}.why", claim=f"claim of {name}", measured="7",
        expected="8",
    )  # fmt: skip


@pytest.fixture
def _bench(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace what trains and measures by numbers from paper."""
    pair = ({"size": "3"}, {"size": "4"})

    def run_checks(case: Case) -> Report:
        return Report(results=tuple(verdict_of(case, name) for name in CATALOG), seed=1)

    monkeypatch.setattr(_case_bench, "compare", lambda case: (HEALTHY, BROKEN))
    monkeypatch.setattr(_case_bench, "compare_look", lambda case, name: pair)
    monkeypatch.setattr(_case_bench, "run_check", verdict_of)
    monkeypatch.setattr(_case_bench, "run_checks", run_checks)


def kept(case: Case) -> Attempt:
    content = json.loads(DEFAULT_PATH.read_text(encoding="utf-8"))
    return Attempt(**{name: tuple(words) for name, words in content["cases"][case.code].items()})


def right_cause(case: Case) -> int:
    return [code for code, _ in _causes(case)].index(case.code) + 1


def wrong_cause(case: Case) -> int:
    return right_cause(case) % CHOICES + 1


# ---- the book --------------------------------------------------------------------------------


def test_the_book_holds_24_to_40_cases_of_three_grades() -> None:
    assert 24 <= len(CASES) <= 40
    assert len({case.code for case in CASES}) == len(CASES)
    assert {case.grade for case in CASES} == set(GRADES) == {1, 2, 3}
    assert all(sum(case.grade == grade for case in CASES) >= 8 for grade in GRADES)


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.check}.{case.bug}")
def test_a_case_is_a_bug_that_its_own_check_sees(case: Case) -> None:
    bug = load_bug(case)
    assert bug.trips == case.check
    causes = _causes(case)
    assert len(causes) == CHOICES
    assert len({told for _, told in causes}) == CHOICES
    assert [code for code, _ in causes].count(case.code) == 1
    assert (case.code, (inspect.getdoc(bug.break_it) or "").split("\n")[0]) in causes


def test_neighbours_are_of_stages_that_lie_apart() -> None:
    """The number of a case says nothing: the next one is neither its sibling nor its cousin."""
    places = [list(CATALOG).index(case.check) for case in CASES]
    assert min(abs(a - b) for a, b in itertools.pairwise(places)) >= 3
    grades = [case.grade for case in CASES]
    assert all(len(set(grades[i : i + 4])) > 1 for i in range(len(grades) - 3))


def test_the_right_cause_stands_in_every_place() -> None:
    assert {right_cause(case) for case in CASES} == {1, 2, 3, 4}


# ---- costs, by hand --------------------------------------------------------------------------


def test_every_probe_has_its_cost() -> None:
    assert {cost_of_probe(name) for name in LOOKS} == {1}
    assert cost_of_probe("shift") == 2
    assert cost_of_probe("overfit") == cost_of_probe("honesty") == 5
    assert cost_of_probe("report") == 20
    assert sorted(probe_names()) == sorted([*LOOKS, *CATALOG, "report"])
    assert len(set(probe_names())) == len(LOOKS) + len(CATALOG) + 1


@pytest.mark.parametrize(
    ("attempt", "cost", "hints"),
    [
        (Attempt(), 0, 0),
        (Attempt(probes=("batch",)), 1, 1),
        (Attempt(probes=("batch", "loss", "overfit")), 1 + 2 + 5, 1),
        (Attempt(probes=("shift",), failed=("shift",)), 2, 2),
        (Attempt(answers=("loss",)), 5, 2),
        (Attempt(answers=("loss", "split")), 10, 3),
        (Attempt(answers=("loss", "shift"), causes=("other",)), 10, 3),
        (Attempt(probes=("report",), answers=("shift",), causes=(SHIFT.code,)), 20, 1),
    ],
)
def test_the_cost_of_an_attempt_and_the_hints_that_it_opens(
    attempt: Attempt, cost: int, hints: int
) -> None:
    assert cost_of(SHIFT, attempt) == cost
    assert open_hints(SHIFT, attempt) == hints
    assert is_named(SHIFT, attempt) == ("shift" in attempt.answers)
    assert is_solved(SHIFT, attempt) == (SHIFT.code in attempt.causes)


# ---- the command -----------------------------------------------------------------------------


@pytest.mark.usefixtures("_bench")
def test_symptoms_are_shown_side_by_side_and_cost_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(NUMBER)]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 60
    lines = shown.splitlines()
    assert lines[0].startswith(f"case {NUMBER} of {len(CASES)}, grade 1: ")
    assert lines[2].split() == ["healthy", "this", "run"]
    place = lines.index("  honest loss, on new text")
    assert lines[place + 1 : place + 3] == ["    healthy   2.000 nats", "    this run  6.000 nats"]
    assert lines[lines.index("  figure") + 2] == "    this run  2"
    assert not DEFAULT_PATH.exists()


@pytest.mark.usefixtures("_bench")
def test_a_case_from_the_first_probe_to_the_lesson(capsys: pytest.CaptureFixture[str]) -> None:
    """1 + 2 for two probes, 5 for each of two wrong answers: 13."""
    number = str(NUMBER)
    assert main([number, "--probe", "batch", "--probe", "shift"]) == 0
    assert main([number, "--probe", "shift"]) == 0  # looking again is free
    assert main([number, "--answer", "loss"]) == 1
    assert main([number, "--answer", "loss"]) == 1  # as is the same wrong answer
    assert main([number, "--answer", "shift"]) == 0
    assert main([number, "--cause", str(wrong_cause(SHIFT))]) == 1
    before = capsys.readouterr().out
    assert "cost 1, 1 in all" in before
    assert "cost 2, 3 in all" in before
    assert "paid already, 3 in all" in before
    assert "8 in all" in before
    for word in ("break_shift", "identical", "shift.why", "claim of shift", "data[places]"):
        assert word not in before, word
    assert main([number, "--cause", str(right_cause(SHIFT))]) == 0
    after = capsys.readouterr().out
    assert f"[OK] case {number} is solved at a cost of 13: break_shift," in after
    assert "  - targets = data[places + 1]" in after
    assert "  + targets = data[places]" in after
    assert "claim of shift" in after
    assert "Lesson: " in after
    assert max(map(len, (before + after).splitlines())) <= 60
    causes = [_causes(SHIFT)[n - 1][0] for n in (wrong_cause(SHIFT), right_cause(SHIFT))]
    assert kept(SHIFT) == Attempt(
        probes=("batch", "shift"), failed=("shift",), answers=("loss", "shift"),
        causes=tuple(causes),
    )  # fmt: skip


@pytest.mark.usefixtures("_bench")
def test_after_the_solution_nothing_costs_any_more(capsys: pytest.CaptureFixture[str]) -> None:
    number = str(NUMBER)
    assert main([number, "--answer", "shift", "--cause", str(right_cause(SHIFT))]) == 0
    solved = kept(SHIFT)
    assert main([number, "--probe", "report", "--answer", "loss"]) == 1
    assert kept(SHIFT) == solved
    capsys.readouterr()
    assert main([number]) == 0
    assert f"[OK] case {number} is solved at a cost of 0" in capsys.readouterr().out


@pytest.mark.usefixtures("_bench")
def test_the_report_counts_and_names_what_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(NUMBER), "--probe", "report"]) == 0
    shown = capsys.readouterr().out
    assert "[FAIL] shift\n  measured 7\n  expected 8\n  1 check fails\n" in shown
    assert "claim of shift" not in shown
    assert "cost 20, 20 in all" in shown
    assert kept(SHIFT).failed == ("shift",)


@pytest.mark.usefixtures("_bench")
def test_hints_are_opened_by_what_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    """None before a probe, one after it, two after a wrong answer, three after another."""
    number = str(NUMBER)
    counts = []
    for done in ((), ("--probe", "ids"), ("--answer", "loss"), ("--answer", "split")):
        main([number, *done, "--hint"])
        shown = capsys.readouterr().out
        counts.append([f"hint {n}: " in shown for n in (1, 2, 3)])
    assert counts == [
        [False, False, False],
        [True, False, False],
        [True, True, False],
        [True, True, True],
    ]


@pytest.mark.usefixtures("_bench")
def test_the_list_shows_what_is_done_and_what_is_next(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The next case is the first of the lowest grade that is not solved."""
    first = next(n for n, case in enumerate(CASES, 1) if case.grade == 1)
    case = CASES[first - 1]
    assert main(["--list"]) == 0
    assert capsys.readouterr().out.endswith(f"next: python -m exercises.cases {first}\n")
    assert main([str(first), "--answer", case.check, "--cause", str(right_cause(case))]) == 0
    capsys.readouterr()
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[first].split() == [str(first), "1", "0", "solved:", case.check]
    assert f"1 of {len(CASES)} cases solved, at a cost of 0" in lines
    following = next(n for n, other in enumerate(CASES, 1) if other.grade == 1 and n > first)
    assert lines[-1] == f"next: python -m exercises.cases {following}"
    assert max(map(len, lines)) <= 60


@pytest.mark.usefixtures("_bench")
def test_a_damaged_file_is_said_and_set_aside(capsys: pytest.CaptureFixture[str]) -> None:
    DEFAULT_PATH.parent.mkdir()
    DEFAULT_PATH.write_text("{", encoding="utf-8")
    assert main([str(NUMBER), "--probe", "ids"]) == 0
    assert capsys.readouterr().out.startswith(f"[WARN] {DEFAULT_PATH} cannot be used")
    assert kept(SHIFT) == Attempt(probes=("ids",))


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["0"], "error: argument N: '0' is not a number from 1 to 40"),
        (["two"], "error: argument N: 'two' is not a number from 1 to 40"),
        (["1", "--probe", "bacth"], "error: there is no probe 'bacth'; did you mean batch"),
        (["1", "--answer", "shfit"], "error: there is no check 'shfit'; did you mean shift"),
        (["1", "--cause", "1"], "error: the check comes before its cause; give --answer CHECK"),
    ],
)
@pytest.mark.usefixtures("_bench")
def test_what_cannot_be_used_is_one_line_and_exit_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code = main(arguments)
    except SystemExit as end:  # argparse
        code = int(end.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1
    assert not DEFAULT_PATH.exists()


@pytest.mark.usefixtures("_bench")
def test_a_cause_that_is_not_in_the_list_is_a_usage_error(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(NUMBER), "--answer", "shift", "--cause", "9"]) == 2
    assert capsys.readouterr().err == "error: a cause is a number from 1 to 4, got 9\n"


@pytest.mark.parametrize("argument", ["--help", "--list"])
def test_help_and_list_do_not_wait_for_torch(argument: str, tmp_path: Path) -> None:
    code = (
        f"import runpy, sys; sys.modules['torch'] = None; sys.argv = ['cases', {argument!r}]; "
        "runpy.run_module('exercises.cases', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"COLUMNS": "60", "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii()
    assert max(map(len, done.stdout.splitlines())) <= 60


# ---- on a terminal ---------------------------------------------------------------------------

TALK = f"""
import sys
from exercises import _case_bench
from exercises.cases import main
from tests.exercises.test_cases import BROKEN, HEALTHY, verdict_of
_case_bench.compare = lambda case: (HEALTHY, BROKEN)
_case_bench.compare_look = lambda case, name: ({{"size": "3"}}, {{"size": "4"}})
_case_bench.run_check = verdict_of
raise SystemExit(main(["{NUMBER}"]))
"""


def talk(steps: list[tuple[bytes, bytes]], folder: Path) -> tuple[int, str]:
    """Run the case on a pseudo-terminal; return the exit code and what was shown.

    steps: what to wait for, and what to type then.
    """
    import fcntl  # none of these on Windows
    import pty
    import termios

    controller, terminal = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", TALK],
        stdin=terminal, stdout=terminal, stderr=terminal, cwd=folder,
        env=os.environ | {"COLUMNS": "60", "PYTHONPATH": str(ROOT)},
        start_new_session=True,  # and then its own terminal, from which Ctrl-C comes
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    ) as process:  # fmt: skip
        os.close(terminal)
        shown = b""
        try:
            for awaited, typed in steps:
                shown += _read_until(controller, awaited)
                os.write(controller, typed)
            shown += _read_until(controller, None)
        finally:
            process.kill()  # nothing where it has ended
        code = process.wait()
    os.close(controller)
    return code, shown.decode().replace("\r\n", "\n")


def _read_until(controller: int, awaited: bytes | None) -> bytes:
    """Read up to a text, or to the end; fail after two minutes without a byte."""
    seen = b""
    while awaited is None or awaited not in seen:
        assert select.select([controller], [], [], 120)[0], seen
        try:
            block = os.read(controller, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not block:
            break
        seen += block
    return seen


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_whole_case_is_solved_by_typing(tmp_path: Path) -> None:
    """1 for ids, 5 for loss; a word that names nothing costs nothing."""
    typed = f"ids\nnonsense\nhint\nanswer loss\nanswer shift\n{right_cause(SHIFT)}\n"
    code, shown = talk([(b"cost 0> ", typed.encode())], tmp_path)
    assert code == 0
    assert "hint 1: " in shown
    assert "there is no probe 'nonsense'" in shown
    assert f"case {NUMBER} is solved at a cost of 6" in " ".join(shown.split())
    assert (tmp_path / DEFAULT_PATH).exists()


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
@pytest.mark.parametrize(
    ("key", "code", "last"),
    [(b"\x04", 1, "Kept in work"), (b"\x03", 130, "error: interrupted")],
    ids=["end of input", "Ctrl-C"],
)
def test_leaving_keeps_what_was_done(key: bytes, code: int, last: str, tmp_path: Path) -> None:
    ended, shown = talk([(b"cost 0> ", b"ids\n"), (b"cost 1> ", key)], tmp_path)
    assert ended == code
    assert last in shown
    assert "Traceback" not in shown
    content = json.loads((tmp_path / DEFAULT_PATH).read_text(encoding="utf-8"))
    assert content["cases"][SHIFT.code]["probes"] == ["ids"]


# ---- for real --------------------------------------------------------------------------------


def test_a_real_case_shows_its_symptoms(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 30 steps on its own inputs the loss is lower than the healthy one, and less honest."""
    short = functools.partial(_case_view.train_briefly, steps=30)
    monkeypatch.setattr(_case_view, "train_briefly", short)
    healthy, broken = _case_bench.compare(SHIFT)
    assert len(healthy.losses) == len(broken.losses) == 30
    assert len(healthy.honest) == 3  # before steps 0 and 25, and at the end
    assert broken.last_loss < healthy.last_loss - 0.2
    assert broken.honest[-1] > healthy.honest[-1] + 0.2
    assert healthy.stopped == broken.stopped == ""


def test_real_probes_show_the_same_draw_and_its_fault() -> None:
    """The rows begin at the same places; the targets of the broken run are its inputs."""
    healthy, broken = _case_bench.compare_look(SHIFT, "batch")
    assert healthy["row 0, inputs begin"] == broken["row 0, inputs begin"]
    assert broken["row 0, targets begin"] == broken["row 0, inputs begin"]
    inputs, targets = (
        json.loads(healthy[f"row 0, {part} begin"]) for part in ("inputs", "targets")
    )
    assert inputs[1:] == targets[:-1]
    for name in LOOKS:
        shown = _case_bench.compare_look(SHIFT, name)
        assert all(shown), name
    result = _case_bench.run_check(SHIFT, "shift")
    assert (result.status, result.reason) == (Status.FAIL, "shift.identical")


def test_what_stops_the_training_is_a_symptom() -> None:
    """With gradients switched off the first backward pass raises; the bench cleans up after it."""
    case = next(case for case in CASES if case.check == "environment")
    _, broken = _case_bench.compare(case)
    assert broken.losses == ()
    assert broken.stopped.startswith("ended after 0 of 150 steps: RuntimeError: ")
    result = _case_bench.run_check(SHIFT, "gradients")
    assert result.status is Status.PASS


SHOWN = [
    pytest.param(case, marks=() if number % 8 == 0 else pytest.mark.thorough)
    for number, case in enumerate(CASES)
]


@pytest.mark.slow
@pytest.mark.parametrize("case", SHOWN, ids=[f"{case.check}.{case.bug}" for case in CASES])
def test_every_case_shows_something_and_names_nothing(
    case: Case, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grade 1 is a tenth of a nat apart, or stops; of the others something is another one."""
    healthy, broken = _case_bench.compare(case)
    monkeypatch.setattr(_case_bench, "compare", lambda case: (healthy, broken))
    apart = (
        abs(broken.last_loss - healthy.last_loss),
        abs((broken.honest or (9.0,))[-1] - healthy.honest[-1]),
    )
    visible = bool(broken.stopped) or not max(apart) < 0.1 or broken.sample != healthy.sample
    figures = {name for name, value in healthy.figures.items() if broken.figures.get(name) != value}
    if case.grade == 1:
        assert bool(broken.stopped) or not max(apart) < 0.1
    assert visible or figures
    assert main([str(CASES.index(case) + 1)]) == 0
    shown = capsys.readouterr().out
    bug = load_bug(case)
    for word in ("break_", bug.reason, "BROKEN", load_exercise(case.check).hint):
        assert word not in shown, word
    assert max(map(len, shown.splitlines())) <= 60
