"""What an exercise is, and how it is proved: applied, executed, caught, restored.

Each bug is one function `break_it(lab) -> Pipeline` that holds exactly one marked line,
`broken code  # BROKEN: was healthy code`. A run shows that the healthy pipeline passes, that the
marked line was executed, that the matching check fails for the declared reason and no check before
it, and that the healthy pipeline passes again afterwards. A check that reads no part in which the
bug can be is not run again: its result is the one on the healthy pipeline.
"""

from __future__ import annotations

import inspect
import mmap
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from diagnostics import CheckResult, Pipeline, Report, Status, diagnose
from diagnostics._catalog import CATALOG
from exercises._lab import Lab
from exercises._reads import diagnose_watched
from exercises._symptom import training_symptom

MARK = "# BROKEN: was "

Symptom = Callable[[Lab, Pipeline], Mapping[str, str]]


@dataclass(frozen=True, kw_only=True)
class Bug:
    """One known bug.

    name: one word.    break_it: (lab) -> a pipeline with the bug; holds the marked line.
    trips, reason: the check that must fail, and the reason id it must give.
    level: 1 the classic, 2 one that the textbook version of the check cannot see.
    note: what makes this bug worth a look of its own.
    question: what to predict about this bug before looking.
    hints: three, from where to look to what to change; each is opened by doing something.
    lesson: what to remember of this bug.
    guide: a heading of the guide about this bug, beside the one about its check.
    """

    name: str
    break_it: Callable[[Lab], Pipeline]
    trips: str
    reason: str
    level: int = 1
    note: str = ""
    question: str = ""
    hints: tuple[str, str, str] = ("", "", "")
    lesson: str = ""
    guide: str = ""


@dataclass(frozen=True, kw_only=True)
class Exercise:
    """One check and the bugs that it must catch.

    name: break_<check>.    question: what to think about before running.
    hint: where to look in the code.    lesson: what to remember afterwards.
    symptom: (lab, pipeline) -> figures that a person would see, shown healthy beside broken.
    """

    name: str
    question: str
    bugs: tuple[Bug, ...]
    hint: str
    lesson: str
    symptom: Symptom = training_symptom

    @property
    def check(self) -> str:
        """The check that the exercise is about."""
        return self.name.removeprefix("break_")


@dataclass(frozen=True, kw_only=True)
class MarkedLine:
    """The one line that is the bug, and what it was."""

    path: str
    number: int
    broken: str
    healthy: str


@dataclass(frozen=True, kw_only=True)
class Receipt:
    """What one bug's run proved. `problems` is empty when it was caught for the right reason.

    result: of the bug's check.    report: of every check that was run on the broken pipeline.
    skipped: why this system cannot run the check, so that nothing is proved; else "".
    """

    bug: Bug
    line: MarkedLine | None
    executed: int = 0
    result: CheckResult | None = None
    report: Report | None = None
    problems: tuple[str, ...] = ()
    skipped: str = ""
    numbers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def caught(self) -> bool:
        """Whether everything that the exercise asserts holds."""
        return not self.problems and not self.skipped


class HealthyPipelineError(Exception):
    """The healthy pipeline does not pass: the exercise itself is broken, not the student's work."""


def prove(lab: Lab, bug: Bug) -> Receipt:
    """Break, diagnose, restore; return what was seen. Raises HealthyPipelineError."""
    line = find_marked_line(bug.break_it)
    if line is None:
        return Receipt(
            bug=bug, line=None, problems=("the marked line is gone: the bug was healed",)
        )
    for check in _up_to(bug.trips):
        if check not in lab.proven:
            require_healthy(lab, check)
    if bug.trips in lab.unable:
        return Receipt(bug=bug, line=line, skipped=lab.unable[bug.trips])
    try:
        with counted_executions(line) as count:
            broken = bug.break_it(lab)
            report = diagnose(broken, seed=lab.seed, only=_concerned(lab, bug, broken))
    finally:
        lab.restore()
    result = report[bug.trips]
    require_healthy(lab, bug.trips)
    return Receipt(
        bug=bug,
        line=line,
        executed=count[0],
        result=result,
        report=report,
        problems=tuple(_problems(bug, report, count[0])),
    )


def require_healthy(lab: Lab, check: str | None = None) -> Report:
    """Run one check (None: every check) on the healthy pipeline; raise unless all pass.

    A check that has to start processes may be skipped, where a system does not allow it.
    """
    healthy = lab.pipeline()
    results: list[CheckResult] = []
    for name in CATALOG if check is None else [check]:
        report, read = diagnose_watched(healthy, name, seed=lab.seed)
        if report.results[0].status is Status.SKIP and CATALOG[name].forks:
            lab.unable[name] = str(report.results[0].claim)
        elif not report.passed:
            raise HealthyPipelineError(f"the healthy pipeline does not pass:\n{report.results[0]}")
        lab.proven[name] = read
        results += report.results
    return replace(report, results=tuple(results))


def find_marked_line(break_it: Callable[..., Any]) -> MarkedLine | None:
    """Return the marked line inside a function; None when there is none, the bug was healed.

    Raises ValueError when there are several: one bug is one line.
    """
    lines, first = inspect.getsourcelines(break_it)
    marked = [(n, text) for n, text in enumerate(lines, first) if MARK in text]
    if len(marked) > 1:
        raise ValueError(f"{break_it.__name__} holds {len(marked)} marked lines, wanted one")
    if not marked:
        return None
    number, text = marked[0]
    broken, healthy = text.split(MARK)
    path = inspect.getsourcefile(break_it) or ""
    return MarkedLine(path=path, number=number, broken=broken.strip(), healthy=healthy.strip())


@contextmanager
def counted_executions(line: MarkedLine) -> Iterator[Sequence[int]]:
    """Count how often the line runs inside the block: a bug that never ran proves nothing.

    Only frames of the exercise's own file are traced line by line, so the rest stays fast. The
    counter lies in memory that processes forked by a check share.
    """
    count = memoryview(mmap.mmap(-1, 8)).cast("Q")

    def on_line(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line" and frame.f_lineno == line.number:
            count[0] += 1
        return on_line

    def on_call(frame: FrameType, event: str, argument: Any) -> Any:
        return on_line if frame.f_code.co_filename == line.path else None

    previous = sys.gettrace()
    sys.settrace(on_call)
    try:
        yield count
    finally:
        sys.settrace(previous)


def _up_to(check: str) -> list[str]:
    names = list(CATALOG)
    return names[: names.index(check) + 1]


def _concerned(lab: Lab, bug: Bug, broken: Pipeline) -> list[str]:
    """Return the bug's check, and those before it that read a part in which the bug can be."""
    replaced = lab.replaced_parts(broken)
    return [
        name
        for name in _up_to(bug.trips)
        if name == bug.trips or replaced is None or lab.proven[name] & replaced
    ]


def _problems(bug: Bug, report: Report, executed: int) -> Iterator[str]:
    result = report[bug.trips]
    if executed == 0:
        yield "the marked line was never executed"
    if not result.failed:
        yield f"{bug.trips} did not fail: it says {result.status}"
    elif result.reason != bug.reason:
        yield f"{bug.trips} failed for {result.reason}, not for {bug.reason}"
    for other in report.results:
        if other.failed and other.check != bug.trips:
            yield f"{other.check}, upstream of {bug.trips}, failed too ({other.reason})"
