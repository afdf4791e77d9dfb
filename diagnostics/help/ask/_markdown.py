"""Markdown around text of others: nothing in it can become a heading, a link or a mention.

Inside a code span or a fence Markdown knows no markup at all, so every text that a report or a
file brings along stands in one of the two. What is not printable is shown as its escape.
"""

from __future__ import annotations

import re

from diagnostics._text import printable

_FENCE_MIN = 3


def span(text: str) -> str:
    """Return one line as a code span, between more backticks than stand in a row inside."""
    line = printable(" ".join(text.split())) or " "
    ticks = "`" * (_longest_run(line) + 1)
    # a space beside a backtick is taken away again, so that both ends may be one
    padding = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{ticks}{padding}{line}{padding}{ticks}"


def fence(text: str, language: str = "text") -> str:
    """Return lines as a fenced block, whose fence is longer than any row of backticks inside."""
    lines = [_printable_line(line) for line in text.rstrip().split("\n")]
    ticks = "`" * max(_FENCE_MIN, _longest_run("\n".join(lines)) + 1)
    return "\n".join([f"{ticks}{language}", *lines, ticks])


def _printable_line(line: str) -> str:
    """Keep tabs, which indent code; show any other control or format character."""
    return "\t".join(printable(part) for part in line.rstrip("\r").split("\t"))


def _longest_run(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
