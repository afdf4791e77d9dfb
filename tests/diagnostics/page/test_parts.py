from __future__ import annotations

import pytest

from diagnostics._result import Status
from diagnostics.page._markup import element
from diagnostics.page._parts import STATES, copy_line, facts, folded, prose, state, table
from tests.diagnostics.page.parsing import read


def test_every_status_has_a_word_and_a_symbol_of_its_own() -> None:
    assert set(STATES) == {*Status, "none"}
    assert len({shown.word for shown in STATES.values()}) == 6
    assert len({shown.symbol for shown in STATES.values()}) == 6


def test_a_state_is_read_aloud_as_its_word() -> None:
    assert state("fail") == (
        '<span class="state fail"><span aria-hidden="true">\N{BALLOT X}</span> failed</span>'
    )


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("print the mask", []),
        ("run `python -m diagnostics` again", ["python -m diagnostics"]),
        ("`a` or `b`", ["a", "b"]),
        ("a lone ` stays", []),
        ("`<b>`", ["<b>"]),
    ],
)
def test_quoted_code_is_code(text: str, code: list[str]) -> None:
    tree = read(prose(text))
    assert [node.text for node in tree.all("code")] == code
    assert tree.text == (text.replace("`", "") if code else text)


def test_a_line_to_copy_is_the_text_and_nothing_else() -> None:
    assert copy_line("a < b") == ('<pre class="copy"><code><bdi>a &lt; b</bdi></code></pre>')


def test_facts_that_hold_nothing_are_left_out_and_none_at_all_make_no_list() -> None:
    tree = read(facts([("measured", "3"), ("expected", ""), ("where", None)]))
    assert [node.text for node in tree.all("dt")] == ["measured"]
    assert facts([("where", "")]) == ""


def test_a_table_has_a_caption_and_heads_for_its_columns_and_rows() -> None:
    tree = read(table("Sizes", ("name", "value"), [("B", 8), ("T", element("b", 32))]))
    assert tree.one("caption").text == "Sizes"
    assert [n.text for n in tree.all("th") if n.attributes["scope"] == "row"] == ["B", "T"]
    assert [n.text for n in tree.all("td")] == ["8", "32"]


def test_a_folded_part_is_closed_unless_it_is_asked_to_be_open() -> None:
    assert folded("more", "text") == "<details><summary>more</summary>text</details>"
    assert folded("more", open_=True) == "<details open><summary>more</summary></details>"
