"""Where to read on: every heading that is named is in the guide, on the line that is said."""

from __future__ import annotations

import importlib

import pytest

from diagnostics._catalog import CATALOG
from exercises._exercise import Exercise
from exercises._guide import guide_reference, heading_lines
from minigpt.corpus import data_path, read_text


def test_headings_are_found_without_their_signs_and_formulas_are_none() -> None:
    lines = read_text(data_path("guide.txt")).splitlines()
    found = heading_lines()
    assert found["Debugging a small GPT"] == 1
    assert lines[found["The check shift"] - 1].strip() == "= = = The check shift = = ="
    assert len(found) == sum(line.startswith(" = ") for line in lines)


def test_a_reference_names_the_line() -> None:
    number = heading_lines()["The check shift"]
    assert guide_reference("The check shift") == f"The check shift, data/guide.txt line {number}"
    with pytest.raises(KeyError):
        guide_reference("The check of nothing")


@pytest.mark.parametrize("check", CATALOG)
def test_every_heading_that_an_exercise_names_exists(check: str) -> None:
    exercise: Exercise = importlib.import_module(f"exercises.break_{check}").EXERCISE
    named = [bug.guide for bug in exercise.bugs if bug.guide]
    missing = [name for name in (f"The check {check}", *named) if name not in heading_lines()]
    assert missing == []
