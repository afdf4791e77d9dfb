"""Losses by hand: what is a jump, what is a plateau, and what is noise."""

from __future__ import annotations

import math

import pytest
import torch

from diagnostics.monitor.events import Speaker
from diagnostics.monitor.losses import LossWatch, unigram_entropy


def feed(losses: list[float], *, warming_up: bool = False, **settings: object) -> list[str]:
    speaker = Speaker(None)
    watch = LossWatch(speaker, **settings)  # type: ignore[arg-type]
    for step, loss in enumerate(losses, 1):
        watch.see(step, loss, warming_up=warming_up)
    return [f"{event.reason}@{event.step}" for event in speaker.events]


def test_noise_around_a_level_is_silent() -> None:
    """Losses of 2.0 and 2.4 in turn: median 2.2, robust deviation 1.4826 * 0.2."""
    assert feed([2.0, 2.4] * 100) == []


def test_one_odd_batch_is_silent_and_a_lasting_jump_is_not() -> None:
    """The limit is 2.2 + 6 * 0.29652 = 3.979; the median of five passes it at the third one."""
    usual = [5.0] * 3 + [2.0, 2.4] * 30
    assert feed([*usual, 4.1, *usual[3:]]) == []
    assert feed([*usual, *[4.1] * 10]) == ["monitor.loss_spike@66"]


def test_a_huge_jump_is_spoken_at_once() -> None:
    """20 deviations above 2.2 is 8.13."""
    assert feed([*[2.0, 2.4] * 30, 8.2]) == ["monitor.loss_spike@61"]


def test_a_loss_that_rises_from_the_start() -> None:
    """The median of ten is looked at in every fifth update."""
    assert feed([3.0] * 3 + [3.6] * 10) == ["monitor.loss_diverges@10"]
    assert feed([3.0] * 3 + [3.4] * 10) == []


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_told_to_the_caller(loss: float) -> None:
    watch = LossWatch(Speaker(None))
    assert watch.see(1, loss, warming_up=False) is False
    assert watch.see(2, 1.0, warming_up=False) is True
    assert list(watch.recent) == [1.0]


def test_plateaus_have_names() -> None:
    """Both need 200 updates, and are looked at in every tenth."""
    uniform = [math.log(19)] * 210
    assert feed(uniform, vocab_size=19) == ["monitor.plateau_uniform@200"]
    assert feed([2.5] * 210, vocab_size=19, unigram_entropy=2.51) == ["monitor.plateau_unigram@200"]
    assert feed([2.5] * 210, vocab_size=19, unigram_entropy=2.6) == []


def test_a_slow_fall_through_the_entropy_is_no_plateau() -> None:
    """The halves of the window differ by 0.03."""
    falling = [2.53 - 0.0003 * step for step in range(300)]
    assert feed(falling, unigram_entropy=2.5) == []


def test_a_long_warm_up_may_stand_at_ln_v() -> None:
    assert feed([math.log(19)] * 300, warming_up=True, vocab_size=19) == []


def test_unigram_entropy_of_two_equal_tokens_is_ln_2() -> None:
    assert unigram_entropy(torch.tensor([0, 0, 3, 3])) == pytest.approx(math.log(2))
    assert unigram_entropy(torch.tensor([5, 5])) == 0
