"""One item of a checklist."""

from __future__ import annotations

from dataclasses import dataclass

from diagnostics.help.symptoms._symptom_table import SUSPECTS


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


def absence_of(*suspects: str, text: str, look: str) -> Item:
    """Return the item that is ticked where all these suspects are struck.

    suspects: names in the table of symptoms. ValueError where only some of them have reasons:
    no reasons mean all of a check's, which together with a list would become that list.
    """
    found = [SUSPECTS[name] for name in suspects]
    if len({bool(one.reasons) for one in found}) > 1:
        raise ValueError(f"of {', '.join(suspects)} only some have reasons; give their items apart")
    return Item(
        text=text,
        look=look,
        checks=tuple(dict.fromkeys(check for one in found for check in one.checks)),
        reasons=tuple(reason for one in found for reason in one.reasons),
        also=tuple(reason for one in found for reason in one.also),
        judged=found[0].judged,
    )
