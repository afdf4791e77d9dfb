"""`python -m exercises --verify`: what an author has to prove before students see an exercise.

Each exercise ships broken, is caught for the right reason, and is healthy once its marked line is
healed; its contract tells right code from wrong by a margin; no text is empty; the guide has every
heading that is named.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from diagnostics import diagnose
from diagnostics._text import say
from exercises import _exit
from exercises._contract_proof import (
    Margin,
    margin_of,
    margin_problems,
    module_from,
    right_problems,
    shape_problems,
    starter_problems,
    wrong_problems,
)
from exercises._exercise import (
    MARK,
    Bug,
    Exercise,
    HealthyPipelineError,
    counted_executions,
    find_marked_line,
    prove,
)
from exercises._guide import heading_lines
from exercises._lab import Lab
from exercises._outline import NAMES
from exercises._pool import laboratory, run_all
from exercises._terminal import put
from exercises.contracts._private import contract_of

BUGS_MIN = 60
HINTS = 3


@dataclass(frozen=True)
class Proof:
    """What was proved of one exercise; nothing is wrong when there are no problems."""

    name: str
    bugs: int
    rights: int
    wrongs: int
    margin: Margin
    problems: tuple[str, ...]


def verify(names: list[str], jobs: int) -> int:
    """Prove the named exercises, print a line for each, and return the exit code."""
    try:
        proofs = run_all(prove_exercise, names, jobs)
    except HealthyPipelineError as error:
        print(f"error: an exercise is broken itself. {error}", file=sys.stderr)
        return _exit.BROKEN
    put("bugs, right and wrong implementations; noise / tolerance / nearest bug")
    for name in names:
        _show_proof(proofs[name])
    bugs = sum(proof.bugs for proof in proofs.values())
    failed = [name for name in names if proofs[name].problems]
    few = set(names) == set(NAMES) and bugs < BUGS_MIN
    if few:
        put(f"[FAIL] {bugs} bugs in all, wanted {BUGS_MIN} at least", hanging=7)
    put(
        say(
            "{good} of {count:exercise|exercises} proved: {bugs} bugs, {rights} right and {wrongs} "
            "wrong implementations",
            good=len(names) - len(failed),
            count=len(names),
            bugs=bugs,
            rights=sum(proof.rights for proof in proofs.values()),
            wrongs=sum(proof.wrongs for proof in proofs.values()),
        )
    )
    return _exit.NOT_CAUGHT if failed or few else _exit.CAUGHT


def prove_exercise(name: str) -> Proof:
    """Prove one exercise, in this process. Raises HealthyPipelineError."""
    exercise: Exercise = importlib.import_module(f"exercises.{name}").EXERCISE
    contract = contract_of(exercise.check)
    margin = margin_of(contract)
    problems = [
        *text_problems(exercise),
        *shape_problems(contract),
        *right_problems(contract),
        *wrong_problems(contract),
        *starter_problems(contract),
        *margin_problems(margin),
    ]
    with laboratory() as lab:
        problems += [problem for bug in exercise.bugs for problem in bug_problems(lab, bug)]
    return Proof(
        name=name,
        bugs=len(exercise.bugs),
        rights=len(contract.rights),
        wrongs=len(contract.wrongs),
        margin=margin,
        problems=tuple(problems),
    )


def bug_problems(lab: Lab, bug: Bug) -> Iterator[str]:
    """Yield what is wrong with one bug: not caught as it ships, or still caught once healed."""
    receipt = prove(lab, bug)
    yield from (f"{bug.name}: {problem}" for problem in receipt.problems)
    if receipt.line is None:
        return
    with tempfile.TemporaryDirectory(prefix="exercises-") as folder:
        yield from _solution_problems(lab, healed_bug(bug, Path(folder)))


def _solution_problems(lab: Lab, healed: Bug) -> Iterator[str]:
    line = find_marked_line(healed.break_it)
    if line is None:
        raise ValueError(f"{healed.name}: the marked line is gone")
    try:
        with counted_executions(line) as count:
            report = diagnose(healed.break_it(lab), seed=lab.seed, only=[healed.trips])
    finally:
        lab.restore()
    if not count[0]:
        yield f"{healed.name}: its solution was never executed"
    if not report.passed:
        yield f"{healed.name}: its solution does not pass {healed.trips}"


def healed_bug(bug: Bug, folder: Path) -> Bug:
    """Return the bug from a copy of its file, in that folder, whose marked line is healed."""
    line = find_marked_line(bug.break_it)
    module = inspect.getmodule(bug.break_it)
    if line is None or module is None:
        raise ValueError(f"{bug.name} holds no marked line to heal")
    source = Path(line.path).read_text(encoding="utf-8").splitlines()
    was = source[line.number - 1]
    indent = was[: len(was) - len(was.lstrip())]
    source[line.number - 1] = f"{indent}{line.healthy}  {MARK}{line.healthy}"
    name = f"healed_{Path(line.path).stem}_{bug.name}"
    exercise: Exercise = module_from("\n".join(source) + "\n", folder, name).EXERCISE
    return next(other for other in exercise.bugs if other.name == bug.name)


def text_problems(exercise: Exercise) -> Iterator[str]:
    """Yield what a student would miss: an empty text, hints that repeat, a heading of nothing."""
    headings = heading_lines()
    if f"The check {exercise.check}" not in headings:
        yield f"the guide has no heading 'The check {exercise.check}'"
    for name in ("question", "hint", "lesson"):
        if not getattr(exercise, name).strip():
            yield f"its {name} is empty"
    if not any(bug.level == 2 for bug in exercise.bugs):
        yield "it has no bug of level 2"
    for bug in exercise.bugs:
        for name in ("question", "lesson"):
            if not getattr(bug, name).strip():
                yield f"{bug.name}: its {name} is empty"
        if len({hint.strip() for hint in bug.hints} - {""}) != HINTS:
            yield f"{bug.name}: it wants {HINTS} different hints"
        if bug.guide and bug.guide not in headings:
            yield f"{bug.name}: the guide has no heading {bug.guide!r}"


def _show_proof(proof: Proof) -> None:
    margin = proof.margin
    put(
        say(
            "{label} {name}: {bugs:bug|bugs}, {rights} right, {wrongs} wrong; "
            "{noise} / {tolerance} / {nearest}",
            label="[FAIL]" if proof.problems else "[OK]  ",
            name=proof.name.removeprefix("break_"),
            bugs=proof.bugs,
            rights=proof.rights,
            wrongs=proof.wrongs,
            noise=margin.noise,
            tolerance=margin.tolerance,
            nearest=margin.nearest,
        ),
        hanging=7,
    )
    for problem in proof.problems:
        put(problem, indent=7, hanging=2)
