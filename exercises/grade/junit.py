"""JUnit XML: a suite per student, a case per file, for the dashboards of CI systems.

Not full marks is a failure, a file that could not be graded is an error, a missing one is skipped.
XML 1.0 forbids characters that ElementTree writes as they are, into a file that no parser reads;
they are taken out.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path

from exercises.grade._results import ExerciseGrade, GradeStatus, StudentGrade
from exercises.grade._words import (
    as_text,
    decimal,
    finite,
    has_full_marks,
    lines_of,
    origin_lines,
    problem_lines,
    shown,
    stem_of,
)
from minigpt._files import atomic_write

# The complement of production [2] Char, https://www.w3.org/TR/xml/#charsets
FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def write_junit(path: Path, students: Iterable[StudentGrade]) -> None:
    """Write the grades of a class in one piece. Raises OSError."""
    with atomic_write(path) as file:
        file.write(junit_xml(students))


def junit_xml(students: Iterable[StudentGrade]) -> bytes:
    """Return the document, UTF-8."""
    root = ET.Element("testsuites")
    for student in students:
        root.append(_suite(student))
    ET.indent(root)
    return ET.tostring(root, encoding="utf-8", xml_declaration=True) + b"\n"


def _suite(student: StudentGrade) -> ET.Element:
    cases = [_case(grade, student) for grade in student.exercises]
    suite = ET.Element("testsuite", name=_allowed(shown(student.student_id)))
    suite.set("tests", str(len(cases)))
    for outcome, attribute in (
        ("failure", "failures"),
        ("error", "errors"),
        ("skipped", "skipped"),
    ):
        suite.set(attribute, str(sum(case.find(outcome) is not None for case in cases)))
    suite.set("time", _seconds(student.seconds))
    suite.extend(cases)
    told = [*(text for _, text in problem_lines(student)), *origin_lines(student)]
    ET.SubElement(suite, "system-out").text = _allowed("\n".join(told))
    return suite


def _case(grade: ExerciseGrade, student: StudentGrade) -> ET.Element:
    case = ET.Element("testcase", name=_allowed(stem_of(grade)))
    case.set("classname", _allowed(shown(student.student_id)))
    case.set("time", _seconds(grade.seconds))
    outcome = _outcome(grade)
    if outcome is not None:
        message = f"{decimal(grade.score)} of {decimal(grade.max_score)} points"
        ET.SubElement(case, outcome, message=message).text = _allowed(as_text(lines_of(grade)))
    return case


def _outcome(grade: ExerciseGrade) -> str | None:
    if grade.status is GradeStatus.MISSING:
        return "skipped"
    if grade.status is not GradeStatus.GRADED:
        return "error"
    return None if has_full_marks(grade) else "failure"


def _seconds(seconds: float) -> str:
    return f"{max(0.0, finite(seconds)):.3f}"


def _allowed(text: str) -> str:
    return FORBIDDEN.sub("", text)
