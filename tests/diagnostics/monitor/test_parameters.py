"""Parameters: held, reached and moved, in small loops with one fault each."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from diagnostics import TrainingMonitor
from tests.diagnostics.monitor.loops import V, said, train
from tests.diagnostics.tiny import TinyGPT


def test_an_optimizer_that_was_built_before_a_layer_was_replaced() -> None:
    model = TinyGPT(V)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    model.head = nn.Linear(16, V, bias=False)
    monitor = train(2, model, optimizer=optimizer)
    assert said(monitor) == [("optimizer_misses", 1)]
    event = monitor.events[0]
    assert event.numbers["names"] == ["head.weight"]
    assert event.cause is not None
    assert event.cause.startswith("it holds 1 that the model does not have")


def test_frozen_parameters_are_a_design() -> None:
    """LoRA freezes the base: neither the optimizer nor a gradient is missed."""
    model = TinyGPT(V)
    for parameter in model.blocks.parameters():
        parameter.requires_grad_(False)
    assert said(train(100, model)) == []


def test_no_optimizer_step() -> None:
    """Nothing moved between the looks at 20, 40, 60 and 80."""
    monitor = train(80, update=False, clip=None)
    assert said(monitor) == [("weights_still", 80)]
    assert str(monitor.events[0].cause).startswith("optimizer.step() is not called")


def test_a_branch_that_is_detached() -> None:
    """The looks at 1, 5, 10, 20, 40, 60 and 80 are all without gradient; they span 79 updates."""
    model = TinyGPT(V)
    mlp = model.blocks[1].mlp  # type: ignore[union-attr]
    mlp.register_forward_hook(lambda module, args, output: output.detach())
    monitor = train(80, model)
    assert said(monitor) == [("no_gradient", 80)]
    names = [f"blocks.1.mlp.{layer}.{kind}" for layer in (0, 2) for kind in ("weight", "bias")]
    norm = ["blocks.1.norm2.weight", "blocks.1.norm2.bias"]
    assert monitor.events[0].numbers["names"] == [*norm, *names]


def test_a_group_with_rate_0_never_moves() -> None:
    """Suspected after three looks, then compared whole."""
    model = TinyGPT(V)
    optimizer = torch.optim.SGD(
        [
            {"params": list(model.blocks.parameters()), "lr": 0.0},
            {"params": [p for n, p in model.named_parameters() if not n.startswith("blocks")]},
        ],
        lr=1e-2,
    )
    monitor = train(160, model, optimizer=optimizer)
    assert [reason for reason, _ in said(monitor)] == ["parameters_still"]
    assert set(monitor.events[0].numbers["names"]) == {
        n for n, _ in model.named_parameters() if n.startswith("blocks")
    }


@pytest.mark.parametrize("step_first", [False, True])
def test_the_ratio_of_plain_gradient_descent_is_known(step_first: bool) -> None:
    """Before or after the step, what is measured is the update from one call to the next.

    SGD at rate 0.5 on a table whose gradient is 2 in each number moves each by -1. The numbers were
    10 and are 9, 8 and so on: in update 1 the ratio is 1 / 9, or 1 / 8 for who comes after it.
    """
    table = nn.Linear(4, 4, bias=False)
    nn.init.constant_(table.weight, 10.0)
    optimizer = torch.optim.SGD(table.parameters(), lr=0.5)
    monitor = TrainingMonitor(table, optimizer, on_event=None)
    for _ in range(2):
        optimizer.zero_grad()
        (2 * table.weight).sum().backward()
        if step_first:
            optimizer.step()
        monitor.step(1.0)
        if not step_first:
            optimizer.step()
    assert monitor.update_ratios == {"group 0": pytest.approx(1 / 8 if step_first else 1 / 9)}


def test_a_rate_far_too_high_shows_in_the_first_update() -> None:
    model = TinyGPT(V, std=0.02)
    monitor = train(2, model, rate=0.1)
    assert said(monitor) == [("updates_too_large", 2)]
    assert monitor.events[0].measured == pytest.approx(0.98, abs=0.02)


def test_a_rate_far_too_low() -> None:
    """Three looks, at 1, 5 and 10, each compared at the next update."""
    monitor = train(11, TinyGPT(V).double(), rate=1e-10)
    assert said(monitor) == [("updates_too_small", 11)]


def test_weights_that_begin_at_zero_may_move_by_all_of_their_size() -> None:
    model = TinyGPT(V)
    nn.init.zeros_(model.head.weight)
    groups = [
        {"params": [model.head.weight]},
        {"params": [p for n, p in model.named_parameters() if n != "head.weight"]},
    ]
    monitor = train(25, model, optimizer=torch.optim.AdamW(groups, lr=3e-3), step_first=True)
    assert said(monitor) == []


def test_large_parameters_are_sampled() -> None:
    """A table of 40,000 numbers is looked at in every tenth, and its ratio is that of the whole."""
    table = nn.Embedding(200, 200)
    nn.init.ones_(table.weight)
    monitor = TrainingMonitor(table, on_event=None)
    for _ in range(2):
        monitor.step(1.0)
        with torch.no_grad():
            table.weight.add_(1.0)
    assert monitor.update_ratios == {"all parameters": pytest.approx(0.5)}


def test_the_first_update_may_be_larger() -> None:
    """RMSprop begins with ten times its rate: 0.01 for weights of 0.02 is a ratio of 0.45."""
    model = TinyGPT(V, std=0.02)
    assert said(train(12, model, optimizer=torch.optim.RMSprop(model.parameters(), lr=1e-3))) == []


def test_a_rate_far_too_low_is_one_event() -> None:
    """In float32 gains of 1 cannot move by 1e-9: that is a note, the rate is the problem."""
    monitor = train(120, TinyGPT(V), rate=1e-9)
    assert said(monitor) == [("updates_too_small", 11)]
    assert [note.reason for note in monitor.notes] == ["monitor.parameters_still"]


def test_what_is_no_optimizer_is_told_before_training() -> None:
    with pytest.raises(TypeError, match="optimizer must have param_groups"):
        TrainingMonitor(TinyGPT(V), object())  # type: ignore[arg-type]
