"""The check vector: what all checks say of one broken pipeline, not only the one that is meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tqdm import tqdm

from diagnostics import Status, diagnose
from diagnostics._catalog import CATALOG
from diagnostics._render import LABELS
from diagnostics._text import say
from exercises._console import columns
from exercises._exercise import Receipt
from exercises._lab import Lab
from exercises._reads_table import READS
from exercises._terminal import put


def check_vector(lab: Lab, receipt: Receipt) -> Mapping[str, Status]:
    """Return the status of every check in the catalogue's order, on the pipeline with the bug.

    A check that reads no part that the bug replaces passes, as it does on the healthy pipeline.
    """
    known = {} if receipt.report is None else {r.check: r.status for r in receipt.report.results}
    names = list(CATALOG)
    after = names[names.index(receipt.bug.trips) + 1 :]
    try:
        broken = receipt.bug.break_it(lab)
        replaced = lab.replaced_parts(broken)
        concerned = [name for name in after if replaced is None or READS[name] & replaced]
        if concerned:
            with tqdm(total=len(concerned), disable=None, leave=False) as bar:
                report = diagnose(broken, seed=lab.seed, only=concerned, progress=_moving(bar))
            known |= {result.check: result.status for result in report.results}
    finally:
        lab.restore()
    return {name: known.get(name, Status.PASS) for name in names}


def show_vector(statuses: Mapping[str, Status]) -> None:
    """Print the statuses as words, several to a line, and say how many failed."""
    line = " "
    for name, status in statuses.items():
        word = f" {LABELS[status]} {name} "
        if len(line + word) > columns():
            print(line.rstrip())
            line = " "
        line += word
    print(line.rstrip())
    failed = [n for n, status in statuses.items() if status in (Status.FAIL, Status.ERROR)]
    if len(failed) > 1:
        text = "{count} of {total} checks fail; the first one is {first}, mend it first"
        put(say(text, count=len(failed), total=len(statuses), first=failed[0]), indent=2)


def _moving(bar: tqdm[None]) -> Callable[[str, int, int], None]:
    return lambda name, index, total: bar.update(index - bar.n) and None
