"""`python -m exercises`: run every exercise and prove that each bug is caught.

Afterwards it says what the student has done and what comes next; `--status` says only that.
`--verify` proves for an author that the exercises are fit to be given to students.

Exit codes: 0 every bug was caught for the right reason, 1 one was not, 2 usage, 3 an exercise is
broken itself, 130 interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from diagnostics._text import say
from exercises import _exit
from exercises._console import columns, tell
from exercises._outline import NAMES, first_line, full_name
from exercises._terminal import number_to
from minigpt._cli import CommandError, Parser, require_writable, run_command
from minigpt._files import write_text

if TYPE_CHECKING:
    from exercises._exercise import Receipt

LIST_WIDTH = 80
JOBS_MAX = 64


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    _refuse_mixtures(options)
    if options.list:
        for name in NAMES:
            text = f"{name:<26} {first_line(name)}"
            print(textwrap.fill(text, min(LIST_WIDTH, columns()), subsequent_indent=" " * 27))
        return _exit.CAUGHT
    if options.status:
        from exercises._status import show_status

        show_status()
        return _exit.CAUGHT
    require_writable(options.json, "--json")
    names = list(dict.fromkeys(map(full_name, options.names))) or list(NAMES)  # each once
    if options.verify:
        from exercises._verify import verify

        return verify(names, options.jobs)
    code = _run_all(names, options.jobs, options.json)
    if code != _exit.BROKEN:
        from exercises._progress import read_progress
        from exercises._status import show_summary

        print()
        show_summary(read_progress()[0])
    return code


def _refuse_mixtures(options: argparse.Namespace) -> None:
    """Raise CommandError for what would otherwise be passed over without a word."""
    given = [name for name in ("list", "status", "verify") if getattr(options, name)]
    if len(given) > 1:
        raise CommandError(f"--{given[0]} and --{given[1]} are two commands; give one of them")
    if options.status and options.names:
        raise CommandError("--status shows everything and takes no names")
    if given and options.json is not None:
        raise CommandError(f"--json is for the receipts of a run, --{given[0]} makes none")


def _run_all(names: list[str], jobs: int, json_path: str | None) -> int:
    from exercises._exercise import HealthyPipelineError
    from exercises._pool import prove_all
    from exercises._receipt import show_receipt
    from exercises._run import exit_code

    start = time.perf_counter()
    try:
        receipts = prove_all(names, jobs)
    except HealthyPipelineError as error:
        print(f"error: an exercise is broken itself. {error}", file=sys.stderr)
        return _exit.BROKEN
    _print_table(receipts)
    caught = sum(receipt.caught for _, receipt in receipts)
    for _, receipt in receipts:
        if not receipt.caught:
            show_receipt(receipt)
    tell(
        say(
            "{caught} of {bugs} bugs in {count:exercise|exercises} caught for the right reason "
            "({seconds} s)",
            caught=caught,
            bugs=len(receipts),
            count=len(names),
            seconds=round(time.perf_counter() - start),
        )
    )
    if json_path is not None:
        content = json.dumps([_to_dict(name, r) for name, r in receipts], indent=2)
        write_text(json_path, content + "\n")
    return exit_code([receipt for _, receipt in receipts])


def _print_table(receipts: list[tuple[str, Receipt]]) -> None:
    shown = ""
    for name, receipt in receipts:
        if name != shown:
            shown = name
            print(name)
        bug = receipt.bug
        label = "[OK]  " if receipt.caught else "[SKIP]" if receipt.skipped else "[FAIL]"
        missed = f"{bug.trips} cannot run here" if receipt.skipped else "not caught"
        said = f"caught by {bug.trips}: {bug.reason}" if receipt.caught else missed
        tell(f"{label} {bug.name:<22} {said}", indent="  ", hanging=7)


def _to_dict(name: str, receipt: Receipt) -> dict[str, Any]:
    return {
        "exercise": name,
        "bug": receipt.bug.name,
        "level": receipt.bug.level,
        "check": receipt.bug.trips,
        "reason": receipt.bug.reason,
        "caught": receipt.caught,
        "executed": receipt.executed,
        "problems": list(receipt.problems),
    }


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m exercises",
        description="Inject each known bug and prove that the matching check catches it.",
        epilog="One exercise with everything to look at: python -m exercises.break_shift",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises to run; all without")
    parser.add_argument("--list", action="store_true", help="list the exercises and exit")
    parser.add_argument(
        "--status", action="store_true", help="show what is done and what comes next, and exit"
    )
    parser.add_argument(
        "--verify",
        action="store_true",
        help="for authors: prove bugs, solutions, contracts, margins and texts",
    )
    parser.add_argument(
        "--jobs",
        type=number_to(JOBS_MAX),
        metavar="N",
        default=min(4, os.cpu_count() or 1),
        help="processes to use (%(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the receipts as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
