"""Submissions: one folder or zip file per student, found, judged and copied into a private folder.

What is copied is what may be graded: `fix_<exercise>.py`, `check_<exercise>.py`, `model.py`,
`answers.json`, and the student's own modules and data beside them, within limits. Links, hidden
files, compiled code and files that would change how Python starts stay behind, each with a note.
Nothing that a student packs raises an exception here.
"""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from exercises.grade._contents import contents_of
from exercises.grade._file_rules import Part, SubmissionLimits, is_junk, part_of
from exercises.grade._notes import note
from exercises.grade._results import Note
from minigpt._cli import CommandError

DEFAULT_LIMITS = SubmissionLimits()
NOTES_MAX = 40
OTHER_ARCHIVES = (".rar", ".7z", ".tar", ".gz", ".tgz", ".bz2", ".xz")


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where one student's submission lies.

    refused: why it is not even opened; opening it gives an empty submission with this note.
    """

    student_id: str
    path: Path
    refused: Note | None = None


@dataclass(frozen=True, kw_only=True)
class Found:
    """The submissions of a class, in the order of their ids; notes for the instructor."""

    sources: tuple[Source, ...]
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Submission:
    """One student's files in a private folder.

    parts: the files to grade.    files: the names of all that were copied, from `folder` on.
    sha256: of names and contents of `files`; the same for a folder and any zip of it.
    notes: what was left out and why; `submission.empty` where there is nothing to grade.
    """

    student_id: str
    folder: Path
    parts: tuple[Part, ...]
    files: tuple[str, ...]
    sha256: str
    notes: tuple[Note, ...] = ()


def find_submissions(folder: Path, *, student: str | None = None) -> Found:
    """Return one source per sub-folder and per zip file; ids are their names, NFC.

    student: the id of the one student whose folder or zip file `folder` itself is.

    Raises CommandError where there is no submission.
    """
    if student is not None:
        if not folder.exists():
            raise CommandError(f"there is no submission {folder}; check the name")
        return Found(sources=(Source(student_id=_as_id(student), path=folder),))
    if not folder.is_dir():
        raise CommandError(f"{folder} is no folder; give the one that holds the submissions")
    sources: dict[str, Source] = {}
    notes: list[Note] = []
    for path in sorted(folder.iterdir(), key=lambda path: (path.is_file(), os.fsencode(path))):
        source = _source_of(path, notes)
        if source is None:
            continue
        kept = sources.setdefault(source.student_id, source)
        if kept is not source:
            notes.append(_graded_once(kept, source))
    if not sources:
        raise CommandError(_nothing_found(folder))
    ordered = tuple(sources[student_id] for student_id in sorted(sources))
    return Found(sources=ordered, notes=(*notes, *_case_clashes(sources)))


def open_submission(
    source: Source, into: Path, *, limits: SubmissionLimits = DEFAULT_LIMITS
) -> Submission:
    """Copy the files of a submission that may be graded into the new folder `into`.

    Raises OSError only for `into`: where it exists already or cannot be written.
    """
    if source.refused is None:
        contents, notes = contents_of(source.path, limits)
    else:
        contents, notes = {}, [source.refused]
    parts = tuple(sorted(part for part in map(part_of, contents) if part is not None))
    if not parts:
        notes.append(
            note(
                "submission.empty",
                "there is nothing to grade: no fix_<exercise>.py, check_<exercise>.py, model.py "
                "or answers.json",
            )
        )
    _write(into, contents)
    return Submission(
        student_id=source.student_id,
        folder=into,
        parts=parts,
        files=tuple(sorted(contents)),
        sha256=content_sha256(contents),
        notes=_limited(notes),
    )


def content_sha256(contents: Mapping[str, bytes]) -> str:
    """Return the digest of named contents, whatever their order."""
    digest = hashlib.sha256()
    for name in sorted(contents):
        for piece in (name.encode(), contents[name]):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()


def _write(into: Path, contents: Mapping[str, bytes]) -> None:
    into.mkdir(mode=0o700, parents=True)
    for name, content in contents.items():
        path = into.joinpath(*name.split("/"))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with path.open("xb") as file:
            file.write(content)


def _limited(notes: list[Note]) -> tuple[Note, ...]:
    """Return the notes, each one once, and how many there are beyond the limit."""
    once = list({(item.reason, item.text): item for item in notes}.values())
    if len(once) > NOTES_MAX:
        more = note(
            "submission.more_notes",
            "{count:more file is|more files are} left out",
            count=len(once) - NOTES_MAX,
        )
        once[NOTES_MAX:] = [more]
    return tuple(once)


def _as_id(name: str) -> str:
    """Return a name as an id that every file can hold; bytes that are no UTF-8 become %FF."""
    text = "".join(
        f"%{ord(character) - 0xDC00:02X}" if 0xDC80 <= ord(character) <= 0xDCFF else character
        for character in name
    )
    return unicodedata.normalize("NFC", text.encode("utf-8", "replace").decode())


def _source_of(path: Path, notes: list[Note]) -> Source | None:
    name = _as_id(path.name)
    stem, suffix = _as_id(path.stem), path.suffix.casefold()
    if is_junk((name,)) or name.startswith("."):
        return None
    if path.is_symlink():
        refused = note(
            "submission.link",
            "nothing is taken: {name} is a link, and links are not followed",
            name=name,
        )
        named = stem if suffix == ".zip" else name
        return Source(student_id=named, path=path, refused=refused)
    if path.is_dir():
        return Source(student_id=name, path=path)
    if suffix == ".zip" and path.is_file():
        return Source(student_id=stem, path=path)
    if suffix in OTHER_ARCHIVES:
        refused = note(
            "submission.archive",
            "nothing is taken: {name} is no zip file; hand in a folder or a .zip",
            name=name,
        )
        return Source(student_id=stem.removesuffix(".tar"), path=path, refused=refused)
    notes.append(
        note(
            "submissions.ignored",
            "{name} is passed over: a submission is a folder or a .zip",
            name=name,
        )
    )
    return None


def _graded_once(kept: Source, other: Source) -> Note:
    return note(
        "submissions.twice",
        "{student} is there twice: {kept} is graded, {other} is not; remove one of them",
        student=kept.student_id,
        kept=_as_id(kept.path.name),
        other=_as_id(other.path.name),
    )


def _case_clashes(ids: Mapping[str, Source]) -> Iterator[Note]:
    folded = Counter(student_id.casefold() for student_id in ids)
    for name in sorted(name for name, count in folded.items() if count > 1):
        alike = sorted(student_id for student_id in ids if student_id.casefold() == name)
        yield note(
            "submissions.case",
            "{students} differ in upper and lower case only; each one is graded by itself",
            students=", ".join(alike),
        )


def _nothing_found(folder: Path) -> str:
    if any(part_of(path.name) for path in folder.iterdir()):
        return (
            f"{folder} is the submission of one student; give the folder above it, or "
            "--student NAME"
        )
    return f"there is no submission in {folder}: it holds no folder and no .zip per student"
