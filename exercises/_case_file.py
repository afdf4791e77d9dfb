"""What a student did in each case, kept in one file from call to call.

The file holds what was done, never a score: costs are worked out when they are shown. It knows
cases by their codes, so that it gives nothing away and outlives another numbering.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from diagnostics._text import Text, say
from exercises._progress import _locked
from minigpt._cli import describe_error
from minigpt._files import write_text

SCHEMA_VERSION = 1
DEFAULT_PATH = Path("work") / "cases.json"


@dataclass(frozen=True)
class Attempt:
    """What was done in one case, in order and each thing once.

    probes: looked at.    failed: those of them that were checks and failed.
    answers: checks that were named.    causes: codes of the causes that were named.
    """

    probes: tuple[str, ...] = ()
    failed: tuple[str, ...] = ()
    answers: tuple[str, ...] = ()
    causes: tuple[str, ...] = ()

    def with_done(self, **done: str) -> Attempt:
        """Return the attempt with one more thing in each named list; a repetition changes none."""
        lists = {name: getattr(self, name) for name in done}
        return dataclasses.replace(
            self,
            **{
                name: was if done[name] in was else (*was, done[name])
                for name, was in lists.items()
            },
        )


_LISTS = tuple(field.name for field in dataclasses.fields(Attempt))


class CaseFile:
    """The attempts of every case, by code.

    notes: what was wrong with the file. A damaged or newer one is renamed, never overwritten.
    """

    def __init__(self, path: str | os.PathLike[str] = DEFAULT_PATH) -> None:
        self.path = Path(path)
        self.notes: list[Text] = []

    def read(self) -> Mapping[str, Attempt]:
        """Return what the file says; nothing when there is none."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):  # not JSON, or not even text
            self._set_aside("damaged", "it is not JSON")
            return {}
        version = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            self._set_aside("newer", f"its version is {version} and {SCHEMA_VERSION} is known here")
            return {}
        return self._read_entries(content)

    def record(self, code: str, attempt: Attempt, **done: str) -> Attempt:
        """Add what was done to a case's attempt, keep it in the file, and return it.

        The file is read again first: another window may have written since. Where it cannot be
        written, `attempt` goes on in memory and a line on standard error says so.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with _locked(self.path.with_name(".cases.lock")):
                attempts = dict(self.read())
                attempts[code] = attempts.get(code, Attempt()).with_done(**done)
                self._write(attempts)
        except OSError as error:
            print(f"note: this was not kept: {describe_error(error)}", file=sys.stderr)
            return attempt.with_done(**done)
        return attempts[code]

    def _read_entries(self, content: Any) -> dict[str, Attempt]:
        entries = content.get("cases") if isinstance(content, dict) else None
        if not isinstance(entries, dict):
            self._set_aside("damaged", "it holds no cases")
            return {}
        good = {code: _attempt(entry) for code, entry in entries.items()}
        attempts = {code: attempt for code, attempt in good.items() if attempt is not None}
        if len(attempts) < len(entries):
            bad = len(entries) - len(attempts)
            self._set_aside("damaged", say("{bad:case|cases} of it cannot be read", bad=bad))
            self._write(attempts)
        return attempts

    def _write(self, attempts: Mapping[str, Attempt]) -> None:
        cases = {code: dataclasses.asdict(attempt) for code, attempt in attempts.items()}
        content = {"schema_version": SCHEMA_VERSION, "cases": cases}
        write_text(self.path, json.dumps(content, indent=1) + "\n")

    def _set_aside(self, what: str, why: str) -> None:
        names = [self.path.with_name(f"{self.path.name}.{what}")]
        while names[-1].exists():  # an earlier one stays
            names.append(self.path.with_name(f"{self.path.name}.{what}{len(names) + 1}"))
        self.path.rename(names[-1])
        self.notes.append(
            say(
                "[WARN] {path} cannot be used: {why}; it is kept as {name}",
                path=str(self.path),
                why=why,
                name=names[-1].name,
            )
        )


def _attempt(entry: Any) -> Attempt | None:
    """Return the attempt that an entry stands for; None when it is none."""
    if not isinstance(entry, dict):
        return None
    lists = {name: entry.get(name, []) for name in _LISTS}
    for words in lists.values():
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            return None
    return Attempt(**{name: tuple(words) for name, words in lists.items()})
