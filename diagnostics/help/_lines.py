"""Lines for a terminal: wrapped at 80 columns, whatever stands in the text."""

from __future__ import annotations

import re
import textwrap

from diagnostics._text import printable

COLUMNS = 80
# what a line never ends inside of: a command in backticks, a number and its percent sign
_UNBROKEN = re.compile(r"`[^`]{1,60}`|\d %")
_HELD = "\0"  # a space in it; printable text holds none


def lines_of(prefix: str, text: str, hanging: int | None = None) -> list[str]:
    """Return the text behind its prefix; further lines hang by so many columns, or below it.

    A word that is longer than a line, which only a stranger's text has, is cut.
    """
    held = _UNBROKEN.sub(lambda match: match[0].replace(" ", _HELD), printable(text))
    lines = textwrap.wrap(
        held,
        COLUMNS,
        initial_indent=prefix,
        subsequent_indent=" " * (len(prefix) if hanging is None else hanging),
        break_on_hyphens=False,
    )
    return [line.replace(_HELD, " ") for line in lines] or [prefix.rstrip()]
