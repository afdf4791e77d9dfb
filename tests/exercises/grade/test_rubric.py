from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from diagnostics import CATALOG
from exercises.grade import rubric as rubric_module
from exercises.grade._file_rules import Part, SubmissionLimits
from exercises.grade._results import Kind
from exercises.grade._rubric_tables import Due, Item, Question
from exercises.grade.rubric import Rubric, apply_lateness, parse_rubric, read_rubric
from exercises.isolation.limits import MIB, Limits
from minigpt._cli import CommandError
from tests.exercises.grade import samples

PARTS = (
    Part(Kind.CHECK, "shift", "check_shift.py"),
    Part(Kind.FIX, "loss", "fix_loss.py"),
    Part(Kind.ANSWERS, "answers", "answers.json"),
)
DUE = b"[due]\nat = 2030-01-31T23:00:00+01:00\n"
DUE_AT = datetime(2030, 1, 31, 22, tzinfo=timezone.utc)  # noqa: UP017  # as Gradescope writes it


def example() -> bytes:
    """The rubric of the module's docstring."""
    text = rubric_module.__doc__ or ""
    lines = [line[4:] for line in text.splitlines() if line.startswith("    ")]
    return "\n".join(lines).encode()


def test_the_example_of_the_docstring() -> None:
    zone = timezone(timedelta(hours=1))
    rubric = parse_rubric(example())
    assert rubric.items == (
        Item(kind=Kind.CHECK, exercise="shift", points=2.0),
        Item(kind=Kind.FIX, exercise="shift", points=1.0),
        Item(kind=Kind.MODEL, exercise="model", points=5.0),
        Item(kind=Kind.ANSWERS, exercise="answers", points=3.0),
    )
    assert rubric.questions == (
        Question(key="curve", points=1.0, accept=("it memorises", "overfitting")),
        Question(key="loss", points=1.0, number=4.17, tolerance=0.01),
        Question(key="case_1", points=1.0, accept=("causal_independence",)),
    )
    assert rubric.model_checks == ("shift", "loss", "causal_independence")
    assert rubric.due == Due(
        at=datetime(2030, 1, 31, 23, 59, tzinfo=zone),
        grace=timedelta(minutes=10),
        percent_per_day=20.0,
        cut_off=datetime(2030, 2, 7, 23, 59, tzinfo=zone),
    )
    assert rubric.seeds == 3
    assert rubric.limits["cpu_seconds"] == 10.0


def test_without_a_rubric_what_is_handed_in_counts() -> None:
    rubric = Rubric()
    assert rubric.items_for(PARTS) == (
        Item(kind=Kind.CHECK, exercise="shift", points=1.0),
        Item(kind=Kind.FIX, exercise="loss", points=1.0),
    )
    assert rubric.items_for(()) == ()
    assert [item.facts for item in rubric.not_counted(PARTS)] == [{"name": "answers.json"}]
    assert rubric == replace(parse_rubric(b"[grading]\nseeds = 3"), sha256="")


def test_with_a_rubric_only_what_is_listed_counts() -> None:
    rubric = parse_rubric(b"[check.shift]\n[fix.range]\npoints = 0.5")
    items = (
        Item(kind=Kind.CHECK, exercise="shift", points=1.0),
        Item(kind=Kind.FIX, exercise="range", points=0.5),
    )
    assert rubric.items_for(PARTS) == items
    assert rubric.items_for(()) == items
    assert [item.text for item in rubric.not_counted(PARTS)] == [
        "fix_loss.py does not count in this assignment",
        "answers.json does not count in this assignment",
    ]


def test_limits_are_those_of_jobs_and_submissions() -> None:
    assert Rubric().job_limits == Limits()
    assert Rubric().submission_limits == SubmissionLimits()
    content = b"[limits]\ncpu_seconds = 2.5\nmemory_mb = 2048\nsubmission_mb = 0.5\nprocesses = 4"
    rubric = parse_rubric(content)
    assert rubric.job_limits == replace(
        Limits(), cpu_seconds=3, memory_bytes=2048 * MIB, processes=4
    )
    assert rubric.submission_limits == replace(SubmissionLimits(), total_bytes=500_000)


def test_all_checks_of_a_model_count_unless_some_are_named() -> None:
    """All but the one that would have to fork the student's code."""
    everything = tuple(name for name in CATALOG if name != "distributed")
    assert parse_rubric(b"[model]").model_checks == everything


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[check.shfit]", "r.toml: there is no check.shfit; did you mean shift?"),
        (b"[chek.shift]", "r.toml: there is no chek; did you mean check?"),
        (
            b"[check.shift]\npoints = '2'",
            'r.toml: check.shift.points must be a number from 0 to 1e+09, got "2"',
        ),
        (
            b"[check.shift]\npoints = -1",
            "r.toml: check.shift.points must be a number from 0 to 1e+09, got -1",
        ),
        (
            b"[fix.shift]\npoints = nan",
            "r.toml: fix.shift.points must be a number from 0 to 1e+09, got nan",
        ),
        (
            b"[fix.shift]\npoints = inf",
            "r.toml: fix.shift.points must be a number from 0 to 1e+09, got inf",
        ),
        (
            b"[fix.shift]\npoints = true",
            "r.toml: fix.shift.points must be a number from 0 to 1e+09, got true",
        ),
        (b"check.shift = 2", "r.toml: check.shift must be a table, got 2"),
        (b"check = [1]", "r.toml: check must be a table, got a list"),
        (
            b"[check.shift]\nscore = 2",
            "r.toml: there is no check.shift.score; known: points",
        ),
        (
            b"[model]\nchecks = ['shift', 'shfit']",
            'r.toml: model.checks must hold names of checks, and "shfit" is none',
        ),
        (b"[model]\nchecks = []", "r.toml: model.checks must be a list of names, got a list"),
        (
            b"[answers.q]",
            "r.toml: answers.q must have one of accept, number and cause, got none",
        ),
        (
            b"[answers.q]\naccept = 'a'\nnumber = 1",
            "r.toml: answers.q must have one of accept, number and cause, got accept and number",
        ),
        (
            b"[answers.q]\naccept = ['a', ' ']",
            "r.toml: answers.q.accept must be a text, or a list of texts, got a list",
        ),
        (
            b"[answers.q]\naccept = 'a'\ntolerance = 1",
            "r.toml: answers.q.tolerance goes with a number only",
        ),
        (
            b"[answers.q]\ncause = 'gremlins'",
            'r.toml: answers.q.cause must be the name of a check, got "gremlins"',
        ),
        (
            b"[due]\nat = 2030-01-31T23:59:00",
            "r.toml: due.at must be a date and time with a zone, such as "
            "2030-01-31T23:59:00+01:00, got 2030-01-31T23:59:00",
        ),
        (
            b"[due]\nat = 2030-01-31",
            "r.toml: due.at must be a date and time with a zone, such as "
            "2030-01-31T23:59:00+01:00, got 2030-01-31",
        ),
        (
            b"[due]\npercent_per_day = 10",
            "r.toml: due.at must be a date and time with a zone, got nothing",
        ),
        (
            DUE + b"percent_per_day = 101",
            "r.toml: due.percent_per_day must be a number from 0 to 100, got 101",
        ),
        (
            DUE + b"cut_off = 2030-01-30T23:00:00+01:00",
            "r.toml: due.cut_off must be after the due time and its grace, got "
            "2030-01-30T23:00:00+01:00",
        ),
        (
            b"[limits]\nmemory = 1",
            "r.toml: there is no limits.memory; did you mean memory_mb?",
        ),
        (
            b"[limits]\ncpu_seconds = 0",
            "r.toml: limits.cpu_seconds must be a number from 1 to 3600, got 0",
        ),
        (
            b"[grading]\nseeds = 2.5",
            "r.toml: grading.seeds must be a whole number from 1 to 100, got 2.5",
        ),
        (
            b"[grading]\nseeds = 0",
            "r.toml: grading.seeds must be a whole number from 1 to 100, got 0",
        ),
        (b"[check.shift]\npoints = 0", "r.toml: nothing counts, because all points are 0"),
    ],
)
def test_a_fault_is_one_line_with_its_place(content: bytes, message: str) -> None:
    with pytest.raises(CommandError) as raised:
        parse_rubric(content, "r.toml")
    assert str(raised.value) == message


@pytest.mark.parametrize("content", [b"[", b"a = 1\na = 2", b"\xff", b"a = " + b"[" * 100_000])
def test_what_is_no_toml_is_one_line(content: bytes) -> None:
    with pytest.raises(CommandError, match=r"^r\.toml: not TOML: [^\n]+$"):
        parse_rubric(content, "r.toml")


def test_a_huge_file_is_not_parsed() -> None:
    with pytest.raises(CommandError, match="at most 1000000 bytes"):
        parse_rubric(b"#" * 1_000_001)


def test_a_file(tmp_path: Path) -> None:
    path = tmp_path / "rubric.toml"
    with pytest.raises(CommandError, match=r"No such file or directory: .*rubric\.toml"):
        read_rubric(path)
    path.write_bytes(b"\xef\xbb\xbf[check.shift]")
    rubric = read_rubric(path)
    assert rubric.items == (Item(kind=Kind.CHECK, exercise="shift", points=1.0),)
    assert len(rubric.sha256) == 64


@pytest.mark.parametrize(
    ("late", "factor"),
    [
        (timedelta(days=-30), 1.0),
        (timedelta(0), 1.0),
        (timedelta(minutes=10), 1.0),  # the end of the grace
        (timedelta(minutes=10, seconds=1), 0.7),
        (timedelta(days=1), 0.7),
        (timedelta(days=1, seconds=1), 0.4),
        (timedelta(days=3, seconds=1), 0.0),  # 120 percent
        (timedelta(days=5), 0.0),
    ],
)
def test_late_factor(late: timedelta, factor: float) -> None:
    """30 percent for each day that has begun, counted from the due time."""
    content = DUE + b"grace_minutes = 10\npercent_per_day = 30\n"
    content += b"cut_off = 2030-02-03T23:00:00+01:00"
    assert parse_rubric(content).late_factor(DUE_AT + late) == pytest.approx(factor, abs=1e-12)


def test_the_cut_off_ends_it_without_a_daily_penalty() -> None:
    rubric = parse_rubric(DUE + b"cut_off = 2030-02-01T23:00:00+01:00")
    assert rubric.late_factor(DUE_AT + timedelta(hours=23)) == 1.0
    assert rubric.late_factor(DUE_AT + timedelta(hours=24)) == 0.0


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="must have a zone"):
        parse_rubric(DUE).late_factor(datetime(2030, 1, 1))


def test_lateness_scales_every_score_and_says_so() -> None:
    rubric = parse_rubric(DUE + b"percent_per_day = 50")
    grade = samples.student(samples.FIX, replace(samples.FIX, score=0.5))
    assert apply_lateness(grade, rubric, DUE_AT) is grade
    late = apply_lateness(grade, rubric, DUE_AT + timedelta(hours=2))
    assert [item.score for item in late.exercises] == [0.5, 0.25]
    assert [item.score_in_time for item in late.exercises] == [1.0, 0.5]
    assert [item.max_score for item in late.exercises] == [1.0, 1.0]
    assert [item.text for item in late.problems] == [
        "handed in at 2030-02-01T00:00:00+00:00, after 2030-01-31T23:00:00+01:00: scores are "
        "multiplied by 0.5"
    ]
