"""axe-core finds nothing to mend, on a desk, at night and on the narrowest phone."""

from __future__ import annotations

import functools
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from tests.pages import needs, scripts
from tests.pages.browser import DESKTOP, NARROW, view
from tests.pages.specimens import PAGES, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
TEXT_CONTRAST = 4.5  # : 1, WCAG 2.1, 1.4.3
SCENES = {"day": (DESKTOP, False), "night": (DESKTOP, True), "narrow": (NARROW, False)}
# axe-core's own look at contrast takes most of its time; these show everything that has a colour.
COLOURFUL = {"failing", "raising", "skipping", "notebook-failing", "run-running", "run-failed"}
# A page that loads itself again: it follows a run, and ends doing so with it.
ACCEPTED = {"run-begun": {"meta-refresh"}, "run-running": {"meta-refresh"}}


@functools.cache
def axe() -> str:
    """Return the source of axe-core, which the package brings along."""
    return (
        resources.files(needs.package("axe_playwright_python"))
        .joinpath("axe.min.js")
        .read_text("utf-8")
    )


@pytest.mark.parametrize("scene", SCENES)
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_no_violation(chromium: Browser, name: str, scene: str) -> None:
    """With everything opened, so that what is inside is looked at, too."""
    size, dark = SCENES[scene]
    contrast = name in COLOURFUL and scene != "narrow"
    with view(chromium, page(name), size=size, dark=dark) as shown:
        shown.open_details()
        shown.page.evaluate(axe())
        found = shown.measure(
            """options => axe.run(options).then(
                result => result.violations.flatMap(rule => rule.nodes.slice(0, 5).map(
                    node => [rule.id, node.html.slice(0, 200), node.failureSummary])))
            """,
            {
                "runOnly": RULES,
                "resultTypes": ["violations"],
                "rules": {"color-contrast": {"enabled": contrast}},
            },
        )
    found = [violation for violation in found if violation[0] not in ACCEPTED.get(name, ())]
    assert not found, "\n".join(map(" ".join, found))


@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("name", PAGES)
def test_text_stands_out_from_what_lies_under_it(chromium: Browser, name: str, dark: bool) -> None:
    with view(chromium, page(name), dark=dark) as shown:
        shown.open_details()
        faint = shown.measure(scripts.FAINT_TEXT, TEXT_CONTRAST)
        assert not faint, "\n".join(faint)


def test_the_harness_sees_faint_text_in_html_and_in_charts(chromium: Browser) -> None:
    html = (
        "<!DOCTYPE html><p style='color: #999'>faint</p><p style='color: #666'>plain</p>"
        "<svg width='90' height='40'><rect width='90' height='40' fill='#036'/>"
        "<text x='9' y='20' fill='#fff'>clear</text><text x='9' y='35'>black</text></svg>"
    )
    with view(chromium, html) as shown:
        faint = shown.measure(scripts.FAINT_TEXT, TEXT_CONTRAST)
    assert [line.split()[-1] for line in faint] == ["faint", "black"]
