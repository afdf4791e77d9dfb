"""Bars for parameters and modules: what is missing is flagged, many are drawn by layer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diagnostics.page._figure_layers import draw_activations, draw_gradients, draw_updates
from diagnostics.page._figure_parts import layer_of, layer_order
from tests.diagnostics.page.drawn import finding, notes, table, texts
from tests.diagnostics.page.stored_numbers import stored


def gradients(**numbers: Any) -> str:
    figure = draw_gradients(stored("gradients", **numbers))
    assert figure is not None
    return figure.markup


def test_names_are_ordered_as_a_model_is_built() -> None:
    names = [
        "the model itself",
        "head.weight",
        "h.10.a",
        "h.2.b",
        "h.2",
        "wte.weight",
        "final_norm",
    ]
    assert sorted(names, key=layer_order) == [
        "wte.weight", "h.2", "h.2.b", "h.10.a", "final_norm", "head.weight", "the model itself",
    ]  # fmt: skip


def test_the_layer_of_a_name() -> None:
    names = ("blocks.0.mlp.weight", "h.11", "head.bias", "alone", "a.0.b.1.c")
    assert [layer_of(name) for name in names] == ["blocks.0", "h.11", "head", "alone", "a.0"]


def test_healthy_gradients_are_told_from_the_smallest_to_the_largest() -> None:
    markup = gradients()
    assert finding(markup) == "Each of 3 parameters has a gradient, with norms from 0.125 to 0.5"
    assert [row[0] for row in table(markup)[1:]] == [
        "blocks.0.mlp.bias", "blocks.0.mlp.weight", "head.weight",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("numbers", "told"),
    [
        ({"missing": ["a.weight"]}, "Of 4 gradients 1 is missing"),
        ({"norms": {}, "missing": ["a.weight"]}, "Of 1 gradient 1 is missing"),
        ({"zero": ["head.weight"]}, "Of 3 gradients 1 is 0 everywhere"),
        ({"noise": {"head.weight": [1e-9, 0.0]}}, "Of 3 gradients 1 is only rounding"),
        ({"wrong": {"head.weight": 0.5}}, "Of 3 gradients 1 has a wrong value"),
        ({"stuck": ["head.weight"]}, "Of 3 gradients 1 stays at 0"),
        ({"norms": {"a": "nan", "b": "inf", "c": 1.0}}, "Of 3 gradients 2 are nan or infinite"),
    ],
)
def test_what_the_check_has_named_is_flagged_and_counted(
    numbers: dict[str, Any], told: str
) -> None:
    markup = gradients(**numbers)
    assert finding(markup) == told
    assert table(markup)[0][-1] == "remark"


def test_many_parameters_are_drawn_by_layer_and_flagged_ones_on_their_own() -> None:
    """Of each layer the norms 3 and 4 make 5; the one that is missing keeps its name."""
    norms = {f"h.{n}.{part}": size for n in range(25) for part, size in (("a", 3.0), ("b", 4.0))}
    markup = gradients(norms=norms, missing=["h.7.c"])
    rows = table(markup)[1:]
    assert len(rows) == 26
    assert ["h.0", "5", ""] in rows
    assert rows[7:9] == [["h.7", "5", ""], ["h.7.c", "-", "no gradient"]]
    assert "51 parameters are drawn by layer" in notes(markup)


def updates(reason: str = "", **numbers: Any) -> str:
    figure = draw_updates(stored("optimizer", reason=reason, **numbers))
    assert figure is not None
    return figure.markup


def test_updates_are_told_from_the_smallest_to_the_largest() -> None:
    assert finding(updates()) == "One step moves the parameters by 0.001 to 0.02 of their own size"


def test_the_first_step_of_adam_stands_beside_its_rate() -> None:
    markup = updates(learning_rates=[1e-3, 1e-3], adam_first_step={"head.weight": 0.9999})
    assert "the rate 0.001" in texts(markup)
    assert "The first step of Adam moves each number by the learning rate" in notes(markup)


@pytest.mark.parametrize(
    "numbers",
    [
        {"learning_rates": [1e-3]},  # no Adam, whose step would be the rate
        {"learning_rates": [1e-3], "adam_first_step": {"head.weight": 0.5}},
        {"learning_rates": [1e-3], "adam_first_step": {"head.weight": "nan"}},
        {"learning_rates": [1e-3, 1e-4], "adam_first_step": {"head.weight": 1.0}},
        {"learning_rates": [0.0], "adam_first_step": {"head.weight": 1.0}},
        {"learning_rates": [], "adam_first_step": {"head.weight": 1.0}},
    ],
)
def test_no_rate_is_drawn_where_the_step_is_not_the_rate(numbers: dict[str, Any]) -> None:
    markup = updates(**numbers)
    assert not any("the rate" in text for text in texts(markup))
    assert "Adam" not in notes(markup)


def test_sizes_that_the_dtype_of_the_model_loses_are_told_as_computed_in_float64() -> None:
    assert finding(updates("optimizer.some_lost_to_rounding")) == (
        "Computed in float64, one step moves the parameters by 0.001 to 0.02 of their own size"
    )


def test_a_gradient_that_other_batches_give_is_not_told_as_lost() -> None:
    """As of an expert that the router did not choose for the first batch."""
    assert finding(gradients(missing=["a", "b", "c"], zero_at_first=2)) == (
        "Of 6 gradients of one batch 3 are missing; 2 of these come with other batches or weights"
    )


def test_frozen_parameters_are_counted_beside_those_with_a_gradient() -> None:
    assert finding(gradients(frozen=22)) == (
        "Each of 3 parameters has a gradient, with norms from 0.125 to 0.5; 22 others are frozen"
    )


def test_a_part_that_the_pipeline_lacks_is_no_missing_gradient() -> None:
    assert draw_gradients(stored("gradients", status="skip", missing=["block_size"])) is None


def test_a_parameter_that_does_not_move_is_named() -> None:
    figure = draw_updates(stored("optimizer", update_to_weight_by_name={"a": 0.0, "b": 0.01}))
    assert figure is not None
    assert finding(figure.markup) == (
        "One step leaves 1 of 2 parameters where they were; the first is a"
    )
    assert "0  does not move" in texts(figure.markup)


def test_activations_follow_the_pass_where_its_order_is_stored() -> None:
    """JSON sorts a mapping by name; a list keeps the order of the pass."""
    figure = draw_activations(stored())
    assert figure is not None
    assert finding(figure.markup) == "Outputs have sizes from 0.03 to 2"
    by_name = ["token_embedding", "blocks.2", "blocks.10", "head"]
    assert [row[0] for row in table(figure.markup)[1:]] == by_name
    order = ["token_embedding", "head", "blocks.10", "blocks.2"]
    in_pass = draw_activations(stored("forward_hooks", order=order))
    assert in_pass is not None
    assert [row[0] for row in table(in_pass.markup)[1:]] == order
    assert "From the first module that ended" in notes(in_pass.markup)


def test_activations_that_are_not_finite_are_flagged() -> None:
    figure = draw_activations(stored("forward_hooks", rms={"a": 1.0, "b": "nan"}))
    assert figure is not None
    assert "nan  not finite" in texts(figure.markup)
    assert draw_activations(stored("forward_hooks", rms={"b": math.inf})) is None
    assert draw_activations(stored("forward_hooks", rms=[1.0, 2.0])) is None  # those of a norm
