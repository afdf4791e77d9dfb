"""`python -m exercises` as a person calls it: names, exit codes, receipts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exercises import debug_report
from exercises.__main__ import NAMES, main
from exercises._exercise import HealthyPipelineError


def test_the_list_names_every_exercise_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines if line.startswith("break_")] == list(NAMES)
    assert max(map(len, lines)) <= 80


def test_an_unknown_name_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["break_nothing"]) == 2
    assert "no exercise 'break_nothing'" in capsys.readouterr().err


def test_receipts_say_what_was_proved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name of the check alone will do; the pool is left out, it is proved by the next test."""
    from exercises import _pool

    def prove_here(names: list[str], jobs: int) -> list[tuple[str, object]]:
        return [(name, receipt) for name in names for receipt in _pool._prove_exercise(name)]

    monkeypatch.setattr(_pool, "prove_all", prove_here)
    path = tmp_path / "receipts.json"
    assert main(["shift", "--json", str(path)]) == 0
    assert "3 of 3 bugs" in capsys.readouterr().out
    receipts = json.loads(path.read_text(encoding="utf-8"))
    assert [r["reason"] for r in receipts] == [
        "shift.identical",
        "shift.too_far",
        "shift.wrapped_last",
    ]
    assert all(r["caught"] and r["executed"] >= 1 and not r["problems"] for r in receipts)


@pytest.mark.slow
def test_the_pool_proves_exercises_in_other_processes() -> None:
    from exercises._pool import prove_all

    receipts = prove_all(["break_range"], jobs=2)
    assert {name for name, _ in receipts} == {"break_range"}
    assert all(receipt.caught for _, receipt in receipts)


def test_a_broken_laboratory_exits_with_3(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from exercises import _pool

    def fail(names: list[str], jobs: int) -> None:
        raise HealthyPipelineError("the healthy pipeline does not pass")

    monkeypatch.setattr(_pool, "prove_all", fail)
    assert main(["shift"]) == 3
    assert "is broken itself" in capsys.readouterr().err


def test_the_debug_report_holds_the_ten_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two pipelines are enough to see that a bug moves a figure and leaves the others."""
    monkeypatch.setattr(debug_report, "EXERCISES", ("break_range",))
    path = tmp_path / "report.json"
    assert debug_report.main(["--out", str(path)]) == 0
    content = json.loads(path.read_text(encoding="utf-8"))
    healthy, broken = content["healthy"], content["break_range equals_v"]
    assert tuple(healthy) == debug_report.FIGURES
    V = healthy["vocabulary_size"]
    assert healthy["token_range"] == [0, V - 1]
    assert broken["token_range"] == [0, V]
    assert healthy["batch_shape"] == [8, 32]
    assert healthy["missing_gradients"] == []
    assert "break_range equals_v: these differ" in capsys.readouterr().out


def test_an_unwritable_debug_report_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(debug_report, "EXERCISES", ())
    assert debug_report.main(["--out", str(tmp_path / "nowhere" / "report.json")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert "nowhere" in error
    assert error.count("\n") == 1
