"""Reading a TOML table field by field, with errors that name the place: `check.shift.points`."""

from __future__ import annotations

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NoReturn

from minigpt._cli import CommandError


@dataclass(frozen=True)
class Table:
    """One table of a file. `path` is what to say for it: "rubric.toml: check.shift"."""

    file: str
    path: str
    content: Mapping[str, Any]

    def fail(self, key: str, wanted: str) -> NoReturn:
        """Raise CommandError that says what was wanted for a key, and what came."""
        came = _describe(self.content[key]) if key in self.content else "nothing"
        raise CommandError(f"{self.file}: {self.place(key)} must be {wanted}, got {came}")

    def place(self, key: str) -> str:
        """Return the key's full path, as one would write it in the file."""
        return f"{self.path}.{key}" if self.path else key

    def require_known(self, known: Collection[str]) -> None:
        """Raise CommandError for a key that nobody reads, which is mostly a typing error."""
        for key in self.content:
            if key not in known:
                close = difflib.get_close_matches(key, known, n=1)
                hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
                raise CommandError(f"{self.file}: there is no {self.place(_short(key))}; {hint}")

    def table(self, key: str) -> Table:
        """Return the table under a key; an empty one where it is missing."""
        value = self.content.get(key, {})
        if not isinstance(value, dict):
            self.fail(key, "a table")
        return Table(self.file, self.place(_short(key)), value)

    def number(self, key: str, default: float, *, least: float = 0.0, most: float = 1e9) -> float:
        """Return a finite number within its limits."""
        value = self.content.get(key, default)
        fits = type(value) in (int, float) and math.isfinite(value) and least <= value <= most
        if not fits:
            self.fail(key, f"a number from {least:g} to {most:g}")
        return float(value)

    def integer(self, key: str, default: int, *, least: int, most: int) -> int:
        """Return a whole number within its limits."""
        value = self.content.get(key, default)
        if type(value) is not int or not least <= value <= most:
            self.fail(key, f"a whole number from {least} to {most}")
        return value

    def names(self, key: str, known: Collection[str]) -> tuple[str, ...]:
        """Return a list of known names, each one once; all of them where it is missing."""
        value = self.content.get(key, list(known))
        if not isinstance(value, list) or not value:
            self.fail(key, "a list of names")
        for name in value:
            if not isinstance(name, str) or name not in known:
                raise CommandError(
                    f"{self.file}: {self.place(key)} must hold names of checks, and "
                    f"{_describe(name)} is none"
                )
        return tuple(dict.fromkeys(value))

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a text or a list of texts as a tuple."""
        value = self.content.get(key)
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(text, str) and text.strip() for text in values):
            self.fail(key, "a text, or a list of texts")
        return tuple(values)

    def moment(self, key: str) -> datetime | None:
        """Return a date and time with its zone; None where it is missing."""
        value = self.content.get(key)
        if value is None:
            return None
        if not isinstance(value, datetime) or value.tzinfo is None:
            self.fail(key, "a date and time with a zone, such as 2030-01-31T23:59:00+01:00")
        return value


def _describe(value: Any) -> str:
    if isinstance(value, str):
        return f'"{_short(value)}"'
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 200:
        return "a larger number"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return {"dict": "a table", "list": "a list"}.get(type(value).__name__, str(value))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."
