"""Healthy designs under the five checks of causality that go beyond the mask: none may fail."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import pytest
import torch
from torch import nn

from diagnostics import Pipeline, Status
from diagnostics._guard import same_bytes
from diagnostics._probe import MissingPartError, Probe
from tests.diagnostics.architectures import Llama, OffsetGPT, SineGPT, StateSpace, alibi_mix
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    masked_mix,
)

CHECKS = ("batch_independence", "prefix", "positions", "context", "padding")


class _Capped(TinyGPT):
    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        return 3.0 * torch.tanh(super().hidden(ids) / 3.0)


class _Grid(TinyGPT):
    """Axial positions: one table of rows of four, one of columns; no position has its own row."""

    def __init__(self) -> None:
        super().__init__(positions=False)
        self.pos_row, self.pos_column = nn.Embedding(3, 16), nn.Embedding(4, 16)

    def hidden(self, ids: torch.Tensor) -> torch.Tensor:
        t = torch.arange(ids.shape[1])
        x = self.tokens(ids) + self.pos_row(t // 4) + self.pos_column(t % 4)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def _zero_head() -> nn.Module:
    model = TinyGPT()
    nn.init.zeros_(model.head.weight)
    return model


def _frozen() -> nn.Module:
    model = TinyGPT()
    for parameter in model.parameters():
        parameter.requires_grad = False
    return model


def _dropout() -> nn.Module:
    return nn.Sequential(nn.Embedding(19, 8), nn.Dropout(0.5), nn.Linear(8, 19))


HEALTHY: dict[str, tuple[Callable[[], nn.Module], dict[str, object]]] = {
    "gpt2": (TinyGPT, {}),
    "one layer": (lambda: TinyGPT(L=1), {}),
    "llama": (Llama, {}),
    "mistral": (lambda: Llama(window=4), {}),
    "alibi": (lambda: TinyGPT(mix=alibi_mix, positions=False), {}),
    "nope": (lambda: TinyGPT(positions=False), {}),
    "nope, one layer": (lambda: TinyGPT(positions=False, L=1), {}),
    "sines": (SineGPT, {}),
    "offset two": (OffsetGPT, {}),
    "grid": (_Grid, {}),
    "state space": (StateSpace, {}),
    "gru": (Recurrent, {}),
    "convolution": (Convolution, {}),
    "bigram": (Bigram, {}),
    "experts": (MixtureOfExperts, {}),
    "experts, one shut": (lambda: MixtureOfExperts(shut=True), {}),
    "hf style": (HFStyle, {"labels": "same"}),
    "tied": (lambda: TinyGPT(tied=True), {}),
    "zero head": (_zero_head, {}),
    "frozen": (_frozen, {}),
    "bfloat16": (lambda: TinyGPT().bfloat16(), {}),
    "capped": (_Capped, {}),
    "small weights": (lambda: TinyGPT(std=0.02), {}),
    "sink": (lambda: TinyGPT(mix=masked_mix(lambda i, j: (j <= i) & ((j > i - 3) | (j < 1)))), {}),
    "finite mask": (lambda: TinyGPT(mix=masked_mix(lambda i, j: j <= i, -1e4)), {}),
    "dropout": (_dropout, {"vocab_size": 19}),
    "padded vocabulary": (lambda: TinyGPT(24), {"vocab_size": 19}),
}


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", HEALTHY)
def test_a_healthy_design_does_not_fail(name: str, check: str) -> None:
    """PASS or WARN, on a model in train mode, whose weights and modes come back untouched."""
    torch.manual_seed(0)
    make, parts = HEALTHY[name]
    model = make().train()
    before = [tensor.clone() for tensor in model.state_dict().values()]
    probe = Probe(Pipeline(model, pad_id=0, **parts))  # type: ignore[arg-type]
    result = importlib.import_module(f"diagnostics.{check}").run(probe)
    assert result.status in (Status.PASS, Status.WARN), str(result)
    assert result.claim
    assert result.measured
    assert model.training
    after = model.state_dict().values()
    assert all(same_bytes(a, b) for a, b in zip(before, after, strict=True))


def test_designs_that_a_person_must_judge_are_warnings() -> None:
    """Each warning has its own reason; what is not listed passes."""
    expected = {
        ("mistral", "context"): "ok",  # the declared window: 2 x (4 - 1) tokens
        ("nope, one layer", "positions"): "order_unused",
        ("grid", "positions"): "shared_rows",
        ("convolution", "context"): "short",
        ("bigram", "context"): "bigram",
        ("hf style", "padding"): "mask_ignored",
        ("llama", "positions"): "ok",
        ("dropout", "context"): "bigram",
    }
    for (name, check), word in expected.items():
        torch.manual_seed(0)
        make, parts = HEALTHY[name]
        probe = Probe(Pipeline(make(), **parts))  # type: ignore[arg-type]
        result = importlib.import_module(f"diagnostics.{check}").run(probe)
        assert result.reason == f"{check}.{word}", str(result)
        assert result.status is (Status.PASS if word == "ok" else Status.WARN)


@pytest.mark.parametrize("check", CHECKS[1:4])
def test_a_model_that_is_declared_not_causal_is_skipped(check: str) -> None:
    probe = Probe(Pipeline(TinyGPT(), causal=False))
    result = importlib.import_module(f"diagnostics.{check}").run(probe)
    assert result.status is Status.SKIP
    assert result.reason == f"{check}.not_causal"


@pytest.mark.parametrize("check", CHECKS)
def test_a_model_that_does_not_repeat_itself_is_not_compared(check: str) -> None:
    """Noise in eval mode is for `modes`: here it is neither a leak nor a pass."""

    class Noisy(TinyGPT):
        def hidden(self, ids: torch.Tensor) -> torch.Tensor:
            x = super().hidden(ids)
            return x + 0.1 * torch.randn_like(x)

    probe = Probe(Pipeline(Noisy(), pad_id=0))
    result = importlib.import_module(f"diagnostics.{check}").run(probe)
    assert result.status is Status.SKIP
    assert result.reason == f"{check}.not_repeatable"


def test_padding_without_a_pad_is_skipped_and_names_it() -> None:
    with pytest.raises(MissingPartError) as missing:
        importlib.import_module("diagnostics.padding").run(Probe(Pipeline(TinyGPT())))
    assert missing.value.arguments == ("pad_id",)
