"""Every contract: right code is accepted, wrong code rejected, one line apart, with a margin."""

from __future__ import annotations

import dataclasses
import math

import pytest

from diagnostics import CATALOG
from exercises._contract_proof import (
    Margin,
    margin_of,
    margin_problems,
    right_problems,
    shape_problems,
    starter_problems,
    wrong_problems,
)
from exercises.contracts._contract import Right, Wrong
from exercises.contracts._private import contract_of


@pytest.mark.parametrize("check", CATALOG)
def test_a_contract_is_complete(check: str) -> None:
    contract = contract_of(check)
    assert contract.check == check
    assert list(shape_problems(contract)) == []


@pytest.mark.parametrize("check", CATALOG)
def test_every_right_implementation_is_accepted(check: str) -> None:
    assert list(right_problems(contract_of(check))) == []


@pytest.mark.parametrize("check", CATALOG)
def test_every_wrong_implementation_is_rejected_with_a_claim(check: str) -> None:
    assert list(wrong_problems(contract_of(check))) == []


@pytest.mark.parametrize("check", CATALOG)
def test_healing_the_marked_line_of_a_starter_makes_it_right(check: str) -> None:
    """What `--fix` hands out works alone, and is one line away from its solution."""
    assert list(starter_problems(contract_of(check))) == []


@pytest.mark.parametrize("check", CATALOG)
def test_the_tolerance_has_a_margin_on_both_sides(check: str) -> None:
    margin = margin_of(contract_of(check))
    assert margin.tolerance == contract_of(check).tolerance
    assert list(margin_problems(margin)) == []


# ---- the proofs themselves -------------------------------------------------------------------


def test_what_is_missing_in_a_contract_is_said() -> None:
    shift = contract_of("shift")
    poor = dataclasses.replace(
        shift,
        signature="f(data)",
        promise="anything",
        rights=(dataclasses.replace(shift.rights[0], note=""), shift.rights[0]),
        wrongs=shift.wrongs[:1],
    )
    assert list(shape_problems(poor)) == [
        "its signature does not begin with implementation(",
        "its promise is no sentence",
        "2 right implementations, wanted 3",
        "1 public wrong implementations, wanted 2",
        "0 wrong ones held out, wanted 2",
        "two implementations have one name",
        "slices has no note",
    ]


def test_right_and_wrong_code_in_each_others_place_is_said() -> None:
    """A wrong one among the right ones is rejected, a right one among the wrong ones accepted."""
    shift = contract_of("shift")
    right, wrong = shift.rights[0], shift.wrongs[0]
    mixed = dataclasses.replace(
        shift,
        rights=(Right(name="r", implementation=wrong.implementation, note="n"),),
        wrongs=(Wrong(name="w", implementation=right.implementation, note="n"),),
    )
    (said,) = right_problems(mixed, [3])
    assert said.startswith("rejects the right r with seed 3: targets are not one token after")
    assert list(wrong_problems(mixed, [3, 4])) == [
        "accepts the wrong w with seed 3",
        "accepts the wrong w with seed 4",
    ]
    assert list(starter_problems(mixed)) == ["w has no marked line"]


@pytest.mark.parametrize(
    ("noise", "tolerance", "nearest", "holds"),
    [
        (0.0, 0.0, 1.0, True),
        (1e-9, 0.0, 1.0, False),
        (0.0, 0.0, 0.0, False),
        (1.0, 8.0, 64.0, True),
        (1.01, 8.0, 64.0, False),
        (1.0, 8.0, 63.9, False),
        (math.nan, 8.0, 64.0, False),
        (1.0, 8.0, math.nan, False),
    ],
)
def test_a_margin_holds_on_both_sides_or_not_at_all(
    noise: float, tolerance: float, nearest: float, holds: bool
) -> None:
    margin = Margin(noise=noise, tolerance=tolerance, nearest=nearest)
    assert margin.holds is holds
    assert bool(list(margin_problems(margin))) is not holds
