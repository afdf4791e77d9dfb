"""Hostile text in a report: JSON carries it, a terminal is not moved by it."""

from __future__ import annotations

import json

import pytest

from diagnostics import CheckResult, Report
from diagnostics._result import Status
from tests.pages import hostile
from tests.pages.specimens import CONTENTS, hostile_report


@pytest.mark.parametrize("name", CONTENTS)
def test_the_contents_come_back_from_json(name: str) -> None:
    content = CONTENTS[name]()
    assert json.loads(json.dumps(content, allow_nan=False)) == content


@pytest.mark.parametrize("timings", [False, True])
def test_a_hostile_report_comes_back_from_its_file(timings: bool) -> None:
    report = hostile_report()
    stored = report.to_json(timings=timings).encode()  # half a surrogate pair would raise here
    assert json.loads(stored) == report.to_dict(timings=timings)
    assert stored.isascii()


def test_a_hostile_report_moves_no_terminal() -> None:
    lines = str(hostile_report()).split("\n")
    assert [line for line in lines if not line.isprintable()] == []


@pytest.mark.parametrize("name", hostile.TEXTS)
def test_a_result_of_another_author_moves_no_terminal(name: str) -> None:
    text = hostile.TEXTS[name]
    result = CheckResult(
        check=text[:20] or "own",
        status=Status.FAIL,
        reason="own.hostile",
        claim=text,
        measured=text,
        expected=text,
        where=text,
        causes=(text, text),
        next_step=text,
        consequence_of=text,
    )
    shown = str(Report(results=(result,), notes=(text,)))
    assert [line for line in shown.split("\n") if not line.isprintable()] == []
    shown.encode()
