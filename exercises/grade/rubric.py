"""The rubric: what counts how much, until when, and within which limits; one TOML file.

    [check.shift]            # check_shift.py, scored by correct and buggy implementations
    points = 2
    [fix.shift]              # fix_shift.py, scored by the check
    points = 1
    [model]                  # model.py with build_pipeline(), scored by diagnose
    points = 5
    checks = ["shift", "loss", "causal_independence"]    # all of them without this line
    [answers.curve]          # answers.json: {"curve": "..."}; one of accept, number and cause
    points = 1
    accept = ["it memorises", "overfitting"]
    [answers.loss]
    number = 4.17
    tolerance = 0.01
    [answers.case_1]
    cause = "causal_independence"
    [due]
    at = 2030-01-31T23:59:00+01:00
    grace_minutes = 10       # lateness up to this is forgiven
    percent_per_day = 20     # of the score, for each day that has begun
    cut_off = 2030-02-07T23:59:00+01:00    # from then on the score is 0
    [limits]
    cpu_seconds = 10         # of one file on one implementation; see LIMITS for all of them
    [grading]
    seeds = 3

With at least one of check, fix, model and answers, only what is listed counts, and a listed thing
that is missing scores 0. Without a rubric, every file handed in is worth 1 point, except for
answers, which nobody can judge without it.
"""

from __future__ import annotations

import hashlib
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from diagnostics._catalog import CATALOG
from exercises.grade._file_rules import Part, SubmissionLimits
from exercises.grade._notes import note
from exercises.grade._results import Kind, Note, StudentGrade
from exercises.grade._rubric_tables import (
    LIMITS,
    Due,
    Item,
    Question,
    read_due,
    read_items,
    read_limits,
    read_questions,
    read_seeds,
)
from exercises.grade._toml_fields import Table
from exercises.isolation.limits import MIB, Limits
from minigpt._cli import CommandError, describe_error

FILE_BYTES_MAX = 1_000_000
# a model computes in a process of its own, and what forks has to hold its code
MODEL_CHECKS = tuple(name for name, row in CATALOG.items() if not row.forks)


@dataclass(frozen=True, kw_only=True)
class Rubric:
    """What counts and how. `items` is empty without a rubric: then what is handed in counts.

    model_checks: the checks that model.py is scored by.    sha256: of the file, "" without one.
    """

    items: tuple[Item, ...] = ()
    questions: tuple[Question, ...] = ()
    model_checks: tuple[str, ...] = MODEL_CHECKS
    due: Due | None = None
    limits: Mapping[str, float] = field(
        default_factory=lambda: {name: float(limit[0]) for name, limit in LIMITS.items()}
    )
    seeds: int = 3
    sha256: str = ""

    def items_for(self, parts: Iterable[Part]) -> tuple[Item, ...]:
        """Return what counts for a submission of these parts, in the rubric's order."""
        if self.items:
            return self.items
        return tuple(
            Item(kind=part.kind, exercise=part.exercise, points=1.0)
            for part in parts
            if part.kind is not Kind.ANSWERS
        )

    def not_counted(self, parts: Iterable[Part]) -> tuple[Note, ...]:
        """Return a note for each part that was handed in and does not count."""
        counted = {(item.kind, item.exercise) for item in self.items_for(parts)}
        return tuple(
            note("rubric.not_counted", "{name} does not count in this assignment", name=part.name)
            for part in parts
            if (part.kind, part.exercise) not in counted
        )

    def late_factor(self, created_at: datetime) -> float:
        """Return what is left of a score that was handed in then: 1 in time, 0 at the cut-off.

        Raises ValueError for a time without a zone.
        """
        if created_at.tzinfo is None:
            raise ValueError(f"created_at must have a zone, got {created_at.isoformat()}")
        due = self.due
        if due is None or created_at <= due.at + due.grace:
            return 1.0
        if due.cut_off is not None and created_at >= due.cut_off:
            return 0.0
        days = math.ceil((created_at - due.at) / timedelta(days=1))
        return max(0.0, 1.0 - days * due.percent_per_day / 100.0)

    @property
    def job_limits(self) -> Limits:
        """What one process of a job may use."""
        return Limits(
            cpu_seconds=math.ceil(self.limits["cpu_seconds"]),
            wall_seconds=self.limits["wall_seconds"],
            memory_bytes=int(self.limits["memory_mb"] * MIB),
            file_bytes=int(self.limits["file_mb"] * MIB),
            open_files=int(self.limits["open_files"]),
            processes=int(self.limits["processes"]),
        )

    @property
    def submission_limits(self) -> SubmissionLimits:
        """The limits that `open_submission` takes."""
        return SubmissionLimits(
            total_bytes=int(self.limits["submission_mb"] * 1_000_000),
            files=int(self.limits["submission_files"]),
        )


def read_rubric(path: Path) -> Rubric:
    """Read a rubric. Raises CommandError, one line that names the file and the place in it."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CommandError(describe_error(error)) from error
    return parse_rubric(content, path.name)


def parse_rubric(content: bytes, file: str = "rubric.toml") -> Rubric:
    """Return the rubric that a TOML text describes. Raises CommandError."""
    if len(content) > FILE_BYTES_MAX:
        raise CommandError(f"{file}: a rubric has at most {FILE_BYTES_MAX} bytes")
    try:
        raw = tomllib.loads(content.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise CommandError(f"{file}: not TOML: {describe_error(error)}") from error
    root = Table(file, "", raw)
    root.require_known(("check", "fix", "model", "answers", "due", "limits", "grading"))
    questions = read_questions(root.table("answers"))
    rubric = Rubric(
        items=read_items(root, questions),
        questions=questions,
        model_checks=root.table("model").names("checks", MODEL_CHECKS),
        due=read_due(root),
        limits=read_limits(root.table("limits")),
        seeds=read_seeds(root.table("grading")),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    if rubric.items and not sum(item.points for item in rubric.items) > 0:
        raise CommandError(f"{file}: nothing counts, because all points are 0")
    return rubric


def apply_lateness(student: StudentGrade, rubric: Rubric, created_at: datetime) -> StudentGrade:
    """Return the grade with every score reduced by lateness, and a problem note that says so."""
    factor = rubric.late_factor(created_at)
    if rubric.due is None or factor == 1.0:
        return student
    late = note(
        "grade.late",
        "handed in at {created_at}, after {due_at}: scores are multiplied by {factor}",
        created_at=created_at.isoformat(timespec="seconds"),
        due_at=rubric.due.at.isoformat(timespec="seconds"),
        factor=factor,
    )
    scaled = tuple(
        replace(grade, score=round(grade.score * factor, 4), score_in_time=grade.score)
        for grade in student.exercises
    )
    return replace(student, exercises=scaled, problems=(*student.problems, late))
