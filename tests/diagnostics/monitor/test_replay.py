"""The replay names the first module and operation, and leaves the model as it was."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diagnostics.monitor.replay import non_finite, replay
from tests.diagnostics.monitor.loops import V
from tests.diagnostics.tiny import Bigram, TinyGPT, masked_mix

IDS = torch.arange(24).view(2, 12) % V


def poisoned(module: nn.Module, change: Callable[[Tensor], Tensor]) -> None:
    """Let a module change what it computes, inside its own forward."""
    forward = module.forward
    module.forward = lambda x: change(forward(x))  # type: ignore[method-assign]


@pytest.mark.parametrize(
    ("change", "operation"),
    [
        (lambda x: (x - x.amax() - 1).log(), "aten.log.default"),
        (lambda x: (1000 + x).exp(), "aten.exp.default"),
        (lambda x: x / (x - x), "aten.div.Tensor"),
        (lambda x: (x - x).log() * 0, "aten.log.default"),  # -inf first, NaN after it
        (lambda x: x.masked_fill(x == x, -math.inf).softmax(-1), "aten._softmax.default"),
    ],
)
def test_the_first_operation_in_the_first_module(
    change: Callable[[Tensor], Tensor], operation: str
) -> None:
    model = TinyGPT(V)
    poisoned(model.blocks[1].mlp[0], change)  # type: ignore[union-attr,index,arg-type]
    found = replay(model, IDS, IDS)
    assert (found.phase, found.module, found.kind) == ("forward", "blocks.1.mlp.0", "Linear")
    assert found.operation == operation
    assert found.place is not None
    assert found.place.startswith("test_replay.py:")
    assert found.inputs_finite is True


def test_between_modules_the_module_around_is_named() -> None:
    """A mask that hides everything: softmax over nothing, inside the attention's own forward."""
    model = TinyGPT(V, mix=masked_mix(lambda i, j: j < i))  # position 0 may read nothing
    found = replay(model, IDS, IDS)
    assert (found.module, found.operation) == ("blocks.0.attention", "aten._softmax.default")
    assert "in the forward pass blocks.0.attention is the first module" in found.sentence()


def test_a_mask_of_infinities_is_a_design() -> None:
    """Scores of -inf where nothing may be read are finite again after softmax."""
    found = replay(TinyGPT(V, mix=masked_mix(lambda i, j: j <= i)), IDS, IDS)
    assert (found.phase, found.trouble) == ("", None)
    assert found.loss == pytest.approx(math.log(V), abs=0.7)
    assert found.sentence().startswith("run again, the step is finite")


def test_a_loss_over_no_target() -> None:
    found = replay(TinyGPT(V), IDS, torch.full_like(IDS, -100))
    assert (found.phase, found.module) == ("forward", "the model itself")
    assert found.operation == "aten.nll_loss_forward.default"


def test_a_gradient_that_breaks_in_the_backward_pass() -> None:
    """The root of 0 is 0, and its slope is infinite: 0 times that is NaN."""
    model = TinyGPT(V)
    poisoned(model.blocks[0].norm2, lambda x: x + (x - x).sqrt())  # type: ignore[union-attr,arg-type]
    found = replay(model, IDS, IDS)
    assert (found.phase, found.module) == ("backward", "blocks.0.norm2")
    assert found.operation == "aten.div.Tensor"
    assert found.parameter is not None
    assert found.parameter.startswith("blocks.0.norm2.")
    assert found.loss is not None
    assert math.isfinite(found.loss)


def test_everything_is_as_before() -> None:
    """Weights, gradients, buffers, modes, hooks and the random state."""
    model = nn.Sequential(nn.Embedding(V, 8), nn.Dropout(0.5), nn.BatchNorm1d(12), nn.Linear(8, V))
    poisoned(model[3], lambda x: x / 0)
    model[3].weight.grad = torch.ones_like(model[3].weight)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    state = torch.get_rng_state()
    assert replay(model, IDS, IDS).module == "3"
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(t, before[n]) for n, t in model.state_dict().items())
    assert torch.equal(model[3].weight.grad, torch.ones(V, 8))
    assert model[0].weight.grad is None
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert not any(p._backward_hooks for p in model.parameters())


def test_the_same_dropout_with_the_random_state_of_then() -> None:
    """Only one mask in some breaks: 1 / 0 where the first number was dropped."""
    model = nn.Sequential(nn.Embedding(V, 8), nn.Dropout(0.5), nn.Linear(8, V))
    poisoned(model[1], lambda x: x / (x[0, 0, 0] != 0))
    hit = {}
    for seed in range(20):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        broke = not bool(model(IDS).isfinite().all())
        hit[broke] = hit.get(broke, 0) + 1
        assert bool(replay(model, IDS, IDS, random_state=state).phase) == broke
    assert set(hit) == {True, False}


def test_a_model_that_cannot_be_called_says_why() -> None:
    found = replay(nn.Linear(2, 2), IDS, IDS)
    assert found.phase == ""
    assert found.trouble is not None
    assert found.sentence().startswith("the step could not be run again: RuntimeError")


def test_names_of_tensors_that_are_not_finite() -> None:
    named = {
        "a": torch.ones(2),
        "b": torch.tensor([1.0, math.nan]),
        "c": torch.tensor([1, 2]),
        "d": torch.tensor([math.inf]),
    }
    assert non_finite(named) == ["b", "d"]
    assert non_finite({}) == []


def test_a_loss_of_the_loop_is_not_blamed_on_dropout() -> None:
    """The model returns logits and is finite: what was not was made after it."""
    found = replay(Bigram(V), IDS, IDS, lambda model, inputs, targets: model(inputs)[0])
    assert found.phase == ""
    assert found.loss_is_ours
    assert "the fault is in how the loop makes its loss" in found.sentence()


def test_a_long_message_of_torch_is_cut() -> None:
    def forward(model: nn.Module, inputs: object, targets: object) -> object:
        raise RuntimeError("first line " + "x" * 500 + "\nsecond")

    trouble = replay(Bigram(V), IDS, IDS, forward).trouble
    assert trouble is not None
    assert trouble.startswith("RuntimeError: first line xxx")
    assert len(trouble) == 200
