"""Lines for a terminal: wrapped at 80 columns, whatever stands in the text."""

from __future__ import annotations

import textwrap

from diagnostics._text import printable

COLUMNS = 80


def lines_of(prefix: str, text: str, hanging: int | None = None) -> list[str]:
    """Return the text behind its prefix; further lines hang by so many columns, or below it.

    A word that is longer than a line, which only a stranger's text has, is cut.
    """
    return textwrap.wrap(
        printable(text),
        COLUMNS,
        initial_indent=prefix,
        subsequent_indent=" " * (len(prefix) if hanging is None else hanging),
        break_on_hyphens=False,
    ) or [prefix.rstrip()]
