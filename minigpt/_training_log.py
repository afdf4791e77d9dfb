"""The log of a run: one JSON object per line, so that a crash costs one line at most."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from minigpt._files import atomic_write


class TrainingLog:
    """Appends rows to a `.jsonl` file; every row has the key `step`.

    A row goes to the system in one piece and at once, so a reader never waits for it. Several
    programs may read while one writes.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)

    def start_at(self, step: int) -> None:
        """Drop what a run that continues after `step` will write again; step -1 drops all.

        A last line that was cut short by a crash goes too. The file is replaced in one piece.
        """
        kept = b"".join(line for line in self._lines() if step >= 0 and _step_of(line) <= step)
        with atomic_write(self.path) as file:
            file.write(kept)

    def append(self, row: dict[str, Any]) -> None:
        """Write one row; `ValueError` for NaN or infinity, which JSON cannot hold."""
        line = json.dumps(row, allow_nan=False) + "\n"
        with self.path.open("ab") as file:
            file.write(line.encode())

    def _lines(self) -> list[bytes]:
        return self.path.read_bytes().splitlines(keepends=True) if self.path.exists() else []


def _step_of(line: bytes) -> float:
    """Return the step of a row, infinity for a line that is none."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else float("inf")
    except (ValueError, TypeError, KeyError):
        return float("inf")
