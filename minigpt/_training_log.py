"""The log of a run: one JSON object per line, so that a crash costs one line at most."""

from __future__ import annotations

import hashlib
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from minigpt._files import atomic_write

OLD_SUFFIX = ".old"  # the log of the run before, until the new run has saved for the first time
UNREPEATABLE = "tokens_per_second"  # depends on the machine's mood, so no digest may hold it


class TrainingLog:
    """Appends rows to a `.jsonl` file; every row has the key `step`.

    A row goes to the system in one piece and at once, so a reader never waits for it. Several
    programs may read while one writes.
    digest: of all rows in the file but for their speed; a checkpoint keeps it, to know its log.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.old_path = self.path.with_name(self.path.name + OLD_SUFFIX)
        self._rows = hashlib.sha256()

    @property
    def digest(self) -> str:
        """The SHA-256 of all rows so far, as 64 characters."""
        return self._rows.hexdigest()

    def start(self) -> None:
        """Begin an empty log; one that is there stands beside it until `forget_old`.

        Until a new run has saved something, `--resume` means the run before, with its log.
        """
        if self.path.exists() and not self.old_path.exists():
            self.path.replace(self.old_path)
        self._write([])

    def start_at(
        self, step: int, digest: str | None = None, *, beside: str | os.PathLike[str] | None = None
    ) -> bool:
        """Drop what a run that continues after `step` will write again.

        A last line that was cut short by a crash goes too. The file is replaced in one piece.
        digest: what the checkpoint says of the rows up to `step`; where the log has others, the
        old log may have them, or the log `beside` a checkpoint of another folder. Returns False
        when none has; what the log has is kept then.
        """
        paths = [self.path, self.old_path, *([] if beside is None else [Path(beside)])]
        candidates = [_rows_until(step, path) for path in paths]
        fitting = [rows for rows in candidates if digest in (None, _digest_of(rows).hexdigest())]
        self._write((fitting or candidates)[0])
        if fitting and digest is not None:
            self.forget_old()
        return bool(fitting)

    def forget_old(self) -> None:
        """Remove the log of the run before: the folder's checkpoints are of this run now."""
        with suppress(OSError):
            self.old_path.unlink(missing_ok=True)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row, whole or not at all; `ValueError` for NaN or infinity, no JSON."""
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        with self.path.open("ab", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                rest = memoryview(line)
                while rest:
                    rest = rest[file.write(rest) :]
            except BaseException:  # a full disk takes a part: the next row would join it
                with suppress(OSError):
                    file.truncate(end)
                raise
        if end == 0:  # a new file, also where somebody has removed the one before
            self._rows = hashlib.sha256()
        _add_to(self._rows, line)

    def sync(self) -> None:
        """Force the rows to the disk, so that no checkpoint there is ahead of them."""
        with suppress(FileNotFoundError), self.path.open("r+b") as file:
            os.fsync(file.fileno())

    def _write(self, lines: list[bytes]) -> None:
        with atomic_write(self.path) as file:
            file.write(b"".join(lines))
        self._rows = _digest_of(lines)


def _rows_until(step: int, path: Path) -> list[bytes]:
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return [line for line in lines if _step_of(line) <= step]


def _step_of(line: bytes) -> float:
    """Return the step of a row, infinity for a line that is none."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
        return float("inf")


def _digest_of(lines: list[bytes]) -> hashlib._Hash:
    rows = hashlib.sha256()
    for line in lines:
        _add_to(rows, line)
    return rows


def _add_to(rows: hashlib._Hash, line: bytes) -> None:
    row = json.loads(line)
    row.pop(UNREPEATABLE, None)
    rows.update(json.dumps(row, sort_keys=True).encode())
