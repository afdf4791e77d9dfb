"""Every trainable parameter once, decay on matrices only, state on the right device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.optimizer import make_optimizer, move_optimizer_to_device

CONFIG = MiniGPTConfig(
    vocab_size=11, block_size=7, embedding_dim=6, num_heads=2, num_layers=2, expansion_factor=3
)


def take_a_step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Update with gradients of 1."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_every_parameter_once_and_decay_on_matrices_only() -> None:
    """Ids of all groups are the model's; ndim >= 2 decays by 0.1, the rest by 0."""
    model = MiniGPT(CONFIG)
    optimizer = make_optimizer(model, learning_rate=1e-3)
    listed = [p for group in optimizer.param_groups for p in group["params"]]
    assert sorted(map(id, listed)) == sorted(map(id, model.parameters()))
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            assert group["weight_decay"] == (0.1 if parameter.ndim >= 2 else 0.0)
        assert group["lr"] == 1e-3
        assert group["betas"] == (0.9, 0.95)


def test_tied_and_frozen_parameters() -> None:
    """A tied weight is listed once, a frozen one not at all; no trainable one is an error."""
    model = MiniGPT(CONFIG)
    model.head.weight = model.token_embedding.weight
    model.final_norm.requires_grad_(False)
    optimizer = make_optimizer(model, learning_rate=1e-3)
    listed = [id(p) for group in optimizer.param_groups for p in group["params"]]
    assert listed.count(id(model.head.weight)) == 1
    assert id(model.final_norm.weight) not in listed
    model.requires_grad_(False)
    with pytest.raises(ValueError, match="nothing to train"):
        make_optimizer(model, learning_rate=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_decay_alone_shrinks_matrices_by_rate_times_decay(dtype: torch.dtype) -> None:
    """With zero gradients a matrix shrinks by 1 - 0.5 * 0.5, exactly; vectors stay."""
    model = nn.Linear(3, 2).to(dtype)
    optimizer = make_optimizer(model, learning_rate=0.5, weight_decay=0.5)
    weight, bias = model.weight.detach().clone(), model.bias.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    assert torch.equal(model.weight, weight * 0.75)
    assert torch.equal(model.bias, bias)


@pytest.mark.parametrize(("fused", "step_device"), [(True, "meta"), (False, "cpu")])
def test_state_moves_and_the_step_counter_only_where_torch_wants_it(
    fused: bool, step_device: str
) -> None:
    """Moments follow; `step` follows only when the kernel on the device reads it."""
    model = nn.Linear(3, 2)
    optimizer = make_optimizer(model, learning_rate=1e-3, fused=fused)
    take_a_step(model, optimizer)
    move_optimizer_to_device(optimizer, "meta")
    for state in optimizer.state.values():
        assert {key: value.device.type for key, value in state.items()} == {
            "step": step_device,
            "exp_avg": "meta",
            "exp_avg_sq": "meta",
        }


def test_moving_keeps_values_that_are_no_tensors_and_adds_no_state() -> None:
    """None and numbers stay as they are; a parameter without state gets none."""
    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    move_optimizer_to_device(optimizer, "cpu")
    assert not optimizer.state
    state: dict[str, Any] = {"momentum_buffer": None, "count": 3, "x": torch.ones(2)}
    optimizer.state[model.weight] = state
    move_optimizer_to_device(optimizer, "meta")
    moved: Tensor = state["x"]
    assert (state["momentum_buffer"], state["count"], moved.device.type) == (None, 3, "meta")


def test_training_goes_on_after_a_move() -> None:
    """A move to where the model is changes nothing: two steps are two steps."""
    torch.manual_seed(0)
    first, second = nn.Linear(3, 2), nn.Linear(3, 2)
    second.load_state_dict(first.state_dict())
    for model, moves in ((first, False), (second, True)):
        optimizer = make_optimizer(model, learning_rate=0.1)
        take_a_step(model, optimizer)
        if moves:
            move_optimizer_to_device(optimizer, "cpu")
        take_a_step(model, optimizer)
    assert torch.equal(first.weight, second.weight)
