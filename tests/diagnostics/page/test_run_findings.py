"""The headings of the charts of a run follow from its numbers."""

import math
from collections.abc import Sequence

import pytest

from diagnostics.page import RunHistory
from diagnostics.page._run_findings import (
    loss_finding,
    norm_finding,
    rate_finding,
    speed_finding,
)


def run_of(**series: Sequence[float]) -> RunHistory:
    """A run with one number for each of the steps 0, 10, 20, ..."""
    run = RunHistory()
    for name, values in series.items():
        for place, value in enumerate(values):
            run.add(10 * place, {name: value})
    return run


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        ([4.0], "validation loss 4 before the first update"),
        ([4.0, 3.0], "validation loss 3 at step 10, still falling"),
        ([4.0, 3.0, 2.995], "validation loss 2.995 at step 20, level since step 10"),
        ([4.0, 3.0, 3.25], "validation loss 3.25 at step 20, 0.25 above its lowest, at step 10"),
        ([4.0, math.nan, 3.0], "the validation loss was nan at step 10; it is 3 at step 20"),
        ([4.0, math.nan], "the validation loss became nan at step 10"),
        ([4.0, 4.0], "validation loss 4 at step 10, level since step 0"),
        ([4.0, 4.5, 4.0], "validation loss 4 at step 20"),
    ],
)
def test_the_loss(losses: list[float], words: str) -> None:
    assert loss_finding(run_of(validation_loss=losses)) == words


def test_a_slow_fall_is_a_fall() -> None:
    """0.009 nats from each evaluation to the next: 40 of them are 0.36."""
    losses = [4.0 - 0.009 * place for place in range(41)]
    assert loss_finding(run_of(validation_loss=losses)).endswith("at step 400, still falling")


def test_a_trend_that_chance_can_make_is_not_said() -> None:
    """Losses that jump by 2 from update to update: their medians differ without any reason."""
    losses = [3.0 + (-1) ** place for place in range(20)]
    assert loss_finding(run_of(train_loss=losses)) == "training loss 2 at step 190"


def test_a_loss_of_updates_alone() -> None:
    """A trend is said from 20 losses on: medians of the last five and the five before."""
    assert loss_finding(run_of(train_loss=[4.0, 3.0])) == "training loss 3 at step 10"
    falling = [4.0 - 0.1 * place for place in range(20)]
    assert (
        loss_finding(run_of(train_loss=falling)) == "training loss 2.1 at step 190, still falling"
    )
    assert loss_finding(run_of(train_loss=falling[::-1])).endswith(", rising")
    assert loss_finding(run_of(train_loss=[3.0] * 20)).endswith(", level by now")
    assert loss_finding(RunHistory()) == "no loss has been logged yet"


@pytest.mark.parametrize(
    ("rates", "words"),
    [
        ([0.1, 0.1], "the learning rate is 0.1 in every logged update"),
        ([0.1, 0.2], "the learning rate is still rising: 0.2 at step 10"),
        (
            [0.0, 0.2, 0.2],
            "the learning rate rose to 0.2, and is that since step 10",
        ),
        ([0.2, 0.1, 0.2], "the learning rate fell from 0.2, and is that again at step 20"),
        ([0.2, 0.1], "the learning rate fell from 0.2 at step 0 to 0.1 at step 10"),
        (
            [0.0, 0.001, 0.0001],
            "the learning rate peaked at 0.001, step 10; it is 0.0001 at step 20",
        ),
    ],
)
def test_the_rate(rates: list[float], words: str) -> None:
    assert rate_finding(run_of(learning_rate=rates)) == words


def test_the_share_of_clipped_updates() -> None:
    run = run_of(grad_norm=[2.0, 3.0, 1.0], clipped=[True, True, False])
    assert norm_finding(run) == "66.67 % of 3 updates were clipped"
    run.clip_norm = 1.5
    assert norm_finding(run) == "66.67 % of 3 updates were clipped at 1.5"
    run.clipped_updates = 0
    assert norm_finding(run) == "none of 3 updates was clipped at 1.5"
    run.clip_norm = None
    assert norm_finding(run) == "the gradient norm is 1 at step 20, and was at most 3, at step 10"
    run.add(30, {"grad_norm": math.inf})
    assert norm_finding(run) == "the gradient norm became inf at step 30"
    run.add(40, {"grad_norm": 2.0})
    assert norm_finding(run) == "the gradient norm was inf at step 30; it is 2 at step 40"


def test_the_speed() -> None:
    words = "3,000 tokens per second are usual; the fewest were 1,000, at step 0"
    assert speed_finding(run_of(tokens_per_second=[1000.0, 3000.0, 3000.0])) == words
