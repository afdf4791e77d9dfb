"""A check's own text as HTML: why it matters, how it is measured, what it cannot see."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from diagnostics._catalog import CATALOG, explain
from diagnostics.page._markup import Markup, element, join
from diagnostics.page._parts import copy_line, prose

HEADINGS = ("Why it matters", "How it is measured", "What it cannot see", "Break it")


@cache  # to find a docstring, all of a check's file is parsed
def explanation(check: str) -> Markup | None:
    """Return headings and paragraphs of a check's docstring, None for a check without one."""
    if check not in CATALOG:
        return None
    return join(_blocks(explain(check).splitlines()))


def _blocks(lines: list[str]) -> Iterator[Markup]:
    paragraph: list[str] = []
    for line in [*lines, ""]:
        heading = line in HEADINGS
        if paragraph and (heading or not line.strip()):
            yield _paragraph(" ".join(paragraph))
            paragraph = []
        if heading:
            yield element("h5", line)
        elif line.strip():
            paragraph.append(line.strip())


def _paragraph(text: str) -> Markup:
    return copy_line(text) if text.startswith("python -m ") else element("p", prose(text))
