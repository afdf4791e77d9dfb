"""What a case costs and which hints it has opened, from what was done. Imports no torch."""

from __future__ import annotations

from diagnostics._catalog import CATALOG
from exercises._case_book import Case
from exercises._case_file import Attempt

REPORT = "report"
# What a person does first, before any check is run.
LOOKS = {
    "batch": "one batch as numbers",
    "decode": "the stored ids and one batch as text",
    "sizes": "shapes and types of a batch, of logits and of the loss",
    "rate": "the schedule, and what the optimizer holds",
    "ids": "how many ids there are, and their range",
}
LOOK_COST = 1
CHECK_COST = 2
TRAINING_CHECK_COST = 5  # a check that trains for many steps
REPORT_COST = 20
WRONG_COST = 5


def probe_names() -> list[str]:
    """Return everything that can be probed, cheapest first."""
    checks = sorted(CATALOG, key=lambda name: CATALOG[name].learns)  # stable
    return [*LOOKS, *checks, REPORT]


def cost_of_probe(name: str) -> int:
    """Return what a probe costs the first time; looking again is free."""
    if name in LOOKS:
        return LOOK_COST
    if name == REPORT:
        return REPORT_COST
    return TRAINING_CHECK_COST if CATALOG[name].learns else CHECK_COST


def cost_of(case: Case, attempt: Attempt) -> int:
    """Return what was paid so far: until the right cause, when the case is solved."""
    probes = sum(cost_of_probe(name) for name in attempt.probes)
    return probes + WRONG_COST * _count_wrong(case, attempt)


def is_named(case: Case, attempt: Attempt) -> bool:
    """Whether the right check has been named."""
    return case.check in attempt.answers


def is_solved(case: Case, attempt: Attempt) -> bool:
    """Whether the right cause has been named."""
    return case.code in attempt.causes


def open_hints(case: Case, attempt: Attempt) -> int:
    """Return how many of the three hints are open; a later one opens those before it.

    1: something was probed.    2: a wrong answer, or a check that fails was found.
    3: a second wrong answer.
    """
    wrong = _count_wrong(case, attempt)
    if wrong >= 2:
        return 3
    if wrong or attempt.failed:
        return 2
    return 1 if attempt.probes else 0


def _count_wrong(case: Case, attempt: Attempt) -> int:
    checks = sum(name != case.check for name in attempt.answers)
    return checks + sum(code != case.code for code in attempt.causes)
