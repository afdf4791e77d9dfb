"""The verdict of one check: what was measured, what was expected, and what to do next."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from diagnostics._catalog import CATALOG


class Status(StrEnum):
    """Five verdicts, because "could not be measured" is neither good nor bad news."""

    PASS = "pass"
    WARN = "warn"  # a healthy design can look like this; a person has to judge
    FAIL = "fail"
    SKIP = "skip"  # a part is missing; never counts as green
    ERROR = "error"  # the check, or the user's part inside it, raised


class CheckFailedError(AssertionError):
    """Raised by `CheckResult.require`; the message is the rendered result."""


@dataclass(frozen=True, kw_only=True)
class CheckResult:
    """What one check found.

    check: its name in the catalogue.    reason: a stable dotted id such as "shift.identical".
    claim: one sentence about the user's model that stands alone in a log.
    measured, expected: the number and its limit.    where: index or path of the worst, and count.
    causes: what could produce these numbers, most likely first; empty when they point nowhere.
    next_step: one action to copy.    numbers: the measurement, JSON-able, for programs.
    consequence_of: the upstream check whose failure explains this one, or None.
    seconds: how long the check took.
    """

    check: str
    status: Status
    reason: str
    claim: str
    measured: str = ""
    expected: str = ""
    where: str = ""
    causes: tuple[str, ...] = ()
    next_step: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)
    consequence_of: str | None = None
    seconds: float = 0.0

    @property
    def stage(self) -> str:
        """The stage of the pipeline that the check belongs to, as the catalogue has it."""
        return CATALOG[self.check].stage if self.check in CATALOG else "custom"

    @property
    def family(self) -> str:
        """The family of failure: correctness, numerical, optimisation or evaluation."""
        return CATALOG[self.check].family if self.check in CATALOG else "custom"

    @property
    def passed(self) -> bool:
        """True for PASS and WARN; a SKIP is not a pass."""
        return self.status in (Status.PASS, Status.WARN)

    @property
    def failed(self) -> bool:
        """True for FAIL and ERROR; a SKIP is not a failure."""
        return self.status in (Status.FAIL, Status.ERROR)

    def __bool__(self) -> bool:
        raise TypeError(
            "a CheckResult is neither true nor false: a skip is not a pass; "
            "ask .status, .passed or .failed, or call .require()"
        )

    def __str__(self) -> str:
        from diagnostics._render import render_result

        return render_result(self)

    def require(self) -> CheckResult:
        """Return self when the check passed or warned; raise CheckFailedError otherwise.

        A skip raises too: a guarantee that could not be measured is not a guarantee.
        """
        if not self.passed:
            raise CheckFailedError(str(self))
        return self


def verdict(
    status: Status,
    reason: str,
    claim: str,
    *,
    measured: str = "",
    expected: str = "",
    where: str = "",
    causes: tuple[str, ...] = (),
    next_step: str = "",
    numbers: Mapping[str, Any] | None = None,
) -> CheckResult:
    """Return the result of the check that the reason id begins with: "shift.identical" is shift's.

    Reason ids stand in full where a verdict is given, so that a search finds the line that says it.
    """
    return CheckResult(
        check=reason.partition(".")[0],
        status=status,
        reason=reason,
        claim=claim,
        measured=measured,
        expected=expected,
        where=where,
        causes=causes,
        next_step=next_step,
        numbers=numbers or {},
    )
