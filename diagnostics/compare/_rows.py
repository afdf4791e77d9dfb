"""The numbers of a comparison as rows of text: both values, the change, and how many moved."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

from diagnostics._render import wrap
from diagnostics._text import Text, printable, say, show
from diagnostics.compare._leaves import (
    LENGTH,
    RESIDUAL,
    ROUNDING,
    ROUNDING_LEARNED,
    Nature,
    spell,
)
from diagnostics.compare._numbers import Group, Moved

CHECKS_MAX = 6
GROUPS_MAX = 3
_NAME_MAX = 34  # characters of a path
_VALUE_MAX = 24  # characters of a value that is no number
_CONTEXT = 6  # characters that are shown before the first one that differs
_PLAIN = re.compile(r"[A-Za-z0-9_.+-]+")  # text that needs no quotes
_TIMES = 10  # from this factor on a change is told as a factor


def number_lines(moved: tuple[Moved, ...], compared: int, *, same_seed: bool) -> list[str]:
    """Return the section about numbers; nothing where every number is equal.

    compared: how many checks have the same verdict in both.
    """
    if not moved:
        return []
    real = [check for check in moved if check.real]
    head = say(
        "numbers: moved in {moved} of {count:check|checks} with the same verdict"
        if real
        else "numbers: none moved in {count:check|checks} with the same verdict",
        moved=len(real),
        count=compared,
    )
    lines = wrap("", head, 2)
    for check in real[:CHECKS_MAX]:
        lines += _check_lines(check)
    if len(real) > CHECKS_MAX:
        rest = real[CHECKS_MAX:]
        text = say(
            "and in {count} more: {names}",
            count=len(rest),
            names=", ".join(check.check for check in rest),
        )
        lines += wrap("  ", text, 4)
    lines += _rounding_lines(moved, same_seed)
    lines += _single_lines(moved)
    return lines


def pair(a: Any, b: Any) -> tuple[str, str]:
    """Return both values, with as many digits or from that place on where they differ."""
    shown = _value(a), _value(b)
    if _is_float(a) and _is_float(b):
        for digits in (6, 9, 17):
            if shown[0] != shown[1]:
                break
            shown = f"{a:.{digits}g}", f"{b:.{digits}g}"
    if shown[0] == shown[1]:  # the text "1" beside the number 1 gets its quotes
        shown = _quoted(a), _quoted(b)
    alike = (x == y for x, y in zip(*shown, strict=False))
    place = sum(itertools.takewhile(bool, alike))
    return _cut(shown[0], place), _cut(shown[1], place)


def change(group: Group) -> str:
    """Return the change of the worst value relative to A: +12 %, x 35, was 0."""
    worst = group.worst
    if worst.nature not in (Nature.MOVED, Nature.ROUNDING) or worst.path[-1] == LENGTH:
        return ""  # no number, or how many there are
    a, b = worst.a, worst.b
    if a == 0:
        return "from 0"
    if b == 0:
        return "to 0"
    try:
        ratio = b / a
    except OverflowError:
        return ""
    if ratio < 0:
        return "other sign"
    if ratio >= _TIMES:
        return f"x {show(float(ratio))}"
    if ratio <= 1 / _TIMES:
        return f"/ {show(1 / ratio)}" if ratio else "to 0"
    return f"{100 * (ratio - 1):+.3g} %"


def _check_lines(check: Moved) -> list[str]:
    head = say(
        "{check}: {moved} of {total:value|values} moved",
        check=check.check,
        moved=check.real_count,
        total=check.total,
    )
    shown = check.real[:GROUPS_MAX]
    names = [_name(group) for group in shown]
    width = max(map(len, names))
    lines = wrap("  ", head, 4)
    for name, group in zip(names, shown, strict=True):
        a, b = pair(group.worst.a, group.worst.b)
        of = f"largest of {group.differing}" if group.differing > 1 else ""
        cells = [f"{a} -> {b}", change(group), of]
        lines += wrap(f"    {name:<{width}}  ", ", ".join(cell for cell in cells if cell), 8)
    if len(check.real) > GROUPS_MAX:
        rest = sum(group.differing for group in check.real[GROUPS_MAX:])
        lines.append(f"    and {rest} more")
    return lines


def _rounding_lines(moved: tuple[Moved, ...], same_seed: bool) -> list[str]:
    groups = [g for check in moved for g in check.groups if g.worst.nature is Nature.ROUNDING]
    if not groups:
        return []
    text = say(
        "{size}: {count:number|numbers} (within {limit} of the value, {learned} where a check "
        "trains, or residuals below {residual})",
        size="of rounding size" if same_seed else "hardly moved",
        count=sum(group.differing for group in groups),
        limit=ROUNDING,
        learned=ROUNDING_LEARNED,
        residual=RESIDUAL,
    )
    return wrap("  ", text, 4)


def _single_lines(moved: tuple[Moved, ...]) -> list[str]:
    lines = []
    for letter in "AB":
        names = [
            f"{check.check}.{name}"
            for check in moved
            for name in (check.only_in_a if letter == "A" else check.only_in_b)
        ]
        if names:
            more = f" and {len(names) - 5} more" if len(names) > 5 else ""
            shown = ", ".join(_ascii(name) for name in names[:5]) + more
            lines += wrap("  ", say("recorded in {x} only: {names}", x=letter, names=shown), 4)
    return lines


def _name(group: Group) -> str:
    name = _ascii(spell(group.worst.path))
    if len(name) <= _NAME_MAX:
        return name
    kept = (_NAME_MAX - 3) // 2
    return f"{name[:kept]}...{name[-kept:]}"


def _value(value: Any) -> str:
    if value is None:
        return "none"
    if _is_float(value) and abs(value) < 1e15:
        return show(value)
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else _quoted(value)


def _quoted(value: Any) -> str:
    return _ascii(json.dumps(value, default=str))


def _cut(text: str, place: int) -> str:
    """Return a text that fits a row, from shortly before a place on where that is far inside."""
    start = max(0, place - _CONTEXT) if len(text) > _VALUE_MAX and place >= _VALUE_MAX // 2 else 0
    text = ("..." if start else "") + text[start:]
    return text if len(text) <= _VALUE_MAX else text[: _VALUE_MAX - 3] + "..."


def _is_float(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _ascii(text: str) -> str:
    """Return a name or value that somebody gave in ASCII, whatever it is made of."""
    return printable(text).encode("ascii", "backslashreplace").decode("ascii")


def headline_pair(group: Group) -> Text:
    """Return the worst value of a group in a few words."""
    a, b = pair(group.worst.a, group.worst.b)
    return say("{name} {a} -> {b}", name=_name(group), a=a, b=b)
