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
    with view(chromium, page(name), size=size, dark=dark) as shown:
        shown.open_details()
        shown.page.evaluate(axe())
        found = shown.measure(
            """rules => axe.run({ runOnly: rules, resultTypes: ['violations'] }).then(
                result => result.violations.flatMap(rule => rule.nodes.slice(0, 5).map(
                    node => `${rule.id}: ${node.html.slice(0, 200)}\n  ${node.failureSummary}`)))
            """,
            RULES,
        )
    assert not found, "\n".join(found)


@pytest.mark.parametrize("dark", [False, True], ids=["day", "night"])
@pytest.mark.parametrize("name", PAGES)
def test_the_text_of_charts_stands_out(chromium: Browser, name: str, dark: bool) -> None:
    with view(chromium, page(name), dark=dark) as shown:
        shown.open_details()
        assert shown.measure(scripts.FAINT_CHART_TEXT, TEXT_CONTRAST) == []
