"""Two reports side by side: what got worse, what moved, and what can explain it.

A is the report from before, B the one from after. Everything is read from their JSON, so that
reports of other machines and of other days can be compared. Exit codes of `--compare`: 0 no
verdict is worse, 1 at least one is, 2 a report cannot be read.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics._text import Text, say
from diagnostics.compare._leaves import Nature
from diagnostics.compare._numbers import Moved, compare_numbers
from diagnostics.compare._origin import Counts, Facts, explain_origin, measure_facts
from diagnostics.compare._verdicts import ABSENT, Change, compare_verdicts, in_order

KIND = "diagnostics.comparison"
SCHEMA_VERSION = 1
_NOT_COMPARED = ("kind", "schema_version")  # of the format, not of the pipeline


@dataclass(frozen=True, kw_only=True)
class Summary:
    """One of the two reports in a line: its name, its seed, its verdicts, what to mend first."""

    name: str
    seed: Any
    schema_version: Any
    counts: Mapping[str, int]
    first_failure: str | None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What differs between two reports; `str()` tells it for a terminal.

    identical: both have the same content, of which the tool would write the same bytes.
    verdicts: checks with another status or reason, the worst first.
    same: how many checks have the same status and reason in both.
    moved: of those checks, the ones of which a number differs, what matters most first.
    origin: what can explain the differences, as far as two reports can say.
    notes: what a person should know about the comparison itself.
    """

    a: Summary
    b: Summary
    identical: bool
    verdicts: tuple[Change, ...]
    same: int
    moved: tuple[Moved, ...]
    facts: Facts
    origin: tuple[Text, ...]
    notes: tuple[Text, ...]

    @property
    def worse(self) -> tuple[Change, ...]:
        """The checks that fail, warn or are not measured in B, and were better off in A."""
        return tuple(change for change in self.verdicts if change.worse)

    @property
    def exit_code(self) -> int:
        """1 when a verdict is worse in B than in A, coverage that was lost included; else 0."""
        return 1 if self.worse else 0

    def __str__(self) -> str:
        from diagnostics.compare._text import render_comparison

        return render_comparison(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain JSON values."""
        from diagnostics.compare._headline import headline

        facts = self.facts
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "identical": self.identical,
            "worse": len(self.worse),
            "exit_code": self.exit_code,
            "headline": str(headline(self)),
            "a": _summary_to_dict(self.a),
            "b": _summary_to_dict(self.b),
            "verdicts": [change.to_dict() for change in self.verdicts],
            "same_verdicts": self.same,
            "numbers": [moved.to_dict() for moved in self.moved],
            "subject": {name: list(pair) for name, pair in facts.subjects.differing.items()},
            "options": {name: list(pair) for name, pair in facts.subjects.options.items()},
            "environment": {name: list(pair) for name, pair in facts.environment.items()},
            "inputs": {name: list(pair) for name, pair in facts.inputs.items()},
            "origin": [str(sentence) for sentence in self.origin],
            "notes": [str(note) for note in self.notes],
        }


def compare_reports(
    a: Mapping[str, Any], b: Mapping[str, Any], *, names: tuple[str, str] = ("A", "B")
) -> Comparison:
    """Compare two reports as `Report.to_dict` gives them or a file holds them.

    a, b: the report from before and from after.    names: what to call them, such as file names.
    """
    before, after = _by_check(a), _by_check(b)
    verdicts = compare_verdicts(before, after)
    changed = {change.check for change in verdicts}
    same = [check for check in before if check in after and check not in changed]
    moved = compare_numbers(before, after, same)
    facts = measure_facts(a, b)
    groups = [group for check in moved for group in check.groups]
    counts = Counts(
        verdicts=sum(ABSENT not in (change.a.status, change.b.status) for change in verdicts),
        numbers=sum(g.differing for g in groups if g.worst.nature is not Nature.ROUNDING),
        rounding=sum(g.differing for g in groups if g.worst.nature is Nature.ROUNDING),
        changed=(*(change.check for change in verdicts), *(check.check for check in moved)),
        only_a=tuple(change.check for change in verdicts if change.b.status == ABSENT),
        only_b=tuple(change.check for change in verdicts if change.a.status == ABSENT),
    )
    return Comparison(
        a=_summary(a, before, names[0]),
        b=_summary(b, after, names[1]),
        identical=_canonical(a) == _canonical(b),
        verdicts=verdicts,
        same=len(same),
        moved=moved,
        facts=facts,
        origin=explain_origin(facts, counts),
        notes=tuple(_notes(a, b, before, after, same)),
    )


def compare_files(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Comparison:
    """Compare two stored reports, a from before and b from after, called by their file names.

    Raises StoredReportError for a file that cannot be read or holds no report.
    """
    from diagnostics._stored import load_report

    paths = os.fspath(a), os.fspath(b)
    names = tuple(Path(path).name for path in paths)
    if names[0] == names[1]:
        names = paths
    before, after = (load_report(Path(path)) for path in paths)  # a str may be JSON itself
    return compare_reports(before, after, names=(names[0], names[1]))


def _by_check(report: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    return {result["check"]: result for result in report["results"]}


def _summary(
    report: Mapping[str, Any], results: Mapping[str, Mapping[str, Any]], name: str
) -> Summary:
    first = report.get("first_failure")
    return Summary(
        name=name,
        seed=report.get("seed"),
        schema_version=report.get("schema_version"),
        counts=Counter(str(result["status"]) for result in results.values()),
        first_failure=None if first is None else str(first),
    )


def _summary_to_dict(summary: Summary) -> dict[str, Any]:
    return {
        "name": summary.name,
        "seed": summary.seed,
        "schema_version": summary.schema_version,
        "counts": dict(summary.counts),
        "first_failure": summary.first_failure,
    }


def _canonical(report: Mapping[str, Any]) -> str:
    """Return what the tool would write, without times, which differ from run to run."""
    kept: dict[str, Any] = dict(report)
    kept["results"] = [
        {name: value for name, value in result.items() if name != "seconds"}
        for result in report["results"]
    ]
    return json.dumps(kept, sort_keys=True, default=str)


def _notes(
    a: Mapping[str, Any],
    b: Mapping[str, Any],
    before: Mapping[str, Mapping[str, Any]],
    after: Mapping[str, Mapping[str, Any]],
    same: list[str],
) -> list[Text]:
    notes = []
    versions = (a.get("schema_version"), b.get("schema_version"))
    if versions[0] != versions[1]:
        notes.append(
            say(
                "A has version {a} of the format and B version {b}: what one alone records is "
                "not compared",
                a=versions[0],
                b=versions[1],
            )
        )
    rest = [check for check in in_order(same) if _differs_in_words(before[check], after[check])]
    if rest:
        notes.append(say("in words alone these differ: {checks}", checks=", ".join(rest)))
    return notes


def _differs_in_words(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    """True where a sentence differs that no number explains, such as the text that ids begin with.

    What a check is a consequence of does not count: it follows from the other checks.
    """
    words = ("claim", "measured", "expected", "where", "causes")
    return a.get("numbers") == b.get("numbers") and any(a.get(w) != b.get(w) for w in words)
