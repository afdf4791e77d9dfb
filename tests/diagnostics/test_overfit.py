"""The overfit check: floors by counting, healthy curves, and every way not to arrive."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_overfit, diagnose
from diagnostics._batch_floor import (
    last_tokens,
    measure_floor,
    nothing,
    position_only,
    whole_prefix,
)
from diagnostics._overfit_curve import without_dropout
from minigpt import MiniGPT, MiniGPTConfig
from tests.diagnostics.tiny import (
    Bigram,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
    masked_mix,
    random_pair,
)

V = 23


def debug(**changes: Any) -> MiniGPT:
    """The debug model."""
    return MiniGPT(MiniGPTConfig.debug(V, **changes))


def text_like(B: int = 8, T: int = 32) -> tuple[Tensor, Tensor]:
    """Rows that begin alike in pairs and go on differently, so that the floor is above 0."""
    inputs, targets = random_pair(V, B, T)
    half = B // 2
    inputs[half:, 0] = inputs[:half, 0]
    targets[:half, 0] = inputs[:half, 1]
    targets[half:, 0] = inputs[half:, 1]
    return inputs, targets


def by_hand(loss_of: Any) -> Any:
    """A forward that replaces the model's loss."""

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits = model(inputs)[0]
        return logits, loss_of(logits, targets)

    return forward


def test_floor_by_hand() -> None:
    """Two rows 0 1 with next tokens 1 2 and 1 3: at t = 1 one of two can be right, ln 2 each."""
    inputs, targets = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 2], [1, 3]])
    best = measure_floor(inputs, targets, whole_prefix, -100)
    assert best.loss == pytest.approx(2 * math.log(2) / 4)
    assert best.accuracy == 0.75
    # targets 1 1 2 3: entropy of (1/2, 1/4, 1/4) is 1.5 ln 2, the commonest is half of them
    counted = measure_floor(inputs, targets, nothing, -100)
    assert counted.loss == pytest.approx(1.5 * math.log(2))
    assert counted.accuracy == 0.5
    assert measure_floor(inputs, targets, position_only, -100) == best
    assert measure_floor(inputs, targets, last_tokens(1), -100) == best


def test_floor_ignores_what_is_not_scored() -> None:
    """With the contradiction masked, everything can be right."""
    inputs, targets = torch.tensor([[0, 1], [0, 1]]), torch.tensor([[1, 2], [1, -100]])
    assert measure_floor(inputs, targets, whole_prefix, -100).loss == 0.0
    with pytest.raises(ValueError, match="nothing to memorise"):
        measure_floor(inputs, torch.full_like(targets, -100), whole_prefix, -100)


@pytest.mark.parametrize("seed", range(3))
def test_debug_model_reaches_all_that_is_learnable(seed: int) -> None:
    """4 of 256 targets contradict 4 others: the ceiling is 252 of 256, in at most 60 steps."""
    torch.manual_seed(seed)
    result = check_overfit(debug(), *text_like())
    assert (result.reason, result.status) == ("overfit.ok", Status.PASS), str(result)
    numbers = result.numbers
    assert numbers["ceiling_accuracy"] == 252 / 256
    assert numbers["final_accuracy"] == 252 / 256
    assert numbers["floor_loss"] == pytest.approx(8 * math.log(2) / 256)
    assert numbers["steps"] <= 60
    assert numbers["curve"]["step"][:2] == [0, 5]
    assert "most silent bugs pass this too" in result.claim


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (debug(dropout=0.5), {}),
        (debug().bfloat16(), {}),
        (TinyGPT(V, C=32, block=32, tied=True), {}),
        (Recurrent(V, 64), {}),
        (HFStyle(TinyGPT(V, C=32, block=32), V), {"labels": "same"}),
        (debug(), {"forward": by_hand(lambda z, y: 256 * cross_entropy(z, y))}),
        (
            debug(),
            {
                "forward": by_hand(
                    lambda z, y: functional.cross_entropy(
                        z.flatten(0, 1), y.flatten(), label_smoothing=0.1
                    )
                )
            },
        ),
    ],
    ids=["dropout", "bfloat16", "tied", "gru", "hf", "sum", "smoothing"],
)
def test_healthy_designs_pass(model: nn.Module, parts: dict[str, Any]) -> None:
    """Dropout is off, scales are clipped, and smoothing does not hinder accuracy."""
    inputs, targets = text_like()
    if parts.get("labels") == "same":
        targets = inputs.clone()
    result = check_overfit(model, inputs, targets, **parts)
    assert result.reason == "overfit.ok", str(result)


def test_zero_initialised_head_passes() -> None:
    """It starts at exactly ln V."""
    model = debug()
    nn.init.zeros_(model.head.weight)
    result = check_overfit(model, *text_like())
    assert result.reason == "overfit.ok"
    assert result.numbers["initial_loss"] == pytest.approx(math.log(V), rel=1e-6)


@pytest.mark.parametrize("std", [1.0, 0.0])
def test_bigram_table_stops_at_the_floor_of_one_token(std: float) -> None:
    """A healthy design that cannot memorise: a warning that names its context."""
    result = check_overfit(Bigram(V, std=std), *text_like())
    assert (result.reason, result.status) == ("overfit.short_context", Status.WARN)
    assert "the last 1 token tells" in result.claim


def test_no_mixing_over_time_is_told_as_one_token() -> None:
    """Experts work on each position alone."""
    result = check_overfit(MixtureOfExperts(V, 16), *text_like(4, 12), learning_rate=1e-2)
    assert result.reason == "overfit.short_context"


def test_input_that_does_not_reach_the_head_stops_at_counting() -> None:
    """Every position reads token 0 and there are no positions: the entropy of the targets."""
    model = TinyGPT(V, block=16, positions=False)
    result = check_overfit(
        model,
        *skewed(),
        learning_rate=1e-2,
        forward=lambda m, x, y: ((z := m(x * 0)[0]), cross_entropy(z, y)),
    )
    assert (result.reason, result.status) == ("overfit.stuck_at_unigram", Status.FAIL)
    assert result.numbers["final_loss"] == pytest.approx(result.numbers["unigram_loss"], abs=0.1)


def test_tokens_that_are_not_read_stop_at_the_position() -> None:
    """Token 0 everywhere, but positions are told apart."""
    result = check_overfit(
        TinyGPT(V, block=16),
        *skewed(),
        learning_rate=1e-2,
        forward=lambda m, x, y: ((z := m(x * 0)[0]), cross_entropy(z, y)),
    )
    assert (result.reason, result.status) == ("overfit.stuck_at_position", Status.FAIL)


def skewed() -> tuple[Tensor, Tensor]:
    """Tokens of which some are far commoner, as in text, so that counting beats ln V."""
    draws = torch.rand(6, 17, generator=torch.Generator().manual_seed(3)).pow(3)
    ids = (draws * V).long()
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@pytest.mark.parametrize("bounds", [{"max": 2.0}, {"min": 2.0}])
def test_clamped_loss_is_bounded(bounds: dict[str, float]) -> None:
    """Neither above 2 (it starts at 3.1) nor below 2 has the loss a gradient."""
    result = check_overfit(
        debug(),
        *text_like(4, 12),
        forward=by_hand(lambda z, y: cross_entropy(z, y).clamp(**bounds)),
    )
    assert (result.reason, result.status) == ("overfit.loss_is_bounded", Status.FAIL)
    assert "exactly 2" in result.claim
    assert result.numbers["steps"] <= 200  # it gives up early


def test_dropout_that_cannot_be_switched_off_is_named() -> None:
    """Training is noisy and eval is not: the curve tells, and it is a warning."""

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        x = model.token_embedding(inputs) + model.position_embedding.weight[: inputs.shape[1]]  # type: ignore[operator,union-attr,index]
        x = functional.dropout(x, 0.95, model.training)
        logits = model.head(model.final_norm(x))  # type: ignore[operator]
        return logits, cross_entropy(logits, targets)

    result = check_overfit(debug(), *text_like(), steps=40, learning_rate=3e-3, forward=forward)
    assert (result.reason, result.status) == ("overfit.incomplete", Status.WARN)
    assert any("dropout" in cause for cause in result.causes)


def test_second_shift_inside_is_another_target() -> None:
    """The model's own loss falls, the honest one rises."""
    result = check_overfit(
        debug(),
        *text_like(4, 12),
        learning_rate=3e-3,
        forward=by_hand(lambda z, y: cross_entropy(z[:, :-1], y[:, 1:])),
    )
    assert (result.reason, result.status) == ("overfit.other_target", Status.FAIL)
    assert result.numbers["reported_loss"][-1] < 1 < result.numbers["final_loss"]


def test_probabilities_in_place_of_logits_stay_high() -> None:
    """The loss of probabilities has a floor of ln(e + V - 1) - 1, 2.22 for V = 23."""

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        probabilities = model(inputs)[0].softmax(-1)
        return probabilities, cross_entropy(probabilities, targets)

    model = TinyGPT(V, C=32, block=32)
    result = check_overfit(model, *text_like(4, 12), forward=forward, learning_rate=1e-2)
    assert (result.reason, result.status) == ("overfit.loss_stays_high", Status.FAIL)
    assert result.numbers["final_loss"] > math.log(math.e + V - 1) - 1
    assert "probabilities" in result.causes[0]


def test_reading_the_future_goes_below_the_floor() -> None:
    """Without a mask even contradictory rows are told apart."""
    model = TinyGPT(V, C=32, block=32, mix=masked_mix(lambda i, j: j > -1))
    result = check_overfit(model, *text_like())
    assert (result.reason, result.status) == ("overfit.below_floor", Status.FAIL)
    assert result.numbers["final_accuracy"] > 252 / 256
    declared = check_overfit(model, *text_like(), causal=False)
    assert declared.status is Status.PASS


def test_far_too_high_a_rate_diverges() -> None:
    """The rate of 1 moves every weight by 50 times its size."""
    result = check_overfit(debug(), *text_like(4, 12), learning_rate=1.0)
    assert (result.reason, result.status) == ("overfit.diverged", Status.FAIL)
    assert "then rises to" in result.claim


def test_nan_names_its_step() -> None:
    """The seventh step's loss is not a number."""
    calls = 0

    def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
        nonlocal calls
        calls += logits.requires_grad
        loss = cross_entropy(logits, targets)
        return loss * math.nan if calls - 1 == 7 else loss  # one call looks for a gradient

    result = check_overfit(debug(), *text_like(), forward=by_hand(loss_of), learning_rate=3e-3)
    assert result.reason == "overfit.diverged"
    assert "at step 7" in result.claim


@pytest.mark.parametrize("own_loss", [True, False])
def test_a_loss_that_was_never_a_number_is_told_of_no_step(own_loss: bool) -> None:
    """The logits, or the model's own loss alone: neither rate nor step made it so."""
    model = debug()
    parts: dict[str, Any] = {}
    if own_loss:
        parts["forward"] = by_hand(lambda z, y: cross_entropy(z, y) * math.nan)
    else:
        nn.init.constant_(model.head.weight, math.nan)
    result = check_overfit(model, *text_like(), **parts)
    assert (result.status, result.reason) == (Status.FAIL, "overfit.not_finite")
    assert result.claim == "the loss of one batch is not a finite number before the first step"
    assert result.causes == ()


def test_rate_zero_makes_no_progress() -> None:
    """The user's own optimizer may be tried, too."""
    for parts in (
        {"learning_rate": 0.0},
        {"make_optimizer": lambda m: torch.optim.SGD(m.parameters(), lr=0.0)},
    ):
        result = check_overfit(debug(num_layers=1), *text_like(4, 12), **parts)
        assert result.reason == "overfit.stuck_at_uniform"


def test_too_few_steps_are_a_warning() -> None:
    """Ten steps at 1e-4: still falling."""
    result = check_overfit(debug(), *text_like(), steps=20, learning_rate=3e-4)
    assert (result.reason, result.status) == ("overfit.incomplete", Status.WARN)
    assert "too few steps" in result.causes[0]


def test_loss_outside_the_graph_is_named() -> None:
    """detach: nothing to learn from."""
    result = check_overfit(
        debug(), *text_like(), forward=by_hand(lambda z, y: cross_entropy(z.detach(), y))
    )
    assert (result.reason, result.status) == ("overfit.no_gradient", Status.FAIL)


def test_frozen_model_is_skipped() -> None:
    """Nothing can be memorised by a model that is not meant to learn."""
    result = check_overfit(debug().requires_grad_(False), *text_like())
    assert (result.reason, result.status) == ("overfit.frozen", Status.SKIP)


def test_the_model_is_not_trained_and_dropout_comes_back() -> None:
    """A copy is trained; weights, mode, rates and random state are the user's."""
    model = debug(dropout=0.3).train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check_overfit(model, *text_like())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    with without_dropout(model):
        rates = [m.p for m in model.modules() if isinstance(m, nn.Dropout)]
        assert rates == [0.0] * 5
        assert model.blocks[0].attention.dropout == 0.0  # type: ignore[union-attr]
    assert model.embedding_dropout.p == 0.3
    assert model.blocks[0].attention.dropout == 0.3  # type: ignore[union-attr]


def test_two_runs_agree_and_a_fresh_model_is_preferred() -> None:
    """The curve is the same for the same seed; make_model replaces a spoilt model."""
    model = debug()
    a = check_overfit(model, *text_like()).numbers["curve"]
    assert a == check_overfit(model, *text_like()).numbers["curve"]
    nn.init.constant_(model.head.weight, math.nan)
    inputs, targets = text_like()
    assert check_overfit(model, inputs, targets).reason == "overfit.not_finite"
    assert check_overfit(model, inputs, targets, make_model=debug).reason == "overfit.ok"


def test_long_batches_are_cropped_to_what_is_scored() -> None:
    """Of 12 rows x 64 tokens, 8 x 32 are learnt, from where the targets count."""
    inputs, targets = random_pair(V, 12, 64)
    targets[:, :30] = -100
    model = MiniGPT(MiniGPTConfig.debug(V, block_size=64))
    report = diagnose(Pipeline(model, batch=(inputs, targets)), only=["overfit"])
    numbers = report["overfit"].numbers
    assert numbers["shape"] == [8, 32]
    assert report["overfit"].reason == "overfit.ok"


def test_shapes_must_agree() -> None:
    """A pair that does not fit is a mistake of the caller."""
    with pytest.raises(ValueError, match=r"must both have shape \(B, T\)"):
        check_overfit(debug(), torch.zeros(2, 4).long(), torch.zeros(2, 3).long())
