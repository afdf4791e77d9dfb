"""The table of benchmarks: what a row says, and that every benchmark can be part of it.

Nothing here measures a time that a test would depend on.
"""

from __future__ import annotations

import ast
import math
from pathlib import Path

import pytest
from _timing import FIGURE_WIDTH, Comparison, compare, print_comparisons

FOLDER = Path(__file__).parent


def row(figure: str, ratio: float, goal: float | None) -> Comparison:
    """Return a row of that ratio."""
    return Comparison(
        figure=figure,
        ours_seconds=ratio,
        peer_seconds=1.0,
        ratio_median=ratio,
        ratio_low=ratio,
        ratio_high=ratio,
        goal=goal,
    )


@pytest.mark.parametrize(
    ("ratio", "goal", "verdict"),
    [
        (0.5, 0.5, "met"),
        (0.51, 0.5, "not met"),
        (math.nan, 0.5, "not met"),
        (math.inf, 0.5, "not met"),
        (0.5, None, "-"),
    ],
)
def test_a_goal_is_met_or_not_in_words(ratio: float, goal: float | None, verdict: str) -> None:
    """The goal itself is met, NaN never is, and without a goal there is no verdict."""
    assert row("figure", ratio, goal).verdict == verdict


def test_runs_alternate_after_a_warm_up_of_each() -> None:
    """Peer and ours in turns; ours as often as `repeats` says in each round."""
    calls: list[str] = []
    found = compare(
        "figure",
        lambda: calls.append("ours"),
        lambda: calls.append("peer"),
        rounds=2,
        repeats=3,
        goal=0.5,
    )
    assert calls == ["peer", "ours"] + 2 * ["peer", "ours", "ours", "ours"]
    assert (found.figure, found.goal) == ("figure", 0.5)
    assert found.ratio_low <= found.ratio_median <= found.ratio_high


def test_the_table_fits_88_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Long names, times of minutes and large ratios included; rows stay in their columns."""
    rows = [row("x" * FIGURE_WIDTH, 0.25, 0.3), row("y" * 60, 9.999, None), row("z", 400.0, 0.07)]
    print_comparisons(rows)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert max(map(len, lines[:5])) <= 88
    assert lines[1].split() == [
        "x" * FIGURE_WIDTH, "250.000", "1000", "0.250", "0.250-0.250", "0.30", "met",
    ]  # fmt: skip
    assert lines[2] == "y" * 60
    assert lines[3].split() == ["9999", "1000", "9.999", "9.999-9.999"]
    assert lines[4].endswith("0.07 not met")


def test_every_benchmark_with_a_peer_is_in_the_table() -> None:
    """Each file but the grader's, which has no peer, has `comparisons(*, quick)` and a name."""
    tree = ast.parse((FOLDER / "__main__.py").read_text(encoding="utf-8"))
    names = next(
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "NAMES"
    )
    files = {path.stem.removeprefix("bench_") for path in FOLDER.glob("bench_*.py")} - {"grade"}
    assert set(names) == files
    for name in names:
        body = ast.parse((FOLDER / f"bench_{name}.py").read_text(encoding="utf-8")).body
        found = [n for n in body if isinstance(n, ast.FunctionDef) and n.name == "comparisons"]
        assert [keyword.arg for keyword in found[0].args.kwonlyargs][:1] == ["quick"]
