"""Exercism's results.json, version 3: one test per file that was graded.

Source: https://exercism.org/docs/building/tooling/test-runners/interface
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from exercises.grade._results import ExerciseGrade, GradeStatus, Kind, StudentGrade
from exercises.grade._words import (
    as_text,
    file_of,
    has_full_marks,
    lines_of,
    problem_lines,
    stem_of,
)
from minigpt._files import write_text

MESSAGE_LENGTH_MAX = 65_535
OUTPUT_LENGTH_MAX = 500
TRUNCATED = "\n[the rest is cut off]"
COMMANDS = {
    Kind.CHECK: "python -m exercises.break_{exercise} --check {file}",
    Kind.FIX: "python -m exercises.break_{exercise} --fix",
    Kind.MODEL: "python -m diagnostics --target {file}:build_pipeline",
    Kind.ANSWERS: "{file}, compared with the answers of the rubric",
}


def write_exercism(path: Path, student: StudentGrade) -> None:
    """Write results.json in one piece. Raises OSError."""
    content = json.dumps(exercism_results(student), allow_nan=False, indent=2)
    write_text(path, content + "\n")


def exercism_results(student: StudentGrade) -> dict[str, Any]:
    """Return the content of results.json; its status is error where no file could be graded."""
    if not any(grade.status is GradeStatus.GRADED for grade in student.exercises):
        told = problem_lines(student)
        told += [line for grade in student.exercises for line in lines_of(grade)]
        message = as_text(told) or "there is nothing to grade"
        return {"version": 3, "status": "error", "message": _cut(message, MESSAGE_LENGTH_MAX)}
    passed = all(map(has_full_marks, student.exercises))
    return {
        "version": 3,
        "status": "pass" if passed else "fail",
        "tests": [_test(task_id, grade) for task_id, grade in enumerate(student.exercises, 1)],
    }


def _test(task_id: int, grade: ExerciseGrade) -> dict[str, Any]:
    told = as_text(lines_of(grade))
    test: dict[str, Any] = {
        "name": stem_of(grade),
        "status": _status(grade),
        "test_code": COMMANDS[grade.kind].format(exercise=grade.exercise, file=file_of(grade)),
        "task_id": task_id,
    }
    if test["status"] == "pass":
        return {**test, "output": _cut(told, OUTPUT_LENGTH_MAX)}
    return {**test, "message": _cut(told, MESSAGE_LENGTH_MAX)}


def _status(grade: ExerciseGrade) -> str:
    if grade.status is not GradeStatus.GRADED:
        return "error"
    return "pass" if has_full_marks(grade) else "fail"


def _cut(text: str, length_max: int) -> str:
    """Return the text within a limit of bytes, which is the stricter reading of "characters"."""
    content = text.encode("utf-8", "backslashreplace")
    if len(content) <= length_max:
        return content.decode()
    return content[: length_max - len(TRUNCATED)].decode(errors="ignore") + TRUNCATED
