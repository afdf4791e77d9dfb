"""Gradescope's results.json, and the metadata that Gradescope gives along.

A file that Gradescope cannot read shows the student "failed to execute", so a zero is written
before anything runs, and replaced in one piece when the grade is there. Gradescope knows passed
and failed only: what ended in an error is failed, and its output says how it ended.
Source: https://gradescope-autograders.readthedocs.io/en/latest/specs/
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from exercises.grade._results import ExerciseGrade, GradeStatus, StudentGrade
from exercises.grade._words import (
    as_text,
    file_of,
    finite,
    has_full_marks,
    lines_of,
    max_score_of,
    origin_lines,
    problem_lines,
    score_of,
    shown,
    stem_of,
)
from exercises.grade.own_report import grade_digest
from minigpt._cli import CommandError
from minigpt._files import write_text

PROVISIONAL = "Grading has not come to an end, so the score is 0. Submit again, or ask the staff."
OUTPUT_LENGTH_MAX = 20_000
METADATA_BYTES_MAX = 10_000_000


@dataclass(frozen=True, kw_only=True)
class Metadata:
    """What Gradescope knows about a submission; created_at is None where it does not say."""

    student_id: str
    created_at: datetime | None


def write_provisional(path: Path, why: str = PROVISIONAL) -> None:
    """Write a zero that stays if the grader does not come to its end. Raises OSError."""
    _write(path, _results(score=0.0, output=why))


def write_gradescope(path: Path, student: StudentGrade) -> None:
    """Replace results.json with the grade, in one piece. Raises OSError."""
    _write(path, gradescope_results(student))


def gradescope_results(student: StudentGrade) -> dict[str, Any]:
    """Return the content of results.json."""
    return {
        **_results(score=score_of(student), output=_output(student)),
        "execution_time": finite(student.seconds),
        "tests": [_test(number, grade) for number, grade in enumerate(student.exercises, start=1)],
        "extra_data": {
            "grade_digest": grade_digest(student),
            "isolation": shown(student.isolation),
            "max_score": max_score_of(student),
            "submission_sha256": shown(student.submission_sha256),
        },
    }


def read_metadata(path: Path) -> Metadata:
    """Read submission_metadata.json. Raises CommandError for what is no such file."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(METADATA_BYTES_MAX).decode())
    except (OSError, ValueError, RecursionError) as error:
        raise CommandError(f"{path} cannot be read as Gradescope's metadata") from error
    if not isinstance(content, dict):
        raise CommandError(f"{path} is not Gradescope's metadata: it holds no object")
    users = content.get("users")
    emails = [_email(user) for user in users] if isinstance(users, list) else []
    return Metadata(
        student_id="+".join(sorted(filter(None, emails))) or "submission",
        created_at=_moment(path, content.get("created_at")),
    )


def _email(user: Any) -> str:
    email = user.get("email") if isinstance(user, Mapping) else None
    return email if isinstance(email, str) else ""


def _moment(path: Path, text: Any) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{path}: created_at is no date and time") from error
    if moment.tzinfo is None:
        raise CommandError(f"{path}: created_at has no zone, so that lateness cannot be told")
    return moment


def _results(*, score: float, output: str) -> dict[str, Any]:
    """Return what every file has. Only the student's own output is hidden: it is not ours."""
    return {
        "score": score,
        "output": output[:OUTPUT_LENGTH_MAX],
        "output_format": "text",
        "test_output_format": "text",
        "test_name_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "tests": [],
    }


def _test(number: int, grade: ExerciseGrade) -> dict[str, Any]:
    lines = lines_of(grade)
    if grade.status is not GradeStatus.GRADED:
        word = grade.status.value
        lines.append(("", f"shown as failed; the grader's own word for it is {word}"))
    return {
        "name": file_of(grade),
        "name_format": "text",
        "number": str(number),
        "score": finite(grade.score),
        "max_score": finite(grade.max_score),
        "status": "passed" if has_full_marks(grade) else "failed",
        "output": as_text(lines)[:OUTPUT_LENGTH_MAX],
        "output_format": "text",
        "visibility": "visible",
        "tags": [grade.kind.value],
        "extra_data": {"status": grade.status.value, "graded": stem_of(grade)},
    }


def _output(student: StudentGrade) -> str:
    problems = [text for _, text in problem_lines(student)]
    return "\n".join([*problems, *origin_lines(student)])


def _write(path: Path, content: Mapping[str, Any]) -> None:
    write_text(path, json.dumps(content, allow_nan=False, indent=2) + "\n")
