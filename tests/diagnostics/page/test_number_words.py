"""Every number that is told in words is one that its check has."""

from __future__ import annotations

from pathlib import Path

import pytest

import diagnostics
from diagnostics._catalog import CATALOG
from diagnostics.page._number_words import _OWN, LENGTH_MAX, meaning

SOURCES = Path(diagnostics.__file__).parent


@pytest.mark.parametrize("check", _OWN)
def test_names_with_words_of_the_page_stand_in_the_source(check: str) -> None:
    """A number that was renamed must not keep its words, which nobody would see again."""
    assert check in CATALOG
    source = "".join(path.read_text(encoding="utf-8") for path in SOURCES.glob("*.py"))
    assert [
        name for name in _OWN[check] if f'"{name}"' not in source and f"{name}:" not in source
    ] == []


def test_a_long_description_is_cut_to_its_first_sentence() -> None:
    long = meaning("range", ("histogram",))
    assert 0 < len(long) <= LENGTH_MAX or long.count(". ") == 0
    assert meaning("range", ("histogram", "no such part")) == ""
    assert meaning("no such check", ("count",)) == ""
