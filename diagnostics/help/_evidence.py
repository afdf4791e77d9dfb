"""What a report says about one thing: which checks measured it, and whether it passed.

Everything reads plain values, as `report.to_dict()` or a stored JSON report gives them, and takes
nothing for granted: a row that is no result is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diagnostics._text import Text, say

SHOWN_MAX = 300  # characters of a claim that are shown


class Standing(StrEnum):
    """What a report says about one suspect, or about one item of a checklist."""

    REFUTED = "refuted"  # all its checks passed
    STANDS = "stands"  # a check failed, for one of its reasons
    OPEN = "open"  # a check warned, raised, or failed for another reason
    UNMEASURED = "not measured"


@dataclass(frozen=True, kw_only=True)
class Measured:
    """One result of a report, as far as it is needed here."""

    check: str
    status: str
    reason: str
    claim: str
    measured: str = ""
    next_step: str = ""
    consequence_of: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """Whether it passed without a warning, which a person would have to judge."""
        return self.status == "pass"

    @property
    def failed(self) -> bool:
        """Whether it failed; an error is neither."""
        return self.status == "fail"


@dataclass(frozen=True)
class Finding:
    """A standing, the sentence that it rests on, and the check that decided, if one did."""

    standing: Standing
    sentence: Text
    by: Measured | None = None


def read_results(content: Mapping[str, Any]) -> dict[str, Measured]:
    """Return the results of a report by check, in its order.

    Raises ValueError for something that is no report.
    """
    rows = content.get("results") if isinstance(content, Mapping) else None
    if not isinstance(rows, Sequence) or isinstance(rows, (str, bytes)):
        raise ValueError(
            "wanted a report of diagnostics, an object with a list of results; "
            f"got {type(content).__name__} without one"
        )
    found = (_read_result(row) for row in rows if isinstance(row, Mapping))
    return {result.check: result for result in found if result.check}


def weigh(
    results: Mapping[str, Measured],
    checks: Sequence[str],
    reasons: Sequence[str] = (),
    *,
    judged: str = "",
    settled: bool = True,
    also: Sequence[str] = (),
) -> Finding:
    """Return what the results say about something that these checks measure.

    reasons: ids that speak of it; empty means all ids of these checks. judged: "fresh" or
    "trained" where `initial_loss` must have judged such weights. settled: whether passing refutes.
    also: ids of other checks that speak of it too, and need not be in the report to refute it.
    """
    if not checks:
        return Finding(Standing.UNMEASURED, say("no check measures it"))
    known = [results[check] for check in checks if check in results]
    own = [r for r in known if _speaks(r, reasons)]
    own += [r for r in results.values() if r.reason in also]
    for result in own:
        if result.failed:
            return Finding(Standing.STANDS, _quote(result, "fails"), result)
    for result in own:
        if result.status == "warn":
            return Finding(Standing.OPEN, _quote(result, "warns, for you to judge"), result)
    for result in known:
        if result.status in ("fail", "warn", "error"):
            word = "raised" if result.status == "error" else "says something else"
            return Finding(Standing.OPEN, _quote(result, word), result)
    for check in checks:
        found = results.get(check)
        missing = _why_unmeasured(check, found, judged)
        if missing is not None:
            return Finding(Standing.UNMEASURED, missing, None if judged else found)
    if not settled:
        word = "passes, which does not settle it"
        return Finding(Standing.OPEN, _quote(known[0], word, more=known[1:]), known[0])
    return Finding(Standing.REFUTED, _quote(known[0], "passes", more=known[1:]), known[0])


def _speaks(result: Measured, reasons: Sequence[str]) -> bool:
    """Whether a result is about it; without reasons, NaN says nothing about structure."""
    return result.reason in reasons if reasons else not result.reason.endswith("not_finite")


def _why_unmeasured(check: str, result: Measured | None, judged: str) -> Text | None:
    if result is None:
        return say("{check} is not in the report", check=check)
    if not result.passed:
        return say("{check}: {claim}", check=check, claim=shorten(result.claim or result.status))
    if judged and check == "initial_loss" and result.numbers.get("judged_as") != judged:
        return say(
            "initial_loss did not judge {judged} weights, which alone show it", judged=judged
        )
    return None


def _quote(result: Measured, word: str, more: Sequence[Measured] = ()) -> Text:
    also = say(" (so does {checks})", checks=", ".join(r.check for r in more)) if more else ""
    because = ""
    if result.consequence_of is not None and result.failed:
        because = say(" (likely a consequence of {check})", check=result.consequence_of)
    return say(
        "{check} {word}{also}: {claim}{because}",
        check=result.check,
        word=word,
        also=also,
        claim=shorten(result.claim),
        because=because,
    )


def shorten(text: str) -> str:
    """Return a text from a report, cut where it is longer than anybody would read."""
    return text if len(text) <= SHOWN_MAX else text[: SHOWN_MAX - 3] + "..."


def _read_result(row: Mapping[str, Any]) -> Measured:
    def text(name: str) -> str:
        value = row.get(name)
        return value if isinstance(value, str) else ""

    numbers = row.get("numbers")
    return Measured(
        check=text("check"),
        status=text("status"),
        reason=text("reason"),
        claim=text("claim"),
        measured=text("measured"),
        next_step=text("next_step"),
        consequence_of=text("consequence_of") or None,
        numbers=numbers if isinstance(numbers, Mapping) else {},
    )
