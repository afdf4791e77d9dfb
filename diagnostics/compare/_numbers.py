"""Two reports, number by number, for the checks whose verdict and reason are the same."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from diagnostics._catalog import CATALOG
from diagnostics.compare._leaves import LENGTH, Difference, Nature, Path, difference, leaves, spell
from diagnostics.compare._verdicts import in_order

_TABLE_MIN = 9  # a mapping of so many entries is one table, such as a norm for every parameter


@dataclass(frozen=True, kw_only=True)
class Group:
    """The differences inside one list or table, told by the one that matters most."""

    worst: Difference
    differing: int
    total: int

    @property
    def rank(self) -> tuple[int, float]:
        """What matters more sorts first: the nature, then the size relative to the value."""
        return self.worst.nature, -self.worst.relative


@dataclass(frozen=True, kw_only=True)
class Moved:
    """What differs among the numbers of one check.

    groups: what matters most first; those with Nature.ROUNDING last.
    only_in_a, only_in_b: names of numbers that one report alone has.
    total: how many values both have, lengths of lists not counted.
    """

    check: str
    groups: tuple[Group, ...]
    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    total: int

    @property
    def real(self) -> tuple[Group, ...]:
        """The groups with a difference that is not of rounding size."""
        return tuple(group for group in self.groups if group.worst.nature is not Nature.ROUNDING)

    @property
    def real_count(self) -> int:
        """How many values differ by more than rounding, lengths of lists not counted."""
        return sum(g.differing for g in self.real if g.worst.path[-1] != LENGTH)

    def to_dict(self) -> dict[str, Any]:
        """Return it as plain values."""
        return {
            "check": self.check,
            "values": self.total,
            "only_in_a": list(self.only_in_a),
            "only_in_b": list(self.only_in_b),
            "groups": [
                {
                    "path": spell(group.worst.path),
                    "nature": group.worst.nature.name.lower(),
                    "a": group.worst.a,
                    "b": group.worst.b,
                    "relative": group.worst.relative if group.worst.relative <= 2 else None,
                    "differing": group.differing,
                    "values": group.total,
                }
                for group in self.groups
            ],
        }


def compare_numbers(
    a: Mapping[str, Mapping[str, Any]], b: Mapping[str, Mapping[str, Any]], checks: Iterable[str]
) -> tuple[Moved, ...]:
    """Return the checks of which a number differs, those that matter most first.

    a, b: results by the name of their check.    checks: those to compare.
    The check `environment` is left out: its numbers are the environment itself.
    """
    found = []
    for check in in_order(list(checks)):
        if check != "environment":
            moved = _compare(check, a[check].get("numbers") or {}, b[check].get("numbers") or {})
            if moved.groups or moved.only_in_a or moved.only_in_b:
                found.append(moved)
    found.sort(key=lambda m: m.groups[0].rank if m.groups else (len(Nature), 0.0))
    return tuple(found)


def _compare(check: str, a: Mapping[str, Any], b: Mapping[str, Any]) -> Moved:
    before, after = (dict(leaves(numbers)) if numbers else {} for numbers in (a, b))
    clashes = _clashes(before, after)
    for path in clashes:  # one side has a value where the other has a table: compare them whole
        before = _fold(before, path, a)
        after = _fold(after, path, b)
    learned = check in CATALOG and CATALOG[check].learns
    shared = [path for path in before if path in after]
    places = _places(shared, a)
    totals = Counter(places.values())
    differing: dict[Path, list[Difference]] = {}
    for path in shared:
        found = difference(check, path, before[path], after[path], learned=learned)
        if found is not None:
            differing.setdefault(places[path], []).append(found)
    groups = [
        Group(
            worst=min(inside, key=lambda d: (d.nature, -d.relative)),
            differing=sum(d.nature is not Nature.ROUNDING for d in inside) or len(inside),
            total=totals[place],
        )
        for place, inside in differing.items()
    ]
    return Moved(
        check=check,
        groups=tuple(sorted(groups, key=lambda group: group.rank)),
        only_in_a=_names(before, after),
        only_in_b=_names(after, before),
        total=sum(path[-1] != LENGTH for path in shared),
    )


def _places(paths: Iterable[Path], numbers: Mapping[str, Any]) -> dict[Path, Path]:
    """Return for each value the list or table it belongs to, or its own path if it stands alone.

    Values at different places of lists belong together: cases[0].loss and cases[1].loss.
    """
    places: dict[Path, Path] = {}
    tables: dict[Path, bool] = {}
    for path in paths:
        parent = path[:-1]
        without_places = tuple(part for part in path if isinstance(part, str))
        if path[-1] == LENGTH:
            places[path] = path
        elif len(without_places) < len(path):
            places[path] = without_places
        else:
            if parent not in tables:
                tables[parent] = bool(parent) and _is_table(_walk(numbers, parent))
            places[path] = parent if tables[parent] else path
    return places


def _is_table(mapping: Mapping[str, Any]) -> bool:
    return len(mapping) >= _TABLE_MIN or any(not str(key).isidentifier() for key in mapping)


def _clashes(a: Mapping[Path, Any], b: Mapping[Path, Any]) -> list[Path]:
    """Return the paths that are a value in one and lead further in the other."""
    inner = [{path[:depth] for path in side for depth in range(1, len(path))} for side in (a, b)]
    return sorted((set(a) & inner[1]) | (set(b) & inner[0]), key=repr)


def _fold(values: Mapping[Path, Any], path: Path, numbers: Mapping[str, Any]) -> dict[Path, Any]:
    kept = {other: value for other, value in values.items() if other[: len(path)] != path}
    return kept | {path: _walk(numbers, path)}


def _walk(numbers: Any, path: Path) -> Any:
    for part in path:
        numbers = numbers[part]
    return numbers


def _names(own: Mapping[Path, Any], others: Mapping[Path, Any]) -> tuple[str, ...]:
    """Return the shortest paths that tell what one side alone has, each once.

    What is beyond the end of a shorter list is left to its length, which both sides have.
    """
    known = {path[:depth] for path in others for depth in range(1, len(path) + 1)}
    found = set()
    for path in own:
        if path not in others:
            heads = (path[:depth] for depth in range(1, len(path) + 1))
            shortest = next(head for head in heads if head not in known)
            if not isinstance(shortest[-1], int):
                found.add(spell(shortest))
    return tuple(sorted(found))
