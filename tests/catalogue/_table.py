"""The whole table, gathered from the files of this folder, and how one line of it is run."""

from __future__ import annotations

import importlib
from functools import cache
from pathlib import Path

from diagnostics import CheckResult, diagnose
from exercises._lab import Lab
from tests.catalogue._row import Build, Caught, Row, Unseen


@cache
def all_rows() -> tuple[Row, ...]:
    """Return every line, file by file in alphabetical order."""
    files = sorted(Path(__file__).parent.glob("[a-z]*.py"))
    stems = [file.stem for file in files if not file.stem.startswith("test_")]
    modules = [importlib.import_module(f"tests.catalogue.{stem}") for stem in stems]
    return tuple(row for module in modules for row in module.ROWS)


def caught_rows() -> list[Caught]:
    """Return the lines that are executed."""
    return [row for row in all_rows() if isinstance(row, Caught)]


def unseen_rows() -> list[Unseen]:
    """Return the lines that say why nothing can be seen."""
    return [row for row in all_rows() if isinstance(row, Unseen)]


def run(check: str, build: Build, lab: Lab) -> CheckResult:
    """Run one check on what `build` makes, and undo what it did outside its pipeline."""
    try:
        built = build(lab)
        if isinstance(built, CheckResult):
            return built
        return diagnose(built, only=[check]).results[0]
    finally:
        lab.restore()
