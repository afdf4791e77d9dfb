"""One case at work: show, probe, answer, and write down what was done."""

from __future__ import annotations

import hashlib
import inspect

from diagnostics import Report, Status
from diagnostics._catalog import CATALOG
from diagnostics._render import LABELS
from diagnostics._text import say
from exercises import _case_bench
from exercises._case_book import CASES, GRADES, Case, load_bug, load_exercise
from exercises._case_file import Attempt, CaseFile
from exercises._case_score import (
    CHECK_COST,
    LOOK_COST,
    LOOKS,
    REPORT,
    REPORT_COST,
    TRAINING_CHECK_COST,
    WRONG_COST,
    cost_of,
    cost_of_probe,
    is_named,
    is_solved,
    open_hints,
)
from exercises._case_view import Seen
from exercises._console import columns, fold, in_ascii, tell
from exercises._curve import draw_panels, thin
from exercises._exercise import Bug, find_marked_line
from exercises._figures import show_pairs, show_verdict
from exercises._terminal import put_code
from minigpt._cli import CommandError

CHOICES = 4  # causes to choose from
NEIGHBOURS = 3  # exercises that they are taken from, where its own has too few
CURVE_WIDTH = 60
CURVE_HEIGHT = 9
CURVE_POINTS = 25


class Session:
    """A case, what was done in it so far, and the file in which that is kept."""

    def __init__(self, number: int, case: Case, file: CaseFile, attempt: Attempt) -> None:
        self.number = number
        self.case = case
        self.file = file
        self.attempt = attempt

    @property
    def solved(self) -> bool:
        """Whether the right cause has been named."""
        return is_solved(self.case, self.attempt)

    @property
    def cost(self) -> int:
        """What was paid so far."""
        return cost_of(self.case, self.attempt)

    def show_symptoms(self) -> None:
        """Show curves, losses, a sample and the exercise's own figures. Costs nothing."""
        grade = self.case.grade
        tell(f"case {self.number} of {len(CASES)}, grade {grade}: {GRADES[grade]}")
        healthy, broken = _case_bench.compare(self.case)
        print("\n".join(_draw_curves(healthy, broken)))
        print()
        show_pairs(_losses(healthy), _losses(broken))
        show_pairs(dict(healthy.figures), dict(broken.figures))
        if broken.stopped:
            tell(f"training {broken.stopped}", indent="  ", hanging=2)

    def show_ways(self, *, typed: bool) -> None:
        """Say what can be done, as words to type or as flags, and what it costs."""
        print()
        for name, told in LOOKS.items():
            tell(f"{name:<7} {told} ({LOOK_COST})", indent="  ", hanging=8)
        training = " or ".join(name for name, row in CATALOG.items() if row.learns)
        tell(
            f"A check by its name ({CHECK_COST}; {training} {TRAINING_CHECK_COST}), or report, "
            f"all of them ({REPORT_COST}). Looking again is free. The answer is the check that "
            f"fails first in the order of `python -m diagnostics --list`, then its cause; a "
            f"wrong one costs {WRONG_COST}. Hints are opened by probes and answers.",
            indent="  ",
        )
        if typed:
            tell("type  a probe, answer CHECK, hint, show or quit", indent="  ", hanging=6)
            return
        command = f"python -m exercises.cases {self.number}"
        print(f"  next  {command} --probe batch")
        print(f"  then  {command} --hint")
        print(f"  then  {command} --answer CHECK")

    def probe(self, name: str) -> None:
        """Look, or run a check; pay for it when it is the first time."""
        if name in LOOKS:
            print(name)
            show_pairs(*_case_bench.compare_look(self.case, name))
            failed = []
        elif name == REPORT:
            tell(f"all {len(CATALOG)} checks, which takes about a minute")
            failed = _show_report(_case_bench.run_checks(self.case))
        else:
            result = _case_bench.run_check(self.case, name)
            show_verdict(result)
            failed = [result.check] if result.failed else []
        if self.solved:
            return
        paid = name not in self.attempt.probes
        found = {"failed": failed[0]} if failed else {}
        self.attempt = self.file.record(self.case.code, self.attempt, probes=name, **found)
        told = f"cost {cost_of_probe(name)}" if paid else "paid already"
        print(f"  {told}, {self.cost} in all")

    def answer(self, check: str) -> bool:
        """Take a check as the answer; return whether it is the right one.

        When it is, the causes are shown to choose from.
        """
        self._record(answers=check)
        if check != self.case.check:
            tell(
                f"[FAIL] {check} is not the first check that fails here "
                f"(a wrong answer costs {WRONG_COST}; {self.cost} in all)",
                hanging=7,
            )
            return False
        tell(f"[OK] {check} is the first check that fails. Which cause is it?", hanging=5)
        for number, (_, told) in enumerate(_causes(self.case), 1):
            tell(f"{number}. {told}", indent="  ", hanging=3)
        return True

    def name_cause(self, number: int) -> bool:
        """Take a cause as the answer; return whether it is the right one."""
        if not is_named(self.case, self.attempt):
            raise CommandError("the check comes before its cause; give --answer CHECK first")
        causes = _causes(self.case)
        if not 1 <= number <= len(causes):
            raise CommandError(f"a cause is a number from 1 to {len(causes)}, got {number}")
        code, told = causes[number - 1]
        self._record(causes=code)
        if code != self.case.code:
            tell(
                f"[FAIL] it is not this one: {told} (a wrong answer costs {WRONG_COST}; "
                f"{self.cost} in all)",
                hanging=7,
            )
            return False
        self.show_solution()
        return True

    def show_hints(self) -> None:
        """Show the hints that are open, and what opens the next one."""
        bug = load_bug(self.case)
        count = open_hints(self.case, self.attempt)
        written = [hint for hint in bug.hints if hint] or [load_exercise(self.case.check).hint]
        for number, hint in enumerate(written[:count], 1):
            tell(f"hint {number}: {hint}", hanging=8)
        if count < len(written):
            tell(f"hint {count + 1} is closed: {_OPENED_BY[count]} opens it")

    def show_solution(self) -> None:
        """Show the cost, the line that is the bug, the failing report and the lesson."""
        bug, exercise = load_bug(self.case), load_exercise(self.case.check)
        print()
        tell(
            f"[OK] case {self.number} is solved at a cost of {self.cost}: {exercise.name}, "
            f"{bug.name}",
            hanging=5,
        )
        line = find_marked_line(bug.break_it)
        if line is not None:
            put_code("  - ", line.healthy)
            put_code("  + ", line.broken)
        print()
        print(in_ascii(str(_case_bench.run_check(self.case, self.case.check))))
        print()
        if bug.note:
            tell(bug.note)
        tell("Lesson: " + (bug.lesson or exercise.lesson))
        tell(f"The exercise: python -m exercises.{exercise.name}")
        print("Next: python -m exercises.cases")

    def _record(self, **done: str) -> None:
        if not self.solved:
            self.attempt = self.file.record(self.case.code, self.attempt, **done)


_OPENED_BY = ("a probe", "a check that fails, or a wrong answer,", "a second wrong answer")


def _draw_curves(healthy: Seen, broken: Seen) -> list[str]:
    panels = {
        title: {"h": seen.honest, "t": thin(seen.losses, CURVE_POINTS)}
        for title, seen in (("healthy", healthy), ("this run", broken))
    }
    top = max((*healthy.losses, *healthy.honest), default=1.0)
    lines = draw_panels(
        panels, width=min(columns(), CURVE_WIDTH), height=CURVE_HEIGHT, ceiling=2 * top
    )
    legend = "t training loss, h honest loss, # both, ^ above; left to right: the steps"
    return ["", *lines, *fold(legend, indent=" " * 9)]


def _losses(seen: Seen) -> dict[str, str]:
    none = "none"
    reported = (
        f"{seen.losses[0]:.3f}, at the end {seen.last_loss:.3f} nats" if seen.losses else none
    )
    return {
        "training loss": reported,
        "honest loss, on new text": f"{seen.honest[-1]:.3f} nats" if seen.honest else none,
        "sample": seen.sample or none,
    }


def _show_report(report: Report) -> list[str]:
    """Show all verdicts; return the names of the checks that fail, in order."""
    for status in Status:
        names = [r.check for r in report.results if r.status is status and not r.failed]
        if names:
            tell(f"{LABELS[status]} {', '.join(names)}", hanging=5)
    failed = [result for result in report.results if result.failed]
    for result in failed:
        show_verdict(result)
    print(say("  {count:check fails|checks fail}", count=len(failed)))
    return [result.check for result in failed]


def _causes(case: Case) -> list[tuple[str, str]]:
    """Return codes and descriptions of the causes to choose from, the right one among them."""
    right = load_bug(case)
    chosen = [(case.code, _describe(right))]
    for check in _nearest_first(case.check):
        for bug in load_exercise(check).bugs:
            if len(chosen) < CHOICES and bug.reason != right.reason:
                chosen.append((Case(check, bug.name, case.grade).code, _describe(bug)))
    return sorted(chosen, key=lambda one: hashlib.sha256((case.code + one[0]).encode()).digest())


def _nearest_first(check: str) -> list[str]:
    """Return the check and its neighbours in the catalogue."""
    names = list(CATALOG)
    place = names.index(check)
    by_distance = sorted(names, key=lambda name: abs(names.index(name) - place))  # stable
    return by_distance[:NEIGHBOURS]


def _describe(bug: Bug) -> str:
    """Return what is done by the code of a bug, in one sentence."""
    return (inspect.getdoc(bug.break_it) or bug.note).split("\n")[0]
