"""What a contract is: a promise, code that keeps it, code that does not, and a check that tells.

An implementation is one function of plain data: tensors, numbers, text, and lists, tuples and
dictionaries of them. That is what lets it run in another process than the check that looks at it.

A wrong implementation is one self-contained function that names nothing but its arguments and
`math`, `torch`, `Tensor`, `nn`, `functional`; it holds one marked line,
`broken code  # BROKEN: was healthy code`, and healing that line makes it right.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Implementation = Callable[..., Any]
CLAIM_LENGTH_MAX = 230


@dataclass(frozen=True, kw_only=True)
class Right:
    """A correct implementation; a valid check accepts it.

    note: how it is written, in a few words that a student may read: "slices of one window".
    """

    name: str
    implementation: Implementation
    note: str


@dataclass(frozen=True, kw_only=True)
class Wrong:
    """A buggy implementation: one plausible misconception.

    note: what it does wrong, in one sentence.    held_out: only for grading, never for practice.
    crashes: it may raise on input that the contract allows, so a check that lets the error through
        has caught it.
    """

    name: str
    implementation: Implementation
    note: str
    held_out: bool = False
    crashes: bool = False


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at: how far it is from the promise, and what to say if too far.

    size: 0 when the promise is kept to the letter; a count, or the largest absolute difference.
    claim: one sentence with its numbers about the implementation, as if the size were too large.
    """

    size: float
    claim: str


class BrokenPromiseError(Exception):
    """What came back is not what the contract says, so that nothing can be measured on it."""


@dataclass(frozen=True, kw_only=True)
class Contract:
    """What implementations promise, for one check.

    check: the check's name.    signature: `implementation(data: Tensor) -> ...`, shown to students.
    promise: shapes, types and what must hold, in a few sentences.
    examine: (implementation) -> findings; calls it a few times with data of its choosing, drawn
        with torch's global generator, which the caller has seeded. It is the reference solution.
    tolerance: sizes up to this are the noise of correct arithmetic; 0 where it is exact.
    """

    check: str
    signature: str
    promise: str
    rights: tuple[Right, ...]
    wrongs: tuple[Wrong, ...]
    examine: Callable[[Implementation], Iterator[Finding]]
    tolerance: float = 0.0


def first_fault(contract: Contract, implementation: Implementation) -> Finding | None:
    """Return the first finding beyond the tolerance, or None when the promise is kept."""
    for finding in findings_of(contract, implementation):
        if not finding.size <= contract.tolerance:  # written so that a NaN is a fault
            return finding
    return None


def findings_of(contract: Contract, implementation: Implementation) -> Iterator[Finding]:
    """Yield what the reference check finds; what cannot be measured is infinitely far off."""
    try:
        for finding in contract.examine(implementation):
            yield Finding(finding.size, _shortened(finding.claim))
    except BrokenPromiseError as error:
        yield Finding(float("inf"), _shortened(str(error)))


def _shortened(claim: str) -> str:
    """Return a claim of at most CLAIM_LENGTH_MAX characters: a value may have hundreds."""
    return claim if len(claim) <= CLAIM_LENGTH_MAX else claim[: CLAIM_LENGTH_MAX - 3] + "..."


# ---- what came back, with its type and shape proved ------------------------------------------


def as_tensor(
    value: Any,
    name: str,
    *,
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the value as a tensor of that shape and type. Raises BrokenPromiseError."""
    if type(value) is not Tensor:  # a subclass may answer every question as it likes
        raise BrokenPromiseError(f"{name} is a {type(value).__name__}, wanted a torch.Tensor")
    if shape is not None and tuple(value.shape) != shape:
        raise BrokenPromiseError(f"{name} has shape {tuple(value.shape)}, wanted {shape}")
    if dtype is not None and value.dtype != dtype:
        raise BrokenPromiseError(f"{name} has type {value.dtype}, wanted {dtype}")
    return value.detach()


def as_finite(
    value: Any,
    name: str,
    *,
    shape: tuple[int, ...] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Return the value as a tensor without NaN and infinities. Raises BrokenPromiseError."""
    tensor = as_tensor(value, name, shape=shape, dtype=dtype)
    bad = int((~tensor.isfinite()).sum())
    if bad:
        raise BrokenPromiseError(
            f"{bad} of {tensor.numel()} numbers in {name} are NaN or infinite, expected finite ones"
        )
    return tensor


def as_parts(value: Any, *names: str) -> tuple[Any, ...]:
    """Return the parts of a tuple or list of that length. Raises BrokenPromiseError."""
    wanted = f"({', '.join(names)})"
    if not isinstance(value, tuple | list):
        raise BrokenPromiseError(f"it returned a {type(value).__name__}, wanted {wanted}")
    if len(value) != len(names):
        raise BrokenPromiseError(f"it returned {len(value)} values, wanted {wanted}")
    return tuple(value)


def as_number(value: Any, name: str) -> float:
    """Return a number, or a tensor of one element, as a float. Raises BrokenPromiseError."""
    if type(value) is Tensor and value.numel() == 1:
        return float(value.item())
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BrokenPromiseError(f"{name} is a {type(value).__name__}, wanted a number")
    try:
        return float(value)
    except OverflowError as error:
        raise BrokenPromiseError(f"{name} is too large for a float") from error


def as_text(value: Any, name: str) -> str:
    """Return a str. Raises BrokenPromiseError."""
    if not isinstance(value, str):
        raise BrokenPromiseError(f"{name} is a {type(value).__name__}, wanted a str")
    return value


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest absolute difference of two tensors of one shape; NaN counts as inf."""
    difference = (a.double() - b.double()).abs()
    return float(difference.nan_to_num(nan=float("inf"), posinf=float("inf")).amax())


def count_unequal(a: Tensor, b: Tensor) -> int:
    """Return in how many places two tensors of one shape differ; a NaN differs from everything."""
    return int((a != b).sum())
