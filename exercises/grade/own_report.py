"""Our own report: everything that grading found, as canonical JSON.

It names the buggy implementations that a check let through, so it is for instructors.

    {"format": "minigpt-diagnostics grades", "version": 1, "students": [
      {"student_id": str, "submission_sha256": str, "score": number, "max_score": number,
       "grade_digest": str, "graded_at": str, "seconds": number,
       "isolation": str, "platform": str, "versions": {name: str}, "limits": {name: number},
       "problems": [note], "exercises": [
         {"exercise": str, "kind": "check" | "fix" | "model" | "answers",
          "status": "graded" | "missing" | "unreadable" | "crashed" | "timeout" | "ungraded",
          "score": number, "max_score": number, "score_in_time": number | null,
          "seconds": number, "seed_id": str,
          "wheats_accepted": int, "wheats_total": int, "chaffs_caught": int, "chaffs_total": int,
          "notes": [note], "matrix": [
            {"implementation": str, "right": bool, "outcome": str, "message": str,
             "line": int | null}]}]}]}

A note is {"reason": str, "template": str, "facts": {name: any}}: the sentence is the template
filled with the facts, so that it can be told in another language. Keys are sorted, there is no
white space, all characters are ASCII, and numbers are finite: equal grades give equal bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from diagnostics._text import Text
from exercises.grade._results import (
    ExerciseGrade,
    GradeStatus,
    Kind,
    Note,
    StudentGrade,
)
from exercises.isolation.verdict import Verdict
from minigpt._files import write_text

FORMAT = "minigpt-diagnostics grades"
VERSION = 1
ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")  # `<object at 0x7f...>` differs from run to run
WHERE_AND_WHEN = ("graded_at", "seconds", "isolation", "platform", "versions", "limits")


class ReportError(ValueError):
    """The bytes are no report of this version."""


def write_report(path: Path, students: Iterable[StudentGrade]) -> None:
    """Write the report of a class in one piece. Raises OSError."""
    write_text(path, report_bytes(students).decode("ascii"))


def report_bytes(students: Iterable[StudentGrade]) -> bytes:
    """Return the canonical JSON text, in the order of the students given."""
    content = {
        "format": FORMAT,
        "version": VERSION,
        "students": [student_to_dict(student) for student in students],
    }
    return _canonical(content) + b"\n"


def read_report(content: bytes) -> tuple[StudentGrade, ...]:
    """Return the grades of a report. Raises ReportError."""
    try:
        report = json.loads(content)
        if (report["format"], report["version"]) != (FORMAT, VERSION):
            raise ReportError(f"wanted {FORMAT!r}, version {VERSION}")
        return tuple(student_from_dict(student) for student in report["students"])
    except ReportError:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError("the bytes are no report of grades") from error


def grade_digest(student: StudentGrade) -> str:
    """Return the sha256 of the grade itself; equal for the same submission on every run.

    Left out are times, the machine, versions, limits and isolation, which say where it was graded,
    and memory addresses in messages.
    """
    content = student_to_dict(student, digest=False)
    for name in WHERE_AND_WHEN:
        del content[name]
    for exercise in content["exercises"]:
        del exercise["seconds"]
    return hashlib.sha256(ADDRESS.sub("0x", _canonical(content).decode()).encode()).hexdigest()


def student_to_dict(student: StudentGrade, *, digest: bool = True) -> dict[str, Any]:
    """Return one student's part of the report, plain data; the way back is student_from_dict."""
    content = {
        "student_id": student.student_id,
        "submission_sha256": student.submission_sha256,
        "score": math.fsum(_number(grade.score) for grade in student.exercises),
        "max_score": math.fsum(_number(grade.max_score) for grade in student.exercises),
        "graded_at": student.graded_at,
        "seconds": _number(student.seconds),
        "isolation": student.isolation,
        "platform": student.platform,
        "versions": dict(student.versions),
        "limits": {name: _number(limit) for name, limit in student.limits.items()},
        "problems": [_note_to_dict(item) for item in student.problems],
        "exercises": [_exercise_to_dict(grade) for grade in student.exercises],
    }
    return {**content, "grade_digest": grade_digest(student)} if digest else content


def student_from_dict(content: Mapping[str, Any]) -> StudentGrade:
    """Return the grade that a part of a report describes.

    Raises KeyError, TypeError or ValueError for another thing.
    """
    return StudentGrade(
        student_id=content["student_id"],
        submission_sha256=content["submission_sha256"],
        graded_at=content["graded_at"],
        isolation=content["isolation"],
        versions=dict(content["versions"]),
        platform=content["platform"],
        limits=dict(content["limits"]),
        exercises=tuple(_exercise_from_dict(grade) for grade in content["exercises"]),
        problems=tuple(_note_from_dict(item) for item in content["problems"]),
        seconds=content["seconds"],
    )


def _exercise_to_dict(grade: ExerciseGrade) -> dict[str, Any]:
    return {
        "exercise": grade.exercise,
        "kind": grade.kind.value,
        "status": grade.status.value,
        "score": _number(grade.score),
        "max_score": _number(grade.max_score),
        "seconds": _number(grade.seconds),
        "score_in_time": None if grade.score_in_time is None else _number(grade.score_in_time),
        "seed_id": grade.seed_id,
        "wheats_accepted": grade.wheats_accepted,
        "wheats_total": grade.wheats_total,
        "chaffs_caught": grade.chaffs_caught,
        "chaffs_total": grade.chaffs_total,
        "notes": [_note_to_dict(item) for item in grade.notes],
        "matrix": [asdict(verdict) for verdict in grade.matrix],
    }


def _exercise_from_dict(content: Mapping[str, Any]) -> ExerciseGrade:
    built = {
        "kind": Kind(content["kind"]),
        "status": GradeStatus(content["status"]),
        "notes": tuple(_note_from_dict(item) for item in content["notes"]),
        "matrix": tuple(Verdict(**verdict) for verdict in content["matrix"]),
    }
    return ExerciseGrade(**{**content, **built})


def _note_to_dict(item: Note) -> dict[str, Any]:
    """Return a note as template and facts, so that both together give its sentence again."""
    facts = {str(name): _plain(fact) for name, fact in item.facts.items()}
    template = item.text.template if isinstance(item.text, Text) else None
    if template is None or not _gives(template, facts, item.text):
        template = item.text.replace("{", "{{").replace("}", "}}")
    return {"reason": item.reason, "template": template, "facts": facts}


def _gives(template: str, facts: Mapping[str, Any], text: str) -> bool:
    try:
        return Text(template, facts) == text
    except (KeyError, ValueError, TypeError, IndexError, AttributeError):
        return False


def _note_from_dict(content: Mapping[str, Any]) -> Note:
    facts = dict(content["facts"])
    return Note(reason=content["reason"], text=Text(content["template"], facts), facts=facts)


def _number(number: float) -> float:
    """Return a finite float; NaN and infinity, which JSON does not know, are no score: 0."""
    return float(number) + 0.0 if math.isfinite(number) else 0.0  # + 0.0 makes 0 of -0


def _plain(fact: Any) -> Any:
    """Return a fact as JSON knows it."""
    if fact is None or isinstance(fact, bool | int | str):
        return fact
    if isinstance(fact, float):
        return fact + 0.0 if math.isfinite(fact) else str(fact)
    if isinstance(fact, Mapping):
        return {str(name): _plain(value) for name, value in fact.items()}
    if isinstance(fact, list | tuple):
        return [_plain(value) for value in fact]
    return str(fact)


def _canonical(content: Any) -> bytes:
    text = json.dumps(
        content, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )
    return text.encode("ascii")
