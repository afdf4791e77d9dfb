from __future__ import annotations

import itertools

import pytest

from diagnostics._catalog import CATALOG
from diagnostics.page._explanation import HEADINGS, explanation
from tests.diagnostics.page.parsing import Node, read


@pytest.mark.parametrize("check", CATALOG)
def test_every_check_has_its_four_headings_a_text_below_each_and_a_line_to_copy(check: str) -> None:
    tree = read(explanation(check) or "")
    names = [node.name for node in tree.content if isinstance(node, Node)]
    assert tuple(node.text for node in tree.all("h5")) == HEADINGS
    assert names[0] == "p"
    assert all(after != "h5" for name, after in itertools.pairwise(names) if name == "h5")
    assert tree.one("pre", "copy").text == f"python -m exercises.break_{check}"


def test_lines_are_joined_to_paragraphs_and_quoted_code_is_code() -> None:
    tree = read(explanation("shift") or "")
    assert tree.all("p")[0].text == (
        "Shift: every target is the token right after its input, the last one included."
    )
    assert "targets == inputs + 1" in [node.text for node in tree.all("code")]


def test_a_check_of_your_own_has_no_text() -> None:
    assert explanation("mine") is None
