"""Looking at a bug: side by side, the check vector, the receipt, and what is kept of it."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import exercises
from diagnostics import Pipeline, Status
from diagnostics._catalog import CATALOG
from exercises import _show
from exercises._exercise import Receipt, prove, require_healthy
from exercises._lab import Lab
from exercises._progress import read_progress
from exercises._reads_table import READS
from exercises._receipt import receipt_lines, show_receipt
from exercises._run import run
from exercises._symptom import HONEST_LOSS, TRAINING_LOSS, compare_losses
from exercises._vector import check_vector, show_vector
from exercises.break_roundtrip import EXERCISE as ROUNDTRIP
from exercises.break_shift import EXERCISE as SHIFT

ROOT = Path(exercises.__file__).parents[1]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as lab:
        yield lab


@pytest.fixture(scope="module")
def identical(lab: Lab) -> Receipt:
    return prove(lab, SHIFT.bugs[0])


# ---- the losses in words ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("training", "honest", "said"),
    [
        (
            "0.500 nats",
            "7.500 nats",
            "The broken run looks better: its training loss is 2 nats lower. On new text it is "
            "5 nats worse.",
        ),
        (
            "2.250 nats",
            "2.510 nats",
            "The broken run looks better: its training loss is 0.25 nats lower. On new text it is "
            "as good as the healthy one, to 0.03 nats.",
        ),
        (
            "2.510 nats",
            "3.000 nats",
            "The training losses are alike. On new text the broken run is 0.5 nats worse.",
        ),
        ("2.510 nats", "2.490 nats", "Both losses look healthy: no curve gives this bug away."),
        (
            "3.500 nats",
            "2.250 nats",
            "The training loss of the broken run is 1 nats higher; on new text it is 0.25 nats "
            "better.",
        ),
        (
            "nan nats",
            "2.500 nats",
            "A loss of the broken run is not a finite number: this one would be noticed.",
        ),
        ("not reached", "2.500 nats", ""),
    ],
)
def test_two_losses_in_words(training: str, honest: str, said: str) -> None:
    healthy = {TRAINING_LOSS: "2.500 nats", HONEST_LOSS: "2.500 nats"}
    broken = {TRAINING_LOSS: training, HONEST_LOSS: honest}
    assert compare_losses(healthy, broken) == said


# ---- the check vector ------------------------------------------------------------------------


def test_the_vector_has_all_checks_in_order_and_tells_who_fails(
    lab: Lab, identical: Receipt
) -> None:
    """Copied targets fail the shift, and the honesty of the loss much later."""
    statuses = check_vector(lab, identical)
    assert list(statuses) == list(CATALOG)
    assert [n for n, s in statuses.items() if s is not Status.PASS] == ["shift", "honesty"]


def test_a_vector_is_words_that_stay_whole(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    show_vector(dict.fromkeys(CATALOG, Status.PASS) | {"shift": Status.FAIL, "loss": Status.WARN})
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 60
    words = " ".join(lines).split()
    assert words[1::2] == list(CATALOG)
    assert words[::2].count("[OK]") == len(CATALOG) - 2
    assert words[words.index("shift") - 1] == "[FAIL]"
    assert words[words.index("loss") - 1] == "[WARN]"


def test_several_failures_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    show_vector({"shift": Status.FAIL, "loss": Status.ERROR, "range": Status.PASS})
    assert capsys.readouterr().out.splitlines() == [
        "  [FAIL] shift  [ERROR] loss  [OK] range",
        "  2 of 3 checks fail; the first one is shift, mend it first",
    ]


@pytest.mark.slow
def test_the_table_of_what_checks_read_is_current(lab: Lab) -> None:
    require_healthy(lab)
    assert lab.proven == READS


# ---- the receipt -----------------------------------------------------------------------------


def test_a_receipt_says_all_five_things(
    identical: Receipt, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = list(receipt_lines(identical))
    assert [proved for proved, _ in lines] == [True] * 5
    applied, executed, caught, upstream, restored = (sentence for _, sentence in lines)
    assert identical.line is not None
    assert applied == f"applied: line {identical.line.number} of break_shift.py"
    assert executed == f"executed: that line ran {identical.executed} times"
    assert caught == "caught by shift, for shift.identical"
    assert upstream.startswith("nothing upstream failed: of 7 checks before it ")
    assert restored == "restored: the healthy pipeline passes shift again"
    show_receipt(identical)
    assert capsys.readouterr().out.count("  [OK]   ") == 5


def test_a_receipt_fails_exactly_where_the_bug_was_not_caught(lab: Lab, identical: Receipt) -> None:
    """Nothing executed, another reason, no failure, a failure upstream, a healed line."""
    wrong_reason = prove(lab, dataclasses.replace(SHIFT.bugs[0], reason="shift.backward"))
    assert failed(wrong_reason) == list(wrong_reason.problems)
    upstream = prove(lab, dataclasses.replace(SHIFT.bugs[0], trips="batches", reason="x"))
    assert any("upstream of batches, failed too" in sentence for sentence in failed(upstream))
    assert len(failed(upstream)) == len(upstream.problems)
    silent = dataclasses.replace(identical, executed=0, problems=("never",))
    assert failed(silent) == ["the marked line was never executed"]
    healed = Receipt(bug=SHIFT.bugs[0], line=None, problems=("the marked line is gone",))
    assert list(receipt_lines(healed)) == [(False, "the marked line is gone")]


def failed(receipt: Receipt) -> list[str]:
    return [sentence for proved, sentence in receipt_lines(receipt) if not proved]


# ---- the whole -------------------------------------------------------------------------------


def test_a_bug_outside_of_training_leaves_the_losses_alone_and_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a prediction: it is kept, the first one for good, and compared with what happened."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "60")
    guesses = iter(["shift", "roundtrip"])
    monkeypatch.setattr(_show, "ask_for_one", lambda question, known: next(guesses))
    bug = ROUNDTRIP.bugs[0]
    for _ in range(2):
        (receipt,) = _show.show(ROUNDTRIP, [bug])
        assert receipt.caught
    out = capsys.readouterr().out
    assert "The losses of a training are the same" in " ".join(out.split())
    assert "noticed by roundtrip (you said shift)" in out
    assert "noticed by roundtrip (as you said)" in out
    assert max(map(len, out.splitlines())) <= 60
    entry = read_progress()[0].of("roundtrip")
    assert entry.caught == {bug.name: True}
    assert entry.predicted == {bug.name: False}


def test_a_training_that_stops_is_a_symptom_too(lab: Lab) -> None:
    def stops(lab: Lab) -> Pipeline:
        def train_step(*arguments: object) -> None:
            raise IndexError("index 99 is out of range")

        return lab.pipeline(train_step=train_step)

    bug = dataclasses.replace(SHIFT.bugs[0], break_it=stops)
    assert _show._train(lab, bug) == {"training": "stops with IndexError: index 99 is out of range"}
    lab.restore()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["shfited"], "there is no bug 'shfited'; there are identical, two_ahead, wrapped"),
        (["identicl"], "there is no bug 'identicl'; did you mean identical?"),
        (["identical", "--fix"], "error: BUG, --fix, --hint and --check are four different"),
        (["--again"], "error: --again starts a repair afresh"),
    ],
)
def test_wrong_arguments_are_one_line_and_2(
    arguments: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "argv", ["break_shift.py", *arguments])
    try:
        code = run(SHIFT)
    except SystemExit as stop:
        code = int(stop.code or 0)
    assert code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_one_bug_as_a_process_on_a_narrow_terminal_that_knows_ascii_only(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "exercises.break_roundtrip", "stripped"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {
            "PYTHONPATH": str(ROOT), "COLUMNS": "60", "PYTHONIOENCODING": "ascii", "NO_COLOR": "1",
        },
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
    assert "\x1b" not in done.stdout + done.stderr
    assert (tmp_path / "work" / "progress.json").is_file()
