"""The bench of a case: the broken pipeline is built in memory, looked at, and taken down again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch

from diagnostics import CheckResult, Pipeline, Report, diagnose
from exercises._case_book import Case, load_bug, load_exercise
from exercises._case_view import Seen, look, observe
from exercises._lab import Lab

Pair = tuple[Mapping[str, str], Mapping[str, str]]


def compare(case: Case) -> tuple[Seen, Seen]:
    """Return what is seen of the healthy pipeline and of the broken one."""
    exercise = load_exercise(case.check)
    with _lab() as lab:
        healthy = observe(lab, lab.pipeline(), exercise)
        with _broken(lab, case) as pipeline:
            return healthy, observe(lab, pipeline, exercise)


def compare_look(case: Case, name: str) -> Pair:
    """Return what a cheap probe shows of the healthy pipeline and of the broken one."""
    with _lab() as lab:
        healthy = look(lab, lab.pipeline(), name)
        with _broken(lab, case) as pipeline:
            return healthy, look(lab, pipeline, name)


def run_check(case: Case, name: str) -> CheckResult:
    """Run one check on the broken pipeline."""
    return run_checks(case, [name])[name]


def run_checks(case: Case, names: list[str] | None = None) -> Report:
    """Run checks, all of them without names, on the broken pipeline."""
    with _lab() as lab, _broken(lab, case) as pipeline:
        return diagnose(pipeline, seed=lab.seed, only=names)


@contextmanager
def _lab() -> Iterator[Lab]:
    torch.set_num_threads(1)  # faster at this size, and the same numbers on every machine
    with Lab() as lab:
        yield lab


@contextmanager
def _broken(lab: Lab, case: Case) -> Iterator[Pipeline]:
    try:
        yield load_bug(case).break_it(lab)
    finally:
        lab.restore()
