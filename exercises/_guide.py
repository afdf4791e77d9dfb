"""Where the guide tells more: its headings, and the lines they stand on. Imports no torch."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping

from minigpt.corpus import data_path, read_text

HEADING = re.compile(r"(?:= )+(?P<title>[^=]+?)(?: =)+")


def guide_reference(heading: str) -> str:
    """Return "The check shift, data/guide.txt line 240". Raises KeyError for no heading."""
    return f"{heading}, data/guide.txt line {heading_lines()[heading]}"


@functools.cache
def heading_lines() -> Mapping[str, int]:
    """Return each heading of the guide, without its signs, and its line, counted from 1."""
    found: dict[str, int] = {}
    for number, line in enumerate(read_text(data_path("guide.txt")).splitlines(), 1):
        match = HEADING.fullmatch(line.strip())
        if match:
            found.setdefault(match["title"].strip(), number)
    return found
