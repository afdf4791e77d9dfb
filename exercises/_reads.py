"""Which parts of a pipeline a check reads, found by watching it.

A check that reads no part that a bug replaces gives the result that it gave on the healthy
pipeline: it need not run again to prove that nothing upstream of the bug failed.
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from diagnostics import Pipeline, Report, diagnose

PARTS = frozenset(field.name for field in fields(Pipeline))


class _Watched(Pipeline):
    """A pipeline that notes which of its parts are asked for."""

    noted: set[str] | None = None

    def __getattribute__(self, name: str) -> Any:
        noted = super().__getattribute__("noted")
        if noted is not None:
            noted.add(name)
        return super().__getattribute__(name)


def diagnose_watched(pipeline: Pipeline, check: str, *, seed: int) -> tuple[Report, frozenset[str]]:
    """Run one check; return the report and the names of the parts that it read."""
    watched = _Watched(**{name: getattr(pipeline, name) for name in PARTS})
    noted: set[str] = set()
    watched.noted = noted
    # cleared when the check begins: what the suite reads to put everything back does not count
    report = diagnose(watched, seed=seed, only=[check], progress=lambda *_: noted.clear())
    return report, PARTS & noted
