"""The page of a report: what to mend first, the path through the stages, and every check.

It is made from the report's plain values alone, so that a stored JSON report becomes the same
page, byte for byte.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from diagnostics.page._figures import Figure, figures
from diagnostics.page._frame import document
from diagnostics.page._markup import Child, Markup, element, isolate, join
from diagnostics.page._parts import folded, prose, state
from diagnostics.page._report_check import check, check_in_brief
from diagnostics.page._report_facts import debug_figures, environment, origin, rerun
from diagnostics.page._report_headline import consequence, counts, dash, headline, link
from diagnostics.page._report_path import path, path_note
from diagnostics.page._report_style import REPORT_STYLE
from diagnostics.page._style import fragment_style
from diagnostics.page._verdicts import Stage, Stored, Verdict, read_stored

PAPER = element(
    "p",
    "On paper, numbers and texts of checks that passed, were skipped or are likely a consequence "
    "of another are left out, but for those that were opened before printing.",
    class_="quiet paper-only",
)
FRAGMENT = "diagnostics-report"  # the class that keeps the fragment's style to itself


def render_report_page(content: Mapping[str, Any]) -> str:
    """Return a whole HTML page for what `Report.to_dict()` returned, now or when it was stored.

    Self-contained, without scripts; the same bytes for the same content. ValueError where the
    content is no report.
    """
    report = read_stored(content)
    drawn = figures(content)
    body = join(
        [
            headline(report, "h1", [f.name for f in drawn if _shows(f, report.first)]),
            counts(report),
            _section("path", "The path", path(report), path_note(report)),
            _gallery(report, drawn),
            _section(
                "checks", "The checks", PAPER, [_stage(report, s, drawn) for s in report.stages]
            ),
            _section("note-down", "Figures to note before asking", debug_figures(report)),
            _section("environment", "Environment", environment(report)),
            _section("origin", "How it was measured", origin(report)),
        ]
    )
    return document(_title(report), body, style=REPORT_STYLE, footer=rerun(report))


def render_report_fragment(content: Mapping[str, Any]) -> str:
    """Return the headline, the path and the verdicts in brief, to stand inside another page.

    It has a style of its own that reaches nothing else, no ids and no links, so that it may stand
    many times in one notebook; a page in a frame would bring its pictures and texts each time,
    and a notebook keeps all of them in its file. ValueError where the content is no report.
    """
    report = read_stored(content, linked=False)
    notable = [v for v in report.verdicts if v.status != "pass"]
    passed = [v for v in report.verdicts if v.status == "pass"]
    return element(
        "div",
        element("style", Markup(fragment_style(FRAGMENT, REPORT_STYLE))),
        headline(report, "h3"),
        counts(report),
        path(report),
        path_note(report),
        element(
            "div",
            [check_in_brief(report, verdict) for verdict in notable],
            _passed(report, passed) if passed else None,
            class_="card rows",
        ),
        element(
            "p", "All of it, with pictures: ", element("code", "report.to_html()"), class_="quiet"
        ),
        class_=FRAGMENT,
        lang="en",
    )


def _title(report: Stored) -> str:
    if report.first is not None:
        return say("Diagnostics: mend {check} first", check=report.first.check)
    return "Diagnostics report"


def _section(name: str, heading: str, *children: Child) -> Markup:
    label = f"section-{name}"
    return element("section", element("h2", heading, id=label), *children, aria_labelledby=label)


def _stage(report: Stored, stage: Stage, drawn: Sequence[Figure]) -> Markup | None:
    """Return a stage with its checks, None where none of them was asked for."""
    if not stage.verdicts:
        return None
    checks = [
        check(report, verdict, [f.name for f in drawn if f.shows(verdict.check)])
        for verdict in stage.verdicts
    ]
    return element(
        "section",
        element("h3", isolate(stage.name)),
        element("div", checks, _unasked(report, stage), class_="card rows"),
        id=stage.anchor,
        class_="stage",
    )


def _unasked(report: Stored, stage: Stage) -> Markup | None:
    """Return the other checks of a stage, None where the report has them all."""
    names = [row.name for row in CATALOG.values() if row.stage == stage.name]
    left = [name for name in names if report.find(name) is None]
    return element("p", "Not asked for: ", ", ".join(left), class_="unasked") if left else None


def _gallery(report: Stored, drawn: Sequence[Figure]) -> Markup | None:
    """Return all pictures in the open, for those who look before they read, bad news first."""
    if not drawn:
        return None
    pictures = sorted(drawn, key=lambda picture: not _bad_news(report, picture))  # stable
    shown = [element("div", _source(report, picture), picture.markup) for picture in pictures]
    return _section("pictures", "The pictures", element("div", shown, class_="gallery"))


def _source(report: Stored, picture: Figure) -> Markup:
    """Return the line above a picture: the check that measured it, and bad news that it shows."""
    verdict = report.find(picture.check)
    name = isolate(picture.check) if verdict is None else link(verdict)
    bad = _bad_news(report, picture)
    told = [
        [state(v.status), " ", link(v), dash(consequence(report, v) or prose(v.claim))] for v in bad
    ]
    if verdict not in bad:
        told.insert(0, [name])
    return join([element("p", line, class_="quiet source") for line in told])


def _bad_news(report: Stored, picture: Figure) -> list[Verdict]:
    """Return the verdicts that a person has to look at, and that this picture shows."""
    bad = ("fail", "error", "warn")
    return [v for v in report.verdicts if picture.shows(v.check) and v.status in bad]


def _shows(picture: Figure, verdict: Verdict | None) -> bool:
    return verdict is not None and picture.shows(verdict.check)


def _passed(report: Stored, passed: Sequence[Verdict]) -> Markup:
    summary = say("{n:check|checks} passed", n=len(passed))
    checks = [check_in_brief(report, verdict) for verdict in passed]
    return folded(summary, checks, class_="check passed")
