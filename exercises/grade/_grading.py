"""Grading one submission: every file that counts is judged, and becomes an exercise's grade."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from diagnostics import CheckResult, Status
from exercises._attempt import assertions
from exercises.contracts._private import contract_of
from exercises.grade._file_rules import Part
from exercises.grade._notes import note
from exercises.grade._results import ExerciseGrade, GradeStatus, Kind, Note, StudentGrade
from exercises.grade._rubric_tables import Item
from exercises.grade.answers import grade_answers
from exercises.grade.autograder import library_root
from exercises.grade.rubric import Rubric, apply_lateness
from exercises.grade.submissions import Source, Submission, open_submission
from exercises.isolation.judge import CheckJudgement, Judging, judge_check, judge_fix
from exercises.isolation.judge_model import judge_model
from exercises.isolation.limits import Level
from exercises.isolation.sandbox import Sandbox
from exercises.isolation.verdict import Verdict

PACKAGE = "minigpt-diagnostics"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What is the same for every submission.

    secret: seeds are made from it.    private: an instructor's folder of implementations.
    hidden: what a job must not see.    require: the level below which nothing is graded.
    workspace: where submissions are unpacked; a hidden folder, or one job reads another one's.
    """

    rubric: Rubric
    secret: bytes
    private: Path | None = None
    hidden: tuple[Path, ...] = ()
    require: Level = Level.L1
    workspace: Path | None = None

    @property
    def seed_id(self) -> str:
        """A name for the seeds that does not give them away."""
        return hashlib.sha256(b"seed id " + self.secret).hexdigest()[:12]

    @functools.cached_property
    def private_sha256(self) -> str:
        """The digest of the private implementations; "" without any."""
        if self.private is None:
            return ""
        digest = hashlib.sha256()
        for path in sorted(self.private.glob("*.py")):
            digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
        return digest.hexdigest()


def grade_source(
    source: Source,
    settings: Settings,
    sandbox: Sandbox,
    *,
    created_at: datetime | None = None,
    graded_before: Callable[[str], StudentGrade | None] = lambda key: None,
) -> tuple[str, StudentGrade]:
    """Open and grade one submission; return the key of what was graded, and the grade.

    graded_before: (key) -> the grade that an earlier run gave to the very same thing.
    """
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="submission-", dir=settings.workspace) as folder:
        submission = open_submission(
            source, Path(folder).resolve() / "files", limits=settings.rubric.submission_limits
        )
        key = _key(submission, settings, sandbox, created_at)
        before = graded_before(key)
        if before is not None:
            return key, before
        grade = _grade(submission, settings, sandbox)
    grade = replace(grade, seconds=round(time.perf_counter() - started, 3))
    if created_at is not None:
        grade = apply_lateness(grade, settings.rubric, created_at)
    return key, grade


def ungraded(source: Source, settings: Settings, why: Note) -> StudentGrade:
    """Return a grade of 0 for a submission that the grader itself could not bring to an end."""
    return StudentGrade(
        student_id=source.student_id,
        submission_sha256="",
        exercises=tuple(
            _graded(item, 0.0, GradeStatus.UNGRADED) for item in settings.rubric.items_for(())
        ),
        problems=(why,),
        isolation=settings.require.name,
        **_circumstances(settings),
    )


def _grade(submission: Submission, settings: Settings, sandbox: Sandbox) -> StudentGrade:
    parts = {(part.kind, part.exercise): part for part in submission.parts}
    judging = Judging(
        sandbox=sandbox,
        secret=settings.secret,
        submission=submission.sha256,
        seeds=settings.rubric.seeds,
        limits=settings.rubric.job_limits,
        hidden=settings.hidden,
        private=settings.private,
    )
    grades = []
    for item in settings.rubric.items_for(submission.parts):
        started = time.perf_counter()
        part = parts.get((item.kind, item.exercise))
        grade = _grade_item(item, part, submission, judging, settings.rubric)
        seconds = round(time.perf_counter() - started, 3)
        grades.append(replace(grade, seconds=seconds, seed_id=settings.seed_id))
    return StudentGrade(
        student_id=submission.student_id,
        submission_sha256=submission.sha256,
        exercises=tuple(grades),
        problems=(*submission.notes, *settings.rubric.not_counted(submission.parts)),
        isolation=sandbox.level.name,
        **_circumstances(settings),
    )


def _grade_item(
    item: Item, part: Part | None, submission: Submission, judging: Judging, rubric: Rubric
) -> ExerciseGrade:
    if part is None:
        return _missing(item)
    file = submission.folder / part.name
    if item.kind is Kind.CHECK:
        return _grade_check(item, file, judging)
    if item.kind is Kind.FIX:
        return _grade_fix(item, file, judging)
    if item.kind is Kind.MODEL:
        return _grade_model(item, file, judging, rubric)
    return grade_answers(file.read_bytes(), rubric)


def _missing(item: Item) -> ExerciseGrade:
    return _graded(item, 0.0, GradeStatus.MISSING)


# ---- a check ---------------------------------------------------------------------------------


def _grade_check(item: Item, file: Path, judging: Judging) -> ExerciseGrade:
    judgement = judge_check(judging, contract_of(item.exercise), file)
    if judgement.problem:
        return _unusable(item, file, judgement.problem, judgement.problem_line)
    source = file.read_text(encoding="utf-8-sig", errors="replace")
    grade = _graded(
        item,
        judgement.share,
        _status_of(judgement.verdicts),
        tuple(_remarks(judgement, source)),
    )
    return replace(
        grade,
        wheats_accepted=judgement.wheats[0],
        wheats_total=judgement.wheats[1],
        chaffs_caught=judgement.chaffs[0],
        chaffs_total=judgement.chaffs[1],
        matrix=judgement.verdicts,
    )


def _status_of(verdicts: tuple[Verdict, ...]) -> GradeStatus:
    """Return how it ended: only where nothing else came of it, a crash or a time-out."""
    outcomes = {verdict.outcome for verdict in verdicts}
    if outcomes == {"error"}:
        return GradeStatus.CRASHED
    if outcomes <= {"timeout", "error"}:
        return GradeStatus.TIMEOUT
    return GradeStatus.GRADED


def _remarks(judgement: CheckJudgement, source: str) -> Iterator[Note]:
    if judgement.returned:
        yield note(
            "check.returned",
            "it returned a {type}, which says nothing; only raising an error rejects",
            type=judgement.returned,
        )
    if judgement.valid and judgement.chaffs[0]:
        idle = [lines for lines in _assertions(source) if not judgement.lines & set(lines)]
        if idle:
            yield note(
                "check.never_fired",
                "{count:assertion was|assertions were} never the one that rejected: line {lines}",
                count=len(idle),
                lines=", ".join(str(lines.start) for lines in idle),
            )


def _assertions(source: str) -> list[range]:
    """Return the lines of every assertion, in order; none for a text in some other encoding."""
    try:
        found = [lines for lines, _ in assertions(source)]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []
    return sorted(found, key=lambda lines: lines.start)


# ---- a repair and a model --------------------------------------------------------------------


def _grade_fix(item: Item, file: Path, judging: Judging) -> ExerciseGrade:
    judgement = judge_fix(judging, contract_of(item.exercise), file)
    if judgement.timed_out:
        why = note("fix.timeout", "it was not done in time: {why}", why=judgement.problem)
        return _graded(item, 0.0, GradeStatus.TIMEOUT, (why,))
    if judgement.problem:
        return _unusable(item, file, judgement.problem, judgement.problem_line)
    if judgement.fault is not None:
        why = note("fix.broken", "not repaired: {claim}", claim=judgement.fault.claim)
        return _graded(item, 0.0, GradeStatus.GRADED, (why,))
    return _graded(item, 1.0, GradeStatus.GRADED)


def _grade_model(item: Item, file: Path, judging: Judging, rubric: Rubric) -> ExerciseGrade:
    judgement = judge_model(judging, file, rubric.model_checks)
    if judgement.timed_out:
        why = note("model.timeout", "it was not done in time: {why}", why=judgement.problem)
        return _graded(item, 0.0, GradeStatus.TIMEOUT, (why,))
    if judgement.problem:
        return _unusable(item, file, judgement.problem, judgement.problem_line)
    passed = sum(result.status in (Status.PASS, Status.WARN) for result in judgement.results)
    notes = [_note_of(result) for result in judgement.results if result.status is not Status.PASS]
    summary = note(
        "model.passed",
        "{passed} of {total:check|checks} passed",
        passed=passed,
        total=len(judgement.results),
    )
    if judgement.ran_out:
        notes.append(note("model.ran_out", "its time was up before every check had been made"))
    share = passed / len(judgement.results) if judgement.results else 0.0
    return _graded(item, share, GradeStatus.GRADED, (summary, *notes))


def _note_of(result: CheckResult) -> Note:
    return note(
        result.reason or f"{result.check}.{result.status.value.lower()}",
        "[{status}] {check}: {claim}",
        status=result.status.value.upper(),
        check=result.check,
        claim=str(result.claim),
    )


# ---- what all of them share ------------------------------------------------------------------


def _unusable(item: Item, file: Path, problem: str, line: int | None) -> ExerciseGrade:
    where = "" if line is None else f" in line {line}"
    why = note(
        "file.unusable",
        "{file} cannot be used{where}: {problem}",
        file=file.name,
        where=where,
        problem=problem,
    )
    return _graded(item, 0.0, GradeStatus.UNREADABLE, (why,))


def _graded(
    item: Item, share: float, status: GradeStatus, notes: tuple[Note, ...] = ()
) -> ExerciseGrade:
    return ExerciseGrade(
        exercise=item.exercise,
        kind=item.kind,
        score=round(item.points * share, 4),
        max_score=item.points,
        status=status,
        notes=notes,
    )


def _key(
    submission: Submission, settings: Settings, sandbox: Sandbox, created_at: datetime | None
) -> str:
    """Return a digest of everything that the grade depends on."""
    rubric = settings.rubric
    facts = (
        submission.student_id,
        submission.sha256,
        submission.notes,
        rubric.sha256,
        rubric.seeds,
        sorted(rubric.limits.items()),
        settings.seed_id,
        settings.private_sha256,
        sandbox.level.name,
        created_at,
        sorted(_versions().items()),
    )
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _circumstances(settings: Settings) -> dict[str, Any]:
    return {
        "graded_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": _versions(),
        "platform": platform.platform(),
        "limits": dict(settings.rubric.limits),
    }


def _versions() -> Mapping[str, str]:
    return {
        "python": ".".join(map(str, sys.version_info[:3])),
        "torch": str(torch.__version__),
        PACKAGE: _own_version(),
    }


def _own_version() -> str:
    try:
        return metadata.version(PACKAGE)
    except metadata.PackageNotFoundError:  # on the path and not installed, as in Gradescope
        project = library_root() / "pyproject.toml"
        if not project.is_file():
            return "unknown"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
