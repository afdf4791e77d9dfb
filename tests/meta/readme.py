"""What in the README is generated: `python tests/meta/readme.py --write` brings it up to date."""

from __future__ import annotations

import ast
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from diagnostics._catalog import CATALOG  # noqa: E402 - the checkout must be on the path first

README = ROOT / "README.md"
FOLDERS = ("minigpt", "diagnostics", "exercises", "tests", "data")


def failing_report() -> str:
    """What the first exercise's hardest bug looks like to the check that catches it."""
    os.environ["COLUMNS"] = "88"  # whatever the terminal at hand
    from diagnostics import diagnose
    from exercises._lab import Lab
    from exercises.break_shift import break_wrapped

    with Lab() as lab:
        report = diagnose(break_wrapped(lab), seed=lab.seed, only=["shift"])
    return f"```\n{report['shift']}\n```"


def catalogue_table() -> str:
    """One row per check: stage, name, question, family and exercise."""
    lines = [
        "| stage | check | what it asks | family | break it |",
        "|---|---|---|---|---|",
    ]
    for row in CATALOG.values():
        lines.append(
            f"| {row.stage} | `{row.name}` | {row.question} | {row.family} "
            f"| `python -m exercises.break_{row.name}` |"
        )
    return "\n".join(lines)


def tree() -> str:
    """One line per file: its path and the first line of its docstring."""
    lines = ["```"]
    for folder in FOLDERS[:3]:
        lines.append(f"{folder}/")
        for path in sorted((ROOT / folder).glob("*.py"), key=_public_first):
            lines.append(f"  {path.name:<26} {_first_line(path)}")
    lines += [
        "tests/                       mirrors the packages; tests/meta keeps the shape,",
        "                             tests/benchmarks measures side by side with peers",
        "data/                        the guide: course text and default corpus",
        "```",
    ]
    return "\n".join(lines)


SECTIONS = {"failure": failing_report, "catalogue": catalogue_table, "tree": tree}


def render(text: str) -> str:
    """Return the README's text with every generated section brought up to date."""
    for name, make in SECTIONS.items():
        pattern = rf"(<!-- {name}: generated -->\n).*?(\n<!-- end -->)"
        text, count = re.subn(
            pattern, lambda m, make=make: m[1] + make() + m[2], text, flags=re.DOTALL
        )
        if count != 1:
            raise ValueError(f"the README must hold one generated section {name!r}, has {count}")
    return text


def _public_first(path: Path) -> tuple[bool, str]:
    return (path.name.startswith("_"), path.name)


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].rstrip(".")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(render(README.read_text(encoding="utf-8")))
