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
    1: "the curves show it",
    2: "the figures show it",
    3: "little shows it",
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
    Case("accumulation", "partial_window", 2),
    Case("shift", "identical", 1),
    Case("checkpoint", "prefix", 2),
    Case("optimizer", "old_model", 1),
    Case("shapes", "squeezed", 2),
    Case("overfit", "capped", 1),
    Case("batch_independence", "alone", 3),
    Case("environment", "gradients_off", 2),
    Case("generation", "cache_kept", 3),
    Case("shift", "two_ahead", 1),
    Case("loss", "double_softmax", 1),
    Case("shift", "wrapped", 2),
    Case("forward_hooks", "masked_row", 1),
    Case("causal_independence", "diagonal", 1),
    Case("schedule", "only_first_group", 3),
    Case("text", "shuffled", 1),
    Case("optimizer", "learning_rate", 1),
    Case("sampling", "crossing_dropped", 3),
    Case("gradients", "plain_list", 2),
    Case("fingerprint", "order", 2),
    Case("loss", "flattened", 1),
    Case("training_step", "one_step_late", 2),
    Case("batches", "part_of_data", 1),
    Case("padding", "blind_pads", 3),
    Case("initial_loss", "cloned", 3),
    Case("modes", "two_paths", 1),
    Case("initial_loss", "unit_variance", 1),
    Case("gradients", "overwritten", 3),
    Case("forward_hooks", "norm_scale", 1),
    Case("generation", "keeps_first_block", 2),
    Case("split", "two_orders", 2),
    Case("context", "shifted_inside", 1),
    Case("resume", "moments_lost", 2),
    Case("modes", "always_on", 2),
    Case("roundtrip", "stripped", 3),
    Case("schedule", "peak_never_reached", 2),
    Case("files", "stale", 3),
    Case("batches", "always_the_same", 1),
    Case("range", "equals_v", 2),
    Case("evaluation", "mean_of_means", 2),
)


def load_exercise(check: str) -> Exercise:
    """Import the exercise of a check."""
    return importlib.import_module(f"exercises.break_{check}").EXERCISE


def load_bug(case: Case) -> Bug:
    """Import the bug of a case."""
    return next(bug for bug in load_exercise(case.check).bugs if bug.name == case.bug)
