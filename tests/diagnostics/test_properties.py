"""Whatever B, T, V, heads, layers and seed: no healthy model is accused, no bug passes.

A property that was tested with one head, one row, one token, or B = T = V hides bugs; hypothesis
looks for such corners. Sizes that are equal to one another are drawn on purpose.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from diagnostics import Pipeline, Report, Status, diagnose
from minigpt import MiniGPT, MiniGPTConfig, get_batch, make_optimizer
from minigpt.evaluate import evaluate
from minigpt.generate import generate
from minigpt.sampling import next_token_probabilities
from minigpt.update import update_weights
from tests.diagnostics.tiny import Bigram, TinyGPT, masked_mix

STRUCTURE = ("batch_independence", "causal_independence", "prefix", "positions", "context")
FEW, MANY = (settings(max_examples=n, deadline=None, derandomize=True) for n in (12, 30))


@dataclass(frozen=True)
class Sizes:
    """What is drawn."""

    B: int
    T: int
    V: int
    heads: int
    head_size: int
    layers: int
    seed: int

    def model(self, **parts: Any) -> TinyGPT:
        """A TinyGPT of these sizes."""
        torch.manual_seed(self.seed)
        width = self.heads * self.head_size
        return TinyGPT(self.V, C=width, H=self.heads, L=self.layers, block=self.T, **parts)

    def ids(self, count: int) -> Tensor:
        """Uniform ids (count,)."""
        return torch.randint(
            self.V, (count,), generator=torch.Generator().manual_seed(self.seed + 1)
        )


@st.composite
def sizes(draw: st.DrawFn, T_min: int = 2) -> Sizes:
    """Draw sizes; one time in four all of B, T and V are the same number."""
    T = draw(st.integers(T_min, 14))
    same = draw(st.integers(0, 3)) == 0
    B, V = (T, max(T, 4)) if same else (draw(st.integers(1, 6)), draw(st.integers(4, 40)))
    return Sizes(
        B,
        T,
        V,
        heads=draw(st.sampled_from([1, 2, 3])),
        head_size=draw(st.sampled_from([4, 8])),
        layers=draw(st.integers(1, 3)),
        seed=draw(st.integers(0, 10_000)),
    )


def accused(report: Report) -> list[tuple[str, str]]:
    """Return reason and claim of every result that is a failure or an error."""
    return [(result.reason, result.claim) for result in report.results if result.failed]


@FEW
@given(sizes())
def test_a_healthy_run_is_never_accused(drawn: Sizes) -> None:
    """A Mini-GPT with dropout and all its parts, on ids that are drawn with it."""
    torch.manual_seed(drawn.seed)
    width = drawn.heads * drawn.head_size
    config = MiniGPTConfig(drawn.V, drawn.T, width, drawn.heads, drawn.layers, dropout=0.1)

    def step(
        model: nn.Module, optimizer: torch.optim.Optimizer, *batches: tuple[Tensor, Tensor]
    ) -> float:
        model.train()
        return update_weights(model, optimizer, batches, clip_norm=1.0).loss

    report = diagnose(
        Pipeline(
            MiniGPT(config),
            make_model=lambda: MiniGPT(config),
            train_ids=drawn.ids(1500),
            val_ids=drawn.ids(2000)[1500:].flip(0),
            get_batch=lambda data: get_batch(data, drawn.B, drawn.T),
            make_optimizer=lambda model: make_optimizer(model, learning_rate=1e-3),
            train_step=lambda model, optimizer, x, y: step(model, optimizer, (x, y)),
            accumulate=lambda model, optimizer, batches: step(model, optimizer, *batches),
            evaluate=evaluate,  # type: ignore[arg-type]
            generate=lambda model, ids, n: generate(model, ids, n, greedy=True),  # type: ignore[arg-type]
            next_token_probabilities=next_token_probabilities,
            fresh=True,
        ),
        fast=True,
    )
    assert accused(report) == []


@MANY
@given(sizes(), st.data())
def test_one_leaking_pair_is_found_wherever_it_lies(drawn: Sizes, data: st.DataObject) -> None:
    """Position i may read token j > i, and nothing else is wrong: that pair is in the numbers."""
    i = data.draw(st.integers(0, drawn.T - 2))
    j = data.draw(st.integers(i + 1, drawn.T - 1))
    mix = masked_mix(lambda row, column: (column <= row) | ((row == i) & (column == j)))
    one_layer = replace(drawn, layers=1)  # two would carry the token on to other positions
    result = diagnose(Pipeline(one_layer.model(mix=mix)), only=["causal_independence"]).results[0]
    assert result.status is Status.FAIL, result.claim
    assert f"({i}, {j})" in result.where


@MANY
@given(sizes())
def test_rows_that_mix_are_found(drawn: Sizes) -> None:
    """Each row gets a little of the one before it, at any number of heads and layers."""

    class Mixing(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x + 0.01 * x.roll(1, dims=0)

    model = drawn.model()
    model.__class__ = Mixing
    result = diagnose(Pipeline(model), only=["batch_independence"]).results[0]
    assert (result.status, result.check) == (Status.FAIL, "batch_independence"), result.claim


Cut = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # data (N,), places (B, T) -> a batch


def _two_ahead(data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return data[places], data[places + 2]


def _copies(data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return data[places], data[places].clone()


def _wrapped(data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return data[places], data[places].roll(-1, dims=1)


def _backwards(data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
    return data[places + 1], data[places]


@pytest.mark.parametrize("cut", [_two_ahead, _copies, _wrapped, _backwards])
@FEW
@given(sizes(T_min=3))  # two places ahead: rows of two hold no such pair
def test_wrong_targets_are_found(cut: Cut, drawn: Sizes) -> None:
    """Each misalignment, for every shape of batch, one row and B = T = V included."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - drawn.T - 2, (drawn.B, 1))
        return cut(data, starts + torch.arange(drawn.T))

    pipeline = Pipeline(Bigram(drawn.V), get_batch=get_batch, train_ids=drawn.ids(500))
    result = diagnose(pipeline, only=["shift"]).results[0]
    assert result.status is Status.FAIL, result.claim
    wanted = {
        _two_ahead: "shift.too_far",
        _copies: "shift.identical",
        _wrapped: "shift.wrapped_last",
        _backwards: "shift.backward",
    }
    assert result.reason == wanted[cut]


@MANY
@given(sizes(), st.data())
def test_the_parameter_left_out_of_the_optimizer_is_named(
    drawn: Sizes, data: st.DataObject
) -> None:
    """Any one of them, the smallest bias included."""
    model = drawn.model()
    left_out = data.draw(st.sampled_from([name for name, _ in model.named_parameters()]))

    def make(model: nn.Module) -> torch.optim.Optimizer:
        kept = [p for name, p in model.named_parameters() if name != left_out]
        return torch.optim.AdamW(kept, lr=1e-3)

    result = diagnose(Pipeline(model, make_optimizer=make), only=["optimizer"]).results[0]
    assert result.status is Status.FAIL, result.claim
    assert left_out in result.where + result.claim


@MANY
@given(sizes(), st.sampled_from([0.25, 0.5, 2.0, 8.0]))
def test_a_scaled_loss_is_found(drawn: Sizes, factor: float) -> None:
    """The factor is measured to three digits, whatever the batch."""
    model = drawn.model(
        loss_of=lambda logits, targets: (
            factor * nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
        )
    )
    inputs = drawn.ids(drawn.B * drawn.T).view(drawn.B, drawn.T)
    targets = drawn.ids(drawn.B * drawn.T + 1)[1:].view(drawn.B, drawn.T)
    result = diagnose(Pipeline(model, batch=(inputs, targets)), only=["loss"]).results[0]
    assert result.status is Status.FAIL, result.claim


@FEW
@given(sizes())
def test_structure_of_a_bigram_is_no_failure(drawn: Sizes) -> None:
    """A table uses no context by design: a warning at most."""
    report = diagnose(Pipeline(Bigram(drawn.V), block_size=drawn.T), only=STRUCTURE)
    assert accused(report) == []
