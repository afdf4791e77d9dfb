from __future__ import annotations

import html
import re
import unicodedata
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exercises.grade._results import GradeStatus, Note, StudentGrade
from exercises.grade.feedback import feedback_text, file_names, write_feedback
from exercises.isolation.verdict import Verdict
from tests.exercises.grade import samples

EXPECTED = """\
Feedback for alice
Score: 2.3333 of 10

check_shift.py: 1.3333 of 2
  [OK]    accepts 3 of 3 correct implementations
  [WARN]  catches 4 of 6 buggy implementations
  -       1 buggy implementation ended in an error of the check, which is no
          catch

check_sampling.py: 0 of 1
  [FAIL]  accepts 2 of 3 correct implementations, so it is not valid
  -       it rejects the correct implementation sorted: sum is 0.9999999,
          expected 1 (line 12)

fix_shift.py: 1 of 1
  [OK]    fix_shift.py passes

model.py: 0 of 5
  [ERROR] model.py did not end in time

answers.json: 0 of 1
  [SKIP]  answers.json was not handed in

How it was graded
  isolation: L3
  versions: python 3.11.7, torch 2.13.0
  platform: Linux-6.1-x86_64
  submission: sha256
  0000000000000000000000000000000000000000000000000000000000000000
  graded at: 2030-01-31T12:00:00+00:00
"""


def test_the_whole_text() -> None:
    assert feedback_text(samples.ALICE) == EXPECTED


def test_what_the_grader_did_not_reach_is_not_called_missing() -> None:
    model = replace(samples.ALICE.exercises[3], status=GradeStatus.UNGRADED)
    text = feedback_text(replace(samples.ALICE, exercises=(model,)))
    assert text.splitlines()[3:5] == [
        "model.py: 0 of 5",
        "  [ERROR] model.py was not graded, and its 0 is no verdict",
    ]


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("answers.right", "[OK]"),
        ("answers.wrong", "[FAIL]"),
        ("answers.type", "[FAIL]"),
        ("answers.missing", "[SKIP]"),
        ("answers.unknown", "-"),
    ],
)
def test_every_answer_has_its_word(reason: str, word: str) -> None:
    answers = replace(
        samples.ALICE.exercises[4],
        status=GradeStatus.GRADED,
        notes=(Note(reason=reason, text="so"),),
    )
    lines = feedback_text(replace(samples.ALICE, exercises=(answers,))).splitlines()
    assert lines[3:5] == ["answers.json: 0 of 1", f"  {word:7} so"]


def test_problems_come_first() -> None:
    assert feedback_text(samples.BOMBER).splitlines()[:6] == [
        "Feedback for bomber",
        "Score: 0 of 0",
        "",
        "The submission as a whole",
        "  -       a unpacks to 1000000000000 bytes",
        "",
    ]


def test_the_names_of_buggy_implementations_are_not_told() -> None:
    """Whatever their outcome, and whatever the check said of them."""
    matrix = tuple(
        Verdict(implementation=f"secret_{outcome}", right=False, outcome=outcome, message="secret")
        for outcome in ("accepted", "rejected", "error", "timeout", "not_called", "unstable")
    )
    text = feedback_text(samples.student(replace(samples.CHECK, matrix=matrix)))
    assert "secret" not in text
    assert "  -       1 buggy implementation was caught with some seeds only" in text.splitlines()


def test_a_message_cannot_forge_a_line_or_a_tag() -> None:
    verdict = Verdict(implementation="s", right=True, outcome="rejected", message=samples.HOSTILE)
    grade = replace(samples.INVALID, matrix=(verdict,))
    lines = feedback_text(samples.student(grade)).splitlines()
    assert not any(line.startswith(("  [OK]", "Score: 6")) for line in lines)
    joined = " ".join(line.strip() for line in lines)
    assert "< script>" in joined
    assert "& lt;" in joined
    assert "\\x1b[2J\\x00\\r\\n" in joined


class Parser(HTMLParser):
    """Counts what a browser would not show as it is."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)

    def handle_endtag(self, tag: str) -> None:
        self.found.append(tag)

    def handle_comment(self, data: str) -> None:
        self.found.append(data)

    def handle_decl(self, decl: str) -> None:
        self.found.append(decl)

    def handle_pi(self, data: str) -> None:
        self.found.append(data)


@samples.any_grade
def test_any_grade_is_plain_text(grade: StudentGrade) -> None:
    text = feedback_text(grade)
    lines = text.split("\n")
    assert max(map(len, lines)) <= 80
    assert all(line.isprintable() for line in lines)
    text.encode("latin-1")
    parser = Parser()
    parser.feed(text)
    parser.close()
    assert parser.found == []
    assert html.unescape(text) == text


def test_file_names_are_the_ids_where_that_is_safe() -> None:
    assert file_names(["alice", "José", "李", "Smith_John-2", "a.b@c.org"]) == {
        "alice": "alice.txt",
        "José": "José.txt",
        "李": "李.txt",
        "Smith_John-2": "Smith_John-2.txt",
        "a.b@c.org": "a.b@c.org.txt",
    }


def test_file_names_that_clash_or_lead_elsewhere_get_a_digest() -> None:
    names = file_names(["Bob", "bob", "../etc/passwd", "CON", ""])
    assert {student: re.sub(r"[0-9a-f]{8}", "#", name) for student, name in names.items()} == {
        "Bob": "Bob-#.txt",
        "bob": "bob-#.txt",
        "../etc/passwd": "etc_passwd-#.txt",
        "CON": "student-#.txt",
        "": "student-#.txt",
    }


@given(st.lists(st.text(max_size=120), unique=True, max_size=6))
def test_file_names_differ_on_every_system(ids: list[str]) -> None:
    names = list(file_names(ids).values())
    folded = {unicodedata.normalize("NFKD", name.casefold()) for name in names}
    assert len(folded) == len(ids)
    assert all(re.fullmatch(r"[\w@+-][\w.@+-]*\.txt", name) for name in names)
    assert all(len(name.encode()) <= 255 for name in names)


def test_the_file_is_what_is_returned(tmp_path: Path) -> None:
    path = write_feedback(tmp_path / "feedback", samples.ALICE, "alice.txt")
    assert path == tmp_path / "feedback" / "alice.txt"
    assert path.read_text(encoding="utf-8") == EXPECTED


@pytest.mark.parametrize("status", ["[OK]", "[FAIL]"])
def test_answers_say_which_ones_are_right(status: str) -> None:
    from exercises.grade.answers import grade_answers
    from exercises.grade.rubric import parse_rubric

    rubric = parse_rubric(b'[answers.q]\naccept = "yes"')
    answer = b'{"q": "Yes"}' if status == "[OK]" else b'{"q": "no"}'
    lines = feedback_text(samples.student(grade_answers(answer, rubric))).splitlines()
    wanted = "q: right" if status == "[OK]" else "q: not accepted"
    at = lines.index("answers.json: 1 of 1" if status == "[OK]" else "answers.json: 0 of 1")
    assert lines[at + 1 : at + 3] == [f"  {status.ljust(8)}{wanted}", ""]


def test_a_late_file_passes_with_fewer_points() -> None:
    late = replace(samples.FIX, score=0.0, score_in_time=1.0)
    lines = feedback_text(samples.student(late)).splitlines()
    assert lines[3:5] == ["fix_shift.py: 0 of 1", "  [OK]    fix_shift.py passes"]


@pytest.mark.parametrize(
    ("score", "line"),
    [
        (0.5, "  [WARN]  fix_shift.py passes in part"),
        (0.0, "  [FAIL]  fix_shift.py does not pass"),
    ],
)
def test_less_than_all_points(score: float, line: str) -> None:
    text = feedback_text(samples.student(replace(samples.FIX, score=score)))
    assert text.splitlines()[4] == line
