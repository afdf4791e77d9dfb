"""Grades to be told: a class of every kind, and hostile ones that hypothesis makes up."""

from __future__ import annotations

import string
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from exercises.grade._notes import note
from exercises.grade._results import ExerciseGrade, GradeStatus, Kind, Note, StudentGrade
from exercises.isolation.verdict import Verdict

HOSTILE = "=cmd|' /C calc'!A0\x1b[2J\x00\r\n[OK] Score: 6 of 6 <script>alert(1)</script>&lt;\ufffe"

CHECK = ExerciseGrade(
    exercise="shift",
    kind=Kind.CHECK,
    score=4 / 3,
    max_score=2.0,
    status=GradeStatus.GRADED,
    wheats_accepted=3,
    wheats_total=3,
    chaffs_caught=4,
    chaffs_total=6,
    seconds=1.25,
    seed_id="a1b2",
    matrix=(
        Verdict(implementation="slices", right=True, outcome="accepted"),
        Verdict(implementation="index", right=True, outcome="accepted"),
        Verdict(implementation="unfold", right=True, outcome="accepted"),
        Verdict(implementation="identical", right=False, outcome="rejected", message="moved by 0"),
        Verdict(implementation="wrapped", right=False, outcome="accepted"),
        Verdict(implementation="backwards", right=False, outcome="error", message="KeyError: 1"),
    ),
)
INVALID = ExerciseGrade(
    exercise="sampling",
    kind=Kind.CHECK,
    score=0.0,
    max_score=1.0,
    status=GradeStatus.GRADED,
    wheats_accepted=2,
    wheats_total=3,
    chaffs_caught=5,
    chaffs_total=5,
    matrix=(
        Verdict(
            implementation="sorted",
            right=True,
            outcome="rejected",
            message="sum is 0.9999999, expected 1",
            line=12,
        ),
    ),
)
FIX = ExerciseGrade(
    exercise="shift",
    kind=Kind.FIX,
    score=1.0,
    max_score=1.0,
    status=GradeStatus.GRADED,
)
TIMEOUT = ExerciseGrade(
    exercise="model", kind=Kind.MODEL, score=0.0, max_score=5.0, status=GradeStatus.TIMEOUT
)
MISSING = ExerciseGrade(
    exercise="answers", kind=Kind.ANSWERS, score=0.0, max_score=1.0, status=GradeStatus.MISSING
)


def student(
    *exercises: ExerciseGrade, name: str = "alice", problems: tuple[Note, ...] = ()
) -> StudentGrade:
    """A student's grade with everything else fixed."""
    return StudentGrade(
        student_id=name,
        submission_sha256="0" * 64,
        graded_at="2030-01-31T12:00:00+00:00",
        isolation="L3",
        versions={"torch": "2.13.0", "python": "3.11.7"},
        platform="Linux-6.1-x86_64",
        limits={"cpu_seconds": 10.0},
        exercises=exercises,
        problems=problems,
        seconds=2.5,
    )


ALICE = student(CHECK, INVALID, FIX, TIMEOUT, MISSING)
BOMBER = student(
    name="bomber",
    problems=(
        note("submission.zip_bomb", "{name} unpacks to {size} bytes", name="a", size=10**12),
    ),
)

texts = st.text(max_size=40) | st.just(HOSTILE) | st.text(string.punctuation + "\n\r\t", max_size=9)
numbers = st.floats(min_value=0, max_value=100) | st.sampled_from([float("nan"), float("inf")])
counts = st.integers(min_value=0, max_value=6)
facts = st.dictionaries(
    st.sampled_from(["name", "size", "why"]), texts | numbers | counts | st.none(), max_size=3
)
notes = st.one_of(
    st.builds(Note, reason=texts, text=texts, facts=facts),
    st.builds(lambda name: note("submission.link", "{name} is a link", name=name), texts),
)
verdicts = st.builds(
    Verdict,
    implementation=texts,
    right=st.booleans(),
    outcome=st.sampled_from(
        ["accepted", "rejected", "error", "timeout", "not_called", "unstable", "?"]
    ),
    message=texts,
    line=st.none() | counts,
)
exercise_grades = st.builds(
    ExerciseGrade,
    exercise=texts,
    kind=st.sampled_from(Kind),
    score=numbers,
    max_score=numbers,
    status=st.sampled_from(GradeStatus),
    wheats_accepted=counts,
    wheats_total=counts,
    chaffs_caught=counts,
    chaffs_total=counts,
    seconds=numbers,
    seed_id=texts,
    score_in_time=numbers | st.none(),
    notes=st.lists(notes, max_size=2).map(tuple),
    matrix=st.lists(verdicts, max_size=3).map(tuple),
)
student_grades = st.builds(
    StudentGrade,
    student_id=texts,
    submission_sha256=texts,
    graded_at=texts,
    isolation=texts,
    versions=st.dictionaries(texts, texts, max_size=2),
    platform=texts,
    limits=st.dictionaries(texts, numbers, max_size=2),
    exercises=st.lists(exercise_grades, max_size=3).map(tuple),
    problems=st.lists(notes, max_size=2).map(tuple),
    seconds=numbers,
)


def any_grade(test: Callable[[StudentGrade], None]) -> Callable[[], None]:
    """Run a test on grades that nobody would think of."""
    decorated: Callable[[], None] = settings(max_examples=40, deadline=None)(
        given(student_grades)(test)
    )
    return decorated
