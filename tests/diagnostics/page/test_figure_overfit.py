"""The curve of one batch: its heading, its levels, and a reading that the check agrees with."""

from __future__ import annotations

import math
from typing import Any

import pytest

from diagnostics.page._figure_overfit import draw_accuracy, draw_overfit
from diagnostics.page._figure_parts import Found
from diagnostics.page._overfit_reading import read_overfit
from tests.diagnostics.page.drawn import assert_inside, finding, notes, table, texts
from tests.diagnostics.page.stored_numbers import stored


def draw(reason: str = "", status: str = "pass", **numbers: Any) -> str:
    figure = draw_overfit(stored("overfit", reason=reason, status=status, **numbers))
    assert figure is not None
    assert_inside(figure.markup)
    return figure.markup


def curve(*losses: Any) -> dict[str, Any]:
    return {"step": [5 * n for n in range(len(losses))], "loss": list(losses)}


def test_the_heading_gives_where_the_loss_ended_and_its_floor() -> None:
    markup = draw()
    assert finding(markup) == (
        "The loss reached 0.05 nats at step 10, from 1.4; the floor of this batch is 0.04"
    )
    assert {"ln V", "unigram", "floor", "loss"} <= set(texts(markup))
    assert ["ln V", "1.386"] in table(markup)
    assert notes(markup).startswith("A healthy curve: everything that can be learnt")
    told = "Batch 2 x 10 tokens; an optimizer of the check's own, rate 0.003."
    assert told in notes(markup)


def test_a_loss_that_stops_being_a_number_is_said_with_its_step() -> None:
    markup = draw("overfit.diverged", "fail", curve=curve(1.4, 2.0, "nan"))
    assert finding(markup) == "The loss is no finite number at step 10"
    assert "numbers that overflow" in notes(markup)
    assert "1 point of loss without a finite value" in notes(markup)


def test_a_loss_far_above_ln_v_is_drawn_on_a_log_axis() -> None:
    markup = draw("overfit.diverged", "fail", curve=curve(1.4, 50.0, 4000.0))
    assert "loss (nats per token), log scale" in texts(markup)


def test_the_models_own_loss_has_a_curve_where_it_ends_elsewhere() -> None:
    """0.06 beside 0.05 is the same curve; 0.9 beside 0.05 is another one."""
    assert "the model's" not in texts(draw())
    markup = draw("overfit.loss_is_bounded", "fail", reported_loss=[1.4, 0.9, 0.9])
    assert table(markup)[0] == ["step", "loss", "the model's own"]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("ok", "A healthy curve"),
        ("stuck_at_uniform", "no signal reaches the weights"),
        ("no_progress", "no signal reaches the weights"),
        ("diverged", "a rate that is too high"),
        ("incomplete", "Contradictory examples are not the reason"),
        ("stuck_at_unigram", "uses nothing of its input"),
        ("stuck_at_position", "no token of the input is used"),
        ("short_context", "only the last few tokens"),
        ("loss_stays_high", "cannot become sure"),
        ("loss_is_bounded", "stops at one value"),
        ("other_target", "something else than the targets"),
        ("below_floor", "sees what it should predict"),
    ],
)
def test_the_reading_is_that_of_the_check(reason: str, words: str) -> None:
    assert words in notes(draw(f"overfit.{reason}", "fail"))


@pytest.mark.parametrize(
    ("losses", "accuracy", "words"),
    [
        ([1.4, 0.7, 0.05], 0.9, "A healthy curve"),
        ([1.4, 1.4, 1.39], 0.2, "Stuck"),
        ([1.4, 0.5, 1.2], 0.5, "falls and then rises"),
        ([1.4, 0.5, "nan"], 0.5, "stops being a number"),
        ([1.4, 0.7, 0.3], 0.5, "50 % of the targets are right where 90 % can be"),
        ([1.4, 0.7, 0.3], None, "without the accuracy"),
        ([1.4], 0.9, "too few"),
    ],
)
def test_a_result_of_another_version_is_read_from_its_numbers(
    losses: list[Any], accuracy: float | None, words: str
) -> None:
    numbers = {
        "curve": {"loss": losses},
        "floor_loss": 0.04,
        "initial_loss": 1.4,
        "final_loss": losses[-1],
        "uniform_loss": 1.386,
        "ceiling_accuracy": 0.9,
        "final_accuracy": accuracy,
    }
    assert words in read_overfit(Found(numbers, "overfit.of_the_future", "fail"))


def test_a_healthy_loss_may_rest_above_its_floor() -> None:
    """Training stops once the targets are right: 0.5 - 0.04 nats are left."""
    found = Found(
        {"final_loss": 0.5, "floor_loss": 0.04, "initial_loss": 1.4}, "overfit.ok", "pass"
    )
    assert "still lies 0.46 nats above the floor" in read_overfit(found)


def test_the_accuracy_has_its_ceiling_and_why_it_is_below_100_percent() -> None:
    figure = draw_accuracy(stored())
    assert figure is not None
    assert finding(figure.markup) == (
        "90 % of the targets of the batch are right at the end; 90 % can be"
    )
    assert "begin alike and go on differently" in notes(figure.markup)
    assert table(figure.markup)[1:] == [
        ["0", "25"], ["5", "50"], ["10", "90"], ["ceiling", "90"],
    ]  # fmt: skip


def test_no_curve_no_picture() -> None:
    for numbers in ({"curve": ...}, {"curve": {"step": [0], "loss": []}}, {"curve": {"step": []}}):
        assert draw_overfit(stored("overfit", **numbers)) is None
    assert draw_accuracy(stored("overfit", curve={"step": [0], "accuracy": ["nan"]})) is None
    assert math.isnan(float("nan"))


def test_a_loss_that_is_no_number_before_the_first_step_blames_no_rate() -> None:
    words = "no learning rate is to blame"
    assert words in notes(draw("overfit.diverged", curve=curve("nan", "nan")))
    assert words in notes(draw("overfit.diverged", reported_loss=["inf", "nan", "nan"]))
    assert words not in notes(draw("overfit.diverged", curve=curve(1.4, "nan")))


def test_an_accuracy_beside_a_loss_that_is_no_number_says_nothing() -> None:
    values = {"step": [0, 5], "loss": ["nan", "nan"], "accuracy": [0.1, 0.1]}
    figure = draw_accuracy(stored("overfit", curve=values))
    assert figure is not None
    assert finding(figure.markup) == "Which targets are right says nothing: the loss ends at nan"
