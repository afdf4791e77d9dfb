"""The shape of the project: one stem in four places, arrows one way, docstrings in order."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from diagnostics import CATALOG, explain

ROOT = Path(__file__).resolve().parents[2]
CARD = {"pyproject.toml", "README.md", "minigpt", "diagnostics", "exercises", "tests", "data"}
HEADINGS = ("Why it matters", "How it is measured", "What it cannot see", "Break it")
RUNTIME = {"torch", "numpy", "tqdm", "safetensors"}
OWN = {"minigpt", "diagnostics", "exercises"}


def public_checks() -> list[str]:
    return sorted(
        path.stem for path in (ROOT / "diagnostics").glob("*.py") if not path.stem.startswith("_")
    )


def imports(path: Path) -> set[str]:
    """The top-level names that a file imports, wherever in the file."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


def test_the_top_level_holds_what_the_card_says() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    top = {line.split("/")[0] for line in listed.stdout.splitlines()}
    assert {name for name in top if not name.startswith(".")} <= CARD


def test_every_check_is_in_the_catalogue_and_every_row_has_a_file() -> None:
    assert public_checks() == sorted(CATALOG)


@pytest.mark.parametrize("name", CATALOG)
def test_one_stem_four_places(name: str) -> None:
    assert (ROOT / "exercises" / f"break_{name}.py").is_file()
    assert (ROOT / "tests" / "diagnostics" / f"test_{name}.py").is_file()
    import diagnostics

    assert f"check_{name}" in diagnostics.__all__
    assert callable(getattr(diagnostics, f"check_{name}"))


@pytest.mark.parametrize("name", CATALOG)
def test_the_docstring_has_its_four_headings_in_order(name: str) -> None:
    lines = explain(name).splitlines()
    found = [line for line in lines if line in HEADINGS]
    assert tuple(found) == HEADINGS
    for heading, following in zip(HEADINGS, [*HEADINGS[1:], None], strict=True):
        start = lines.index(heading) + 1
        end = lines.index(following) if following else len(lines)
        assert "".join(lines[start:end]).strip(), f"{heading} is empty"
    assert f"python -m exercises.break_{name}" in explain(name)


@pytest.mark.parametrize("package", sorted(OWN))
def test_arrows_point_one_way(package: str) -> None:
    allowed = {"minigpt": {"minigpt"}, "diagnostics": {"diagnostics"}, "exercises": OWN}[package]
    for path in (ROOT / package).rglob("*.py"):
        own = imports(path) & OWN
        if path.name != "__main__.py":
            assert own <= allowed, f"{path.name} imports {own - allowed}"
        others = imports(path) - OWN - RUNTIME
        foreign = {name for name in others if name not in sys.stdlib_module_names}
        assert not foreign, f"{path.name} imports {foreign}"


@pytest.mark.parametrize(
    "command",
    [
        ["diagnostics", "--help"],
        ["diagnostics", "--list"],
        ["diagnostics", "--explain", "shift"],
        ["exercises", "--list"],
        ["exercises", "--help"],
        ["exercises", "--status"],
        ["exercises.cases", "--help"],
        ["exercises.own_model", "--help"],
        ["exercises.grade", "--help"],
        ["minigpt"],
        ["minigpt.prepare", "--help"],
        ["minigpt.train", "--help"],
        ["minigpt.generate", "--help"],
        ["minigpt.memory"],
        ["minigpt.memory", "--help"],
    ],
    ids=" ".join,
)
def test_help_and_lists_do_not_wait_for_torch(command: list[str]) -> None:
    """A torch that raises on import is put first on the path: nothing may notice."""
    code = (
        "import runpy, sys; sys.modules['torch'] = None; "
        f"sys.argv = {command!r}; runpy.run_module({command[0]!r}, run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert max(map(len, done.stdout.splitlines())) <= 88
