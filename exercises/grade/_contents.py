"""Taking files out of a submission: the ones to grade first, the others as far as they fit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from exercises.grade._file_rules import (
    Part,
    SubmissionLimits,
    left_out,
    part_of,
    why_not_graded,
    why_not_taken,
)
from exercises.grade._folder_reader import list_folder
from exercises.grade._listing import Entry, LeftOutError, Listing, RefusedError
from exercises.grade._results import Note
from exercises.grade._zip_reader import list_zip

BOMB_RATIO = 100  # deflate packs source about 5 times and never more than 1032 times


def contents_of(path: Path, limits: SubmissionLimits) -> tuple[dict[str, bytes], list[Note]]:
    """Return name -> content of what is taken from a folder or zip file, and notes on the rest."""
    try:
        with _listed(path, limits) as listing:
            entries = _without_duplicates(_without_wrapper(listing.entries), listing.notes)
            return _read_all(entries, listing.notes, limits), listing.notes
    except RefusedError as error:
        return {}, [error.note]


@contextmanager
def _listed(path: Path, limits: SubmissionLimits) -> Iterator[Listing]:
    if path.is_dir():
        yield list_folder(path, limits)
    else:
        with list_zip(path, limits) as listing:
            yield listing


def _without_wrapper(entries: list[Entry]) -> list[Entry]:
    """See through folders that hold everything, as `alice/` does in most zip files."""
    while entries and len({entry.parts[0] for entry in entries}) == 1:
        if any(len(entry.parts) == 1 for entry in entries):
            break
        entries = [Entry(e.parts[1:], e.size, e.packed, e.read) for e in entries]
    return entries


def _without_duplicates(entries: list[Entry], notes: list[Note]) -> list[Entry]:
    """Leave out every file whose place another one claims; nobody can say which one is meant."""
    places = Counter(map(_place, entries))
    folders = {_place(entry)[:depth] for entry in entries for depth in range(1, len(entry.parts))}
    kept = []
    for entry in entries:
        place = _place(entry)
        count = places[place] + (place in folders)
        if count == 1:
            kept.append(entry)
        else:
            notes.append(left_out("submission.duplicate", entry.parts, count=count))
    return kept


def _place(entry: Entry) -> tuple[str, ...]:
    """Return where a file is stored, on a system that does not tell upper from lower case."""
    part = _part_of(entry)
    return tuple(name.casefold() for name in ((part.name,) if part else entry.parts))


def _part_of(entry: Entry) -> Part | None:
    return part_of(entry.parts[0]) if len(entry.parts) == 1 else None


def _read_all(
    entries: list[Entry], notes: list[Note], limits: SubmissionLimits
) -> dict[str, bytes]:
    """Read the files to grade first, then the others as long as the limit allows."""
    contents: dict[str, bytes] = {}
    left = limits.total_bytes
    for entry in sorted(entries, key=lambda entry: (_part_of(entry) is None, entry.parts)):
        part = _part_of(entry)
        if part is None and (why := why_not_taken(entry.parts)) is not None:
            notes.append(why)
            continue
        if part is None and (why := why_not_graded(entry.parts)) is not None:
            notes.append(why)
        limit = left if part is None else min(left, limits.graded_file_bytes)
        try:
            content = _read(entry, limit)
        except LeftOutError as error:
            notes.append(error.note)
            continue
        contents["/".join(entry.parts) if part is None else part.name] = content
        left -= len(content)
    return contents


def _read(entry: Entry, limit: int) -> bytes:
    """Read a file. Raises LeftOutError for one that is too large, without unpacking it."""
    if entry.size <= limit:
        return entry.read(limit)
    if entry.size > BOMB_RATIO * entry.packed:
        facts = {"size": entry.size, "packed": entry.packed, "limit": limit}
        raise LeftOutError(left_out("submission.zip_bomb", entry.parts, **facts))
    raise LeftOutError(left_out("submission.too_large", entry.parts, size=entry.size, limit=limit))
