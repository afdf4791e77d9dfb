"""A page asks for nothing, runs nothing and reports nothing, whatever its text tries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.pages import needs
from tests.pages.browser import view
from tests.pages.specimens import PAGES, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

ACTIVE = {"script", "iframe", "frame", "object", "embed", "applet", "base", "form", "link", "audio"}
LINKS = {"href", "src", "srcset", "action", "formaction", "poster", "data", "background", "ping"}


@pytest.mark.parametrize("name", PAGES)
def test_no_element_runs_or_loads_anything(name: str) -> None:
    html5lib = needs.package("html5lib")
    tree = html5lib.parse(page(name), namespaceHTMLElements=False)
    for element in tree.iter():
        if not isinstance(element.tag, str):  # a comment
            continue
        tag = element.tag.rpartition("}")[2].lower()
        assert tag not in ACTIVE
        assert tag != "meta" or element.get("http-equiv", "refresh").lower() in (
            "content-security-policy",
            "refresh",
        )
        for attribute, value in element.attrib.items():
            own = attribute.rpartition("}")[2].lower()
            assert not own.startswith("on"), f"<{tag} {own}>"
            assert own not in LINKS or value.startswith("#"), f"<{tag} {own}={value[:80]!r}>"
            assert own != "style" or not re.search(r"url\(|@import|\\", value)
        if tag == "style":
            assert not re.search(r"url\((?!\"?data:)|@import|expression\(", element.text)


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_to_a_place_in_the_page(name: str) -> None:
    html5lib = needs.package("html5lib")
    tree = html5lib.parse(page(name), namespaceHTMLElements=False)
    names = [element.get("id") for element in tree.iter() if element.get("id") is not None]
    assert len(names) == len(set(names)), "an id twice"
    targets = {element.get("href")[1:] for element in tree.iter() if element.get("href")}
    assert targets <= set(names)


@pytest.mark.parametrize("name", PAGES)
def test_a_browser_loads_nothing_runs_nothing_and_complains_about_nothing(
    chromium: Browser, name: str
) -> None:
    with view(chromium, page(name)) as shown:
        _handle_everything(shown.page)
        assert shown.requests == []
        assert shown.messages == []
        assert shown.measure("typeof window.ran") == "undefined"


@pytest.mark.parametrize("name", [name for name in PAGES if "hostile" in name])
def test_the_policy_is_the_second_lock_not_the_first(chromium: Browser, name: str) -> None:
    """Without it the text stays text all the same."""
    with view(chromium, page(name), policy=False) as shown:
        _handle_everything(shown.page)
        assert shown.requests == []
        assert shown.measure("typeof window.ran") == "undefined"


def test_the_harness_sees_a_script_a_request_and_a_message(chromium: Browser) -> None:
    """What the tests above rule out is noticed where it happens."""
    html = (
        "<!DOCTYPE html><title>a</title><img src='https://specimen.invalid/a.png'>"
        "<script>window.ran = 1; console.log('loud')</script>"
    )
    with view(chromium, html) as shown:
        assert shown.requests == ["https://specimen.invalid/a.png"]
        assert "loud" in shown.messages
        assert shown.measure("window.ran") == 1


def _handle_everything(page: Any) -> None:
    """Do to each element what starts a handler: open, point at, focus, click."""
    page.evaluate(
        """() => {
            for (const details of document.querySelectorAll('details')) details.open = true
            for (const element of document.querySelectorAll('body *')) {
                for (const kind of ['mouseover', 'mouseenter', 'focus', 'pointerdown', 'toggle'])
                    element.dispatchEvent(new Event(kind))
                if (element.tagName == 'A') element.click()
            }
        }"""
    )
    page.wait_for_timeout(50)  # milliseconds, for what was put off
