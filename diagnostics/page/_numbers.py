"""The numbers of a check as a short table: what was measured, cut where it would be a wall."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from diagnostics._text import say, show
from diagnostics.page._markup import Child, Markup, element, isolate, join
from diagnostics.page._number_words import meaning
from diagnostics.page._parts import table

ROWS_MAX = 24  # of one table
PARTS_MAX = 8  # rows for the entries of one mapping
ITEMS_MAX = 8  # items of one list
TEXT_MAX = 160  # characters of one text
_LEAVES = (str, int, float, bool, type(None))


def numbers_table(
    check: str, numbers: Mapping[str, Any], *, skipped: bool = False
) -> Markup | None:
    """Return the numbers of a check by name and with what they are, None where there are none.

    skipped: nothing was measured, so that the names mean parts that are missing.
    Long lists and mappings are cut, and say how many entries they have in all.
    """
    rows = list(_rows(numbers))
    if not rows:
        return None
    left = len(rows) - ROWS_MAX
    shown: list[tuple[Child, Child]] = [
        (_named(path, "" if skipped else meaning(check, path)), isolate(text))
        for path, text in rows[:ROWS_MAX]
    ]
    whole = table(f"numbers of {check}", ("number", "value"), shown)
    more = say("{left} more in the JSON report", left=left)
    return join([whole, element("p", more, class_="quiet small") if left > 0 else None])


def brief(value: Any) -> str:
    """Return any JSON value in one line: floats with four digits, long lists cut."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None:
        return "none"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return show(value)
    if isinstance(value, Mapping):
        return _entries(value) if value else "none"
    if isinstance(value, (list, tuple)):
        return _brief_list(list(value))
    text = str(value) or "none"
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]} ... ({len(text)} characters)"


def _rows(numbers: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], str]]:
    for name, value in numbers.items():
        if not isinstance(value, Mapping) or not value:
            yield (str(name),), brief(value)
            continue
        for part in list(value)[:PARTS_MAX]:
            yield (str(name), str(part)), brief(value[part])
        if len(value) > PARTS_MAX:
            yield (str(name), "..."), f"{_entries(value)} in all"


def _named(path: tuple[str, ...], words: str) -> Markup:
    """Return the name of a number, and below it what it is where that is known."""
    name = isolate(" / ".join(path))
    return join([name, element("span", words, class_="words quiet") if words else None])


def _brief_list(items: list[Any]) -> str:
    if not items:
        return "none"
    if not all(isinstance(item, _LEAVES) for item in items):
        if len(items) > 3 or not all(_is_short(item) for item in items):
            return _entries(items)
        return ", ".join(f"[{_brief_list(list(item))}]" for item in items)
    shown = ", ".join(brief(item) for item in items[:ITEMS_MAX])
    return shown if len(items) <= ITEMS_MAX else f"{shown} ... ({len(items)} in all)"


def _entries(holder: Collection[Any]) -> str:
    return say("{n:entry|entries}", n=len(holder))


def _is_short(item: Any) -> bool:
    """Tell whether an item of a list is itself a short list of numbers."""
    return isinstance(item, (list, tuple)) and all(isinstance(part, _LEAVES) for part in item)
