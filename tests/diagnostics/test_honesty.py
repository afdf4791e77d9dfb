"""Honesty: nobody gets below the entropy of the source, whatever the architecture."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_honesty, diagnose
from diagnostics._honest_trial import Trial
from diagnostics.honesty import _judge_learning
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
    masked_mix,
)

LN2 = math.log(2)


def open_gpt(loss_of: Any = cross_entropy) -> nn.Module:
    return TinyGPT(mix=masked_mix(lambda i, j: j > -1), loss_of=loss_of)


def padded() -> nn.Module:
    model = TinyGPT(64)
    model.config.vocab_size = 50  # the rest is padding of the vocabulary
    return model


def trained() -> nn.Module:
    """A table that is certain of something that is wrong here."""
    return Bigram(std=4.0)


@pytest.mark.parametrize(
    "make",
    [
        TinyGPT,
        lambda: TinyGPT(tied=True),
        lambda: TinyGPT(positions=False),
        lambda: TinyGPT().bfloat16(),
        Recurrent,
        Convolution,
        lambda: MixtureOfExperts(aux=0.01),
        padded,
    ],
)
def test_honest_models_pass_and_learn_the_chain(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    result = check_honesty(make())
    assert (result.status, result.reason) == (Status.PASS, "honesty.ok")
    uniform, chain = result.numbers["uniform"], result.numbers["chain"]
    assert uniform["entropy"] == pytest.approx(math.log(uniform["symbols"]))
    assert uniform["honest"] > uniform["entropy"] - 0.03
    assert LN2 - 0.03 < chain["honest"] < 1.0


def test_a_small_or_slow_model_never_fails() -> None:
    torch.manual_seed(0)
    for model in (Bigram(), trained()):
        assert not check_honesty(model).failed
    slow = check_honesty(TinyGPT(), steps=40, make_model=lambda: TinyGPT(C=2, H=1, L=1))
    assert slow.status is not Status.FAIL


def test_labels_inside_the_model() -> None:
    torch.manual_seed(0)
    assert check_honesty(HFStyle(), labels="same").reason == "honesty.ok"


@pytest.mark.parametrize(
    "make",
    [
        open_gpt,
        lambda: TinyGPT(mix=masked_mix(lambda i, j: j <= i + 1)),
        lambda: Recurrent(bidirectional=True),
        lambda: Convolution(left=1),
    ],
)
def test_every_way_to_the_future_is_found(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    result = check_honesty(make())
    assert (result.status, result.reason) == (Status.FAIL, "honesty.sees_the_future")
    assert result.measured
    assert result.causes


def cut(data: Tensor, distance: int) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(data) - 20, (8, 1))
    places = starts + torch.arange(12)
    return data[places], data[places + distance]


def test_targets_that_stand_among_the_inputs() -> None:
    torch.manual_seed(0)
    for distance in (0, -1):
        result = check_honesty(TinyGPT(), lambda data, d=distance: cut(data[1:], d))
        assert (result.status, result.reason) == (Status.FAIL, "honesty.targets_are_known")
    assert check_honesty(TinyGPT(), lambda data: cut(data, 1)).reason == "honesty.ok"


def test_targets_two_ahead_rest_at_twice_the_entropy() -> None:
    """Two steps of the chain are two coins: 2 ln 2, which is a warning with its number."""
    torch.manual_seed(0)
    result = check_honesty(TinyGPT(), lambda data: cut(data, 2))
    assert (result.status, result.reason) == (Status.WARN, "honesty.learns_little")
    assert result.numbers["chain"]["recomputed"] == pytest.approx(2 * LN2, abs=0.1)
    assert result.causes


def test_a_loss_that_is_easier_than_its_targets() -> None:
    torch.manual_seed(0)
    halved = check_honesty(TinyGPT(loss_of=lambda z, y: cross_entropy(z, y) / 2))
    assert (halved.status, halved.reason) == (Status.FAIL, "honesty.loss_is_too_low")
    assert "divided or scaled" in halved.causes[0]
    easier = check_honesty(TinyGPT(loss_of=lambda z, y: cross_entropy(z, y // 2)))
    assert easier.reason == "honesty.loss_is_too_low"
    assert "easier" in easier.causes[0]


def test_a_loader_that_refuses_our_data_is_not_at_fault() -> None:
    def own_data_only(data: Tensor) -> tuple[Tensor, Tensor]:
        raise FileNotFoundError("train.bin")

    torch.manual_seed(0)
    assert check_honesty(TinyGPT(), own_data_only).reason == "honesty.ok"


def test_padding_is_no_symbol_and_large_or_frozen_models_are_skipped() -> None:
    torch.manual_seed(0)
    result = check_honesty(TinyGPT(), pad_id=0)
    assert result.numbers["uniform"]["symbols"] == 18
    frozen = TinyGPT().requires_grad_(False)
    assert check_honesty(frozen).reason == "honesty.frozen"
    assert check_honesty(open_gpt(), causal=False).reason == "honesty.not_causal"
    large = TinyGPT()
    large.register_parameter("rest", nn.Parameter(torch.empty(1).expand(10**9), False))
    skipped = check_honesty(large)
    assert (skipped.status, skipped.reason) == (Status.SKIP, "honesty.too_large")
    with pytest.raises(ValueError, match="steps"):
        check_honesty(TinyGPT(), steps=0)


def test_a_loss_that_was_never_a_number_is_told_of_no_step() -> None:
    model = TinyGPT()
    nn.init.constant_(model.head.weight, math.nan)
    result = check_honesty(model)
    assert (result.status, result.reason) == (Status.FAIL, "honesty.not_finite")
    assert result.claim == (
        "on uniform tokens from 19 symbols a loss is not a finite number before the first step"
    )
    assert result.measured == "nan nats reported, nan nats from the logits"


def test_the_claim_is_true_of_a_loss_a_little_below_the_entropy() -> None:
    """Of few tokens a mean falls now and then below it: the pass says how far it may."""
    uniform, chain = (Trial(name, "x", 16, LN2, 1, 1e-3) for name in ("uniform", "chain"))
    for trial in (uniform, chain):
        trial.recomputations, trial.reports, trial.honesties = [0.69], [0.69], [0.69]
    result = _judge_learning(uniform, chain)
    assert result.reason == "honesty.ok"
    assert result.claim == (
        "on new tokens no loss falls more than 0.1 nats below their entropy, and a chain is learnt "
        "to 0.69 nats where 0.6931 are possible"
    )


def test_the_model_is_left_alone() -> None:
    torch.manual_seed(0)
    model = TinyGPT().eval()
    before = copy.deepcopy(model.state_dict())
    report = diagnose(Pipeline(model), only=["honesty"])
    assert report["honesty"].reason == "honesty.ok"
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert not model.training
