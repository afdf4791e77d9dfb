"""The frame of every page: one file of HTML without scripts, fonts or pictures from elsewhere."""

from __future__ import annotations

from diagnostics.page._chart_style import CHART_STYLE
from diagnostics.page._markup import Markup, element
from diagnostics.page._style import STYLE

# Whatever a hostile text might smuggle in, the browser loads nothing and runs nothing.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'; "
    "form-action 'none'"
)


def document(
    title: str,
    body: Markup,
    *,
    refresh_seconds: int | None = None,
    style: str = "",
    footer: Markup | None = None,
) -> str:
    """Return a whole HTML page in English: `body` becomes its <main>, which a skip link leads to.

    title: plain text for the browser's tab.    refresh_seconds: load the file again so often.
    style: CSS rules of this kind of page, after the common ones.    footer: below <main>.
    The bytes depend on the arguments alone.
    """
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        None if refresh_seconds is None else _refresh(refresh_seconds),
        element("title", title),
        element("style", Markup(STYLE + CHART_STYLE + style)),
    )
    page = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip-link"),
        element("main", body, id="main"),
        None if footer is None else element("footer", footer),
    )
    return f"<!doctype html>\n{element('html', head, page, lang='en')}\n"


def _refresh(seconds: int) -> Markup:
    return element("meta", http_equiv="refresh", content=seconds)
