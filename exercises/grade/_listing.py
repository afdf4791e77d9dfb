"""What lies in a submission, before any of it is taken: the same picture of folder and zip."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from exercises.grade._file_rules import Parts
from exercises.grade._notes import note
from exercises.grade._results import Note

CHUNK_BYTES = 64 * 1024


class RefusedError(Exception):
    """Nothing of the submission is taken; the note says why."""

    def __init__(self, reason: Note) -> None:
        super().__init__(reason.text)
        self.note = reason


class LeftOutError(Exception):
    """One file is not taken; the note says why."""

    def __init__(self, reason: Note) -> None:
        super().__init__(reason.text)
        self.note = reason


@dataclass(frozen=True)
class Entry:
    """One ordinary file.

    size: bytes it unpacks to, as announced.    packed: bytes that it takes up in the zip.
    read: (limit) -> its bytes. Raises LeftOutError for more bytes than that, and where it cannot.
    """

    parts: Parts
    size: int
    packed: int
    read: Callable[[int], bytes]


@dataclass
class Listing:
    """The files that may be taken, and notes about the others."""

    entries: list[Entry] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)

    def add(self, entry: Entry, files_max: int) -> None:
        """Add a file. Raises RefusedError for one too many."""
        if len(self.entries) >= files_max:
            raise too_many_files(files_max)
        self.entries.append(entry)


def too_many_files(files_max: int) -> RefusedError:
    """Return the error for a submission of more files than anybody has written."""
    return RefusedError(
        note(
            "submission.too_many_files",
            "nothing is taken: the submission has more than {limit} files; hand in your own files "
            "only, without environments and data sets",
            limit=files_max,
        )
    )
