"""One item of a checklist."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Item:
    """One thing to tick.

    text: what is right where it is ticked.    look: how a person finds out.
    checks, reasons, also, judged: as of a suspect: all checks passing ticks the item.
    measure: the name of a measurement in `_marks.MEASURES`, for what no check measures.
    """

    text: str
    look: str
    checks: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    judged: str = ""
    measure: str = ""
