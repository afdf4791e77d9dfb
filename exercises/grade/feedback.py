"""Feedback: a text file per student that any editor, terminal, mailer and web page shows as it is.

At most 80 columns, characters of Latin-1 only, no control characters, nothing that a browser takes
for a tag or an entity. The names of buggy implementations are never told.
"""

from __future__ import annotations

import hashlib
import re
import textwrap
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from exercises.grade._file_rules import DEVICES
from exercises.grade._results import ExerciseGrade, StudentGrade
from exercises.grade._words import (
    Line,
    decimal,
    file_of,
    lines_of,
    max_score_of,
    origin_lines,
    problem_lines,
    score_of,
    shown,
)
from minigpt._files import write_text

COLUMNS = 80
WORD_COLUMNS = 8  # as wide as "[ERROR] "
UNSAFE = re.compile(r"[^\w.@+-]")
NAME_LENGTH_MAX = 48  # characters of up to 4 bytes; systems allow 255 bytes


def write_feedback(folder: Path, student: StudentGrade, file_name: str) -> Path:
    """Write a student's feedback into the folder and return its path. Raises OSError."""
    path = folder / file_name
    write_text(path, feedback_text(student))
    return path


def file_names(student_ids: Iterable[str]) -> Mapping[str, str]:
    """Return a file name per student, ending in .txt; they differ on every system.

    An id whose name would be another one's, or no name at all, gets a piece of its digest.
    """
    ids = list(dict.fromkeys(student_ids))
    plain = {student_id: _plain_name(student_id) for student_id in ids}
    counts = Counter(map(_folded, plain.values()))
    return {
        student_id: f"{name}.txt"
        if name and name == student_id and counts[_folded(name)] == 1
        else f"{name or 'student'}-{_digest(student_id)}.txt"
        for student_id, name in plain.items()
    }


def feedback_text(student: StudentGrade) -> str:
    """Return the feedback; it ends with a line feed."""
    return "\n".join(_lines(student)) + "\n"


def _plain_name(student_id: str) -> str:
    letters = unicodedata.normalize("NFC", student_id)
    name = UNSAFE.sub("_", letters)[:NAME_LENGTH_MAX].strip("._-")
    return "" if name.split(".")[0].casefold() in DEVICES else name


def _folded(name: str) -> str:
    """Return what two names share that some system takes for the same."""
    return unicodedata.normalize("NFKD", name.casefold())


def _digest(student_id: str) -> str:
    return hashlib.sha256(student_id.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def _lines(student: StudentGrade) -> Iterator[str]:
    yield from _wrapped(f"Feedback for {shown(student.student_id, 200)}")
    yield f"Score: {decimal(score_of(student))} of {decimal(max_score_of(student))}"
    if student.problems:
        yield ""
        yield "The submission as a whole"
        for line in problem_lines(student):
            yield from _sentence(line)
    for grade in student.exercises:
        yield ""
        yield from _section(grade)
    yield ""
    yield "How it was graded"
    for text in origin_lines(student):
        yield from _wrapped(text, "  ")


def _section(grade: ExerciseGrade) -> Iterator[str]:
    points = f"{decimal(grade.score)} of {decimal(grade.max_score)}"
    yield from _wrapped(f"{file_of(grade)}: {points}")
    for line in lines_of(grade):
        yield from _sentence(line)


def _sentence(line: Line) -> Iterator[str]:
    word, text = line
    yield from _wrapped(text, "  " + (word or "-").ljust(WORD_COLUMNS))


def _wrapped(text: str, first: str = "") -> list[str]:
    return textwrap.wrap(
        _neutral(text),
        COLUMNS,
        initial_indent=first,
        subsequent_indent=" " * len(first),
        break_on_hyphens=False,
    )


def _neutral(text: str) -> str:
    """Return Latin-1 text in which < and & cannot begin a tag or an entity."""
    latin = text.encode("latin-1", "backslashreplace").decode("latin-1")
    return re.sub(r"(?<=[<&])(?=[A-Za-z0-9/!?#])", " ", latin)
