"""The catalogue: one row per check, in the order of the stages, without torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import diagnostics
from diagnostics._catalog import CATALOG, FAMILIES, STAGES, explain, require_names, select

HEADINGS = ("Why it matters", "How it is measured", "What it cannot see", "Break it")


def test_rows_follow_the_stages() -> None:
    """A report shows the pipeline from its beginning to its end."""
    order = [STAGES.index(row.stage) for row in CATALOG.values()]
    assert order == sorted(order)
    assert all(row.family in FAMILIES for row in CATALOG.values())
    assert all(row.question.endswith("?") for row in CATALOG.values())


def test_a_check_explains_later_checks_only() -> None:
    """A consequence lies downstream of its cause."""
    names = list(CATALOG)
    for row in CATALOG.values():
        for later in row.explains:
            assert names.index(later) > names.index(row.name), (row.name, later)


def test_every_check_is_a_file_and_every_file_a_check() -> None:
    """`ls` is the contents page."""
    folder = Path(diagnostics.__file__).parent
    files = {path.stem for path in folder.glob("*.py") if not path.name.startswith("_")}
    assert files == set(CATALOG)


@pytest.mark.parametrize("name", list(CATALOG))
def test_explanations_have_the_four_headings_in_order(name: str) -> None:
    """What --explain prints is the docstring of the check, honest part included."""
    text = explain(name)
    places = [text.find(f"\n{heading}\n") for heading in HEADINGS]
    assert -1 not in places, places
    assert places == sorted(places)
    assert f"python -m exercises.break_{name}" in text
    assert all(len(line) <= 100 for line in text.splitlines())


def test_select_takes_checks_and_stages_in_the_catalogues_order() -> None:
    """The order of the request does not matter."""
    assert select(["overfit", "shift"]) == ["shift", "overfit"]
    assert select("shift") == ["shift"]
    assert select(["batches"]) == ["batches"]  # the check, though a stage has that name too
    assert select(["ids"]) == [name for name, row in CATALOG.items() if row.stage == "ids"]
    assert select(None, ["overfit"]) == [name for name in CATALOG if name != "overfit"]
    assert select() == list(CATALOG)
    assert select([]) == []


def test_unknown_names_get_the_closest_ones() -> None:
    """A slip of the pen is answered with a name."""
    with pytest.raises(ValueError, match=r"no check or stage named 'shfit'; did you mean shift"):
        select(["shfit"])
    with pytest.raises(ValueError, match="known: environment"):
        require_names(["qqqq"])
    with pytest.raises(ValueError, match="did you mean"):
        explain("gradient")


def test_listing_does_not_wait_for_torch() -> None:
    """Neither the catalogue nor the package's own import loads it."""
    code = (
        "import sys, diagnostics; from diagnostics import CATALOG, explain; explain('shift');"
        "raise SystemExit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
