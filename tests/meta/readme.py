"""What in the README is generated: `python tests/meta/readme.py --write` brings it up to date."""

from __future__ import annotations

import ast
import os
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from diagnostics._catalog import CATALOG, STAGES  # noqa: E402 - the checkout must be on the path first

README = ROOT / "README.md"
FOLDERS = ("minigpt", "diagnostics", "exercises")


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


def table_counts() -> str:
    """How many of the known silent bugs are caught, by which stage, and how many cannot be."""
    from tests.catalogue._table import caught_rows, unseen_rows

    caught, unseen = caught_rows(), unseen_rows()
    stages = Counter(CATALOG[row.check].stage for row in caught)
    warned = sum(bool(row.only_warns) for row in caught)
    lines = [
        f"Of {len(caught) + len(unseen)} documented silent bugs, {len(caught)} are injected into a "
        "pipeline and caught by the",
        "named check for the named reason, and the same pipeline without the bug is not accused.",
        f"{warned} of them get a warning and no failure, because a healthy design can look the "
        "same.",
        f"The other {len(unseen)} leave no trace that can be seen from outside; each says why.",
        "",
        "| caught in stage | bugs |",
        "|---|---|",
        *(f"| {stage} | {stages[stage]} |" for stage in STAGES if stages[stage]),
    ]
    return "\n".join(lines)


def tree() -> str:
    """One line per public file: its path and the first line of its docstring."""
    lines = ["```"]
    for folder in FOLDERS:
        lines.append(f"{folder}/")
        files = sorted(path for path in (ROOT / folder).glob("[a-z]*.py"))
        packages = sorted((ROOT / folder).glob("*/__init__.py"))
        for path in files:
            lines.append(f"  {path.name:<26} {_first_line(path)}")
        for path in packages:
            command = path.with_name("__main__.py")
            described = command if command.exists() else path
            lines.append(f"  {path.parent.name + '/':<26} {_first_line(described)}")
        hidden = len(list((ROOT / folder).glob("_[a-z]*.py")))
        lines.append(f"  {'_*.py':<26} {hidden} files of plumbing that the others share")
    lines += [
        "tests/                       mirrors the packages; tests/meta keeps the shape,",
        "                             tests/catalogue holds the table of bugs, tests/compat the",
        "                             models of others, tests/benchmarks the peers",
        "data/                        the guide: course text and default corpus",
        "```",
    ]
    return "\n".join(lines)


SECTIONS = {
    "failure": failing_report,
    "catalogue": catalogue_table,
    "table": table_counts,
    "tree": tree,
}


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


def _first_line(path: Path) -> str:
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return docstring.split("\n")[0].rstrip(".")


if __name__ == "__main__":
    if sys.argv[1:] == ["--write"]:
        README.write_text(render(README.read_text(encoding="utf-8")), encoding="utf-8")
    else:
        print(render(README.read_text(encoding="utf-8")))
