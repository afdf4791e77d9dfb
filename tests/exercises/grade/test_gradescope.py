from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from exercises.grade import gradescope
from exercises.grade._results import StudentGrade
from exercises.grade.gradescope import (
    Metadata,
    gradescope_results,
    read_metadata,
    write_gradescope,
    write_provisional,
)
from exercises.grade.own_report import grade_digest
from minigpt._cli import CommandError
from tests.exercises.grade import samples

FORMAT = {"enum": ["text", "html", "simple_format", "md", "ansi"]}
VISIBILITY = {"enum": ["visible", "hidden", "after_due_date", "after_published"]}
SCHEMA: dict[str, Any] = {  # https://gradescope-autograders.readthedocs.io/en/latest/specs/
    "type": "object",
    "required": ["score", "tests"],
    "additionalProperties": False,
    "properties": {
        "score": {"type": "number"},
        "execution_time": {"type": "number"},
        "output": {"type": "string"},
        "output_format": FORMAT,
        "test_output_format": FORMAT,
        "test_name_format": FORMAT,
        "visibility": VISIBILITY,
        "stdout_visibility": VISIBILITY,
        "extra_data": {"type": "object"},
        "leaderboard": {"type": "array"},
        "tests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["score", "max_score", "name", "status"],
                "additionalProperties": False,
                "properties": {
                    "score": {"type": "number"},
                    "max_score": {"type": "number"},
                    "status": {"enum": ["passed", "failed"]},
                    "name": {"type": "string"},
                    "name_format": FORMAT,
                    "number": {"type": "string"},
                    "output": {"type": "string"},
                    "output_format": FORMAT,
                    "tags": {"type": "array", "items": {"type": "string"}},
                    "visibility": VISIBILITY,
                    "extra_data": {"type": "object"},
                },
            },
        },
    },
}
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def strict(content: bytes) -> Any:
    """JSON as a parser reads it that does not know NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(content, parse_constant=refuse)


def test_the_grade_of_a_student() -> None:
    results = gradescope_results(samples.student(samples.CHECK, samples.FIX, samples.TIMEOUT))
    assert results["score"] == 2.3333
    assert results["execution_time"] == 2.5
    assert results["extra_data"] == {
        "grade_digest": grade_digest(samples.student(samples.CHECK, samples.FIX, samples.TIMEOUT)),
        "isolation": "L3",
        "max_score": 8.0,
        "submission_sha256": "0" * 64,
    }
    assert [
        (test["number"], test["name"], test["score"], test["max_score"], test["status"])
        for test in results["tests"]
    ] == [
        ("1", "check_shift.py", 1.3333, 2.0, "failed"),
        ("2", "fix_shift.py", 1.0, 1.0, "passed"),
        ("3", "model.py", 0.0, 5.0, "failed"),
    ]
    assert results["tests"][0]["output"] == (
        "[OK] accepts 3 of 3 correct implementations\n"
        "[WARN] catches 4 of 6 buggy implementations\n"
        "1 buggy implementation ended in an error of the check, which is no catch"
    )
    assert results["tests"][2]["output"] == (
        "[ERROR] model.py did not end in time\n"
        "shown as failed; the grader's own word for it is timeout"
    )


def test_the_provisional_zero_is_replaced_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "results" / "results.json"
    write_provisional(path)
    before = strict(path.read_bytes())
    VALIDATOR.validate(before)
    assert (before["score"], before["tests"]) == (0.0, [])
    assert before["output"] == gradescope.PROVISIONAL
    write_gradescope(path, samples.ALICE)
    assert strict(path.read_bytes()) == gradescope_results(samples.ALICE)
    assert [file.name for file in path.parent.iterdir()] == ["results.json"]


@samples.any_grade
def test_any_grade_fits_the_schema(grade: StudentGrade) -> None:
    content = json.dumps(gradescope_results(grade), allow_nan=False).encode()
    results = strict(content)
    VALIDATOR.validate(results)
    assert len(results["tests"]) == len(grade.exercises)
    said = [results["output"], *(test["output"] for test in results["tests"])]
    assert all(line.isprintable() for text in said for line in text.split("\n"))


def test_metadata(tmp_path: Path) -> None:
    path = tmp_path / "submission_metadata.json"
    content = {
        "id": 1,
        "created_at": "2018-07-01T14:22:32.365935-07:00",
        "users": [{"email": "b@example.com", "id": 2}, {"email": "a@example.com", "id": 1}],
    }
    path.write_text(json.dumps(content), encoding="utf-8")
    zone = timezone(timedelta(hours=-7))
    assert read_metadata(path) == Metadata(
        student_id="a@example.com+b@example.com",
        created_at=datetime(2018, 7, 1, 14, 22, 32, 365935, tzinfo=zone),
    )
    path.write_text("{}", encoding="utf-8")
    assert read_metadata(path) == Metadata(student_id="submission", created_at=None)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{", '{"created_at": 3}', '{"created_at": "yesterday"}', "[" * 100_000,
     '{"created_at": "2018-07-01T14:22:32"}'],
)  # fmt: skip
def test_metadata_that_says_no_time_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "submission_metadata.json"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(CommandError, match=r"submission_metadata\.json"):
        read_metadata(path)


def test_a_late_file_has_passed_with_fewer_points() -> None:
    late = replace(samples.FIX, score=0.8, score_in_time=1.0)
    test = gradescope_results(samples.student(late))["tests"][0]
    assert (test["status"], test["score"], test["max_score"]) == ("passed", 0.8, 1.0)
