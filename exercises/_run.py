"""One exercise as a command: look at its bugs, repair one, write the check.

Plain ASCII, no colour, no prompt and no bar when the output is not a terminal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from exercises import _exit
from exercises._exercise import Bug, Exercise, HealthyPipelineError, Receipt
from exercises._receipt import show_receipt
from exercises._terminal import no_such
from minigpt._cli import CommandError, Parser, run_command


def run(exercise: Exercise) -> int:
    """Do what the command line asks of the exercise, and return the exit code.

    0 caught, repaired or complete, 1 not yet, 2 usage or output that cannot be written, 3 the
    exercise itself is broken, 130 interrupted.
    """
    return run_command(lambda: _run(exercise))


def exit_code(receipts: Sequence[Receipt]) -> int:
    """Return 0 when every bug was caught for the right reason, or cannot run here, else 1."""
    caught = all(receipt.caught or receipt.skipped for receipt in receipts)
    return _exit.CAUGHT if caught else _exit.NOT_CAUGHT


def _run(exercise: Exercise) -> int:
    options = _parse(exercise)

    import torch

    torch.set_num_threads(1)  # faster at this size, and the same numbers on every machine
    if options.check is not None:
        from exercises import _own_check

        return _own_check.grade(exercise, Path(options.check), watch=options.watch)
    if options.hint or options.fix is not None:
        from exercises import _repair

        if options.hint:
            return _repair.show_hints(exercise)
        return _repair.repair(exercise, options.fix, again=options.again, watch=options.watch)
    from exercises._show import show

    try:
        return exit_code(show(exercise, _bugs(exercise, options.bugs)))
    except HealthyPipelineError as error:
        print(f"error: {exercise.name} is broken itself. {error}", file=sys.stderr)
        return _exit.BROKEN


def _bugs(exercise: Exercise, names: Sequence[str]) -> tuple[Bug, ...]:
    """Return the named bugs in the exercise's order, all without names. Raises CommandError."""
    known = [bug.name for bug in exercise.bugs]
    for name in names:
        if name not in known:
            raise CommandError(no_such("bug", name, known))
    return tuple(bug for bug in exercise.bugs if not names or bug.name in names)


def _parse(exercise: Exercise) -> argparse.Namespace:
    parser = Parser(
        prog=f"python -m exercises.{exercise.name}",
        description=exercise.question,
        epilog="The other exercises: python -m exercises --list. "
        "What is done and what comes next: python -m exercises --status",
    )
    parser.add_argument(
        "bugs",
        nargs="*",
        metavar="BUG",
        help="bugs to look at; all without: " + ", ".join(bug.name for bug in exercise.bugs),
    )
    parser.add_argument(
        "--fix",
        nargs="?",
        const="",
        metavar="NAME",
        help="write a small file to repair under work/, or verify the one that is there",
    )
    parser.add_argument("--again", action="store_true", help="with --fix: start afresh")
    parser.add_argument("--hint", action="store_true", help="show the hints that are open")
    parser.add_argument("--check", metavar="FILE", help="grade a check of your own (level 3)")
    parser.add_argument(
        "--watch", action="store_true", help="with --fix or --check: again on each save"
    )
    # called from another program, the arguments are that program's
    options = parser.parse_args(None if Path(sys.argv[0]).stem == exercise.name else [])
    if options.watch and options.fix is None and options.check is None:
        options.fix = ""
    if options.again and options.fix is None:
        parser.error("--again starts a repair afresh; give it with --fix")
    chosen = [bool(options.bugs), options.fix is not None, options.hint, options.check is not None]
    if sum(chosen) > 1:
        parser.error("BUG, --fix, --hint and --check are four different things; give one of them")
    return options


__all__ = ["exit_code", "run", "show_receipt"]
