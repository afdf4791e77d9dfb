"""What a student has done, in one file that no crash and no second process can lose entries of.

`work/progress.json` is read, changed and replaced in one piece, under a lock. A file that cannot
be read, or that a newer version wrote, is set aside under another name and never overwritten.
Imports no torch.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from minigpt._cli import describe_error
from minigpt._files import write_text

FOLDER = Path("work")
NAME = "progress.json"
VERSION = 1


@dataclass
class Repair:
    """One file to repair. attempts: digests of different code that was tried, in order."""

    verified: int = 0
    attempts: list[str] = field(default_factory=list)
    repaired: bool = False


@dataclass
class Score:
    """What a student's own check told apart."""

    accepted: int
    rights: int
    caught: int
    wrongs: int

    @property
    def complete(self) -> bool:
        """Whether every correct implementation was accepted and every buggy one caught."""
        return self.accepted == self.rights and self.caught == self.wrongs


@dataclass
class Entry:
    """What was done about one check.

    caught: bug -> whether its run caught it.
    predicted: bug -> whether the first guess named the right check.
    repairing: the wrong implementation that work/fix_<check>.py began with.
    repairs: each wrong implementation that was begun.
    check: the last score of the student's own check.
    """

    caught: dict[str, bool] = field(default_factory=dict)
    predicted: dict[str, bool] = field(default_factory=dict)
    repairing: str = ""
    repairs: dict[str, Repair] = field(default_factory=dict)
    check: Score | None = None

    @property
    def repaired(self) -> bool:
        """Whether one file at least was repaired."""
        return any(repair.repaired for repair in self.repairs.values())


@dataclass
class Progress:
    """Everything that was done, by check."""

    checks: dict[str, Entry] = field(default_factory=dict)

    def of(self, check: str) -> Entry:
        """Return the entry of a check, an empty one where nothing was done."""
        return self.checks.setdefault(check, Entry())


def read_progress(folder: Path | None = None) -> tuple[Progress, str]:
    """Return what was done, and a sentence about a file that cannot be used, else ""."""
    path = (folder or FOLDER) / NAME
    progress, problem = _read(path)
    if problem:
        problem = f"{path} {problem}; the next entry sets it aside and starts a new one"
    return progress, problem


def update_progress(
    check: str, change: Callable[[Entry], object], folder: Path | None = None
) -> Entry:
    """Change one check's entry in the file; return the entry as it is now.

    Where nothing can be written the change is made all the same, for this run, and a line on
    standard error says that it was not kept.
    """
    path = (folder or FOLDER) / NAME
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _locked(path.with_name(".progress.lock")):
            progress, problem = _read(path)
            if problem:
                aside = _set_aside(path)
                print(f"note: {path} {problem}; it is kept as {aside}", file=sys.stderr)
            change(progress.of(check))
            content = {"version": VERSION, **asdict(progress)}
            write_text(path, json.dumps(content, indent=1, sort_keys=True) + "\n")
    except OSError as error:
        print(f"note: progress was not kept: {describe_error(error)}", file=sys.stderr)
        progress, _ = _read(path)
        change(progress.of(check))
    return progress.of(check)


def _read(path: Path) -> tuple[Progress, str]:
    try:
        content = json.loads(path.read_bytes())
    except FileNotFoundError:
        return Progress(), ""
    except (OSError, ValueError, RecursionError):
        return Progress(), "is damaged and cannot be read"
    version = content.get("version") if isinstance(content, dict) else None
    if type(version) is int and version > VERSION:
        return Progress(), f"is of version {version}, newer than the {VERSION} that is known here"
    try:
        return Progress({name: _entry(plain) for name, plain in content["checks"].items()}), ""
    except (TypeError, KeyError, ValueError, AttributeError):
        return Progress(), "is damaged and cannot be read"


def _entry(plain: dict[str, Any]) -> Entry:
    """Build an entry; raises for anything that is not as `asdict` wrote it."""
    score = plain["check"]
    return Entry(
        caught={str(name): value is True for name, value in plain["caught"].items()},
        predicted={str(name): value is True for name, value in plain["predicted"].items()},
        repairing=str(plain["repairing"]),
        repairs={str(name): _repair(each) for name, each in plain["repairs"].items()},
        check=None if score is None else Score(**{name: int(score[name]) for name in score}),
    )


def _repair(plain: dict[str, Any]) -> Repair:
    return Repair(
        verified=int(plain["verified"]),
        attempts=[str(digest) for digest in plain["attempts"]],
        repaired=plain["repaired"] is True,
    )


def _set_aside(path: Path) -> Path:
    """Rename the file to the first free progress.<n>.json and return that."""
    number = 1
    while (aside := path.with_name(f"{path.stem}.{number}{path.suffix}")).exists():
        number += 1
    path.rename(aside)
    return aside


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep other processes out of the block; the system unlocks for a process that is killed."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        _lock(descriptor)
        yield
    finally:
        os.close(descriptor)


if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_LOCK, 1)  # gives up after ten seconds

else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
