"""Reports as plain text: ASCII, at most 88 columns, no colour, the headline last.

The headline stands at the end because that is where a terminal leaves the reader.
"""

from __future__ import annotations

import shutil
import textwrap
from collections import Counter

from diagnostics._catalog import CATALOG
from diagnostics._report import Report
from diagnostics._result import CheckResult, Status
from diagnostics._text import printable, say

WIDTH = 88
LABELS = {
    Status.PASS: "[OK]",
    Status.WARN: "[WARN]",
    Status.FAIL: "[FAIL]",
    Status.SKIP: "[SKIP]",
    Status.ERROR: "[ERROR]",
}
_INDENT = 2
_LABEL_WIDTH = 9  # "measured" and "expected", and a space


def render_result(result: CheckResult) -> str:
    """Render one result: a line when it passed, all its fields when it did not."""
    lines = wrap(f"{LABELS[result.status]} {result.check}: ", result.claim, 4)
    if result.consequence_of is not None:
        lines += field("because", f"likely a consequence of {result.consequence_of}: mend it first")
    if result.status is Status.PASS:
        return "\n".join(lines)
    lines += field("measured", result.measured)
    lines += field("expected", result.expected)
    lines += field("where", result.where)
    if result.causes:
        lines.append(" " * _INDENT + "likely causes, most likely first")
        for number, cause in enumerate(result.causes, 1):
            lines += wrap(f"    {number}. ", cause, 7)
    lines += field("next", result.next_step)
    return "\n".join(lines)


def render_report(report: Report) -> str:
    """Render every result by stage, then the counts, then what to mend first."""
    lines: list[str] = []
    stage = ""
    for result in report.results:
        if result.stage != stage:
            stage = result.stage
            lines += ["", f"{stage}"]
        lines += textwrap.indent(render_result(result), "  ").splitlines()
    for note in report.notes:
        lines += ["", *wrap("note: ", note, 6)]
    lines += ["", *_headline(report)]
    return "\n".join(lines).lstrip("\n")


def render_catalog() -> str:
    """Render the catalogue, one line a check, for --list."""
    width = max(map(len, CATALOG))
    lines: list[str] = []
    stage = ""
    for row in CATALOG.values():
        if row.stage != stage:
            stage = row.stage
            lines.append(stage)
        lines += wrap(f"  {row.name:<{width}}  ", row.question, width + 4)
    return "\n".join(lines)


def _headline(report: Report) -> list[str]:
    counts = Counter(result.status for result in report.results)
    shown = ", ".join(f"{counts[s]} {_WORDS[s]}" for s in Status if counts[s])
    took = f" ({report.seconds:.1f} s)" if report.seconds else ""  # a stored report may not know
    lines: list[str] = [
        say("{n:check|checks}: {shown}{took}", n=len(report.results), shown=shown, took=took)
    ]
    first = report.first_failure
    if first is not None:
        lines += wrap("mend first: ", f"{first.check} ({first.stage}): {first.claim}", 4)
        if first.next_step:
            lines += wrap("       next: ", first.next_step, 4)
    elif report.passed and counts[Status.SKIP]:
        lines.append("all checks that could run passed; a skipped check says what unlocks it")
    elif report.passed:
        lines.append("all checks passed")
    else:
        lines.append("nothing could be measured; each skipped check says what unlocks it")
    return lines


_WORDS = {
    Status.PASS: "passed",
    Status.WARN: "warned",
    Status.FAIL: "failed",
    Status.SKIP: "skipped",
    Status.ERROR: "raised",
}


def field(label: str, text: str) -> list[str]:
    """Return a labelled text, indented; nothing for an empty one."""
    if not text:
        return []
    prefix = " " * _INDENT + f"{label:<{_LABEL_WIDTH}}"
    return wrap(prefix, text, len(prefix))


def _columns() -> int:
    """WIDTH, or less on a narrower terminal; COLUMNS says so where there is none."""
    return max(40, min(WIDTH, shutil.get_terminal_size((WIDTH, 24)).columns))


def wrap(prefix: str, text: str, hanging: int) -> list[str]:
    """Return lines that fit the terminal; all but the first hang by so many columns.

    A stored report or another author's check may hold what would move the cursor: it is escaped.
    """
    shown = printable(prefix) + printable(" ".join(text.split()))
    return textwrap.wrap(
        shown,
        _columns() - 2,  # a report indents results by two
        subsequent_indent=" " * hanging,
        break_on_hyphens=False,
        break_long_words=False,
    )
