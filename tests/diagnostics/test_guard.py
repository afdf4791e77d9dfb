"""The user's objects come back untouched: snapshots, random states, borrowed storage."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from diagnostics._guard import (
    EntryState,
    borrowed,
    kept_random_states,
    same_bytes,
    seed_everything,
    untouched,
)
from tests.diagnostics.tiny import TinyGPT


def draw() -> tuple[float, float, float]:
    """One number of each global generator."""
    return random.random(), float(np.random.random()), float(torch.rand(()))


def draw_and_raise() -> None:
    """Move every generator, then fail."""
    draw()
    raise ZeroDivisionError


def test_random_states_of_all_three_come_back() -> None:
    """Also after an exception."""
    seed_everything(3)
    expected = draw()
    seed_everything(3)
    with pytest.raises(ZeroDivisionError), kept_random_states():
        draw_and_raise()
    assert draw() == expected


def test_seeds_decide_every_generator() -> None:
    """Equal seeds, equal draws; others, others."""
    seed_everything(1)
    first = draw()
    seed_everything(2)
    second = draw()
    seed_everything(1)
    assert draw() == first
    assert all(a != b for a, b in zip(first, second, strict=True))


def spoil(model: TinyGPT) -> None:
    """Change everything that can be changed."""
    model.eval()
    model.blocks.train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    model.head.requires_grad_(False)
    assert model.head.weight.grad is not None
    model.head.weight.grad.zero_()
    model.tokens.weight.grad = torch.ones_like(model.tokens.weight)
    model.norm.register_forward_hook(lambda *_: None)
    model.get_buffer("steps").add_(5)
    torch.rand(3)


@pytest.mark.parametrize("raises", [False, True])
def test_untouched_puts_everything_back_in_place(raises: bool) -> None:
    """Values, modes, gradients, hooks, buffers, tensors and random states; the same storage."""
    model = TinyGPT().train()
    model.register_buffer("steps", torch.tensor(2))
    model.blocks[0].eval()
    kept_hook = model.head.register_forward_hook(lambda *_: None)
    model.head.weight.grad = torch.full_like(model.head.weight, 2.0)
    places = [parameter.data_ptr() for parameter in model.parameters()]
    values = [parameter.detach().clone() for parameter in model.parameters()]
    modes = [module.training for module in model.modules()]
    data, random_state = torch.arange(4), torch.get_rng_state()
    try:
        with untouched([model], [data]):
            spoil(model)
            data.zero_()
            torch.set_grad_enabled(False)
            if raises:
                raise ZeroDivisionError
    except ZeroDivisionError:
        assert raises
    assert [parameter.data_ptr() for parameter in model.parameters()] == places
    assert all(map(torch.equal, model.parameters(), values))
    assert [module.training for module in model.modules()] == modes
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(model.head.weight.grad, torch.full_like(model.head.weight, 2.0))
    assert model.tokens.weight.grad is None
    assert not model.norm._forward_hooks
    assert kept_hook.id in model.head._forward_hooks
    assert model.get_buffer("steps") == 2
    assert torch.equal(data, torch.arange(4))
    assert torch.equal(torch.get_rng_state(), random_state)
    assert torch.is_grad_enabled()


def test_weights_with_nan_are_left_alone() -> None:
    """NaN equals itself here, so nothing is written and the version counter stays."""
    model = nn.Linear(2, 2)
    nn.init.constant_(model.weight, math.nan)
    version = model.weight._version
    with untouched([model]):
        pass
    assert model.weight._version == version


def test_borrowed_model_works_on_other_storage() -> None:
    """Steps on the loan do not reach the owner's tensors, and ties hold in between."""
    model = TinyGPT(tied=True)
    model.register_buffer("table", torch.ones(2))
    places = {name: parameter.data_ptr() for name, parameter in model.named_parameters()}
    before = model.head.weight.detach().clone()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    with borrowed(model) as loan:
        assert loan is model
        assert model.head.weight.grad is None
        assert model.head.weight.data_ptr() != places["tokens.weight"]
        assert model.head.weight.data_ptr() == model.tokens.weight.data_ptr()
        with torch.no_grad():
            model.head.weight.zero_()
            model.get_buffer("table").zero_()
        model.double().eval().requires_grad_(False)
    assert {name: p.data_ptr() for name, p in model.named_parameters()} == places
    assert torch.equal(model.head.weight, before)
    assert torch.equal(model.head.weight.grad, torch.ones_like(before))
    assert torch.equal(model.get_buffer("table"), torch.ones(2))
    assert model.training
    assert model.head.weight.requires_grad


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0]), torch.tensor([1.0]), True),
        (torch.tensor([math.nan]), torch.tensor([math.nan]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([math.nan, 0.0]), torch.tensor([math.nan, 1.0]), False),
        (torch.tensor([1.0]), torch.tensor([1]), False),
        (torch.zeros(2), torch.zeros(2, 1), False),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.zeros(0), torch.zeros(0), True),
        (torch.zeros(2, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.bfloat16), True),
    ],
)
def test_same_bytes(a: Tensor, b: Tensor, same: bool) -> None:
    """Shape, dtype, sign of zero and NaN count."""
    assert same_bytes(a, b) is same


def test_entry_state_sets_the_users_switches_aside() -> None:
    """Inside a check gradients are on and autocast is off; afterwards all is as it was."""
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        entry = EntryState.read()
        assert (entry.grad_enabled, entry.autocast) == (False, ("cpu",))
        with entry.set_aside():
            assert torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
        assert not torch.is_grad_enabled()
        assert torch.is_autocast_enabled("cpu")


def test_untouched_takes_several_models_and_leaves_meta_tensors() -> None:
    """A model without storage has nothing to put back."""
    models: list[Any] = [nn.Linear(2, 2), nn.Linear(2, 2, device="meta")]
    before = models[0].weight.detach().clone()
    with untouched(models), torch.no_grad():
        models[0].weight.zero_()
    assert torch.equal(models[0].weight, before)
