"""A comparison as plain text: ASCII, at most 88 columns, what matters most on top."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from itertools import groupby

from diagnostics._render import LABELS, wrap
from diagnostics._result import Status
from diagnostics._text import printable, say
from diagnostics.compare._comparison import Comparison, Summary
from diagnostics.compare._headline import headline
from diagnostics.compare._rows import number_lines, pair
from diagnostics.compare._verdicts import ABSENT, Change, Kind

_SHOWN_MAX = 6  # changes told in full, of one kind
_NAME_MAX = 34  # characters of a name beside its values
_WORD_MAX = 60  # characters; a longer word is broken, so that a line stays a line
_WORDS = {
    "pass": "passed",
    "warn": "warned",
    "fail": "failed",
    "skip": "skipped",
    "error": "raised",
}


def render_comparison(comparison: Comparison) -> str:
    """Render what `--compare` prints: headline, verdicts, numbers, environment, origin."""
    c = comparison
    lines = [*_summary("A", c.a), *_summary("B", c.b), ""]
    lines += lines_of("", headline(c), 0)
    if c.identical:
        return "\n".join(lines)
    lines += ["", *_verdicts(c)]
    numbers = number_lines(c.moved, c.same, same_seed=c.facts.same_seed)
    lines += ["", *numbers] if numbers else []
    around = list(_around(c))
    lines += ["", *around] if around else []
    for note in c.notes:
        lines += ["", *lines_of("note: ", note, 6)]
    return "\n".join(lines)


def lines_of(prefix: str, text: str, hanging: int) -> list[str]:
    """Wrap a text whose words may be as long as they like."""
    return wrap(prefix, re.sub(rf"\S{{{_WORD_MAX}}}(?=\S)", r"\g<0> ", text), hanging)


def _summary(letter: str, summary: Summary) -> list[str]:
    counted = [f"{summary.counts[s]} {_WORDS[s]}" for s in Status if summary.counts.get(s)]
    total = sum(summary.counts.values())
    text = say(
        "{name}: {total:check|checks}, {counted}; seed {seed}",
        name=summary.name,
        total=total,
        counted=", ".join(counted) or "none",
        seed=summary.seed,
    )
    return lines_of(f"{letter}  ", text, 3)


def _verdicts(c: Comparison) -> list[str]:
    counts = Counter(
        "worse" if change.worse else "better" if change.kind is Kind.BETTER else "changed otherwise"
        for change in c.verdicts
    )
    told = [f"{counts[name]} {name}" for name in ("worse", "better", "changed otherwise")]
    told = [text for text in told if not text.startswith("0 ")] + [f"{c.same} the same"]
    lines = ["verdicts: " + ", ".join(told)]
    for kind, changes in groupby(c.verdicts, key=lambda change: change.kind):
        lines.append(f"  {kind}")
        lines += _of_kind(list(changes))
    a, b = (summary.first_failure or "nothing" for summary in (c.a, c.b))
    if a != b:
        lines += lines_of("  ", say("mend first: {a} in A, {b} in B", a=a, b=b), 4)
    elif c.a.first_failure is not None:
        lines += lines_of("  ", say("mend first, in both: {a}", a=a), 4)
    return lines


def _of_kind(changes: list[Change]) -> list[str]:
    """Tell each change; those that no report explains further stand together in one line."""
    absent = [change for change in changes if ABSENT in (change.a.status, change.b.status)]
    bare = [change for change in absent if change.kind is not Kind.FAILS]
    told = [change for change in changes if change not in bare]
    lines = []
    for change in told[:_SHOWN_MAX]:
        lines += _change(change)
    if len(told) > _SHOWN_MAX:
        rest = told[_SHOWN_MAX:]
        text = say(
            "and {count} more: {names}", count=len(rest), names=", ".join(r.check for r in rest)
        )
        lines += lines_of("    ", text, 6)
    for letter in "AB":
        there = [c.check for c in bare if (c.b if letter == "A" else c.a).status == ABSENT]
        if there:
            text = say(
                "in {letter} only: {names} (not asked for in the other, or unknown to its version)",
                letter=letter,
                names=", ".join(there),
            )
            lines += lines_of("    ", text, 6)
    return lines


def _change(change: Change) -> list[str]:
    labels = " -> ".join(
        "(none)" if side.status == ABSENT else LABELS[Status(side.status)]
        for side in (change.a, change.b)
    )
    prefix = f"    {labels} {printable(change.check)}: "
    upstream = change.b.consequence_of
    if upstream is not None:
        return lines_of(prefix, say("likely a consequence of {upstream}", upstream=upstream), 6)
    if change.kind in (Kind.OTHERWISE, Kind.REASON, Kind.OTHER):
        reasons = say("{a} -> {b}", a=change.a.reason or "none", b=change.b.reason or "none")
        lines = lines_of(prefix, reasons, 6)
        return [*lines, *_told("A", change.a.claim), *_told("B", change.b.claim)]
    if change.kind in (Kind.BETTER, Kind.MEASURED):
        lines = lines_of(prefix, say("{claim}", claim=change.b.claim), 6)
        return [*lines, *_told("A", change.a.claim)]
    lines = lines_of(prefix, say("{claim}", claim=change.b.claim), 6)
    return [
        *lines,
        *_told("A", change.a.measured or change.a.claim),
        *_told("B", change.b.measured),
    ]


def _told(letter: str, text: str) -> list[str]:
    return lines_of(f"      {letter}  ", say("{text}", text=text), 9) if text else []


def _around(c: Comparison) -> Iterator[str]:
    """Yield what differs around the reports, and what can come from there."""
    facts = c.facts
    differing = [*facts.subjects.named.items(), *facts.environment.items(), *facts.inputs.items()]
    if differing:
        yield "subject, environment and inputs"
        width = min(_NAME_MAX, max(len(name) for name, _ in differing))
        for name, values in differing:
            shown = printable(name.replace("_", " "))
            short = len(shown) <= width
            text = "{} -> {}".format(*pair(*values))
            prefix = f"  {shown:<{width}}  " if short else "  "  # spaces in it are kept
            yield from lines_of(prefix, text if short else f"{shown}  {text}", 6)
    if c.origin:
        yield "what is known, and what can explain it"
        for sentence in c.origin:
            yield from lines_of("  - ", sentence, 4)
