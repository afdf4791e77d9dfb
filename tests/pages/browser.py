"""A headless Chromium that serves a page from memory and notes whatever else it asks for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.pages import needs

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Request, Route

ADDRESS = "https://specimen.test/page.html"
PHONE, NARROW, DESKTOP = (390, 844), (320, 640), (1280, 800)


@dataclass
class View:
    """A page on the screen, and what it did on the way there.

    requests: addresses that it asked for besides its own; each was refused.
    messages: what reached the console, violations of the content policy among it.
    """

    page: Page
    requests: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)

    def open_details(self) -> None:
        """Open every <details>, as a reader may."""
        self.page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")

    def measure(self, function: str, argument: Any = None) -> Any:
        """Return what a JavaScript function finds in the page."""
        return self.page.evaluate(function, argument)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; skips the test where playwright or Chromium is not installed."""
    sync_api = needs.package("playwright.sync_api")
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync"]
    with sync_api.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=needs.chromium(),
            args=["--no-sandbox", "--disable-gpu", "--no-first-run", *quiet],
        )
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def view(
    browser: Browser,
    html: str,
    *,
    size: tuple[int, int] = DESKTOP,
    dark: bool = False,
    policy: bool = True,
    scale: float = 1.0,
) -> Iterator[View]:
    """Show a page. size: CSS pixels.    policy: False switches its content policy off."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]},
        color_scheme="dark" if dark else "light",
        reduced_motion="reduce",
        bypass_csp=not policy,
        device_scale_factor=scale,
        locale="en-GB",
    )
    try:
        shown = View(context.new_page())

        def answer(route: Route, request: Request) -> None:
            if request.url == ADDRESS:
                route.fulfill(body=html.encode(), content_type="text/html; charset=utf-8")
            else:
                route.abort()

        def note(request: Request) -> None:
            if request.url != ADDRESS:
                shown.requests.append(request.url)

        context.route("**/*", answer)
        shown.page.on("request", note)
        shown.page.on("console", lambda message: shown.messages.append(message.text))
        shown.page.on("pageerror", lambda error: shown.messages.append(str(error)))
        shown.page.on("dialog", lambda dialog: shown.messages.append(dialog.message))
        shown.page.goto(ADDRESS, wait_until="load")
        yield shown
    finally:
        context.close()
