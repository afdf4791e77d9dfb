from __future__ import annotations

import pytest

from diagnostics.page._numbers import brief, numbers_table
from tests.diagnostics.page.parsing import read


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "yes"),
        (None, "none"),
        (9999, "9999"),
        (1003855, "1,003,855"),
        (0.123456, "0.1235"),
        (3e-7, "3.00e-07"),
        ("nan", "nan"),
        ([], "none"),
        ({}, "none"),
        ("", "none"),
        ({"a": 1, "b": 2}, "2 entries"),
        ([8, 32], "8, 32"),
        ([None, "inf", 0.5], "none, inf, 0.5"),
        (list(range(12)), "0, 1, 2, 3, 4, 5, 6, 7 ... (12 in all)"),
        ([[1, 2], [3, 4]], "[1, 2], [3, 4]"),
        ([[1]] * 40, "40 entries"),
        ([[[1]]], "1 entry"),
        ([1, {"a": 2}], "2 entries"),
        ("x" * 161, "x" * 160 + " ... (161 characters)"),
    ],
)
def test_any_value_fits_one_line(value: object, shown: str) -> None:
    assert brief(value) == shown


def rows(numbers: dict[str, object]) -> list[list[str]]:
    tree = read(numbers_table("shift", numbers) or "")
    body = tree.one("tbody")
    return [[cell.text for cell in [*row.all("th"), *row.all("td")]] for row in body.all("tr")]


def test_mappings_are_spread_out_and_cut_with_their_size() -> None:
    assert rows({"one": 1, "two": {"1": 1.0, "2": 0.0}}) == [
        ["one", "1"],
        ["two / 1", "1"],
        ["two / 2", "0"],
    ]
    many = rows({"norms": {f"layer.{i}": 0.5 for i in range(30)}})
    assert len(many) == 9
    assert many[-1] == ["norms / ...", "30 entries in all"]


def test_a_wall_of_numbers_is_cut_and_says_so() -> None:
    tree = read(numbers_table("shift", {f"n{i}": i for i in range(30)}) or "")
    assert len(tree.one("tbody").all("tr")) == 24
    assert tree.one("p").text == "6 more in the JSON report"


def test_no_numbers_make_no_table() -> None:
    assert numbers_table("shift", {}) is None


def words(check: str, numbers: dict[str, object], **options: bool) -> list[str]:
    body = read(numbers_table(check, numbers, **options) or "").one("tbody")
    return [" ".join(span.text for span in row.all("span", "words")) for row in body.all("tr")]


def test_a_number_is_told_in_words_where_they_are_known() -> None:
    """The schema knows `count`; `natural` has its words here; nobody knows `x`."""
    assert words("range", {"count": 7, "x": 1}) == [
        "Ids that were judged, ignore_index left out.",
        "",
    ]
    assert words("split", {"natural": 0.0}) == [
        "Share of the training runs that occur twice in the training text."
    ]
    assert words("range", {"histogram": {"vocab_size": 4}}) == [
        "V that the ids were judged against, in entries."
    ]


def test_numbers_of_a_skip_are_not_what_the_check_measures() -> None:
    """A skip tells which parts are missing, by the names of its numbers."""
    assert words("gradients", {"frozen": 2}) == ["Parameters with requires_grad=False."]
    assert words("gradients", {"frozen": 2}, skipped=True) == [""]


def test_a_check_of_somebody_else_has_no_words() -> None:
    assert words("own", {"count": 7}) == [""]
