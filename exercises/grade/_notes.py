"""Notes: one thing to tell a student or an instructor, with the facts it was made from."""

from __future__ import annotations

from typing import Any

from diagnostics._text import say
from exercises.grade._results import Note


def note(reason: str, template: str, **facts: Any) -> Note:
    """Return a note whose sentence is the template filled with the facts, as `say` fills it."""
    return Note(reason=reason, text=say(template, **facts), facts=facts)
