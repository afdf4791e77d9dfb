"""What every format says about a grade, made safe for whoever shows it.

Names and messages come from students: control characters are written as escapes, so that nothing
moves a cursor, forges a line or breaks a file.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator

from diagnostics._text import printable, say
from exercises.grade._results import ExerciseGrade, GradeStatus, Kind, StudentGrade
from exercises.isolation.verdict import Verdict

MESSAGE_LENGTH_MAX = 500
NOT_GRADED = {
    GradeStatus.MISSING: ("[SKIP]", "{file} was not handed in"),
    GradeStatus.UNREADABLE: ("[ERROR]", "{file} is not what it should be, so it was not graded"),
    GradeStatus.CRASHED: ("[ERROR]", "the process of {file} ended before it had answered"),
    GradeStatus.TIMEOUT: ("[ERROR]", "{file} did not end in time"),
    GradeStatus.UNGRADED: ("[ERROR]", "{file} was not graded, and its 0 is no verdict"),
}
ANSWERED = {
    "answers.right": "[OK]",
    "answers.wrong": "[FAIL]",
    "answers.type": "[FAIL]",
    "answers.missing": "[SKIP]",
}
REJECTED = {
    "rejected": "it rejects the correct implementation {name}: {message}",
    "error": "it fails on the correct implementation {name}: {message}",
    "timeout": "it does not end in time on the correct implementation {name}",
    "not_called": "it never calls the correct implementation {name}",
    "unstable": "it accepts and rejects the correct implementation {name} by turns: {message}",
}
NOT_CAUGHT = {
    "error": "{count:buggy implementation|buggy implementations} ended in an error of the check, "
    "which is no catch",
    "timeout": "{count:buggy implementation|buggy implementations} ran out of time",
    "not_called": "{count:buggy implementation was|buggy implementations were} never called",
    "unstable": "{count:buggy implementation was|buggy implementations were} caught with some "
    "seeds only",
}

Line = tuple[str, str]  # a status word, "" for a remark, and a sentence


def stem_of(grade: ExerciseGrade) -> str:
    """Return the name of what was graded: check_shift, fix_shift, model, answers."""
    if grade.kind in (Kind.CHECK, Kind.FIX):
        return shown(f"{grade.kind.value}_{grade.exercise}")
    return grade.kind.value


def file_of(grade: ExerciseGrade) -> str:
    """Return the name of the file that was graded."""
    return f"{stem_of(grade)}.{'json' if grade.kind is Kind.ANSWERS else 'py'}"


def finite(number: float) -> float:
    """Return a number rounded to 4 decimals; NaN and infinity, which no format knows, give 0."""
    return round(float(number), 4) + 0.0 if math.isfinite(number) else 0.0


def decimal(number: float) -> str:
    """Return a number as text, with a point and without an exponent: 2, 1.3333."""
    return f"{finite(number):.4f}".rstrip("0").rstrip(".")


def score_of(student: StudentGrade) -> float:
    """Return the sum of the scores, of the finite ones."""
    return finite(math.fsum(finite(grade.score) for grade in student.exercises))


def max_score_of(student: StudentGrade) -> float:
    """Return the sum of what could be reached."""
    return finite(math.fsum(finite(grade.max_score) for grade in student.exercises))


def has_full_marks(grade: ExerciseGrade) -> bool:
    """Tell whether a file was graded and reached all its points, lateness aside."""
    reached = grade.score if grade.score_in_time is None else grade.score_in_time
    return grade.status is GradeStatus.GRADED and reached >= grade.max_score - 1e-9


def shown(text: str, length_max: int = MESSAGE_LENGTH_MAX) -> str:
    """Return a foreign text as one printable line of limited length."""
    line = printable(text[: length_max + 1])
    return line if len(line) <= length_max else f"{line[: length_max - 3]}..."


def lines_of(grade: ExerciseGrade) -> list[Line]:
    """Return what the student is told about one file; never the name of a buggy implementation."""
    lines = [*_verdict_lines(grade)]
    for item in grade.notes:
        word = ANSWERED.get(item.reason, "")
        lines.append((word, shown(item.text)))
    return lines


def as_text(lines: Iterable[Line]) -> str:
    """Return lines as text, each one with its word."""
    return "\n".join(f"{word} {text}".strip() for word, text in lines)


def problem_lines(student: StudentGrade) -> list[Line]:
    """Return what the student is told about the submission as a whole."""
    return [("", shown(item.text)) for item in student.problems]


def origin_lines(student: StudentGrade) -> list[str]:
    """Return where and how it was graded, one fact a line."""
    versions = ", ".join(f"{name} {student.versions[name]}" for name in sorted(student.versions))
    return [
        shown(line)
        for line in (
            f"isolation: {student.isolation}",
            f"versions: {versions}",
            f"platform: {student.platform}",
            f"submission: sha256 {student.submission_sha256}",
            f"graded at: {student.graded_at}",
        )
    ]


def _verdict_lines(grade: ExerciseGrade) -> Iterator[Line]:
    if grade.status is not GradeStatus.GRADED:
        word, template = NOT_GRADED[grade.status]
        yield word, say(template, file=file_of(grade))
        return
    valid = grade.wheats_accepted >= grade.wheats_total
    if grade.wheats_total:
        yield (
            "[OK]" if valid else "[FAIL]",
            say(
                "accepts {accepted} of {total:correct implementation|correct implementations}"
                + ("" if valid else ", so it is not valid"),
                accepted=grade.wheats_accepted,
                total=grade.wheats_total,
            ),
        )
        yield from (("", _why_rejected(verdict)) for verdict in grade.matrix if _is_wrong(verdict))
    if grade.chaffs_total and valid:
        yield (
            "[OK]" if grade.chaffs_caught == grade.chaffs_total else "[WARN]",
            say(
                "catches {caught} of {total:buggy implementation|buggy implementations}",
                caught=grade.chaffs_caught,
                total=grade.chaffs_total,
            ),
        )
        yield from _why_not_caught(grade)
    counted = grade.wheats_total or grade.chaffs_total
    if not counted and not (grade.kind is Kind.ANSWERS and grade.notes):  # each answer has a line
        yield _pass_line(grade)


def _pass_line(grade: ExerciseGrade) -> Line:
    if has_full_marks(grade):
        return "[OK]", say("{file} passes", file=file_of(grade))
    if grade.score > 0:
        return "[WARN]", say("{file} passes in part", file=file_of(grade))
    return "[FAIL]", say("{file} does not pass", file=file_of(grade))


def _is_wrong(verdict: Verdict) -> bool:
    return verdict.right and verdict.outcome != "accepted"


def _why_rejected(verdict: Verdict) -> str:
    template = REJECTED.get(verdict.outcome, REJECTED["error"])
    said = shown(verdict.message) or "it said nothing"
    text: str = say(template, name=verdict.implementation, message=said)
    return text if verdict.line is None else f"{text} (line {verdict.line})"


def _why_not_caught(grade: ExerciseGrade) -> Iterator[Line]:
    """Yield how many were missed in which way; a plain acceptance needs no words."""
    counts = Counter(verdict.outcome for verdict in grade.matrix if not verdict.right)
    for outcome, template in NOT_CAUGHT.items():
        if counts[outcome]:
            yield "", say(template, count=counts[outcome])
