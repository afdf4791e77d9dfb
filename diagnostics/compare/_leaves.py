"""The numbers of a report as paths and values, and how one value differs from another.

Where the limits come from: one trained model was checked with torch's AVX-512 and with its plain
kernels (`ATEN_CPU_CAPABILITY=default`), which changes nothing but rounding. Numbers of one pass or
one step moved by at most 4.6e-7 of their size, losses after 45 steps of training by 7.5e-4.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

Path = tuple[str | int, ...]

ROUNDING = 1e-5  # relative; 20 times what was measured
ROUNDING_LEARNED = 1e-2  # relative, after many steps of training; 13 times what was measured
RESIDUAL = 1e-6  # absolute: differences that are 0 but for rounding, of values near 1
NOT_FINITE = ("nan", "inf", "-inf")  # as a report's JSON spells them
LENGTH = -1  # the last part of a path whose value is the length of a list

# Numbers that a check measures in order to find them 0.
_RESIDUALS = frozenset(
    {
        "drift",
        "difference",
        "gradient_gap",
        "limit",  # of a leak, near 1e-9
        "logit_difference",
        "misfits",
        "noise",
        "rule_gaps",
        "train_difference",
        "truth_gap",
        "worst",
        "worst_leak",
    }
)
# Numbers that a check writes with few digits: one unit in the last of them.
_WRITTEN_SHORT = {
    ("causal_independence", "influence"): (1.1e-2, 0.0),  # 3 significant digits
    ("distributed", "weights"): (0.0, 1.1e-4),  # 4 decimals
}


class Nature(IntEnum):
    """What kind of difference it is, in the order in which it matters."""

    NOT_FINITE = 0  # a number that became nan or infinite, or was it
    EXACT = 1  # text, a yes or no, a list of names
    MOVED = 2  # a number by more than rounding, or the length of a list
    ROUNDING = 3


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One value that differs. relative: |b - a| over the larger of both, 0 to 2."""

    path: Path
    nature: Nature
    a: Any
    b: Any
    relative: float = math.inf


def leaves(value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield (path, value) for what stands inside nested mappings and lists.

    A list of texts is one value: an inserted name would move all names after it. So is an empty
    list or mapping. A list that is gone through also yields its length, path (..., LENGTH).
    """
    stack: list[tuple[Path, Any]] = [((), value)]
    while stack:  # no recursion: a file may be nested as deep as it likes
        path, item = stack.pop()
        if isinstance(item, Mapping) and item:
            stack += [((*path, str(key)), item[key]) for key in reversed(list(item))]
        elif isinstance(item, (list, tuple)) and not _is_one_value(item):
            yield (*path, LENGTH), len(item)
            stack += [((*path, place), item[place]) for place in reversed(range(len(item)))]
        elif isinstance(item, float) and not math.isfinite(item):
            yield path, str(item)
        else:
            yield path, item


def difference(check: str, path: Path, a: Any, b: Any, *, learned: bool) -> Difference | None:
    """Judge two values of the same path; None where they are equal.

    learned: the check trains for many steps, which multiplies rounding.
    """
    if _is_number(a) and _is_number(b):
        if a == b:
            return None
        relative = _relative(a, b)
        whole = isinstance(a, int) and isinstance(b, int)
        small = not whole and _is_rounding(check, path, a, b, relative, learned)
        nature = Nature.ROUNDING if small else Nature.MOVED
        return Difference(path=path, nature=nature, a=a, b=b, relative=relative)
    if type(a) is type(b) and a == b:
        return None
    spelled = [value for value in (a, b) if isinstance(value, str) and value in NOT_FINITE]
    numbers = [value for value in (a, b) if _is_number(value)]
    lost = spelled and len(spelled) + len(numbers) == 2
    return Difference(path=path, nature=Nature.NOT_FINITE if lost else Nature.EXACT, a=a, b=b)


def spell(path: Path) -> str:
    """Return a path as Python would write it, without quotes: curve.loss[3], norms[head.weight]."""
    text = ""
    for part in path:
        if isinstance(part, str) and part.isidentifier():
            text += f".{part}" if text else part
        elif part == LENGTH:
            text = f"length of {text}"
        else:
            text += f"[{part}]"
    return text


def _is_one_value(items: list[Any] | tuple[Any, ...]) -> bool:
    plain = not any(isinstance(item, (Mapping, list, tuple)) for item in items)
    numbers = [_is_number(item) or item in NOT_FINITE for item in items] if plain else []
    return plain and not (numbers and all(numbers))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _relative(a: float, b: float) -> float:
    try:
        return float(abs(b - a) / max(abs(a), abs(b)))
    except OverflowError:  # a whole number beyond what a float holds
        return math.inf


def _is_rounding(
    check: str, path: Path, a: float, b: float, relative: float, learned: bool
) -> bool:
    if relative <= (ROUNDING_LEARNED if learned else ROUNDING):
        return True
    if any(part in _RESIDUALS for part in path) and max(abs(a), abs(b)) <= RESIDUAL:
        return True
    short = _WRITTEN_SHORT.get((check, str(path[0])) if path else ("", ""))
    return short is not None and (relative <= short[0] or abs(b - a) <= short[1])
