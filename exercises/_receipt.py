"""The receipt of one bug: what its run proved, line by line, and what it did not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from exercises._exercise import Receipt
from exercises._terminal import put


def show_receipt(receipt: Receipt) -> None:
    """Print one line for each thing that was to be proved."""
    print(f"receipt of {receipt.bug.name}")
    if receipt.skipped:
        put(f"[SKIP] {receipt.skipped}", indent=2, hanging=7)
        return
    for proved, sentence in receipt_lines(receipt):
        put(f"{'[OK]  ' if proved else '[FAIL]'} {sentence}", indent=2, hanging=7)


def receipt_lines(receipt: Receipt) -> Iterator[tuple[bool, str]]:
    """Yield (whether it holds, a sentence); all hold exactly when the bug was caught."""
    bug, line, result, report = receipt.bug, receipt.line, receipt.result, receipt.report
    if line is None or result is None or report is None:
        yield from ((False, problem) for problem in receipt.problems)
        return
    yield True, say("applied: line {n} of {file}", n=line.number, file=Path(line.path).name)
    if receipt.executed:
        yield True, say("executed: that line ran {n:time|times}", n=receipt.executed)
    else:
        yield False, "the marked line was never executed"
    if not result.failed:
        yield False, say("{check} did not fail: it says {s}", check=bug.trips, s=str(result.status))
    elif result.reason != bug.reason:
        yield (
            False,
            say(
                "{check} failed for {reason}, not for {wanted}",
                check=bug.trips,
                reason=result.reason,
                wanted=bug.reason,
            ),
        )
    else:
        yield True, say("caught by {check}, for {reason}", check=bug.trips, reason=bug.reason)
    failed = [other for other in report.results if other.failed and other.check != bug.trips]
    if not failed:
        yield True, _nothing_upstream(receipt)
    for other in failed:
        yield False, f"{other.check}, upstream of {bug.trips}, failed too ({other.reason})"
    yield True, say("restored: the healthy pipeline passes {check} again", check=bug.trips)


def _nothing_upstream(receipt: Receipt) -> str:
    report = receipt.report
    before = list(CATALOG).index(receipt.bug.trips)
    again = 0 if report is None else len(report.results) - 1
    if not before:
        return "nothing upstream failed: it is the first check of all"
    return say(
        "nothing upstream failed: of {before:check|checks} before it {again} ran on the broken "
        "pipeline, {rest} read no part that the bug replaces",
        before=before,
        again=again,
        rest=before - again,
    )
