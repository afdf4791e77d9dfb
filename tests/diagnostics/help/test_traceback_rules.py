"""All rules together: each is tried by a test, and what it names exists."""

from __future__ import annotations

import re
from pathlib import Path

from diagnostics import CATALOG
from diagnostics._catalog import STAGES

ROOT = Path(__file__).resolve().parents[3]
SOURCES = sorted((ROOT / "diagnostics" / "help" / "traceback").glob("_cause_*.py"))
TESTS = sorted(Path(__file__).parent.glob("test_traceback_*.py"))


def test_every_rule_has_a_test_that_names_it() -> None:
    named = set()
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        named |= set(re.findall(r'(?:name=|rule\(\s*|return )"([a-z]+\.[\w.]+)"', text))
    tested = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)
    assert len(named) > 90
    whole = {name for name in named if not name.endswith(".")}  # others are put together
    assert sorted(name for name in whole if f'"{name}"' not in tested) == []


def test_every_check_that_a_step_names_exists() -> None:
    for path in SOURCES:
        for names in re.findall(r"--only ([a-z_]+(?: [a-z_]+)*)", path.read_text(encoding="utf-8")):
            assert set(names.split()) <= {*CATALOG, *STAGES}, f"{path.name}: {names}"


def test_the_words_are_those_of_the_house() -> None:
    """Plurals come from their number, nobody is blamed, nothing is simple."""
    for path in SOURCES:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"\bsimply\b|\bobviously\b|\byou forgot\b", text), path.name
        assert text.isascii()
