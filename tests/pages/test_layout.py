"""A page fits a phone, can be read and operated there, and is whole on paper."""

from __future__ import annotations

import io
import re
import unicodedata
from typing import TYPE_CHECKING

import pytest

from tests.pages import needs, scripts
from tests.pages.browser import DESKTOP, NARROW, PHONE, view
from tests.pages.specimens import PAGES, page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

TEXT_MIN_PX = 11


def assert_none(found: list[str]) -> None:
    """What was found stands in the message, one a line."""
    assert not found, "\n".join(found)


@pytest.mark.parametrize("name", PAGES)
def test_nothing_is_wider_than_the_narrowest_phone(chromium: Browser, name: str) -> None:
    """320 CSS pixels, of WCAG 2.1, 1.4.10."""
    with view(chromium, page(name), size=NARROW) as shown:
        assert_none(shown.measure(scripts.TOO_WIDE))
        shown.open_details()
        assert_none(shown.measure(scripts.TOO_WIDE))


@pytest.mark.parametrize("name", PAGES)
def test_wider_spacing_of_text_loses_nothing(chromium: Browser, name: str) -> None:
    """The spacing of WCAG 2.1, 1.4.12."""
    with view(chromium, page(name), size=NARROW) as shown:
        shown.open_details()
        shown.page.add_style_tag(
            content="* { line-height: 1.5 !important; letter-spacing: .12em !important;"
            "word-spacing: .16em !important } p { margin-bottom: 2em !important }"
        )
        assert_none(shown.measure(scripts.TOO_WIDE))


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("size", [NARROW, PHONE, DESKTOP], ids=str)
def test_no_text_is_small(chromium: Browser, name: str, size: tuple[int, int]) -> None:
    """As it is drawn: text in a chart shrinks and grows with it."""
    with view(chromium, page(name), size=size) as shown:
        shown.open_details()
        assert_none(shown.measure(scripts.SMALL_TEXT, TEXT_MIN_PX))


@pytest.mark.parametrize("name", PAGES)
def test_the_keyboard_reaches_everything_and_shows_where_it_is(
    chromium: Browser, name: str
) -> None:
    with view(chromium, page(name)) as shown:
        shown.open_details()
        waiting = shown.measure(scripts.NUMBER_SUMMARIES)
        reached: set[str] = set()
        for _ in range(3 * waiting + 40):
            shown.page.keyboard.press("Tab")
            at = shown.measure(scripts.FOCUS)
            if at is None:  # past the last one
                break
            assert at["visible"], f"the focus cannot be seen on {at['what']}"
            reached.add(at["number"])
        assert reached >= {str(number) for number in range(waiting)}


@pytest.mark.parametrize("name", ["healthy", "failing"])
def test_the_keyboard_opens_what_is_closed(chromium: Browser, name: str) -> None:
    with view(chromium, page(name)) as shown:
        closed = shown.page.locator("details:not([open]) > summary").first
        closed.focus()
        before = shown.page.locator("details[open]").count()
        shown.page.keyboard.press("Enter")
        assert shown.page.locator("details[open]").count() == before + 1


@pytest.mark.parametrize("name", PAGES)
def test_paper_shows_what_is_closed_on_the_screen(chromium: Browser, name: str) -> None:
    with view(chromium, page(name)) as shown:
        shown.page.emulate_media(media="print")
        assert_none(shown.measure(scripts.HIDDEN_IN_CLOSED))


def test_paper_holds_every_word_that_is_meant_for_it(chromium: Browser) -> None:
    pypdf = needs.package("pypdf")
    with view(chromium, page("failing")) as shown:
        printed = pypdf.PdfReader(io.BytesIO(shown.page.pdf(format="A4")))
        shown.page.emulate_media(media="print")
        words = set(re.findall(r"[A-Za-z]{4,}", shown.page.inner_text("main")))
    sheets = "".join(sheet.extract_text() for sheet in printed.pages)
    text = unicodedata.normalize("NFKC", "".join(sheets.split())).lower()  # undoes ligatures
    assert len(words) > 100
    assert {word for word in words if word.lower() not in text} == set()


def test_the_harness_sees_what_is_wide_small_and_unprinted(chromium: Browser) -> None:
    html = (
        "<!DOCTYPE html><p style='width: 40px'>unbreakable_word_of_forty_letters_and_more</p>"
        "<svg viewBox='0 0 100 10' width='50'><text font-size='12' y='9'>half</text></svg>"
        "<details><summary>closed</summary><p>inside</p></details>"
        "<div style='overflow: auto'><p style='width: 900px; text-align: right'>scrolls</p></div>"
    )
    with view(chromium, html, size=NARROW) as shown:
        width, *wide = shown.measure(scripts.TOO_WIDE)
        assert int(width.split()[0]) > NARROW[0]
        assert [line.split()[-1] for line in wide] == ["unbreakable_word_of_forty_letters_and_more"]
        assert shown.measure(scripts.SMALL_TEXT, TEXT_MIN_PX) == ["6.0 px: half"]
        assert [line.split()[-1] for line in shown.measure(scripts.HIDDEN_IN_CLOSED)] == ["inside"]
