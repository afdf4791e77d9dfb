"""One check in a report: its verdict in a line, and behind it everything that was measured."""

from __future__ import annotations

from collections.abc import Sequence

from diagnostics._catalog import CATALOG
from diagnostics.page._explanation import explanation
from diagnostics.page._markup import Child, Markup, element, isolate, join
from diagnostics.page._numbers import numbers_table
from diagnostics.page._parts import copy_line, facts, folded, prose, state
from diagnostics.page._report_headline import consequence, picture_links
from diagnostics.page._verdicts import Stored, Verdict

_OPEN = ("fail", "error", "warn")  # what a person has to look at


def check(report: Stored, verdict: Verdict, pictures: Sequence[str] = ()) -> Markup:
    """Return one verdict, open where it is bad news, with its numbers and text.

    pictures: the names of those in the page that show what it measured.
    """
    return _folded(
        verdict,
        _question(verdict),
        _findings(report, verdict, pictures),
        _numbers(report, verdict),
        _about(verdict),
        open_=verdict.status in _OPEN,
    )


def check_in_brief(report: Stored, verdict: Verdict) -> Markup:
    """Return one verdict, closed, without pictures, numbers and text."""
    return _folded(verdict, _findings(report, verdict))


def _folded(verdict: Verdict, *inside: Child, open_: bool = False) -> Markup:
    name = isolate(verdict.check)
    heading = element("h4" if verdict.anchor else "b", name)
    summary = element(
        "summary",
        state(verdict.status),
        heading,
        element("span", prose(verdict.claim), class_="claim"),
    )
    return element(
        "details",
        summary,
        element("div", *inside, class_="inside"),
        id=verdict.anchor or None,
        class_=f"check {verdict.status}-check{' consequence' if verdict.consequence_of else ''}",
        open=open_,
    )


def _question(verdict: Verdict) -> Markup | None:
    if verdict.check not in CATALOG:
        return None
    return element("p", CATALOG[verdict.check].question, class_="quiet")


def _findings(report: Stored, verdict: Verdict, pictures: Sequence[str] = ()) -> Markup:
    return facts(
        [
            ("because", consequence(report, verdict)),
            ("measured", prose(verdict.measured) if verdict.measured else None),
            ("expected", prose(verdict.expected) if verdict.expected else None),
            ("where", prose(verdict.where) if verdict.where else None),
            ("likely causes", _causes(verdict)),
            ("pictures", picture_links(pictures) if pictures else None),
            ("next", copy_line(verdict.next_step) if verdict.next_step else None),
            ("reason id", _reason(verdict)),
        ]
    )


def _reason(verdict: Verdict) -> Markup | None:
    """Return the id for `Pipeline(allow=...)`, which a passed check has no use for."""
    wanted = verdict.reason and verdict.status != "pass"
    return element("code", isolate(verdict.reason)) if wanted else None


def _causes(verdict: Verdict) -> Markup | None:
    """Return the causes, most likely first; a failure without any says so."""
    if verdict.causes:
        return element("ol", [element("li", prose(cause)) for cause in verdict.causes])
    return join("the numbers do not point to one") if verdict.status == "fail" else None


def _numbers(report: Stored, verdict: Verdict) -> Markup | None:
    if verdict.numbers and verdict.numbers == report.environment:
        told = element("a", "All numbers of this check", href="#section-environment")
        return element("p", told, class_="screen-only")
    shown = numbers_table(verdict.check, verdict.numbers, skipped=verdict.status == "skip")
    return folded("All numbers of this check", shown, class_="more") if shown else None


def _about(verdict: Verdict) -> Markup | None:
    text = explanation(verdict.check)
    return folded("About this check", text, class_="more about") if text else None
