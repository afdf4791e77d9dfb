"""One cell of the verdict matrix."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What a student's check said of one implementation, over all seeds.

    implementation: its name, for instructors' eyes only.    right: whether it is a correct one.
    outcome: accepted, rejected, error, timeout, not_called or unstable.
    message: what the check said, or what went wrong.    line: of the student's file, where known.
    """

    implementation: str
    right: bool
    outcome: str
    message: str = ""
    line: int | None = None
