"""Small parts that every page is put together from: states, facts, tables, lines to copy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from diagnostics.page._markup import Child, Markup, element, isolate


@dataclass(frozen=True)
class State:
    """How a verdict is shown: a symbol and a word beside the colour of its CSS class."""

    symbol: str
    word: str


# The class is the status as the JSON report spells it; "none" is what nobody asked for.
STATES: Mapping[str, State] = {
    "pass": State("\N{CHECK MARK}", "passed"),
    "warn": State("!", "warned"),
    "fail": State("\N{BALLOT X}", "failed"),
    "error": State("\N{DOWNWARDS ZIGZAG ARROW}", "raised"),
    "skip": State("\N{WHITE CIRCLE}", "skipped"),
    "none": State("\N{MIDDLE DOT}", "not asked for"),
}


def state(status: str) -> Markup:
    """Return the symbol and the word of a status; a screen reader hears the word alone."""
    shown = STATES[status]
    symbol = element("span", shown.symbol, aria_hidden="true")
    return element("span", symbol, " ", shown.word, class_=f"state {status}")


def prose(text: str) -> Markup:
    """Return a sentence, `quoted code` set as code, that keeps its reading direction to itself."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # a backtick without its partner quotes nothing
        return isolate(text)
    return element("bdi", [element("code", p) if i % 2 else p for i, p in enumerate(parts)])


def copy_line(text: str) -> Markup:
    """Return text to copy as it stands: one click selects all of it."""
    return element("pre", element("code", isolate(text)), class_="copy")


def facts(pairs: Iterable[tuple[str, Child]]) -> Markup:
    """Return a list of labels and what they hold; a pair that holds nothing is left out."""
    rows = [(element("dt", label), element("dd", held)) for label, held in pairs if held]
    return element("dl", rows, class_="facts") if rows else Markup("")


def table(caption: str, headers: Sequence[str], rows: Iterable[Sequence[Child]]) -> Markup:
    """Return a table whose first column names its rows, in a region that scrolls by itself.

    caption: what the table holds; it also names the region, which the keyboard can reach.
    """
    head = element("tr", [element("th", header, scope="col") for header in headers])
    body = [
        element("tr", element("th", name, scope="row"), [element("td", cell) for cell in cells])
        for name, *cells in rows
    ]
    whole = element(
        "table", element("caption", caption), element("thead", head), element("tbody", body)
    )
    return element("div", whole, class_="scroll", role="region", aria_label=caption, tabindex="0")


def folded(summary: Child, *children: Child, open_: bool = False, class_: str = "") -> Markup:
    """Return a part that opens on a click, or on Enter; on paper it is always open."""
    return element(
        "details", element("summary", summary), *children, open=open_, class_=class_ or None
    )
