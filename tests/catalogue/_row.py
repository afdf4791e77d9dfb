"""One line of the table: a bug that is injected and caught, or one that cannot be seen, and why."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from diagnostics import CheckResult, Pipeline, Status
from exercises._lab import Lab

Build = Callable[[Lab], Pipeline | CheckResult]


@dataclass(frozen=True)
class Caught:
    """A bug, how it is injected, and the one check and reason under which it must appear.

    inject: a pipeline that holds the bug, or the result of a direct check on it.
    healthy: the same without the bug, where that is not `lab.pipeline()`; it must be measured by
        the same check and must not fail, or the catch would prove nothing.
    only_warns: why a healthy design can look like this, so that the verdict is WARN; else empty.
    """

    id: str
    check: str
    reason: str
    inject: Build
    healthy: Build = Lab.pipeline
    only_warns: str = ""

    @property
    def status(self) -> Status:
        """The status that the bug must get."""
        return Status.WARN if self.only_warns else Status.FAIL


@dataclass(frozen=True)
class Unseen:
    """A bug that leaves no trace in what a pipeline can show from outside."""

    id: str
    why: str


Row = Caught | Unseen
