"""The histogram of ids, the schedule, and losses beside what knows nothing."""

from __future__ import annotations

from typing import Any

from diagnostics.page._figure_baselines import draw_honesty, draw_initial_loss
from diagnostics.page._figure_histogram import draw_histogram
from diagnostics.page._figure_parts import Figure
from diagnostics.page._figure_schedule import draw_schedule
from tests.diagnostics.page.drawn import assert_inside, finding, notes, table, texts
from tests.diagnostics.page.stored_numbers import NUMBERS, stored


def checked(figure: Figure | None) -> str:
    assert figure is not None
    assert_inside(figure.markup)
    return figure.markup


def histogram(**numbers: Any) -> str:
    merged = {**NUMBERS["range"]["histogram"], **numbers}
    return checked(draw_histogram(stored("range", histogram=merged)))


def schedule(**numbers: Any) -> str:
    return checked(draw_schedule(stored("schedule", **numbers)))


def test_ids_that_never_occur_are_counted() -> None:
    markup = histogram()
    assert finding(markup) == "1 of 4 ids never occur; the 3 others share 100 tokens"
    assert notes(markup).startswith("Commonest ids: 2 (\u2423) 60 %, 1 (\u21b5) 30 %, 0 10 %.")


def test_ids_outside_of_the_vocabulary_are_flagged_and_counted() -> None:
    bins = [[-100, -1, 2], [0, 1, 50], [2, 3, 50], [4, 9, 5]]
    markup = histogram(bins=bins, unused=0)
    assert finding(markup) == "7 tokens lie outside 0 to 3, where the vocabulary ends"
    assert table(markup)[1] == ["-100 to -1", "2", "outside"]
    assert table(markup)[-1] == ["4 to 9", "5", "outside"]
    assert "token id, 2 to a column" in texts(markup)


def test_rare_ids_beside_common_ones_need_a_log_axis() -> None:
    markup = histogram(bins=[[0, 0, 1], [1, 1, 1000], [2, 2, 30], [3, 3, 2]], unused=0)
    assert "tokens of train_ids, log scale" in texts(markup)
    assert finding(markup) == "All 4 ids of the vocabulary occur in 1,033 tokens"


def test_a_schedule_is_told_by_start_peak_and_end() -> None:
    """The sampled places miss the peak at step 9, which is stored beside them."""
    markup = schedule()
    assert finding(markup) == (
        "The learning rate rises from 1.00e-04 to 0.001 at step 9 and ends at 1.00e-04"
    )
    assert ["9", "0.001"] in table(markup)
    assert "2 calls of your train_step ran at 0.001 throughout" in notes(markup)
    assert "A loop around it may set the rates" in notes(markup)
    assert "A loop around it" not in notes(schedule(asked_inside=True))


def test_other_shapes_of_schedules() -> None:
    flat = {"step": [0, 5, 9], "rate": [0.1, 0.1, 0.1]}
    falling = {"step": [0, 5, 9], "rate": [0.1, 0.05, 0.0]}
    rising = {"step": [0, 5, 9], "rate": [0.1, 0.2, 0.3]}
    broken = {"step": [0, 5, 9], "rate": [0.1, "nan", 0.3]}
    common: dict[str, Any] = {"peak": ..., "peak_step": ..., "max_steps": 10}
    assert [
        finding(schedule(curve=curve, **common)) for curve in (flat, falling, rising, broken)
    ] == [
        "The learning rate is 0.1 at every step of 10 steps",
        "The learning rate starts at its peak 0.1 and ends at 0 after 10 steps",
        "The learning rate rises from 0.1 to 0.3 at step 9, where the run ends",
        "The learning rate at step 5 is nan",
    ]


def test_a_schedule_ends_at_its_last_step_even_if_the_curve_does_not() -> None:
    """The curve is stored at evenly spaced steps; 13 updates end with step 12."""
    curve = {"step": [0, 4, 8], "rate": [1e-3, 8e-4, 5e-4]}
    figure = draw_schedule(stored("schedule", curve=curve, peak_step=0, last=2e-4))
    assert figure is not None
    assert finding(figure.markup) == (
        "The learning rate starts at its peak 0.001 and ends at 2.00e-04 after 13 steps"
    )


def test_groups_whose_rates_differ_have_curves_of_their_own() -> None:
    markup = schedule(rates_in_use=[[1e-4, 1e-3], [2e-4, 1e-3], [3e-4, 1e-3]])
    assert table(markup)[0] == ["step", "schedule", "group 0", "group 1"]
    together = schedule(rates_in_use=[[1e-4, 1e-4], [2e-4, 2e-4]])
    assert table(together)[0] == ["step", "schedule", "in use"]


def test_the_initial_loss_stands_beside_what_knows_nothing() -> None:
    markup = checked(draw_initial_loss(stored()))
    assert [row[1] for row in table(markup)[1:]] == ["1.4", "1.41", "0.9", "1.386"]
    trained = stored("initial_loss", judged_as="trained", loss=0.5, unigram=0.9, uniform=1.386)
    markup = checked(draw_initial_loss(trained))
    assert [row[1] for row in table(markup)[1:]] == ["0.5", "0.9", "1.386"]
    assert finding(markup) == (
        "The model scores 0.5 nats; the frequencies of tokens alone give 0.9, knowing nothing 1.386"
    )


def test_honest_losses_stand_beside_their_entropies() -> None:
    """40 steps are stored at every second one, so that the 20th value is that of step 38."""
    curves = {
        name: {**NUMBERS["honesty"][name], "steps": 40, "curve": [loss] * 20}
        for name, loss in (("uniform", 1.4), ("chain", 0.7))
    }
    markup = checked(draw_honesty(stored("honesty", **curves)))
    assert finding(markup) == (
        "On new tokens the loss ends at 1.39 nats on uniform tokens (entropy 1.386) and 0.7 nats "
        "on the chain (entropy 0.693)"
    )
    assert table(markup)[20] == ["38", "1.4", "0.7"]


def test_a_loss_below_the_entropy_is_said_with_its_kind() -> None:
    uniform = {**NUMBERS["honesty"]["uniform"], "reported": 0.4}
    content = stored("honesty", status="fail", uniform=uniform, chain=...)
    assert finding(checked(draw_honesty(content))) == (
        "A loss ends below the entropy of its tokens: 0.4 nats on uniform tokens (as the model "
        "reports it; entropy 1.386)"
    )


def test_a_trial_that_ended_early_is_not_placed_at_steps() -> None:
    uniform = {
        **NUMBERS["honesty"]["uniform"],
        "curve": [1.4, "nan"],
        "steps": 50,
        "recomputed": "nan",
    }
    content = stored("honesty", status="fail", uniform=uniform, chain=...)
    assert "sample of the steps" in texts(checked(draw_honesty(content)))
