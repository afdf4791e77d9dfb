"""The top of a report: the verdict, what to mend first and why, or what a pass does not say."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from diagnostics._catalog import CATALOG
from diagnostics._text import say
from diagnostics.page._markup import Markup, element, isolate, isolate_name, join
from diagnostics.page._parts import STATES, copy_line, facts, prose, state
from diagnostics.page._verdicts import Stored, Verdict

# What a pass is worth; the reasons stand in each check's text under "What it cannot see".
LIMITS = (
    "A pass says that this measurement found nothing, not that the model is right: what each "
    "check cannot see stands in its section. Nearly every silent bug still memorises one batch."
)


def headline(report: Stored, heading: str, pictures: Sequence[str] = ()) -> Markup:
    """Return the card with the verdict.

    heading: the element of its title, h1 in a page.
    pictures: the names of those in the page that show what is to be mended first.
    """
    status, title, parts = _verdict(report, pictures)
    return element(
        "section",
        element("p", "Diagnostics report", class_="eyebrow"),
        element(heading, _symbol(status), " ", title, class_=status),
        parts,
        class_=f"headline card {status}-edge",
    )


def counts(report: Stored) -> Markup:
    """Return how many checks passed, warned, failed, raised, were skipped or not asked for."""
    numbers = {name: report.counts[name] for name in STATES}
    asked = {verdict.check for verdict in report.verdicts}
    numbers["none"] = sum(name not in asked for name in CATALOG)
    items = [
        element("li", element("b", number), " ", state(name), class_=None if number else "empty")
        for name, number in numbers.items()
    ]
    return element("ul", items, class_="counts", aria_label="how many checks")


def link(verdict: Verdict) -> Markup:
    """Return the name of a check, linked to its section where there is one."""
    name = isolate_name(verdict.check)
    return element("a", name, href=f"#{verdict.anchor}") if verdict.anchor else name


def picture_links(names: Sequence[str]) -> Markup:
    """Return a link to each of these pictures of the page, by its name without the kind."""
    links = [
        element("a", isolate(name.removeprefix("figure-").replace("-", " ")), href=f"#{name}")
        for name in names
    ]
    return join([[", " if number else None, link] for number, link in enumerate(links)])


def consequence(report: Stored, verdict: Verdict) -> Markup | None:
    """Return the sentence that leads to the failure upstream, None where none explains this one."""
    if not verdict.consequence_of:
        return None
    cause = report.find(verdict.consequence_of)
    name = isolate(verdict.consequence_of) if cause is None else link(cause)
    return join(["likely a consequence of ", name, ": mend that first"])


def _verdict(report: Stored, pictures: Sequence[str]) -> tuple[str, Markup, Markup]:
    """Return the status of the whole, its title, and what stands below the title."""
    first = report.first
    if first is not None:
        title = join([STATES[first.status].word.capitalize(), ": mend ", link(first), " first"])
        parts = [_to_mend(report, first, pictures), _others(report, first)]
        return first.status, title, join(parts)
    passed, warned, skipped = (report.counts[status] for status in ("pass", "warn", "skip"))
    if not passed + warned:
        empty = "Nothing could be measured" if skipped else "No check was asked for"
        return "skip", join(empty), join(_unmeasured(report))
    claims = [say("{n:check|checks} passed", n=passed)]
    if warned:
        claims.append(say("{n} warned", n=warned))
    if skipped:
        claims.append(say("{n} could not be measured", n=skipped))
    status = "skip" if skipped > passed + warned else "warn" if warned else "pass"
    return status, join(", ".join(claims)), join(_good_news(report))


def _to_mend(report: Stored, first: Verdict, pictures: Sequence[str]) -> Markup:
    return join(
        [
            element("p", prose(first.claim), class_="lead"),
            facts(
                [
                    ("why first", _why_first(report, first)),
                    ("measured", prose(first.measured) if first.measured else None),
                    ("expected", prose(first.expected) if first.expected else None),
                    ("where", prose(first.where) if first.where else None),
                    ("pictures", picture_links(pictures) if pictures else None),
                    ("likely cause", _first_cause(first)),
                    ("next", copy_line(first.next_step) if first.next_step else None),
                ]
            ),
        ]
    )


def _why_first(report: Stored, first: Verdict) -> Markup:
    """Say what the failure stands upstream of, as far as the report knows."""
    explained = sum(verdict.consequence_of == first.check for verdict in report.verdicts)
    if explained:
        return join(
            say("it likely explains {n:other finding|other findings} further down", n=explained)
        )
    if sum(verdict.failed for verdict in report.verdicts) == 1:
        return join("no other check failed")
    earlier = report.verdicts[: report.verdicts.index(first)]
    if any(verdict.failed for verdict in earlier):  # see Report.first_failure
        return join("what failed before it raised, or harms nothing where the run is now")
    return join(["it is the first fault in the order of the pipeline: ", isolate(first.stage)])


def _first_cause(first: Verdict) -> Markup | None:
    if first.causes:
        return prose(first.causes[0])
    return join("the numbers do not point to one") if first.status == "fail" else None


def _others(report: Stored, first: Verdict) -> Markup | None:
    others = [v for v in report.verdicts if v is not first and (v.failed or v.status == "warn")]
    if not others:
        return None
    items = [
        [state(v.status), " ", link(v), dash(consequence(report, v) or prose(v.claim))]
        for v in others
    ]
    return _list("Also found", items)


def _good_news(report: Stored) -> Iterable[Markup | None]:
    """Yield what was measured, what asks for a judgement, and what was not measured at all."""
    yield element("p", _places(report), class_="lead")
    warned = [v for v in report.verdicts if v.status == "warn"]
    if warned:
        items = [[link(v), dash(prose(v.claim))] for v in warned]
        yield _list("A person has to judge", items)
    yield _unmeasured(report)
    yield element("p", LIMITS, class_="quiet")


def _unmeasured(report: Stored) -> Markup | None:
    skipped = [v for v in report.verdicts if v.status == "skip"]
    if not skipped:
        return None
    heading = say(
        "{n:check says nothing: it|checks say nothing: they} could not be measured", n=len(skipped)
    )
    return _list(heading, [[link(v), dash(prose(v.next_step or v.claim))] for v in skipped])


def _list(heading: str, items: Sequence[Sequence[Markup | str]]) -> Markup:
    return join(
        [
            element("p", heading, class_="list-title"),
            element("ul", [element("li", item) for item in items], class_="plain"),
        ]
    )


def dash(text: Markup) -> Markup:
    """Return what a sentence adds to the name before it."""
    return element("span", " \N{EN DASH} ", text, class_="quiet")


def _places(report: Stored) -> Markup:
    """Say at which stages something was measured."""
    measured = [stage.name for stage in report.stages if stage.status in ("pass", "warn")]
    if len(measured) == len(report.stages):
        return join(say("Something was measured at all {n} stages.", n=len(measured)))
    names = [[", " if position else "", isolate(name)] for position, name in enumerate(measured)]
    return join(
        [
            say(
                "Something was measured at {n} of {total} stages",
                n=len(measured),
                total=len(report.stages),
            ),
            ": ",
            join(names),
            ".",
        ]
    )


def _symbol(status: str) -> Markup:
    return element("span", STATES[status].symbol, aria_hidden="true")
