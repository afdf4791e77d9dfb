"""What an author has to prove of a contract: right code passes, wrong code does not, by a margin.

Every call goes over the wire, as it does when a student's process answers.
"""

from __future__ import annotations

import hashlib
import importlib.util
import io
import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from diagnostics._text import say
from exercises._exercise import find_marked_line
from exercises.contracts._contract import (
    Contract,
    Implementation,
    Right,
    Wrong,
    findings_of,
    first_fault,
)
from exercises.contracts._starter import starter_source
from exercises.isolation import wire

SEEDS = range(5)
MARGIN = 8.0  # at least this far from the noise below, and from the nearest bug above
RIGHTS_MIN, PUBLIC_MIN, HELD_OUT_MIN = 3, 2, 2
CLAIM_LENGTHS = range(21, 240)


@dataclass(frozen=True)
class Margin:
    """How far the tolerance is from both sides.

    noise: the largest size that a right implementation has.
    nearest: the smallest of the largest sizes that the wrong ones have.
    """

    noise: float
    tolerance: float
    nearest: float

    @property
    def holds(self) -> bool:
        """Whether both sides are far enough; an exact contract has neither noise nor margin."""
        if self.tolerance == 0:
            return self.noise == 0 and self.nearest > 0
        return self.noise * MARGIN <= self.tolerance and self.nearest >= MARGIN * self.tolerance


def shape_problems(contract: Contract) -> Iterator[str]:
    """Yield what is missing in a contract: implementations, names, words."""
    codes: tuple[Right | Wrong, ...] = (*contract.rights, *contract.wrongs)
    public = sum(not wrong.held_out for wrong in contract.wrongs)
    if not contract.signature.startswith("implementation("):
        yield "its signature does not begin with implementation("
    if not contract.promise.endswith("."):
        yield "its promise is no sentence"
    if len(contract.rights) < RIGHTS_MIN:
        yield f"{len(contract.rights)} right implementations, wanted {RIGHTS_MIN}"
    if public < PUBLIC_MIN:
        yield f"{public} public wrong implementations, wanted {PUBLIC_MIN}"
    if len(contract.wrongs) - public < HELD_OUT_MIN:
        yield f"{len(contract.wrongs) - public} wrong ones held out, wanted {HELD_OUT_MIN}"
    if len({code.name for code in codes}) != len(codes):
        yield "two implementations have one name"
    yield from (f"{code.name} has no note" for code in codes if not code.note)


def right_problems(contract: Contract, seeds: Sequence[int] = SEEDS) -> Iterator[str]:
    """Yield a sentence for each right implementation and seed that is rejected."""
    for right in contract.rights:
        for seed in seeds:
            claim = _claim(contract, right.implementation, seed)
            if claim is not None:
                yield f"rejects the right {right.name} with seed {seed}: {claim}"


def wrong_problems(contract: Contract, seeds: Sequence[int] = SEEDS) -> Iterator[str]:
    """Yield a sentence for each wrong implementation that a seed lets through, or ill described."""
    for wrong in contract.wrongs:
        for seed in seeds:
            claim = _claim(contract, wrong.implementation, seed)
            if claim is None:
                yield f"accepts the wrong {wrong.name} with seed {seed}"
            elif len(claim) not in CLAIM_LENGTHS:
                yield f"says {len(claim)} characters of the wrong {wrong.name}: {claim[:80]}"


def starter_problems(contract: Contract) -> Iterator[str]:
    """Yield what is wrong with the files that `--fix` hands out, and with their solutions."""
    for wrong in contract.wrongs:
        if find_marked_line(wrong.implementation) is None:
            yield f"{wrong.name} has no marked line"
            continue
        given, solved = (starter_source(contract, wrong, healed=healed) for healed in (False, True))
        if "BROKEN" in given or given == solved:
            yield f"the file of {wrong.name} shows its marked line, or is its solution"
        if _claim(contract, _implementation_in(given), 0) is None:
            yield f"the file of {wrong.name} is accepted as it is given"
        claim = _claim(contract, _implementation_in(solved), 0)
        if claim is not None:
            yield f"the solution of {wrong.name} is rejected: {claim}"


def margin_of(contract: Contract, seeds: Sequence[int] = SEEDS) -> Margin:
    """Measure the noise of the right implementations and the size of the nearest wrong one."""
    noise, nearest = 0.0, math.inf
    for seed in seeds:
        for right in contract.rights:
            noise = max(noise, _largest(contract, right.implementation, seed))
        for wrong in contract.wrongs:
            nearest = min(nearest, _largest(contract, wrong.implementation, seed))
    return Margin(noise=noise, tolerance=contract.tolerance, nearest=nearest)


def margin_problems(margin: Margin) -> Iterator[str]:
    """Yield a sentence when the tolerance is too near to the noise or to a bug."""
    if not margin.holds:
        yield say(
            "the tolerance {tolerance} has no margin of {margin} between the noise {noise} and the "
            "nearest bug {nearest}",
            tolerance=margin.tolerance,
            margin=MARGIN,
            noise=margin.noise,
            nearest=margin.nearest,
        )


def over_the_wire(implementation: Implementation) -> Implementation:
    """Call it as another process would: arguments and result as bytes."""

    def call(*arguments: Any) -> Any:
        sent = wire.decode(io.BytesIO(wire.encode(arguments)).read)
        return wire.decode(io.BytesIO(wire.encode(implementation(*sent))).read)

    return call


def module_from(source: str, folder: Path, name: str) -> ModuleType:
    """Write a source text into a folder and import it from there."""
    path = folder / f"{name}.py"
    path.write_text(source, encoding="utf-8")
    specification = importlib.util.spec_from_file_location(name, path)
    if specification is None or specification.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def _implementation_in(source: str) -> Implementation:
    name = f"starter_{hashlib.sha256(source.encode()).hexdigest()[:16]}"
    with tempfile.TemporaryDirectory(prefix="exercises-") as folder:
        implementation: Implementation = module_from(source, Path(folder), name).implementation
    return implementation


def _claim(contract: Contract, implementation: Implementation, seed: int) -> str | None:
    """Return what the reference check says against an implementation; None when it accepts."""
    torch.manual_seed(seed)
    fault = first_fault(contract, over_the_wire(implementation))
    return None if fault is None else fault.claim


def _largest(contract: Contract, implementation: Implementation, seed: int) -> float:
    """Return the largest size that is found; a NaN counts as infinitely far."""
    torch.manual_seed(seed)
    sizes = [finding.size for finding in findings_of(contract, implementation)]
    return max((math.inf if math.isnan(size) else size for size in sizes), default=0.0)
