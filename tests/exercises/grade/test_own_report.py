from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from exercises.grade._notes import note
from exercises.grade._results import Note, StudentGrade
from exercises.grade.own_report import (
    ReportError,
    grade_digest,
    read_report,
    report_bytes,
    student_from_dict,
    student_to_dict,
    write_report,
)
from exercises.isolation.verdict import Verdict
from tests.exercises.grade import samples


def closed(required: dict[str, Any]) -> dict[str, Any]:
    """An object with exactly these properties."""
    return {
        "type": "object",
        "required": sorted(required),
        "properties": required,
        "additionalProperties": False,
    }


TEXT, NUMBER, COUNT = {"type": "string"}, {"type": "number"}, {"type": "integer", "minimum": 0}
NOTE = closed({"reason": TEXT, "template": TEXT, "facts": {"type": "object"}})
VERDICT = closed(
    {
        "implementation": TEXT,
        "right": {"type": "boolean"},
        "outcome": TEXT,
        "message": TEXT,
        "line": {"type": ["integer", "null"]},
    }
)
EXERCISE = closed(
    {
        "exercise": TEXT,
        "kind": {"enum": ["check", "fix", "model", "answers"]},
        "status": {"enum": ["graded", "missing", "unreadable", "crashed", "timeout", "ungraded"]},
        "score": NUMBER,
        "max_score": NUMBER,
        "seconds": NUMBER,
        "score_in_time": {"type": ["number", "null"]},
        "seed_id": TEXT,
        "wheats_accepted": COUNT,
        "wheats_total": COUNT,
        "chaffs_caught": COUNT,
        "chaffs_total": COUNT,
        "notes": {"type": "array", "items": NOTE},
        "matrix": {"type": "array", "items": VERDICT},
    }
)
STUDENT = closed(
    {
        "student_id": TEXT,
        "submission_sha256": TEXT,
        "score": NUMBER,
        "max_score": NUMBER,
        "grade_digest": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "graded_at": TEXT,
        "seconds": NUMBER,
        "isolation": TEXT,
        "platform": TEXT,
        "versions": {"type": "object", "additionalProperties": TEXT},
        "limits": {"type": "object", "additionalProperties": NUMBER},
        "problems": {"type": "array", "items": NOTE},
        "exercises": {"type": "array", "items": EXERCISE},
    }
)
SCHEMA = closed(
    {
        "format": {"const": "minigpt-diagnostics grades"},
        "version": {"const": 1},
        "students": {"type": "array", "items": STUDENT},
    }
)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)


def test_a_note_is_kept_as_template_and_facts() -> None:
    assert student_to_dict(samples.BOMBER)["problems"] == [
        {
            "reason": "submission.zip_bomb",
            "template": "{name} unpacks to {size} bytes",
            "facts": {"name": "a", "size": 10**12},
        }
    ]
    plain = samples.student(problems=(Note(reason="a.b", text="all of {it}"),))
    assert student_to_dict(plain)["problems"] == [
        {"reason": "a.b", "template": "all of {{it}}", "facts": {}}
    ]


def test_a_report_comes_back_as_the_same_grades() -> None:
    grades = (samples.ALICE, samples.BOMBER)
    assert read_report(report_bytes(grades)) == grades


@samples.any_grade
def test_any_grade_fits_the_schema_and_comes_back(grade: StudentGrade) -> None:
    content = report_bytes([grade])
    assert content.isascii()
    VALIDATOR.validate(json.loads(content))
    back = read_report(content)
    assert report_bytes(back) == content
    assert [item.text for item in back[0].problems] == [item.text for item in grade.problems]


def test_equal_grades_give_equal_bytes() -> None:
    versions = dict(reversed(samples.ALICE.versions.items()))
    other = replace(samples.ALICE, versions=versions, limits={"cpu_seconds": 10})
    assert other == samples.ALICE
    assert report_bytes([other]) == report_bytes([samples.ALICE])


def test_the_digest_leaves_out_when_and_where() -> None:
    elsewhere = replace(
        samples.ALICE,
        graded_at="2031-01-01T00:00:00+00:00",
        seconds=99.0,
        isolation="L2",
        platform="Windows",
        versions={"torch": "3.0"},
        limits={},
        exercises=tuple(replace(grade, seconds=1e3) for grade in samples.ALICE.exercises),
    )
    assert grade_digest(elsewhere) == grade_digest(samples.ALICE)


def said(message: str) -> StudentGrade:
    verdict = Verdict(implementation="slices", right=True, outcome="rejected", message=message)
    return samples.student(replace(samples.CHECK, matrix=(verdict,)))


def test_the_digest_leaves_out_addresses() -> None:
    assert grade_digest(said("<A at 0x7f00aa>")) == grade_digest(said("<A at 0x7fbb11>"))
    assert grade_digest(said("off by 0x1")) != grade_digest(said("off by 0x2"))


@pytest.mark.parametrize(
    "other",
    [
        replace(samples.ALICE, student_id="bob"),
        replace(samples.ALICE, submission_sha256="1" * 64),
        replace(samples.ALICE, problems=(note("a.b", "c"),)),
        replace(samples.ALICE, exercises=samples.ALICE.exercises[:-1]),
        replace(samples.ALICE, exercises=(
            replace(samples.CHECK, score=1.0), *samples.ALICE.exercises[1:])),
        replace(samples.ALICE, exercises=(
            replace(samples.CHECK, seed_id="c3"), *samples.ALICE.exercises[1:])),
    ],
)  # fmt: skip
def test_the_digest_tells_other_grades_apart(other: StudentGrade) -> None:
    assert grade_digest(other) != grade_digest(samples.ALICE)


def test_nan_is_no_score() -> None:
    grade = samples.student(replace(samples.FIX, score=float("nan")), samples.FIX)
    content = student_to_dict(grade)
    assert (content["score"], content["exercises"][0]["score"]) == (1.0, 0.0)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"format": "minigpt-diagnostics grades", "version": 2, "students": []}',
        b'{"format": "minigpt-diagnostics grades", "version": 1, "students": [{}]}',
        b'{"format": "minigpt-diagnostics grades", "version": 1, "students": [[]]}',
        b"[" * 100_000,
    ],
)
def test_what_is_no_report_is_refused(content: bytes) -> None:
    with pytest.raises(ReportError):
        read_report(content)


def test_one_student_is_a_line_of_a_journal() -> None:
    line = json.dumps(student_to_dict(samples.ALICE))
    assert student_from_dict(json.loads(line)) == samples.ALICE


def test_the_file_is_what_is_returned(tmp_path: Path) -> None:
    write_report(tmp_path / "grades.json", [samples.ALICE])
    assert (tmp_path / "grades.json").read_bytes() == report_bytes([samples.ALICE])
