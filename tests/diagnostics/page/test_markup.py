from __future__ import annotations

import pytest

from diagnostics.page._markup import Markup, element, escape, isolate, join
from tests.diagnostics.page.parsing import read
from tests.diagnostics.page.stored_reports import HOSTILE


def test_a_string_is_escaped_and_markup_is_not() -> None:
    assert element("p", "a < b & c") == "<p>a &lt; b &amp; c</p>"
    assert element("p", element("b", "x")) == "<p><b>x</b></p>"


def test_quotes_cannot_leave_an_attribute() -> None:
    assert element("p", title="\"'><i>") == '<p title="&quot;&#x27;&gt;&lt;i&gt;"></p>'


def test_control_and_format_characters_and_half_pairs_are_spelt_out() -> None:
    assert escape("a\x00\x1b\u202eb\ud83d\x85c") == r"a\x00\x1b\u202eb\ud83d\x85c"


def test_line_breaks_and_tabs_stay_and_letters_of_all_scripts_too() -> None:
    assert escape("a\n\tb\r\nc \U0001f600 שלום") == "a\n\tb\nc \U0001f600 שלום"


def test_a_letter_keeps_eight_marks_and_more_are_spelt_out() -> None:
    assert escape("e" + "\u0301" * 10 + "e\u0301") == "e" + "\u0301" * 8 + r"\u0301" * 2 + "e\u0301"


def test_none_is_left_out_and_nested_children_are_joined_in_order() -> None:
    assert join(["a", None, ["b", 3, [element("br")]], 0.5]) == "ab3<br>0.5"


def test_attributes_are_renamed_and_true_and_false_are_shown_or_left_out() -> None:
    made = element("details", class_="a", aria_label="b", open=True, hidden=False, id=None)
    assert made == '<details class="a" aria-label="b" open></details>'


def test_an_attribute_may_be_called_name() -> None:
    assert element("meta", name="viewport") == '<meta name="viewport">'


def test_an_empty_element_takes_no_content() -> None:
    with pytest.raises(ValueError, match="<br> has no content, got 1 children"):
        element("br", "x")


@pytest.mark.parametrize("name", ["", "p>", "p onclick", "1p", "p\n"])
def test_what_is_no_name_is_no_element_and_no_attribute(name: str) -> None:
    with pytest.raises(ValueError, match="name of an element"):
        element(name)
    with pytest.raises(ValueError, match="name of an attribute"):
        element("p", **{name: "x"})


def test_a_hostile_text_stays_one_text_in_its_own_reading_direction() -> None:
    page = read(element("p", isolate(HOSTILE), title=HOSTILE))
    assert [node.name for node in page.all()] == ["p", "bdi"]
    assert list(page.one("p").attributes) == ["title"]
    assert "<script>alert(1)</script>" in page.text
    assert page.text.isprintable()


def test_markup_is_never_escaped_twice() -> None:
    assert isinstance(element("p"), Markup)
    assert join(element("p", "&")) == "<p>&amp;</p>"
