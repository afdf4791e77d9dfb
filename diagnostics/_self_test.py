"""`self_test`: put known bugs into copies of a pipeline, one at a time, and see which are found.

A report that is green says "nothing was found". How much that is worth depends on what would have
been found, in this model and with these parts: that is measured here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from diagnostics import (
    _inject_batches,
    _inject_checkpoint,
    _inject_distributed,
    _inject_inference,
    _inject_loss,
    _inject_model,
    _inject_optimizer,
    _inject_reading,
    _inject_step,
    _inject_text,
)
from diagnostics._catalog import CATALOG, select
from diagnostics._guard import kept_random_states
from diagnostics._injection import CannotInject, Injection
from diagnostics._pipeline import Pipeline
from diagnostics._report import Report
from diagnostics._result import CheckResult, Status
from diagnostics._steady import steady
from diagnostics._suite import diagnose
from diagnostics._text import Text, say

SCHEMA_VERSION = 2  # the schema of `healthy`, a report, rises with it
KIND = "diagnostics.self_test"

INJECTIONS = (
    *_inject_text.INJECTIONS,
    *_inject_batches.INJECTIONS,
    *_inject_model.INJECTIONS,
    *_inject_reading.INJECTIONS,
    *_inject_loss.INJECTIONS,
    *_inject_optimizer.INJECTIONS,
    *_inject_step.INJECTIONS,
    *_inject_distributed.INJECTIONS,
    *_inject_checkpoint.INJECTIONS,
    *_inject_inference.INJECTIONS,
)


class Outcome(StrEnum):
    """What became of one bug."""

    CAUGHT = "caught"  # its check names it
    OTHERWISE = "caught for another reason"  # its check fails and names another cause
    MISSED = "missed"
    ELSEWHERE = "cannot be injected"  # it has no place in this pipeline
    FAILING = "already failing"  # the check fails without it, and so proves nothing


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One bug and what its check said.

    result: of the pipeline with the bug; of the healthy one where the check could not tell; None
        where the bug has no place.
    note: why it was not tried.    unlock: what would give it a place.
    """

    injection: Injection
    outcome: Outcome
    result: CheckResult | None = None
    note: str = ""
    unlock: str = ""


@dataclass(frozen=True, kw_only=True)
class SelfTest:
    """What `self_test` found: one trial for each bug, in the catalogue's order of checks.

    healthy: the report of the pipeline as it is.
    """

    trials: tuple[Trial, ...]
    healthy: Report
    seed: int
    seconds: float = 0.0

    def of(self, outcome: Outcome) -> tuple[Trial, ...]:
        """Return the trials that ended like this."""
        return tuple(trial for trial in self.trials if trial.outcome is outcome)

    @property
    def injected(self) -> int:
        """How many bugs were put in."""
        return sum(t.outcome in (Outcome.CAUGHT, *_NOT_CAUGHT) for t in self.trials)

    @property
    def score(self) -> float:
        """The share of the injected bugs that their check names; NaN where none was injected."""
        return len(self.of(Outcome.CAUGHT)) / self.injected if self.injected else float("nan")

    @property
    def errors(self) -> tuple[CheckResult, ...]:
        """Results of checks that raised, and not in the user's code: they are broken themselves."""
        found = [trial.result for trial in self.trials if trial.result is not None]
        return tuple(r for r in found if r.status is Status.ERROR and not r.where)

    @property
    def passed(self) -> bool:
        """True when at least one bug was injected and every one was caught for its reason."""
        return self.injected > 0 and len(self.of(Outcome.CAUGHT)) == self.injected

    def __str__(self) -> str:
        from diagnostics._self_test_text import render_self_test

        return render_self_test(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything but the timings as plain values; see `to_json`.

        kind, schema_version; passed; seed; injected, caught: how many bugs were; trials: one per
        bug that was tried, {id, check, title, outcome, status, reason, claim, note, unlock}, whose
        outcome is one of `Outcome`, with status, reason and claim null where the check was not
        run; healthy: the report of the pipeline as it is, see `Report.to_dict`.
        """
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "seed": self.seed,
            "injected": self.injected,
            "caught": len(self.of(Outcome.CAUGHT)),
            "trials": [_plain(trial) for trial in self.trials],
            "healthy": self.healthy.to_dict(),
        }

    def to_json(self) -> str:
        """Return canonical JSON: the same bytes for the same seed in the same environment."""
        return json.dumps(self.to_dict(), indent=2, sort_keys=True, allow_nan=False) + "\n"


_NOT_CAUGHT = (Outcome.OTHERWISE, Outcome.MISSED)


def self_test(
    pipeline: Pipeline,
    *,
    seed: int = 42,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    fast: bool = False,
    overfit_steps: int = 300,
    progress: Callable[[str, int, int], None] | None = None,
) -> SelfTest:
    """Inject known bugs into copies of a pipeline and see which of them its checks would name.

    seed, only, skip, fast, overfit_steps: as in `diagnose`; bugs of other checks are left out.
    progress: called as (bug, index, total) before each bug.
    The user's objects come back untouched. Raises ValueError for an unknown name.
    """
    start = time.perf_counter()
    names = select(only, skip, fast=fast)
    healthy = diagnose(pipeline, seed=seed, only=names, overfit_steps=overfit_steps)
    order = {name: place for place, name in enumerate(CATALOG)}
    chosen = [injection for injection in INJECTIONS if injection.check in names]
    chosen.sort(key=lambda injection: order[injection.check])  # stable
    trials = []
    for index, injection in enumerate(chosen):
        if progress is not None:
            progress(injection.id, index, len(chosen))
        trials.append(_try(pipeline, injection, healthy[injection.check], seed, overfit_steps))
    return SelfTest(
        trials=tuple(trials), healthy=healthy, seed=seed, seconds=time.perf_counter() - start
    )


def _try(
    pipeline: Pipeline, injection: Injection, healthy: CheckResult, seed: int, overfit_steps: int
) -> Trial:
    if healthy.failed or injection.is_named_by(healthy):
        note = say("{check} says {reason} without it", check=healthy.check, reason=healthy.reason)
        return Trial(injection=injection, outcome=Outcome.FAILING, result=healthy, note=note)
    if healthy.status is Status.SKIP:
        return _elsewhere(injection, healthy.claim, healthy.next_step)
    try:
        with kept_random_states():
            broken = injection.apply(pipeline)
    except CannotInject as cannot:
        return _elsewhere(injection, cannot.why, cannot.unlock or "")
    report = diagnose(broken, seed=seed, only=[injection.check], overfit_steps=overfit_steps)
    result = report[injection.check]
    return Trial(injection=injection, outcome=_outcome(injection, result), result=result)


def _outcome(injection: Injection, result: CheckResult) -> Outcome:
    """A warning counts where it names the bug: a healthy design can look like some bugs."""
    if injection.is_named_by(result):
        return Outcome.CAUGHT
    return Outcome.OTHERWISE if result.failed else Outcome.MISSED


def _elsewhere(injection: Injection, why: str, unlock: str | Text) -> Trial:
    return Trial(injection=injection, outcome=Outcome.ELSEWHERE, note=why, unlock=unlock)


def _plain(trial: Trial) -> dict[str, Any]:
    result = trial.result
    return {
        "id": trial.injection.id,
        "check": trial.injection.check,
        "title": trial.injection.title,
        "outcome": str(trial.outcome),
        "status": None if result is None else str(result.status),
        "reason": None if result is None else result.reason,
        "claim": None if result is None else steady(result.claim),
        "note": steady(trial.note),
        "unlock": steady(trial.unlock),
    }
