"""The cases: bugs whose symptoms show, in an order that gives nothing away. Imports no torch.

A case's number is its place here. The order was drawn once; new cases go to the end.
"""

from __future__ import annotations

import hashlib
import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from exercises._exercise import Bug, Exercise

GRADES = {
    1: "the curves or the sample show it",
    2: "the figures show it",
    3: "one figure moves a little",
}


@dataclass(frozen=True)
class Case:
    """One bug of one exercise.    check: the one whose exercise it is.    grade: 1 to 3."""

    check: str
    bug: str
    grade: int

    @property
    def code(self) -> str:
        """What the case is called in files: the same for ever, and no name."""
        return hashlib.sha256(f"{self.check}.{self.bug}".encode()).hexdigest()[:8]


CASES = (
    Case("shift", "identical", 1),
    Case("optimizer", "left_out", 3),
    Case("environment", "gradients_off", 2),
)


def load_exercise(check: str) -> Exercise:
    """Import the exercise of a check."""
    return importlib.import_module(f"exercises.break_{check}").EXERCISE


def load_bug(case: Case) -> Bug:
    """Import the bug of a case."""
    return next(bug for bug in load_exercise(case.check).bugs if bug.name == case.bug)
