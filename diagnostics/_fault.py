"""A fault that a check can name: its reason id and the templates of its words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._result import CheckResult, Status, verdict
from diagnostics._state import some
from diagnostics._text import Text, say


@dataclass(frozen=True)
class Fault:
    """A reason in full, such as "optimizer.uphill", and its words; {names} are filled in later."""

    reason: str
    claim: str
    expected: str
    next_step: str
    causes: tuple[str, ...] = ()
    status: Status = Status.FAIL


def found(
    fault: Fault,
    measured: str,
    numbers: Mapping[str, Any],
    *,
    names: Sequence[str] = (),
    causes: tuple[Text, ...] | None = None,
    **facts: Any,
) -> CheckResult:
    """Return the result of a fault with its {facts} filled in.

    names: of the parameters or modules concerned, which {count} counts.
    causes: instead of the fault's own.
    """
    facts = {"count": len(names), **facts}
    return verdict(
        fault.status,
        fault.reason,
        say(fault.claim, **facts),
        measured=measured,
        expected=say(fault.expected, **facts),
        where=say("{names}", names=some(list(names))) if names else "",
        causes=tuple(say(cause, **facts) for cause in fault.causes) if causes is None else causes,
        next_step=say(fault.next_step, **facts),
        numbers={**numbers, "names": list(names)},
    )
