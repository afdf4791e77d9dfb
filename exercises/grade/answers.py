"""Grading answers.json: one flat object, question -> text or number, read without trust.

Text is compared after NFKC, without regard to case and to the amount of white space. A number is a
JSON number, not a text with digits and not true or false. Nothing is converted to fit.
"""

from __future__ import annotations

import json
import math
import unicodedata
from typing import Any, NoReturn

from exercises.grade._notes import note
from exercises.grade._results import ExerciseGrade, GradeStatus, Kind, Note
from exercises.grade._rubric_tables import Question
from exercises.grade.rubric import Rubric

ANSWERS_BYTES_MAX = 64 * 1024
TEXT_LENGTH_MAX = 1000
UNKNOWN_KEYS_MAX = 10


class AnswersError(ValueError):
    """The bytes are no answers; the message says why."""


def grade_answers(content: bytes | None, rubric: Rubric) -> ExerciseGrade:
    """Return the grade of answers.json; None where it was not handed in."""
    points = math.fsum(question.points for question in rubric.questions)
    if content is None:
        return _ungraded(GradeStatus.MISSING, points, ())
    try:
        answers = read_answers(content)
    except AnswersError as error:
        why = note("answers.unreadable", "answers.json cannot be read: {why}", why=str(error))
        return _ungraded(GradeStatus.UNREADABLE, points, (why,))
    score = 0.0
    notes = []
    for question in rubric.questions:
        verdict = _verdict(question, answers)
        score += question.points if verdict.reason == "answers.right" else 0.0
        notes.append(verdict)
    known = {question.key for question in rubric.questions}
    unknown = [key for key in answers if key not in known]
    notes += [
        note("answers.unknown", "there is no question {key}; its answer is not read", key=key[:80])
        for key in unknown[:UNKNOWN_KEYS_MAX]
    ]
    return ExerciseGrade(
        exercise="answers",
        kind=Kind.ANSWERS,
        score=score,
        max_score=points,
        status=GradeStatus.GRADED,
        notes=tuple(notes),
    )


def read_answers(content: bytes) -> dict[str, Any]:
    """Return the object of a strict JSON text. Raises AnswersError."""
    if len(content) > ANSWERS_BYTES_MAX:
        raise AnswersError(f"it has {len(content)} bytes, at most {ANSWERS_BYTES_MAX} are read")
    try:
        answers = json.loads(
            content.decode("utf-8-sig"),  # editors on Windows put a mark in front
            object_pairs_hook=_without_duplicates,
            parse_constant=_refuse_constant,
        )
    except UnicodeDecodeError as error:
        raise AnswersError(f"byte {error.start} is no UTF-8") from error
    except json.JSONDecodeError as error:
        raise AnswersError(f"line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise AnswersError("it is nested too deep") from error
    except AnswersError:
        raise
    except ValueError as error:  # a number of thousands of digits
        raise AnswersError("it holds a number that is too long") from error
    if type(answers) is not dict:
        raise AnswersError('it must be an object: {"question": "answer"}')
    return answers


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) != len(pairs):
        names = [key for key, _ in pairs]
        twice = next(key for key in names if names.count(key) > 1)
        raise AnswersError(f"the key {twice[:80]!a} is there twice")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise AnswersError(f"{name} is no JSON number")


def _ungraded(status: GradeStatus, points: float, notes: tuple[Note, ...]) -> ExerciseGrade:
    return ExerciseGrade(
        exercise="answers",
        kind=Kind.ANSWERS,
        score=0.0,
        max_score=points,
        status=status,
        notes=notes,
    )


def _verdict(question: Question, answers: dict[str, Any]) -> Note:
    """Return the note for one question; only the reason answers.right gives its points."""
    key = question.key
    if key not in answers:
        return note("answers.missing", "{key}: no answer", key=key)
    answer = answers[key]
    wanted = "a text" if question.number is None else "a number"
    if not _has_type(answer, question):
        came = _name_of_type(answer)
        return note(
            "answers.type", "{key}: wanted {wanted}, got {came}", key=key, wanted=wanted, came=came
        )
    right = (
        _same_text(answer, question.accept)
        if question.number is None
        else _same_number(answer, question.number, question.tolerance)
    )
    if right:
        return note("answers.right", "{key}: right", key=key)
    return note("answers.wrong", "{key}: not accepted", key=key)


def _has_type(answer: Any, question: Question) -> bool:
    if question.number is None:
        return type(answer) is str and len(answer) <= TEXT_LENGTH_MAX
    return type(answer) in (int, float)


def _name_of_type(answer: Any) -> str:
    if type(answer) is str and len(answer) > TEXT_LENGTH_MAX:
        return f"a text of {len(answer)} characters"
    names = {str: "a text", int: "a number", float: "a number", bool: "true or false"}
    names |= {list: "a list", dict: "an object", type(None): "null"}
    return names[type(answer)]


def _same_text(answer: str, accepted: tuple[str, ...]) -> bool:
    return any(_folded(answer) == _folded(text) for text in accepted)


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def _same_number(answer: int | float, number: float, tolerance: float) -> bool:
    try:
        distance = abs(float(answer) - number)
    except OverflowError:
        return False
    rounding = 1e-12 * abs(number)  # 4.16 is within 0.01 of 4.17, whatever their binary forms say
    return distance <= tolerance + rounding  # not for a NaN, nor for the infinity of 1e999
