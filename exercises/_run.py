"""Show one exercise on the terminal, or run them all; decide the exit code.

Plain ASCII, no colour, no prompt and no bar when the output is not a terminal.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from exercises import _exit
from exercises._exercise import (
    Bug,
    Exercise,
    HealthyPipelineError,
    Receipt,
    find_marked_line,
    prove,
)
from exercises._lab import Lab
from minigpt._cli import Parser, run_command

# Where the terminal is narrower, a longer line would break inside a word.
WIDTH = max(40, min(88, shutil.get_terminal_size((88, 24)).columns))


def run(exercise: Exercise) -> int:
    """Show the exercise, as a command, and return its exit code.

    0 caught, 1 not caught, 2 a flag that it has not or output that cannot be written, 3 the
    exercise itself is broken, 130 interrupted.
    """
    return run_command(lambda: _run(exercise))


def _run(exercise: Exercise) -> int:
    _refuse_arguments(exercise)

    import torch

    torch.set_num_threads(1)  # faster at this size, and the same numbers on every machine
    print(
        f"{exercise.name}  (stage {CATALOG[exercise.check].stage}, "
        f"family {CATALOG[exercise.check].family})"
    )
    _say(exercise.question)
    try:
        with Lab() as lab:
            healthy = exercise.symptom(lab, lab.pipeline())
            receipts = [_show_bug(lab, exercise, bug, healthy) for bug in exercise.bugs]
    except HealthyPipelineError as error:
        print(f"error: {exercise.name} is broken itself. {error}", file=sys.stderr)
        return _exit.BROKEN
    print()
    _say("Lesson: " + exercise.lesson)
    missed = [receipt.bug.name for receipt in receipts if not receipt.caught]
    if missed:
        _say(f"Not caught: {', '.join(missed)}. {exercise.hint}")
    else:
        following = _next_exercise(exercise)
        if following:
            print(f"Next: python -m exercises.{following}")
    return exit_code(receipts)


def _refuse_arguments(exercise: Exercise) -> None:
    """Answer --help, and refuse what would otherwise be passed over without a word."""
    if Path(sys.argv[0]).stem != exercise.name:
        return  # called from another program, whose arguments these are
    Parser(
        prog=f"python -m exercises.{exercise.name}",
        description=exercise.question,
        epilog="It takes no arguments. The other exercises: python -m exercises --list",
    ).parse_args()


def exit_code(receipts: Sequence[Receipt]) -> int:
    """Return 0 when every bug was caught for the right reason, else 1."""
    caught = all(receipt.caught for receipt in receipts)
    return _exit.CAUGHT if caught else _exit.NOT_CAUGHT


def show_receipt(receipt: Receipt) -> None:
    """Print what was proved, or what was not."""
    bug = receipt.bug
    if receipt.caught:
        _say(
            say(
                "[OK] {name}: the marked line ran {count:time|times}; {check} failed for {reason}, "
                "nothing before it failed, and the healthy pipeline passes again",
                name=bug.name,
                count=receipt.executed,
                check=bug.trips,
                reason=bug.reason,
            ),
            hanging=5,
        )
        return
    for problem in receipt.problems:
        _say(f"[FAIL] {bug.name}: {problem}", hanging=7)


def _show_bug(lab: Lab, exercise: Exercise, bug: Bug, healthy: Mapping[str, str]) -> Receipt:
    print()
    print(f"--- bug: {bug.name} (level {bug.level}) " + "-" * 40)
    if bug.note:
        _say(bug.note)
    line = find_marked_line(bug.break_it)
    if line is not None:
        print(f"  - {line.healthy}")
        print(f"  + {line.broken}")
    prediction = _ask(exercise)
    receipt = prove(lab, bug)
    if line is not None:
        try:
            _show_symptoms(healthy, exercise.symptom(lab, bug.break_it(lab)))
        finally:
            lab.restore()
    if receipt.result is not None:
        print()
        print(receipt.result)
        print()
    if prediction:
        noticed = "as you said" if prediction == bug.trips else f"you said {prediction}"
        print(f"     noticed by {bug.trips} ({noticed})")
    show_receipt(receipt)
    return receipt


def _show_symptoms(healthy: Mapping[str, str], broken: Mapping[str, str]) -> None:
    print()
    for name, value in healthy.items():
        print(f"  {name}")
        print(f"    healthy  {_fit(value)}")
        print(f"    broken   {_fit(broken.get(name, 'not reached'))}")


def _fit(text: str) -> str:
    limit = WIDTH - 13
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _ask(exercise: Exercise) -> str:
    """Ask for a prediction, on a terminal only."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return ""
    try:
        return input("  Which check will notice? (a name, or Enter to see) ").strip()
    except EOFError:
        return ""


def _next_exercise(exercise: Exercise) -> str | None:
    names = list(CATALOG)
    index = names.index(exercise.check) + 1
    return f"break_{names[index]}" if index < len(names) else None


def _say(text: str, hanging: int = 0) -> None:
    print(textwrap.fill(text, WIDTH, subsequent_indent=" " * hanging, break_on_hyphens=False))
