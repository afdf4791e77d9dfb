"""Dead units and attention, seen without a trace in the model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from diagnostics.monitor.activations import ActivationWatch
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.values import Values
from tests.diagnostics.monitor.loops import V, said, train
from tests.diagnostics.tiny import TinyGPT, causal_mix, masked_mix


@pytest.mark.parametrize("activation", [nn.ReLU(), nn.GELU(), nn.SiLU()])
def test_a_bias_far_below_zero_kills_a_layer(activation: nn.Module) -> None:
    """The third look is at update 40. SiLU of -20 is -4e-8."""
    model = TinyGPT(V)
    mlp = model.blocks[1].mlp  # type: ignore[union-attr]
    mlp[1] = activation  # type: ignore[operator]
    nn.init.constant_(mlp[0].bias, -20.0)  # type: ignore[index,arg-type]
    monitor = train(40, model)
    assert said(monitor) == [("dead_units", 40)]
    event = monitor.events[0]
    assert event.measured == 1.0
    assert event.claim == "32 of 32 units of blocks.1.mlp.1 were inactive for all of 288 tokens"


def look(model: nn.Module, ids: Tensor, times: int = 3, step: int = 300) -> list[str]:
    speaker, values = Speaker(None), Values()
    watch = ActivationWatch(speaker, values)
    for _ in range(times):
        watch.look(step, model, ids, None)
        values.flush()
    assert watch.trouble is None
    return [event.reason for event in speaker.events]


@pytest.mark.parametrize("mix", [causal_mix, masked_mix(lambda i, j: j <= i)])
@pytest.mark.parametrize(
    ("factor", "reasons"),
    [(0.0, ["monitor.attention_uniform"]), (1.0, []), (1e4, ["monitor.attention_collapsed"] * 2)],
)
def test_attention_by_the_size_of_its_scores(
    mix: object, factor: float, reasons: list[str]
) -> None:
    """Queries times 0 read everything alike; times 10,000 they read one token."""
    model = TinyGPT(V, mix=mix)  # type: ignore[arg-type]
    for block in model.blocks:
        with torch.no_grad():
            block.attention.qkv.weight[:16] *= factor  # type: ignore[union-attr,index]
            block.attention.qkv.bias[:16] *= factor  # type: ignore[union-attr,index]
    ids = torch.randint(V, (4, 12))
    found = look(model, ids)
    assert found == reasons[: len(found)]
    assert bool(found) == bool(reasons)


def test_a_fresh_model_may_attend_almost_evenly() -> None:
    assert look(TinyGPT(V, std=0.02), torch.randint(V, (4, 12))) == []


def test_a_look_leaves_nothing_behind() -> None:
    """Mode, buffers, random state and the user's hooks are as before; no hook was called."""
    calls = []
    model = nn.Sequential(
        nn.Embedding(V, 8), nn.Dropout(0.5), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(8, V)
    )
    model[2].eval()
    model[4].register_forward_hook(lambda *args: calls.append(1))
    modes = [m.training for m in model.modules()]
    before = {n: b.clone() for n, b in model.state_dict().items()}
    state = torch.get_rng_state()
    look(model, torch.randint(V, (4, 12)).clone())
    state_now = torch.get_rng_state()
    assert calls == []
    assert [m.training for m in model.modules()] == modes
    assert all(torch.equal(b, before[n]) for n, b in model.state_dict().items())
    assert [len(m._forward_hooks) for m in model.modules()] == [0, 0, 0, 0, 0, 1]
    assert not torch.equal(state, state_now)  # randint above drew, and the looks did not
    torch.set_rng_state(state)
    torch.randint(V, (4, 12))
    assert torch.equal(torch.get_rng_state(), state_now)


def test_a_model_that_cannot_be_called_that_way_is_left_alone() -> None:
    class Asks(nn.Module):
        def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:
            return ids * lengths

    watch = ActivationWatch(Speaker(None), Values())
    watch.look(1, Asks(), torch.ones(2, 3), None)
    assert watch.trouble is not None
    assert watch.trouble.startswith("TypeError")
