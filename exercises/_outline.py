"""What there is to do, read from the source: exercises, their bugs and levels. Imports no torch."""

from __future__ import annotations

import ast
import difflib
import functools
from collections.abc import Mapping
from pathlib import Path

from diagnostics._catalog import CATALOG
from minigpt._cli import CommandError

NAMES = tuple(f"break_{check}" for check in CATALOG)


def full_name(name: str) -> str:
    """Return break_shift for shift, break_shift and break_shift.py. Raises CommandError."""
    check = name.removeprefix("break_").removesuffix(".py")
    if check not in CATALOG:
        close = difflib.get_close_matches(check, CATALOG, n=1)
        meant = f"did you mean {close[0]}? " if close else ""
        raise CommandError(
            f"there is no exercise {name!r}; {meant}`python -m exercises --list` shows them all"
        )
    return f"break_{check}"


def first_line(name: str) -> str:
    """Return the first line of an exercise's docstring."""
    return (ast.get_docstring(_parsed(name)) or "").split("\n")[0]


@functools.cache
def bug_levels(check: str) -> Mapping[str, int]:
    """Return the names of an exercise's bugs in order, each with its level."""
    found: dict[str, int] = {}
    for node in ast.walk(_parsed(f"break_{check}")):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Bug":
            said = {
                word.arg: word.value.value
                for word in node.keywords
                if isinstance(word.value, ast.Constant)
            }
            found[str(said["name"])] = int(str(said.get("level", 1)))
    return found


@functools.cache
def _parsed(name: str) -> ast.Module:
    path = Path(__file__).with_name(f"{name}.py")
    return ast.parse(path.read_text(encoding="utf-8"))
