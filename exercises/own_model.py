"""Bring your own model: a known bug in a copy of your pipeline; would you find it?

python -m exercises.own_model my_pipeline.py:build --list
python -m exercises.own_model my_pipeline.py:build --bug shift.identical
python -m exercises.own_model my_pipeline.py:build --random 7 --probe shift --answer shift

The function returns a diagnostics.Pipeline, as for `python -m diagnostics --target`; it is never
changed. Exit codes: 0 the bug was caught, or the answer is right, 1 not, 2 usage or a bug that has
no place in the pipeline, 3 the program is broken, 130 interrupted.
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from diagnostics.__main__ import _target_pipeline
from diagnostics._catalog import CATALOG
from diagnostics._flags import seed_number
from diagnostics._text import say
from exercises import _exit
from exercises._console import ask, columns, in_ascii, on_terminal, tell
from exercises._terminal import ask_for_one, no_such
from minigpt._cli import CommandError, Parser, run_command

if TYPE_CHECKING:
    from diagnostics import Pipeline
    from exercises._own_bug import Victim

CURVE_WIDTH = 60
CURVE_POINTS = 25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    for name in [*options.probe, *([options.answer] if options.answer else [])]:
        if name not in CATALOG:
            raise CommandError(no_such("check", name, CATALOG))
    from exercises._own_bug import NoPlaceError, by_id, infect, infect_blindly

    if options.bug is not None and options.bug not in by_id():
        raise CommandError(no_such("bug", options.bug, by_id()))
    pipeline = _load(options.target)
    if options.bug is None and options.random is None:
        return _show_list(pipeline)
    try:
        if options.bug is not None:
            victim = infect(pipeline, by_id()[options.bug], seed=options.seed)
        else:
            victim = infect_blindly(pipeline, options.random, seed=options.seed)
    except NoPlaceError as error:
        what = "the bug has no place in this pipeline: " if options.bug is not None else ""
        tell(f"[SKIP] {what}{error.why}", hanging=7)
        if error.unlock:
            tell(f"next  {error.unlock}", indent="  ", hanging=6)
        return _exit.USAGE
    if options.bug is not None:
        return _open_trial(pipeline, victim, options)
    return _blind_trial(pipeline, victim, options)


def _load(target: str) -> Pipeline:
    """Load the pipeline as `python -m diagnostics --target` does. Raises CommandError."""
    try:
        return _target_pipeline(target)
    except CommandError as error:
        raise CommandError(str(error).replace("--target", "the target", 1)) from error


def _open_trial(pipeline: Pipeline, victim: Victim, options: argparse.Namespace) -> int:
    """Show the named bug, ask for a prediction, and reveal what its check says."""
    tell(f"in a copy of your pipeline: {victim.injection.title}")
    _compare(pipeline, victim, options.seed)
    guess = options.answer or ask_for_one("Which check will notice?", CATALOG)
    for name in options.probe:
        _probe(victim, name, options.seed)
    _reveal(victim)
    if guess:
        right = guess == victim.injection.check
        tell("That is what you said." if right else f"You said {guess}.")
    return _exit.CAUGHT if victim.caught else _exit.NOT_CAUGHT


def _blind_trial(pipeline: Pipeline, victim: Victim, options: argparse.Namespace) -> int:
    """Show symptoms only; reveal the bug when its check is named."""
    if options.answer is None and not options.probe:
        tell(f"one of the known bugs is in a copy of your pipeline (--random {options.random})")
        _compare(pipeline, victim, options.seed)
    for name in options.probe:
        _probe(victim, name, options.seed)
    if options.answer is not None:
        right = _judge(pipeline, victim, options.answer, options.seed)
        return _exit.CAUGHT if right else _exit.NOT_CAUGHT
    if on_terminal() and not options.probe:
        return _talk(pipeline, victim, options.seed)
    print("  next  the same command with --probe CHECK")
    print("  then  the same command with --answer CHECK")
    return _exit.CAUGHT


def _talk(pipeline: Pipeline, victim: Victim, seed: int) -> int:
    """Ask what to do until the right check is named or the input ends."""
    tell("type  a check to run it, answer CHECK, or quit", indent="  ", hanging=6)
    while True:
        line = ask("\nown model> ")
        if line is None or line in ("quit", "exit", "q"):
            return _exit.NOT_CAUGHT
        *verbs, name = line.split() or [""]
        if name not in CATALOG:
            tell(no_such("check", name, CATALOG))
        elif verbs != ["answer"]:
            _probe(victim, name, seed)
        elif _judge(pipeline, victim, name, seed):
            return _exit.CAUGHT


def _compare(pipeline: Pipeline, victim: Victim, seed: int) -> None:
    """Show the healthy pipeline beside the broken one."""
    from exercises._curve import draw_panels, thin
    from exercises._figures import show_pairs
    from exercises._own_view import observe_own

    healthy, broken = (observe_own(each, seed=seed) for each in (pipeline, victim.pipeline))
    if healthy.losses:
        panels = {
            title: {"t": thin(seen.losses, CURVE_POINTS)}
            for title, seen in (("healthy", healthy), ("this run", broken))
        }
        top = max(healthy.losses)
        print()
        width = min(columns(), CURVE_WIDTH)
        print("\n".join(draw_panels(panels, width=width, ceiling=2 * top if top > 0 else top)))
        tell("t training loss, ^ above; left to right: the steps", indent=" " * 9)
    print()
    show_pairs(healthy.figures, broken.figures)
    if healthy.raised:
        tell(
            "[WARN] your pipeline raises without the bug too, so little of the bug can be seen; "
            "python -m diagnostics --target PLACE shows where",
            hanging=7,
        )


def _probe(victim: Victim, name: str, seed: int) -> None:
    """Run one check on the broken copy, and show its verdict without a cause."""
    from diagnostics import diagnose
    from exercises._figures import show_verdict

    show_verdict(diagnose(victim.pipeline, seed=seed, only=[name])[name])


def _judge(pipeline: Pipeline, victim: Victim, answer: str, seed: int) -> bool:
    """Say whether the named check is the bug's own; reveal it when it is."""
    if answer == victim.injection.check:
        _reveal(victim)
        return True
    from diagnostics import diagnose

    healthy, broken = (
        diagnose(each, seed=seed, only=[answer])[answer] for each in (pipeline, victim.pipeline)
    )
    if broken.failed and not healthy.failed:
        tell(f"[FAIL] {answer} fails too, and is not the check that names the cause", hanging=7)
    else:
        tell(f"[FAIL] {answer} does not see this bug", hanging=7)
    return False


def _reveal(victim: Victim) -> None:
    """Show what was put in, the verdict of its check, and whether it names the bug."""
    injection, result = victim.injection, victim.result
    print()
    print(in_ascii(str(result)))
    print()
    tell(f"The bug: {injection.title} ({injection.id})")
    if victim.caught:
        tell(f"[OK] caught by {result.check} for {result.reason}", hanging=5)
    else:
        wanted = " or ".join(injection.reasons or (injection.id,))
        tell(
            f"[FAIL] not caught: {result.check} says {result.reason}, wanted was {wanted}",
            hanging=7,
        )


def _show_list(pipeline: Pipeline) -> int:
    """Show which bugs have a place in the pipeline, and what would give one to the others."""
    from diagnostics._self_test import INJECTIONS
    from exercises._own_bug import NoPlaceError, inject

    placed, unplaced = 0, []
    for check, injections in itertools.groupby(INJECTIONS, lambda each: each.check):
        print(check)
        for injection in injections:
            try:
                inject(pipeline, injection)
            except NoPlaceError as error:
                unplaced.append((injection.id, error))
                continue
            placed += 1
            tell(f"{injection.id}: {injection.title}", indent="  ", hanging=2)
    reasons = dict.fromkeys((error.why, error.unlock) for _, error in unplaced)
    for why, unlock in reasons:
        ids = [name for name, error in unplaced if (error.why, error.unlock) == (why, unlock)]
        tell(f"[SKIP] {why}: {', '.join(ids)}", hanging=7)
        if unlock:
            tell(f"next  {unlock}", indent="  ", hanging=6)
    tell(
        say(
            "{placed} of {count:bug has|bugs have} a place in this pipeline",
            placed=placed,
            count=placed + len(unplaced),
        )
    )
    if placed:
        print("  next  the same command with --random 1, an unnamed bug")
        print("  or    the same with --bug ID, one of those above")
    return _exit.CAUGHT


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m exercises.own_model",
        usage="%(prog)s PLACE [flags]",  # argparse's own line does not fit 60 columns
        description="Put a known bug into a copy of your own pipeline, and find it.",
    )
    parser.add_argument(
        "target",
        metavar="PLACE",
        help="module:function or file.py:function that returns a diagnostics.Pipeline",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--bug", metavar="ID", help="this bug, such as shift.identical")
    which.add_argument(
        "--random", metavar="N", type=int, help="one that the number draws; it is not named"
    )
    which.add_argument(
        "--list", action="store_true", help="which bugs have a place (also without a flag)"
    )
    parser.add_argument(
        "--probe",
        action="append",
        default=[],
        metavar="CHECK",
        help="run a check on the broken copy; may be repeated",
    )
    parser.add_argument("--answer", metavar="CHECK", help="the check that names the bug")
    parser.add_argument(
        "--seed", type=seed_number, default=42, metavar="N", help="fixes every draw (42)"
    )
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
