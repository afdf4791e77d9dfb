"""Sentences that say the same in the next process: without addresses and temporary names.

What a user's code raises may quote `<Model object at 0x7f...>` or the folder that a check made for
it. Both differ from run to run, say nothing, and would make equal reports differ.
"""

from __future__ import annotations

import re
import tempfile
from typing import Final

_ADDRESS: Final = re.compile(r"\bat 0x[0-9A-Fa-f]*")
_OWN_FOLDERS: Final = ("diagnostics-", "ranks-")  # prefixes of those that the checks make
_RANDOM: Final = r"[a-z0-9_]{0,8}"  # what tempfile puts behind a prefix; a message may be cut


def steady(text: str) -> str:
    """Return a plain str with each address as 0x... and a check's own folder as <temporary>."""
    text = _ADDRESS.sub("at 0x...", str(text))
    if not any(prefix in text for prefix in _OWN_FOLDERS):
        return text
    # a path that is shown by its repr has its backslashes doubled
    root = re.escape(tempfile.gettempdir()).replace(r"\\", r"\\{1,2}")
    prefixes = "|".join(_OWN_FOLDERS)
    return re.sub(rf"{root}(?:/|\\{{1,2}})(?:{prefixes}){_RANDOM}", "<temporary>", text)
