"""A class graded by the command, as an instructor runs it; killed, started again, and repeated."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import exercises
from exercises.grade.own_report import grade_digest, read_report
from tests.exercises.grade.synthetic import CHECK, KINDS, MODEL, RUBRIC, write_class

ROOT = Path(exercises.__file__).parents[1]
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="jobs are forked")


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "exercises.grade", *map(str, arguments)]


def graded(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), cwd=ROOT, capture_output=True, text=True, check=False
    )


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def without_times(path: Path) -> list[dict[str, str]]:
    return [
        {name: cell for name, cell in row.items() if name not in ("seconds", "graded_at")}
        for row in rows(path)
    ]


def rubric(folder: Path, text: str = RUBRIC) -> Path:
    path = folder / "rubric.toml"
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.slow
def test_a_class_gets_what_each_submission_deserves(tmp_path: Path) -> None:
    """Every kind once, in one run; no one harms another, and every format is written."""
    submissions, out = tmp_path / "submissions", tmp_path / "grades.csv"
    deserved = write_class(submissions, len(KINDS))
    done = graded(
        submissions, "--rubric", rubric(tmp_path), "--out", out, "--json", tmp_path / "all.json",
        "--junit", tmp_path / "all.xml", "--jobs", 2,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    scores: dict[str, float] = dict.fromkeys(deserved, 0.0)
    for row in rows(out):
        scores[row["student_id"]] += float(row["score"])
    assert scores == pytest.approx(deserved, abs=1e-3)
    lines = done.stdout.splitlines()
    assert sum(bool(re.match(r"\[ ?\d+/\d+\] ", line)) for line in lines) == len(KINDS)
    assert done.stdout.isascii()
    feedback = tmp_path / "grades-feedback"
    assert len(list(feedback.glob("*.txt"))) == len(KINDS)
    assert "\x1b" not in "".join(path.read_text("latin-1") for path in feedback.iterdir())
    students = read_report((tmp_path / "all.json").read_bytes())
    assert {student.student_id: student.score for student in students} == pytest.approx(
        deserved, abs=1e-3
    )
    assert list(submissions.parent.glob("check_shift.py")) == []  # the zip that climbs out


def test_killed_half_way_and_started_again_it_gives_the_same_file(tmp_path: Path) -> None:
    submissions = tmp_path / "submissions"
    submissions.mkdir()
    for kind in ("good", "textbook", "too_strict", "wrong_fix", "syntax_error", "zipped", "empty"):
        KINDS[kind][0](submissions / kind)
    given = [submissions, "--rubric", rubric(tmp_path), "--jobs", 1]
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    whole, parts = tmp_path / "whole.csv", tmp_path / "parts.csv"
    assert graded(*given, "--secret", secret, "--out", whole).returncode == 0
    with subprocess.Popen(
        command(*given, "--secret", secret, "--out", parts),
        cwd=ROOT, stdout=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        for _ in range(3):
            process.stdout.readline()
        process.kill()
    assert 0 < len({row["student_id"] for row in rows(parts)}) < 7
    again = graded(*given, "--secret", secret, "--out", parts)
    assert again.returncode == 0, again.stderr
    assert again.stdout.count("(graded before)") >= 3
    assert without_times(parts) == without_times(whole)


def test_the_same_submission_gets_the_same_grade(tmp_path: Path) -> None:
    """In a new folder, with the same secret: the same digest of everything but times."""
    submissions = tmp_path / "submissions"
    submissions.mkdir()
    by_chance = CHECK + "    import random\n    assert random.random() < 0.9\n"
    for name, check in {"steady": CHECK, "lots": by_chance}.items():
        (submissions / name).mkdir()
        (submissions / name / "check_shift.py").write_text(check, encoding="utf-8")
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(range(32)))
    digests = []
    for number in range(2):
        report = tmp_path / f"{number}.json"
        done = graded(
            submissions, "--secret", secret, "--out", tmp_path / f"{number}.csv", "--json", report
        )
        assert done.returncode == 0, done.stderr
        digests.append([grade_digest(student) for student in read_report(report.read_bytes())])
    assert digests[0] == digests[1]


def test_private_code_counts_and_is_looked_at_first(tmp_path: Path) -> None:
    submissions, private = tmp_path / "submissions", tmp_path / "private"
    KINDS["good"][0](_made(submissions) / "ada")
    private.mkdir()
    (private / "shift.py").write_text(
        "def wrong_unseen(data):\n"
        "    inputs = data[:16].repeat(8, 1)\n"
        "    return inputs, data[1:17].repeat(8, 1)\n",  # right, in truth: no check can catch it
        encoding="utf-8",
    )
    text = "[check.shift]\npoints = 2\n[grading]\nseeds = 1\n[due]\nat = 2020-01-31T12:00:00Z\n"
    done = graded(
        submissions, "--private", private, "--rubric", rubric(tmp_path, text), "--out",
        tmp_path / "grades.csv",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "[WARN] shift: our own check accepts wrong_unseen with some seed" in done.stdout
    assert "[WARN] the due date counts for nothing here" in done.stdout  # nothing says when
    row = rows(tmp_path / "grades.csv")[0]
    assert (row["chaffs_caught"], row["chaffs_total"]) == ("6", "7")
    assert float(row["score"]) == pytest.approx(2 * 6 / 7, abs=1e-4)
    (private / "shift.py").write_text("1 / 0", encoding="utf-8")
    broken = graded(submissions, "--private", private)
    assert broken.returncode == 2
    assert "shift.py: division by zero" in broken.stderr
    (private / "shift.py").write_text("def right_not(data): return data, data\n", encoding="utf-8")
    wrong = graded(submissions, "--private", private)
    assert wrong.returncode == 2
    assert "shift.py: right_not breaks the promise, so every honest check" in wrong.stderr


def test_a_model_is_graded_by_the_checks_of_the_rubric(tmp_path: Path) -> None:
    """A bigram passes what it can be asked; one that leaks the target's row does not pass shift."""
    submissions = _made(tmp_path / "submissions")
    for name, model in {
        "healthy": MODEL,
        "unshifted": MODEL.replace("data[places + 1]", "data[places]"),
        "bare": "def build_pipeline(): return 7\n",
    }.items():
        (submissions / name).mkdir()
        (submissions / name / "model.py").write_text(model, encoding="utf-8")
    text = '[model]\npoints = 4\nchecks = ["shift", "shapes", "loss", "causal_independence"]\n'
    out = tmp_path / "grades.csv"
    done = graded(submissions, "--rubric", rubric(tmp_path, text), "--out", out)
    assert done.returncode == 0, done.stderr
    assert {row["student_id"]: (row["score"], row["status"]) for row in rows(out)} == {
        "healthy": ("4", "graded"),
        "unshifted": ("3", "graded"),
        "bare": ("0", "unreadable"),
    }


def test_one_student_for_gradescope_and_for_exercism(tmp_path: Path) -> None:
    folder = tmp_path / "submission"
    KINDS["wrong_fix"][0](folder)
    scope, track = tmp_path / "results.json", tmp_path / "exercism.json"
    done = graded(folder, "--gradescope", scope, "--exercism", track, "--student", "ada")
    assert done.returncode == 0, done.stderr
    results = json.loads(scope.read_text())
    assert results["score"] == 0
    assert [test["status"] for test in results["tests"]] == ["failed"]
    assert json.loads(track.read_text())["status"] == "fail"
    assert not (tmp_path / "grades.csv").exists()


def test_an_interrupt_keeps_what_is_done(tmp_path: Path) -> None:
    submissions = _made(tmp_path / "submissions")
    KINDS["empty"][0](submissions / "a")
    KINDS["good"][0](submissions / "b")
    KINDS["good"][0](submissions / "c")
    with subprocess.Popen(
        command(submissions, "--out", tmp_path / "grades.csv", "--jobs", 1),
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert error == "error: interrupted\n"
    kept = list((tmp_path / "grades.state" / "students").iterdir())
    assert len(kept) <= 2  # what was under way may have ended; nothing was begun after it
    assert [row["student_id"] for row in rows(tmp_path / "grades.csv")] == ["a"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ([], "error: give the folder with the submissions"),
        (["nowhere"], "error: nowhere is no folder"),
        ([".", "--out", "no/folder/g.csv"], "error: --out no/folder/g.csv: there is no folder"),
        ([".", "--require", "L9"], "error: argument --require: invalid choice"),
    ],
)
def test_usage_is_one_line_and_exit_2(arguments: list[str], line: str) -> None:
    done = graded(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(line)
    assert done.stderr.count("\n") == 1


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder
