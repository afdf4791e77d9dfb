"""Inputs above targets: what matches, what does not, and how white space is shown."""

from __future__ import annotations

from typing import Any

from diagnostics.page._figure_sample import draw_sample, visible
from tests.diagnostics.page.drawn import finding, notes, parse, table
from tests.diagnostics.page.stored_numbers import NUMBERS, stored


def draw(reason: str = "", status: str = "pass", wanted: int = 1, **sample: Any) -> str:
    merged = {**NUMBERS["shift"]["sample"], **sample}
    figure = draw_sample(
        stored("shift", reason=reason, status=status, sample=merged, wanted=wanted)
    )
    assert figure is not None
    assert figure.check == "shift"
    return figure.markup


def marks(markup: str) -> list[str]:
    """Return the mark of each position, a row of the sample after another."""
    return [
        "".join(span.itertext())
        for span in parse(markup).iter("span")
        if span.get("class") == "pair-mark"
    ]


def test_targets_that_are_the_next_input_are_marked_as_equal() -> None:
    """Two rows of three: two targets each can be compared, the last has no input after it."""
    markup = draw()
    assert finding(markup) == "Each target shown is the input at the next position (4 of 4)"
    assert marks(markup) == ["=", "=", "\u00b7"] * 2
    assert table(markup)[1] == ["0", "0 a", "1 \u21b5", "1 \u21b5", "yes"]
    assert "row 5" in notes(markup)


def test_targets_that_are_not_the_next_input_are_marked_and_counted() -> None:
    markup = draw(targets=[[0, 1, 2], [1, 2, 2]])
    assert finding(markup) == "3 of 4 targets shown are not the input at the next position"
    assert marks(markup) == ["\u2260", "\u2260", "\u00b7", "\u2260", "=", "\u00b7"]


def test_a_model_that_shifts_inside_wants_the_input_itself() -> None:
    markup = draw(wanted=0, targets=[[0, 1, 2], [1, 2, 2]])
    assert finding(markup) == "Each target shown is the input above it (6 of 6)"


def test_ignored_targets_are_not_compared() -> None:
    markup = draw(targets=[[-100, 2, 3], [-100, -100, -100]])
    assert marks(markup) == ["\u00b7", "=", "\u00b7", "\u00b7", "\u00b7", "\u00b7"]
    assert ["0", "0 a", "-100", "1 \u21b5", "-"] in table(markup)


def test_a_last_target_that_the_check_calls_wrong_is_marked() -> None:
    """The first token carried round to the end: no input shows it, the check does."""
    markup = draw("shift.wrapped_last", "fail", targets=[[1, 2, 0], [2, 2, 1]])
    assert marks(markup) == ["=", "=", "\u2260"] * 2
    assert finding(markup) == (
        "The last target is not the token after its row; the others are the input at the next "
        "position"
    )
    again = draw("shift.repeated_last", "fail", targets=[[1, 2, 2], [2, 2, 3]])
    assert marks(again) == ["=", "=", "\u2260", "=", "=", "\u00b7"]


def test_a_window_inside_a_row_counts_from_its_first_column() -> None:
    markup = draw(first_column=40)
    assert [row[0] for row in table(markup)[1:4]] == ["40", "41", "42"]
    assert 'start="40"' in markup


def test_white_space_is_visible_and_long_pieces_are_cut() -> None:
    assert visible(" the") == "\u2423the"
    assert visible("\n\t") == "\u21b5\u21e5"
    assert visible("internationalisation") == "international\u2026"
    assert visible("\u0301") == "\u25cc\u0301"
    assert visible("\u202e\ud800\x00") == "\\u202e\\ud800\\\u2026"


def test_without_a_tokenizer_the_ids_stand_there() -> None:
    markup = draw(pieces={})
    assert table(markup)[1] == ["0", "0", "1", "1", "yes"]
    assert "Numbers are token ids" in notes(markup)
    assert "its own position" in notes(draw(pieces={}, source="counting"))


def test_pieces_cannot_break_the_page() -> None:
    markup = draw(pieces={"0": "</li><script>", "1": "\u202ertl", "2": "", "3": "\ud800"})
    assert not list(parse(markup).iter("script"))
    assert "[2]" in markup


def test_a_sample_of_another_check_is_found() -> None:
    content = stored("shift", sample=...)
    content["results"].append({"check": "own", "numbers": {"sample": NUMBERS["shift"]["sample"]}})
    figure = draw_sample(content)
    assert figure is not None
    assert figure.check == "own"


def test_a_piece_that_is_no_text_by_itself_stands_as_its_id() -> None:
    """As the bytes of one character do; two of them would look alike."""
    told = "A number in brackets is an id that is no text by itself."
    markup = draw(pieces={"0": "a", "1": "\ufffd", "2": "\ufffd\ufffd", "3": "b\ufffd"})
    assert "[1]" in markup
    assert "[2]" in markup
    assert "[3]" not in markup
    assert told in notes(markup)
    assert told not in notes(draw())
