"""The source of `--target`: the function and what it needs of its file, short enough to post."""

from __future__ import annotations

import ast
import importlib.util
import sys
from pathlib import Path

WHOLE_FILE_MAX = 150  # lines; a file as short as that is an example already
BYTES_MAX = 1_000_000


def read_target_source(target: str) -> str | None:
    """Return the code of a target, `module:function` or `file.py:function`, or None.

    A short file comes whole. Of a longer one come the function, the definitions of the file that
    it uses, directly or through others, and the imports of the names they use, in the order in
    which they stand. Nothing is run. None where the file cannot be found, read or parsed.
    """
    place, _, function = target.rpartition(":")
    path = _find_file(place)
    try:
        if path is None or path.stat().st_size > BYTES_MAX:
            return None
        source = path.read_text(encoding="utf-8-sig")
        tree = ast.parse(source)
    except (OSError, ValueError, SyntaxError, RecursionError):
        return None
    if len(source.splitlines()) <= WHOLE_FILE_MAX:
        return source.rstrip() + "\n"
    return _needed_code(tree, source.splitlines(), function)


def _find_file(place: str) -> Path | None:
    if place.endswith(".py"):
        return Path(place)
    origin = getattr(sys.modules.get(place), "__file__", None)
    if origin is None:
        try:
            spec = importlib.util.find_spec(place)
        except (ImportError, ValueError):
            return None
        origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def _needed_code(tree: ast.Module, lines: list[str], function: str) -> str | None:
    """Return the statements of a file that a function stands on; None without such a function."""
    binds = {statement: _bound_names(statement) for statement in tree.body}
    wanted, needed = [function], {function}
    while wanted:
        name = wanted.pop()
        for statement, bound in binds.items():
            if name in bound:
                new = _used_names(statement) - needed
                needed |= new
                wanted += new
    kept = [s for s in tree.body if binds[s] & needed or _acts_on(s, needed)]
    if not any(function in binds[statement] for statement in kept):
        return None
    parts = ["\n".join(lines[_first_line(s) - 1 : s.end_lineno]) for s in kept]
    imports = [isinstance(statement, (ast.Import, ast.ImportFrom)) for statement in kept]
    text = ""
    for number, part in enumerate(parts):
        close = number and imports[number] and imports[number - 1]
        text += ("" if not number else "\n" if close else "\n\n") + part
    return text + "\n"


def _bound_names(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a file gives a meaning to; "*" of a star import."""
    if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {statement.name}
    if isinstance(statement, (ast.Import, ast.ImportFrom)):
        return {a.asname or a.name.partition(".")[0] for a in statement.names}
    names = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    for node in ast.walk(statement):  # if TYPE_CHECKING, try: import
        if node is not statement and isinstance(
            node, (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
        ):
            names |= _bound_names(node)
    return names


def _used_names(statement: ast.stmt) -> set[str]:
    return {node.id for node in ast.walk(statement) if isinstance(node, ast.Name)}


def _acts_on(statement: ast.stmt, needed: set[str]) -> bool:
    """Whether a statement without a name of its own matters: a star import, a seed, a setting."""
    if isinstance(statement, ast.ImportFrom):
        return statement.module == "__future__" or any(a.name == "*" for a in statement.names)
    if isinstance(statement, ast.Expr) and not isinstance(statement.value, ast.Constant):
        return bool(_used_names(statement) & needed)
    return False


def _first_line(statement: ast.stmt) -> int:
    decorators = getattr(statement, "decorator_list", [])
    return min([statement.lineno, *(decorator.lineno for decorator in decorators)])
