from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest

from exercises.grade._results import StudentGrade
from exercises.grade.csv_file import COLUMNS, FORMULA_STARTS, csv_text, write_csv
from tests.exercises.grade import samples


def rows_of(text: str) -> list[list[str]]:
    return list(csv.reader(io.StringIO(text, newline="")))


def test_one_row_per_file_with_every_cell() -> None:
    grade = replace(samples.ALICE, exercises=(samples.CHECK, samples.MISSING))
    origin = [
        "python 3.11.7; torch 2.13.0",
        "Linux-6.1-x86_64",
        "0" * 64,
        "2030-01-31T12:00:00+00:00",
    ]
    assert rows_of(csv_text([grade])) == [
        [
            "student_id", "exercise", "score", "max_score", "wheats_accepted", "wheats_total",
            "chaffs_caught", "chaffs_total", "status", "seconds", "seed_id", "versions",
            "platform", "submission_sha256", "graded_at",
        ],
        ["alice", "check_shift", "1.3333", "2", "3", "3", "4", "6", "graded", "1.25", "a1b2",
         *origin],
        ["alice", "answers", "0", "1", "0", "0", "0", "0", "missing", "0", "", *origin],
    ]  # fmt: skip


def test_a_student_without_anything_has_a_row() -> None:
    rows = rows_of(csv_text([samples.BOMBER]))
    assert [row[:9] for row in rows[1:]] == [
        ["bomber", "", "0", "0", "0", "0", "0", "0", "missing"]
    ]


def test_without_timings_two_runs_give_the_same_bytes() -> None:
    slower = replace(
        samples.ALICE,
        graded_at="2031-01-01T00:00:00+00:00",
        exercises=tuple(replace(grade, seconds=99.0) for grade in samples.ALICE.exercises),
    )
    assert csv_text([slower], timings=False) == csv_text([samples.ALICE], timings=False)
    assert csv_text([slower]) != csv_text([samples.ALICE])


@pytest.mark.parametrize(
    ("name", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(A1)", "'@SUM(A1)"),
        ("\t=1", "'\\t=1"),
        ("\r=1", "'\\r=1"),
        ('a"b,c', 'a"b,c'),
        ("a\nb", "a\\nb"),
        ("José", "José"),
    ],
)
def test_cells_are_neither_formulas_nor_lines(name: str, cell: str) -> None:
    assert rows_of(csv_text([replace(samples.ALICE, student_id=name)]))[1][0] == cell


def test_a_file_with_a_mark_for_spreadsheets(tmp_path: Path) -> None:
    write_csv(tmp_path / "a.csv", [samples.ALICE])
    write_csv(tmp_path / "b.csv", [samples.ALICE], bom=True)
    plain = (tmp_path / "a.csv").read_bytes()
    assert (tmp_path / "b.csv").read_bytes() == b"\xef\xbb\xbf" + plain
    assert b"\r" not in plain


@samples.any_grade
def test_any_grade_is_a_table_of_safe_cells(grade: StudentGrade) -> None:
    text = csv_text([grade])
    rows = rows_of(text)
    assert len(rows) == 1 + max(1, len(grade.exercises))
    assert len(text.splitlines()) == len(rows)
    for row in rows:
        assert len(row) == len(COLUMNS)
        assert all(cell.isprintable() and not cell.startswith(FORMULA_STARTS) for cell in row)
    for row in rows[1:]:
        assert all(0 <= float(row[i]) < float("inf") for i in (2, 3, 9))
