"""Every contract: right code is accepted, wrong code rejected, one line apart, with a margin."""

from __future__ import annotations

import importlib
import io
import math
from typing import Any

import pytest
import torch

from diagnostics import CATALOG
from exercises._exercise import find_marked_line
from exercises.contracts._contract import Contract, Implementation, findings_of, first_fault
from exercises.contracts._starter import starter_source
from exercises.isolation import wire

SEEDS = range(5)
MARGIN = 8.0  # at least this far from the noise below, and from the nearest bug above


def contract_of(check: str) -> Contract:
    contract: Contract = importlib.import_module(f"exercises.contracts.{check}").CONTRACT
    return contract


def over_the_wire(implementation: Implementation) -> Implementation:
    """Call it as another process would: arguments and result as bytes."""

    def call(*arguments: Any) -> Any:
        sent = wire.decode(io.BytesIO(wire.encode(arguments)).read)
        return wire.decode(io.BytesIO(wire.encode(implementation(*sent))).read)

    return call


@pytest.mark.parametrize("check", CATALOG)
def test_a_contract_is_complete(check: str) -> None:
    contract = contract_of(check)
    assert contract.check == check
    assert contract.signature.startswith("implementation(")
    assert contract.promise.endswith(".")
    assert len(contract.rights) >= 3
    public = [wrong for wrong in contract.wrongs if not wrong.held_out]
    assert len(public) >= 2
    assert len(contract.wrongs) - len(public) >= 2
    names = [code.name for code in (*contract.rights, *contract.wrongs)]
    assert len(set(names)) == len(names)
    assert all(code.note for code in (*contract.rights, *contract.wrongs))


@pytest.mark.parametrize("check", CATALOG)
def test_every_right_implementation_is_accepted(check: str) -> None:
    contract = contract_of(check)
    for right in contract.rights:
        for seed in SEEDS:
            torch.manual_seed(seed)
            fault = first_fault(contract, over_the_wire(right.implementation))
            assert fault is None, (right.name, seed, fault)


@pytest.mark.parametrize("check", CATALOG)
def test_every_wrong_implementation_is_rejected_with_a_claim(check: str) -> None:
    contract = contract_of(check)
    for wrong in contract.wrongs:
        for seed in SEEDS:
            torch.manual_seed(seed)
            fault = first_fault(contract, over_the_wire(wrong.implementation))
            assert fault is not None, (wrong.name, seed)
            assert 20 < len(fault.claim) < 240, (wrong.name, fault.claim)


@pytest.mark.parametrize("check", CATALOG)
def test_healing_the_marked_line_of_a_starter_makes_it_right(check: str) -> None:
    """What `--fix` hands out works alone, and is one line away from its solution."""
    contract = contract_of(check)
    for wrong in contract.wrongs:
        line = find_marked_line(wrong.implementation)
        assert line is not None, wrong.name
        given, solved = (starter_source(contract, wrong, healed=healed) for healed in (False, True))
        assert "BROKEN" not in given
        assert given != solved
        torch.manual_seed(0)
        assert first_fault(contract, over_the_wire(executed(given))) is not None, wrong.name
        torch.manual_seed(0)
        fault = first_fault(contract, over_the_wire(executed(solved)))
        assert fault is None, (wrong.name, fault)


@pytest.mark.parametrize("check", CATALOG)
def test_the_tolerance_has_a_margin_on_both_sides(check: str) -> None:
    contract = contract_of(check)
    noise = 0.0
    nearest = math.inf
    for seed in SEEDS:
        for right in contract.rights:
            torch.manual_seed(seed)
            noise = max([noise, *(f.size for f in findings_of(contract, right.implementation))])
        for wrong in contract.wrongs:
            torch.manual_seed(seed)
            worst = max(f.size for f in findings_of(contract, wrong.implementation))
            nearest = min(nearest, worst)
    if contract.tolerance == 0:
        assert noise == 0
        assert nearest > 0
    else:
        assert noise * MARGIN <= contract.tolerance
        assert nearest >= MARGIN * contract.tolerance


def executed(source: str) -> Implementation:
    space: dict[str, Any] = {}
    exec(compile(source, "starter", "exec"), space)
    implementation: Implementation = space["implementation"]
    return implementation
