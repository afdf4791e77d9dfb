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
    assert rows({"wanted": 1, "agreement": {"1": 1.0, "2": 0.0}}) == [
        ["wanted", "1"],
        ["agreement / 1", "1"],
        ["agreement / 2", "0"],
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
