"""Two reports, verdict by verdict: what fails now, what is no longer measured, what got better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diagnostics._catalog import CATALOG
from diagnostics._result import Status

ABSENT = "absent"  # the report has no such check
_FAILING = (Status.FAIL, Status.ERROR)
_UNMEASURED = (Status.SKIP, ABSENT)


class Kind(StrEnum):
    """How one verdict changed, in the order in which it matters."""

    FAILS = "newly failing"
    UNMEASURED = "no longer measured"
    WARNS = "newly warning"
    OTHERWISE = "failing otherwise than before"
    ACCEPTED = "the same finding, now a warning"
    BETTER = "no longer failing or warning"
    MEASURED = "newly measured"
    REASON = "the same status for another reason"
    OTHER = "measured in neither"


# What is worse in B than in A. Lost coverage is: what is not measured is not known to hold.
WORSE = (Kind.FAILS, Kind.UNMEASURED, Kind.WARNS)


@dataclass(frozen=True, kw_only=True)
class Side:
    """One check as one report has it; all texts empty where the report has no such check."""

    status: str
    reason: str = ""
    claim: str = ""
    measured: str = ""
    where: str = ""
    next_step: str = ""
    consequence_of: str | None = None


@dataclass(frozen=True, kw_only=True)
class Change:
    """One check whose status or reason is another in B."""

    check: str
    kind: Kind
    a: Side
    b: Side

    @property
    def worse(self) -> bool:
        """True where B has a verdict that is worse, or none where A had measured."""
        return self.kind in WORSE

    def to_dict(self) -> dict[str, Any]:
        """Return the change as plain values."""
        sides = {"a": self.a, "b": self.b}
        return {
            "check": self.check,
            "kind": str(self.kind),
            "worse": self.worse,
            **{
                name: {
                    "status": side.status,
                    "reason": side.reason,
                    "claim": side.claim,
                    "measured": side.measured,
                    "consequence_of": side.consequence_of,
                }
                for name, side in sides.items()
            },
        }


def compare_verdicts(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]]
) -> tuple[Change, ...]:
    """Return what changed, the worst kind first, within a kind in the catalogue's order.

    a, b: results by the name of their check, as a report's JSON has them.
    A failure that another failure explains comes after those that stand for themselves.
    """
    changes = []
    for check in in_order([*a, *b]):
        before, after = side_of(a.get(check)), side_of(b.get(check))
        kind = _kind_of(before, after)
        if kind is not None:
            changes.append(Change(check=check, kind=kind, a=before, b=after))
    kinds = list(Kind)
    changes.sort(key=lambda c: (kinds.index(c.kind), c.b.consequence_of is not None))
    return tuple(changes)


def in_order(checks: Sequence[str]) -> list[str]:
    """Return each name once, in the catalogue's order; names that it does not know come last."""
    once = list(dict.fromkeys(checks))
    places = {name: place for place, name in enumerate(CATALOG)}
    return sorted(once, key=lambda name: places.get(name, len(places)))


def side_of(result: Mapping[str, Any] | None) -> Side:
    """Return the texts of one result of a report's JSON."""
    if result is None:
        return Side(status=ABSENT)
    upstream = result.get("consequence_of")
    texts = ("reason", "claim", "measured", "where", "next_step")
    return Side(
        status=Status(result["status"]),
        consequence_of=None if upstream is None else str(upstream),
        **{name: str(result.get(name) or "") for name in texts},
    )


def _kind_of(a: Side, b: Side) -> Kind | None:
    same_reason = a.reason == b.reason
    if b.status in _FAILING:
        if a.status not in _FAILING:
            return Kind.FAILS
        return None if a.status == b.status and same_reason else Kind.OTHERWISE
    if b.status in _UNMEASURED:
        if a.status == b.status:
            return None if same_reason else Kind.REASON
        # what raised had measured nothing
        return Kind.OTHER if a.status in (*_UNMEASURED, Status.ERROR) else Kind.UNMEASURED
    if a.status == b.status:
        return None if same_reason else Kind.REASON
    if a.status in _FAILING and b.status == Status.WARN and same_reason:
        return Kind.ACCEPTED
    if b.status == Status.WARN and a.status not in _FAILING:
        return Kind.WARNS
    return Kind.MEASURED if a.status in _UNMEASURED else Kind.BETTER
