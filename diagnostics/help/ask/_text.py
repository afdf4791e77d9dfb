"""Parts of a request for help: text of a report or a file, with its paths shortened."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from diagnostics._text import printable
from diagnostics.help.ask._markdown import fence, span
from diagnostics.help.ask._privacy import shorten_paths

FILL_IN = "**FILL IN:**"
_LISTED_MAX = 20  # lines of one list
_WIDTH = 88  # columns of a sentence in a fence, which does not wrap by itself


def bullets(rows: Sequence[str]) -> str:
    """Return the rows, each of which begins with "- ", and count those beyond the first 20."""
    more = [f"- and {len(rows) - _LISTED_MAX} more"] if len(rows) > _LISTED_MAX else []
    return "\n".join([*rows[:_LISTED_MAX], *more])


def quote(text: str) -> str:
    """Return text of a report as a code span, in one line."""
    return span(shorten_paths(text))


def sentences(*told: str) -> str:
    """Return sentences of the report as a fence, wrapped; a line break inside one becomes text."""
    lines = [
        line
        for sentence in told
        for line in textwrap.wrap(
            printable(shorten_paths(sentence)),
            _WIDTH,
            subsequent_indent="   ",
            break_on_hyphens=False,
            break_long_words=False,
        )
    ]
    return fence("\n".join(lines))


def block(text: str, language: str = "text") -> str:
    """Return lines of a report or a file as a fence, as they are."""
    return fence(shorten_paths(text), language)
