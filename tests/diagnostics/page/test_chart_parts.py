"""What all charts share: texts that fit, coordinates that are short, a frame that stays small."""

from __future__ import annotations

from diagnostics.page._chart_parts import (
    Table,
    at,
    figure,
    sampled,
    shorten,
    text_width,
)
from tests.diagnostics.page.drawn import finding, texts


def test_a_coordinate_has_a_tenth_at_most() -> None:
    assert [at(v) for v in (1.0, 1.26, -0.01, 1e-9, 12.34)] == ["1", "1.3", "0", "0", "12.3"]


def test_wide_characters_take_more_room() -> None:
    """A character of the far east is nearly two of ours, an m nearly one and a half."""
    assert text_width("aa") == 16
    assert text_width("\u6f22") > 15
    assert text_width("mm") > 22


def test_a_text_is_cut_in_the_middle_to_its_width() -> None:
    assert shorten("blocks.0.attention.weight", 400) == "blocks.0.attention.weight"
    cut = shorten("blocks.0.attention.weight", 100)
    assert cut == "blocks\u2026eight"
    assert text_width(cut) <= 100
    assert shorten("abc", 1) == "a\u2026"
    assert shorten("\u202e", 100) == "\\u202e"


def test_many_are_sampled_evenly_with_both_ends() -> None:
    assert sampled(3) == [0, 1, 2]
    assert sampled(101, 5) == [0, 25, 50, 75, 100]


def test_a_heading_that_runs_on_for_pages_is_cut() -> None:
    markup = figure(
        "name",
        "x" * 10_000,
        drawing=(),
        height=10,
        description="",
        table=Table([], []),
        notes=["first\nsecond", ""],
    )
    assert len(finding(markup)) < 500
    assert texts(markup, "p") == ["first", "second"]
