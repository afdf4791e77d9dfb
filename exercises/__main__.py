"""`python -m exercises`: run every exercise and prove that each bug is caught.

Exit codes: 0 every bug was caught for the right reason, 1 one was not, 2 usage, 3 an exercise is
broken itself, 130 interrupted.
"""

from __future__ import annotations

import argparse
import ast
import difflib
import json
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from exercises import _exit
from minigpt._cli import CommandError, Parser, require_writable, run_command
from minigpt._files import write_text

if TYPE_CHECKING:
    from exercises._exercise import Receipt

NAMES = tuple(f"break_{check}" for check in CATALOG)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code."""
    return run_command(lambda: _run(_parse(arguments)))


def _run(options: argparse.Namespace) -> int:
    if options.list:
        for name in NAMES:
            print(textwrap.fill(f"{name:<26} {_first_line(name)}", 80, subsequent_indent=" " * 27))
        return 0
    require_writable(options.json, "--json")
    names = list(dict.fromkeys(map(_full_name, options.names)))  # each once
    return _run_all(names or list(NAMES), options.jobs, options.json)


def _full_name(name: str) -> str:
    """Return break_shift for shift, break_shift and break_shift.py."""
    check = name.removeprefix("break_").removesuffix(".py")
    if check not in CATALOG:
        close = difflib.get_close_matches(check, CATALOG, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise CommandError(
            f"there is no exercise {name!r}; {meant}`python -m exercises --list` shows them all"
        )
    return f"break_{check}"


def _run_all(names: list[str], jobs: int, json_path: str | None) -> int:
    from exercises._exercise import HealthyPipelineError
    from exercises._pool import prove_all
    from exercises._run import exit_code, show_receipt

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
    print(
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
        label = "[OK]  " if receipt.caught else "[FAIL]"
        print(
            f"  {label} {bug.name:<22} caught by {bug.trips}: {bug.reason}"
            if receipt.caught
            else f"  {label} {bug.name:<22} not caught"
        )


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


def _first_line(name: str) -> str:
    source = Path(__file__).with_name(f"{name}.py").read_text(encoding="utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").split("\n")[0]


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Parser(
        prog="python -m exercises",
        description="Inject each known bug and prove that the matching check catches it.",
        epilog="One exercise with everything to look at: python -m exercises.break_shift",
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="exercises to run; all without")
    parser.add_argument("--list", action="store_true", help="list the exercises and exit")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        default=min(4, os.cpu_count() or 1),
        choices=range(1, 65),
        help="processes to use (%(default)s)",
    )
    parser.add_argument("--json", metavar="FILE", help="also write the receipts as JSON")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
