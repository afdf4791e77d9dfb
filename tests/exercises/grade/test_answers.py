from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exercises.grade._results import ExerciseGrade, GradeStatus, Kind
from exercises.grade.answers import ANSWERS_BYTES_MAX, AnswersError, grade_answers, read_answers
from exercises.grade.rubric import Rubric, parse_rubric

RUBRIC = parse_rubric(b"""
[answers.curve]
points = 2
accept = ["it memorises", "Over-fitting"]
[answers.loss]
number = 4.17
tolerance = 0.01
[answers.count]
number = 3
[answers.case]
cause = "causal_independence"
""")


def reasons(content: bytes) -> list[str]:
    return [item.reason for item in grade_answers(content, RUBRIC).notes]


def test_all_right() -> None:
    content = b"""{"curve": " It  MEMORISES ", "loss": 4.175, "count": 3,
                   "case": "causal_independence"}"""
    grade = grade_answers(content, RUBRIC)
    assert (grade.score, grade.max_score, grade.status) == (5.0, 5.0, GradeStatus.GRADED)
    assert [item.text for item in grade.notes] == [
        "curve: right",
        "loss: right",
        "count: right",
        "case: right",
    ]


def test_each_question_by_itself() -> None:
    content = b'{"curve": "it learns", "loss": "4.17", "case": "causal_independence", "x": 1}'
    grade = grade_answers(content, RUBRIC)
    assert (grade.score, grade.max_score) == (1.0, 5.0)
    assert [item.text for item in grade.notes] == [
        "curve: not accepted",
        "loss: wanted a number, got a text",
        "count: no answer",
        "case: right",
        "there is no question x; its answer is not read",
    ]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("3", "right"),
        ("3.0", "right"),
        ("3.0000001", "wrong"),
        ("true", "type"),
        ("null", "type"),
        ('"3"', "type"),
        ("[3]", "type"),
        ('{"a": 3}', "type"),
        ("1e999", "wrong"),
        ("-1e999", "wrong"),
        ("1" + "0" * 400, "wrong"),
    ],
)
def test_a_number_is_a_number(answer: str, reason: str) -> None:
    found = reasons(b'{"count": %s}' % answer.encode())
    assert found[2] == f"answers.{reason}"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [("4.16", "right"), ("4.18", "right"), ("4.1801", "wrong"), ("4.1599", "wrong")],
)
def test_the_tolerance_is_part_of_what_is_right(answer: str, reason: str) -> None:
    assert reasons(b'{"loss": %s}' % answer.encode())[1] == f"answers.{reason}"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ('"over-FITTING"', "right"),
        ('"it memorises, over-fitting"', "wrong"),
        ('["it memorises", "Over-fitting"]', "type"),
        ('""', "wrong"),
        ("0", "type"),
        (json.dumps("it memorises" + " " * 1000), "type"),
    ],
)
def test_a_text_is_one_text(answer: str, reason: str) -> None:
    assert reasons(b'{"curve": %s}' % answer.encode())[0] == f"answers.{reason}"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "line 1: Expecting value"),
        (b"[]", 'it must be an object: {"question": "answer"}'),
        (b'{"loss": NaN}', "NaN is no JSON number"),
        (b'{"loss": -Infinity}', "-Infinity is no JSON number"),
        (b'{"loss": 1, "loss": 4.17}', "the key 'loss' is there twice"),
        (b'{"a": {"b": 1, "b": 2}}', "the key 'b' is there twice"),
        (b'{"loss": 4.17,}', "line 1: Expecting property name enclosed in double quotes"),
        (b'{"loss": 4.17} {}', "line 1: Extra data"),
        (b'{"a": "\xff"}', "byte 7 is no UTF-8"),
        (b'{"a": ' + b"[" * 30_000, "it is nested too deep"),
        (b'{"loss": ' + b"9" * 5000 + b"}", "it holds a number that is too long"),
        (b" " * (ANSWERS_BYTES_MAX + 1), "it has 65537 bytes, at most 65536 are read"),
    ],
)
def test_what_is_no_strict_json_scores_nothing(content: bytes, why: str) -> None:
    grade = grade_answers(content, RUBRIC)
    assert (grade.score, grade.max_score, grade.status) == (0.0, 5.0, GradeStatus.UNREADABLE)
    assert [item.facts for item in grade.notes] == [{"why": why}]


def test_a_mark_of_windows_editors_is_read_over() -> None:
    assert read_answers(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_nothing_handed_in() -> None:
    assert grade_answers(None, RUBRIC) == ExerciseGrade(
        exercise="answers",
        kind=Kind.ANSWERS,
        score=0.0,
        max_score=5.0,
        status=GradeStatus.MISSING,
    )


def test_without_a_rubric_there_is_nothing_to_reach() -> None:
    grade = grade_answers(b'{"a": 1}', Rubric())
    assert (grade.score, grade.max_score, grade.status) == (0.0, 0.0, GradeStatus.GRADED)


def test_many_unknown_keys_are_not_all_told() -> None:
    content = json.dumps({f"q{i}": 1 for i in range(1000)}).encode()
    assert reasons(content).count("answers.unknown") == 10


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60) | st.text(max_size=60).map(lambda text: text.encode("utf-8")))
def test_any_bytes_give_a_grade_of_nothing(content: bytes) -> None:
    """None of these says what is right, so that nothing but 0 is possible."""
    assert grade_answers(content, RUBRIC).score == 0.0


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["curve", "loss", "count", "case"]),
        st.recursive(
            st.none() | st.booleans() | st.text(max_size=5),
            lambda inner: (
                st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2)
            ),
            max_leaves=4,
        ),
    )
)
def test_no_other_type_passes(answers: dict[str, object]) -> None:
    grade = grade_answers(json.dumps(answers).encode(), RUBRIC)
    assert (grade.score, grade.status) == (0.0, GradeStatus.GRADED)


def test_the_error_is_a_value_error() -> None:
    with pytest.raises(AnswersError, match="is there twice"):
        read_answers(b'{"a": 1, "a": 1}')
