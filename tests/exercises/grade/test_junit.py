from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

from exercises.grade._results import StudentGrade
from exercises.grade.junit import junit_xml, write_junit
from tests.exercises.grade import samples


def test_a_suite_per_student_and_a_case_per_file() -> None:
    root = ET.fromstring(junit_xml([samples.ALICE, samples.BOMBER]))
    assert root.tag == "testsuites"
    assert [suite.attrib for suite in root] == [
        {"name": "alice", "tests": "5", "failures": "2", "errors": "1", "skipped": "1",
         "time": "2.500"},
        {"name": "bomber", "tests": "0", "failures": "0", "errors": "0", "skipped": "0",
         "time": "2.500"},
    ]  # fmt: skip
    cases = root[0].findall("testcase")
    assert [
        (case.get("classname"), case.get("name"), case.get("time"), [part.tag for part in case])
        for case in cases
    ] == [
        ("alice", "check_shift", "1.250", ["failure"]),
        ("alice", "check_sampling", "0.000", ["failure"]),
        ("alice", "fix_shift", "0.000", []),
        ("alice", "model", "0.000", ["error"]),
        ("alice", "answers", "0.000", ["skipped"]),
    ]
    assert cases[0][0].get("message") == "1.3333 of 2 points"
    assert cases[3][0].text == "[ERROR] model.py did not end in time"
    told = root[1].findtext("system-out") or ""
    assert told.splitlines()[:2] == ["a unpacks to 1000000000000 bytes", "isolation: L3"]


@samples.any_grade
def test_any_grade_can_be_parsed(grade: StudentGrade) -> None:
    root = ET.fromstring(junit_xml([grade]))
    suite = root[0]
    assert suite.get("tests") == str(len(grade.exercises)) == str(len(suite.findall("testcase")))
    for case in suite.findall("testcase"):
        assert len(case) <= 1
        assert re.fullmatch(r"\d+\.\d{3}", case.get("time") or "")


def test_the_file_is_what_is_returned(tmp_path: Path) -> None:
    write_junit(tmp_path / "grades.xml", [samples.ALICE])
    assert (tmp_path / "grades.xml").read_bytes() == junit_xml([samples.ALICE])
