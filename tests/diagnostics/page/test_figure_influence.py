"""The influence map: leaks are outlined and counted, nothing is claimed where none is judged."""

from __future__ import annotations

from typing import Any

from diagnostics.page._figure_influence import draw_influence
from tests.diagnostics.page.drawn import finding, notes, paths, texts
from tests.diagnostics.page.stored_numbers import stored

CHECK = "causal_independence"


def draw(status: str = "pass", reason: str = "", **numbers: Any) -> str:
    figure = draw_influence(stored(CHECK, status=status, reason=reason, **numbers))
    assert figure is not None
    return figure.markup


def influence(rows: list[list[Any]], **more: Any) -> dict[str, Any]:
    return {"length": len(rows), "step": 1, "rows": rows, **more}


def test_a_causal_model_has_an_empty_upper_right() -> None:
    markup = draw()
    assert finding(markup) == (
        "No prediction reads a later token: in 3 pairs of 3 positions the largest move is 0"
    )
    assert paths(markup, "chart-outline") == []


def test_leaks_are_outlined_and_counted() -> None:
    """Positions 0 and 1 read tokens 1 and 2: two cells that touch at a corner."""
    rows = [[1, 0.2, 0], [0.5, 1, 0.3], [0.1, 0.2, 1]]
    markup = draw(
        "fail", "causal_independence.mask_too_wide", influence=influence(rows), leaking_pairs=2,
        worst_leak=0.3,
    )  # fmt: skip
    assert finding(markup) == (
        "The future leaks: in 2 of 3 pairs a prediction moves when a later token is replaced, by "
        "up to 0.3"
    )
    assert paths(markup, "chart-outline")[0] == "M1 0h1M1 1h2M2 2h1M1 0v1M2 0v2M3 1v1"
    assert "a later token is read" in texts(markup, "li")[-1]


def test_a_nan_in_the_future_is_a_leak_except_with_larger_weights() -> None:
    rows: list[list[Any]] = [[1, "nan", 0], [0.5, 1, 0], [0.1, 0.2, 1]]
    assert paths(draw("fail", influence=influence(rows)), "chart-outline")
    scaled = draw("warn", influence=influence(rows), weight_scale=10.0)
    assert paths(scaled, "chart-outline") == []
    assert "with the weights times 10" in notes(scaled)


def test_rounding_below_the_limit_is_no_leak() -> None:
    rows = [[1, 1e-12, 0], [0.5, 1, 0], [0.1, 0.2, 1]]
    markup = draw(influence=influence(rows))
    assert paths(markup, "chart-outline") == []
    assert "at most 1e-9" in texts(markup, "li")[0]


def test_cells_on_the_diagonal_are_outlined_where_the_check_says_so() -> None:
    """With a step of 2 a cell of the diagonal holds pairs of both kinds."""
    rows: list[list[float]] = [[1, 0], [0.5, 1]]
    plain = {"length": 4, "step": 2, "rows": rows}
    assert paths(draw(influence=plain), "chart-outline") == []
    markup = draw("fail", influence={**plain, "diagonal_leaks": [1]}, leaking_pairs=1)
    assert paths(markup, "chart-outline")[0] == "M1 1h1M1 2h1M1 1v1M2 1v1"
    assert "A cell stands for 2 positions by 2 tokens" in notes(markup)


def test_of_a_model_that_may_read_the_future_no_leak_is_claimed() -> None:
    """causal=False: the check is skipped; numbers that stand there all the same are shown only."""
    rows = [[1, 0.2, 0.2], [0.5, 1, 0.3], [0.1, 0.2, 1]]
    markup = draw(
        "skip", "causal_independence.not_causal", influence=influence(rows), leaking_pairs=3
    )
    assert "leak" not in finding(markup)
    assert "not judged" in finding(markup)
    assert paths(markup, "chart-outline") == []


def test_a_map_of_another_form_is_left_out() -> None:
    forms: tuple[Any, ...] = (
        influence([]), influence([[1]]), influence([[1, 2], [3]]), influence([[1] * 200] * 200), 7,
    )  # fmt: skip
    for form in forms:
        assert draw_influence(stored(CHECK, influence=form)) is None


def test_a_map_of_a_model_that_reads_its_own_token_alone_says_so() -> None:
    """The check of causality passes; that nothing earlier is read is the fault of `context`."""
    markup = draw(influence=influence([[1, 0, 0], [1e-12, 1, 0], [0, 0, 1]]))
    assert finding(markup) == (
        "Each prediction reads the token of its own position alone: neither a later nor an earlier "
        "one moves it"
    )
    figure = draw_influence(stored())
    assert figure is not None
    assert figure.shows("causal_independence")
    assert figure.shows("context")
    assert not figure.shows("prefix")


def test_logits_that_are_no_numbers_show_no_leak() -> None:
    rows: list[list[Any]] = [["nan"] * 3] * 3
    markup = draw(
        "fail", "causal_independence.not_finite", influence=influence(rows), leaking_pairs=3,
        worst_leak="nan",
    )  # fmt: skip
    assert finding(markup) == (
        "Logits are nan or infinite: which token a prediction reads cannot be told where they are"
    )


def test_a_map_without_a_leak_says_that_no_mask_was_passed() -> None:
    assert "Measured in eval mode, without an attention mask." in notes(draw())
    assert "without an attention mask" not in notes(draw("fail"))
