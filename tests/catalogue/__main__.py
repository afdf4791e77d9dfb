"""`python -m tests.catalogue`: run the table and print it; `--headline` runs every check."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tqdm import tqdm

from diagnostics import CheckResult, diagnose
from exercises._lab import Lab
from tests.catalogue._row import Caught
from tests.catalogue._table import caught_rows, run, unseen_rows


def main(arguments: Sequence[str]) -> int:
    """Print one line per bug, then the counts; return 1 if one was not caught as it should be."""
    rows = [row for row in caught_rows() if not _asked(arguments) or row.id in _asked(arguments)]
    missed = 0
    with Lab() as lab:
        for row in tqdm(rows, disable=None, leave=False):
            found = _headline(row, lab) if "--headline" in arguments else _found(row, lab)
            missed += found != row.reason
            mark = "caught" if found == row.reason else f"MISSED: {found}"
            print(f"{row.id:<40} {row.reason:<44} {mark}")
    for unseen in unseen_rows():
        print(f"{unseen.id:<40} not seen: {unseen.why}")
    print(f"\n{len(rows) - missed} of {len(rows)} injected bugs caught for the right reason")
    print(f"{len(unseen_rows())} cannot be seen from outside")
    return int(missed > 0)


def _asked(arguments: Sequence[str]) -> set[str]:
    return {argument for argument in arguments if not argument.startswith("--")}


def _found(row: Caught, lab: Lab) -> str:
    return run(row.check, row.inject, lab).reason


def _headline(row: Caught, lab: Lab) -> str:
    """Return the reason under which a whole report would show the bug first."""
    try:
        built = row.inject(lab)
        if isinstance(built, CheckResult):
            return built.reason
        report = diagnose(built, skip=["overfit"])
        if report.first_failure is not None:
            return report.first_failure.reason
        named = [result.reason for result in report.results if result.check == row.check]
        return named[0]  # a warning has no headline: the check's own word counts
    finally:
        lab.restore()


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
