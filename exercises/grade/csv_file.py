"""grades.csv: one row per student and file, for spreadsheets, safe to open in one.

Cells that a spreadsheet would take for a formula get a ' in front. The decimal point is a point.
`seconds` and `graded_at` differ from run to run; without timings they are empty, and two runs over
the same submissions give the same bytes.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from pathlib import Path

from exercises.grade._results import ExerciseGrade, GradeStatus, StudentGrade
from exercises.grade._words import decimal, shown, stem_of
from minigpt._files import write_text

COLUMNS = (
    "student_id", "exercise", "score", "max_score", "wheats_accepted", "wheats_total",
    "chaffs_caught", "chaffs_total", "status", "seconds", "seed_id", "versions", "platform",
    "submission_sha256", "graded_at",
)  # fmt: skip
FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")  # noqa: RUF001
BYTE_ORDER_MARK = "\ufeff"  # tells a spreadsheet that the file is UTF-8


def write_csv(
    path: Path, students: Iterable[StudentGrade], *, timings: bool = True, bom: bool = False
) -> None:
    """Write the grades of a class in one piece, in the order given. Raises OSError."""
    write_text(path, (BYTE_ORDER_MARK if bom else "") + csv_text(students, timings=timings))


def csv_text(students: Iterable[StudentGrade], *, timings: bool = True) -> str:
    """Return the table with its heading; lines end with a line feed."""
    table = io.StringIO()
    writer = csv.writer(table, lineterminator="\n")
    writer.writerow(COLUMNS)
    for student in students:
        writer.writerows(rows_of(student, timings=timings))
    return table.getvalue()


def rows_of(student: StudentGrade, *, timings: bool = True) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a student; one row without exercise where nothing counts."""
    for grade in student.exercises or (None,):
        first, seconds = _cells(grade)
        versions = "; ".join(
            f"{name} {student.versions[name]}" for name in sorted(student.versions)
        )
        yield tuple(
            _safe(cell)
            for cell in (
                student.student_id,
                *first,
                seconds if timings else "",
                grade.seed_id if grade else "",
                versions,
                student.platform,
                student.submission_sha256,
                student.graded_at if timings else "",
            )
        )


def _cells(grade: ExerciseGrade | None) -> tuple[tuple[str, ...], str]:
    """Return the cells from exercise to status, and the seconds."""
    if grade is None:
        return ("", "0", "0", "0", "0", "0", "0", GradeStatus.MISSING.value), "0"
    counts = (
        grade.wheats_accepted, grade.wheats_total, grade.chaffs_caught, grade.chaffs_total
    )  # fmt: skip
    return (
        stem_of(grade),
        decimal(grade.score),
        decimal(grade.max_score),
        *map(str, counts),
        grade.status.value,
    ), decimal(grade.seconds)


def _safe(cell: str) -> str:
    quote = "'" if cell.startswith(FORMULA_STARTS) else ""
    return quote + shown(cell)
