"""What counts as an attempt: code that differs, not its comments, blanks or docstrings."""

from __future__ import annotations

import ast
import difflib
import hashlib
from collections.abc import Iterator, Sequence

DEFINITIONS = (ast.Module, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def code_digest(source: str) -> str | None:
    """Return a digest of what the code does, the same for other comments; None: it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:] or [ast.Pass()]
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()[:16]


def changed_lines(before: str, after: str) -> list[str]:
    """Return the lines that differ, marked "- " and "+ ", without what stayed."""
    marked = difflib.ndiff(before.splitlines(), after.splitlines())
    return [line for line in marked if line.startswith(("- ", "+ "))]


def first_difference(before: str, after: str) -> tuple[int, str, str]:
    """Return the number of the first line that differs, counted from 1, and both versions of it."""
    pairs = zip(before.splitlines(), after.splitlines(), strict=False)
    for number, (old, new) in enumerate(pairs, 1):
        if old != new:
            return number, old.strip(), new.strip()
    raise ValueError("the two sources do not differ in any line that both have")


def closest(source: str, candidates: Sequence[str]) -> int:
    """Return the index of the candidate that a source most likely began as."""
    alike = [difflib.SequenceMatcher(None, source, each).ratio() for each in candidates]
    return alike.index(max(alike))


def assertions(source: str) -> Iterator[tuple[range, str]]:
    """Yield the lines of each statement that can reject an implementation, and its first line.

    These are `assert`, `raise`, and calls of something whose name begins with "assert".
    """
    lines = source.splitlines()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.stmt) and _can_reject(node):
            end = node.end_lineno or node.lineno
            yield range(node.lineno, end + 1), lines[node.lineno - 1].strip()


def _can_reject(node: ast.stmt) -> bool:
    if isinstance(node, ast.Assert | ast.Raise):
        return True
    if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
        return False
    function = node.value.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return str(name).startswith("assert")
