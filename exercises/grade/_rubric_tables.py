"""The tables of a rubric, each one read into the part of `Rubric` that it describes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from diagnostics._catalog import CATALOG
from exercises.grade._results import Kind
from exercises.grade._toml_fields import Table
from exercises.isolation.limits import MIB, Limits
from minigpt._cli import CommandError

USUAL = Limits()
# name -> (default, least, most); what a job may use, see exercises.isolation.limits.Limits
LIMITS: dict[str, tuple[float, float, float]] = {
    "cpu_seconds": (USUAL.cpu_seconds, 1, 3600),
    "wall_seconds": (USUAL.wall_seconds, 1, 3600),
    "memory_mb": (USUAL.memory_bytes / MIB, 64, 1_000_000),
    "file_mb": (USUAL.file_bytes / MIB, 1, 100_000),
    "open_files": (USUAL.open_files, 32, 100_000),
    "processes": (USUAL.processes, 1, 10_000),
    "submission_mb": (20, 0.01, 10_000),  # unpacked
    "submission_files": (1000, 1, 100_000),
}
ACCEPT, NUMBER, CAUSE = "accept", "number", "cause"


@dataclass(frozen=True, kw_only=True)
class Question:
    """One question of answers.json. Texts are accepted, or else a number within its tolerance."""

    key: str
    points: float = 1.0
    accept: tuple[str, ...] = ()
    number: float | None = None
    tolerance: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Due:
    """Until when, and what lateness costs."""

    at: datetime
    grace: timedelta = timedelta(0)
    percent_per_day: float = 0.0
    cut_off: datetime | None = None


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing that counts."""

    kind: Kind
    exercise: str
    points: float


def read_items(root: Table, questions: Sequence[Question]) -> tuple[Item, ...]:
    """Return what counts, checks first, in the order of the file."""
    items = []
    for kind in (Kind.CHECK, Kind.FIX):
        table = root.table(kind.value)
        table.require_known(tuple(CATALOG))
        for name in table.content:
            entry = table.table(name)
            entry.require_known(("points",))
            items.append(Item(kind=kind, exercise=name, points=entry.number("points", 1.0)))
    if "model" in root.content:
        model = root.table("model")
        model.require_known(("points", "checks"))
        items.append(Item(kind=Kind.MODEL, exercise="model", points=model.number("points", 1.0)))
    if questions:
        points = math.fsum(question.points for question in questions)
        items.append(Item(kind=Kind.ANSWERS, exercise="answers", points=points))
    return tuple(items)


def read_questions(answers: Table) -> tuple[Question, ...]:
    """Return the questions of answers.json."""
    return tuple(_question(key, answers.table(key)) for key in answers.content)


def _question(key: str, table: Table) -> Question:
    ways = [way for way in (ACCEPT, NUMBER, CAUSE) if way in table.content]
    table.require_known(("points", ACCEPT, NUMBER, "tolerance", CAUSE))
    if len(ways) != 1:
        came = " and ".join(ways) or "none"
        raise CommandError(
            f"{table.file}: {table.path} must have one of accept, number and cause, got {came}"
        )
    if "tolerance" in table.content and ways != [NUMBER]:
        raise CommandError(f"{table.file}: {table.place('tolerance')} goes with a number only")
    points = table.number("points", 1.0)
    if ways == [NUMBER]:
        number = table.number(NUMBER, 0.0, least=-1e300, most=1e300)
        return Question(
            key=key, points=points, number=number, tolerance=table.number("tolerance", 0.0)
        )
    if ways == [CAUSE]:
        cause: Any = table.content[CAUSE]
        if not isinstance(cause, str) or cause not in CATALOG:
            table.fail(CAUSE, "the name of a check")
        return Question(key=key, points=points, accept=(cause,))
    return Question(key=key, points=points, accept=table.texts(ACCEPT))


def read_due(root: Table) -> Due | None:
    """Return until when; None without the table."""
    table = root.table("due")
    table.require_known(("at", "grace_minutes", "percent_per_day", "cut_off"))
    at, cut_off = table.moment("at"), table.moment("cut_off")
    if at is None:
        if table.content:
            table.fail("at", "a date and time with a zone")
        return None
    grace = timedelta(minutes=table.number("grace_minutes", 0.0, most=1e6))
    if cut_off is not None and cut_off < at + grace:
        table.fail("cut_off", "after the due time and its grace")
    percent = table.number("percent_per_day", 0.0, most=100.0)
    return Due(at=at, grace=grace, percent_per_day=percent, cut_off=cut_off)


def read_limits(table: Table) -> dict[str, float]:
    """Return all limits, the usual ones where nothing else is said."""
    table.require_known(tuple(LIMITS))
    return {
        name: table.number(name, default, least=least, most=most)
        for name, (default, least, most) in LIMITS.items()
    }


def read_seeds(table: Table) -> int:
    """Return how often everything is repeated."""
    table.require_known(("seeds",))
    return table.integer("seeds", 3, least=1, most=100)
