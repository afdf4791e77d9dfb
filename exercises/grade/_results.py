"""What grading finds: one grade per student and exercise, from which every format is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from exercises.isolation.verdict import Verdict


class Kind(StrEnum):
    """What was handed in for an exercise."""

    CHECK = "check"  # check_<exercise>.py
    FIX = "fix"  # fix_<exercise>.py
    MODEL = "model"  # model.py
    ANSWERS = "answers"  # answers.json


class GradeStatus(StrEnum):
    """How grading one file ended; only GRADED can have a score above 0."""

    GRADED = "graded"
    MISSING = "missing"  # nothing was handed in
    UNREADABLE = "unreadable"  # no Python, no function of the right name, no JSON
    CRASHED = "crashed"  # its process ended, or spoke nonsense
    TIMEOUT = "timeout"
    UNGRADED = "ungraded"  # the grader could not bring the submission to its end


@dataclass(frozen=True, kw_only=True)
class Note:
    """One thing to tell the student: a stable id with its facts, and the sentence made of them."""

    reason: str
    text: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class ExerciseGrade:
    """The grade of one file. `exercise` is a check's name, or "model" and "answers".

    wheats are correct implementations, chaffs are buggy ones; both 0 where there are none.
    seed_id: names the seeds without giving them away.    seconds: wall-clock time it took.
    score_in_time: what the score would be without lateness; None where that is the score.
    """

    exercise: str
    kind: Kind
    score: float
    max_score: float
    status: GradeStatus
    wheats_accepted: int = 0
    wheats_total: int = 0
    chaffs_caught: int = 0
    chaffs_total: int = 0
    seconds: float = 0.0
    seed_id: str = ""
    score_in_time: float | None = None
    notes: tuple[Note, ...] = ()
    matrix: tuple[Verdict, ...] = ()


@dataclass(frozen=True, kw_only=True)
class StudentGrade:
    """All grades of one student.

    isolation: the level that was achieved, "L2" for example.    graded_at: ISO 8601, UTC.
    versions: name -> version of Python, torch, this package.    platform: as `platform.platform`.
    limits: name -> number of what was in force (seconds, bytes, ...).
    problems: what was wrong with the submission as a whole, a zip bomb for example.
    """

    student_id: str
    submission_sha256: str
    graded_at: str
    isolation: str
    versions: Mapping[str, str]
    platform: str
    limits: Mapping[str, float]
    exercises: tuple[ExerciseGrade, ...]
    problems: tuple[Note, ...] = ()
    seconds: float = 0.0

    @property
    def score(self) -> float:
        """The sum of the scores."""
        return sum(grade.score for grade in self.exercises)

    @property
    def max_score(self) -> float:
        """The sum of what could be reached."""
        return sum(grade.max_score for grade in self.exercises)
