"""One update: micro-batches weighted by their tokens, clipping, and nothing non-finite."""

import copy
import math

import pytest
import torch
from torch import Tensor

from minigpt.batches import get_batch
from minigpt.model import IGNORE_INDEX, MiniGPT, MiniGPTConfig
from minigpt.update import first_bad_gradient, update_weights

V, T = 11, 8
IDS = torch.arange(600) ** 2 % V


def make_model() -> MiniGPT:
    """A model without dropout, so that two ways of computing can be compared."""
    return MiniGPT(MiniGPTConfig(V, T, 16, 2, 1)).eval()


def batch(part: int) -> tuple[Tensor, Tensor]:
    return get_batch(IDS, 4, T, generator=torch.Generator().manual_seed(part))


def sgd(model: MiniGPT, rate: float = 1.0) -> torch.optim.SGD:
    """At rate 1 without momentum the weights move by exactly minus the gradient."""
    return torch.optim.SGD(model.parameters(), lr=rate)


def test_micro_batches_act_like_their_concatenation() -> None:
    """Three batches, one of them with most targets ignored, make the update of all in one."""
    batches = [batch(part) for part in range(3)]
    batches[1][1][:, :7] = IGNORE_INDEX
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    parted, joined = (copy.deepcopy(model) for model in [make_model()] * 2)
    in_parts = update_weights(parted, sgd(parted), batches)
    at_once = update_weights(joined, sgd(joined), [(whole[0], whole[1])])
    assert in_parts.loss == pytest.approx(at_once.loss, rel=1e-6)
    assert in_parts.grad_norm == pytest.approx(at_once.grad_norm, rel=1e-5)
    for ours, theirs in zip(parted.parameters(), joined.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("counts", [(32, 1), (3, 0, 29), (1, 2, 3, 4)])
def test_uneven_counts_weigh_by_token(counts: tuple[int, ...]) -> None:
    """SGD at rate 1 moves by the gradient: in float32 it is the full batch's to 1e-5."""
    batches = [batch(part) for part in range(len(counts))]
    for (_, targets), count in zip(batches, counts, strict=True):
        targets.view(-1)[count:] = IGNORE_INDEX
    whole = tuple(torch.cat(parts) for parts in zip(*batches, strict=True))
    parted, joined = (copy.deepcopy(model) for model in [make_model()] * 2)
    in_parts = update_weights(parted, sgd(parted), batches)
    at_once = update_weights(joined, sgd(joined), [(whole[0], whole[1])])
    assert in_parts.loss == pytest.approx(at_once.loss, abs=1e-5)
    for ours, theirs in zip(parted.parameters(), joined.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=0)


def test_bfloat16_sums_in_float32() -> None:
    """Under autocast the loss and the gradients of micro-batches are added in float32.

    64 equal batches have the loss and the gradient of one; a sum that was kept in bfloat16, with
    its 8 bits, would be off by more than 1 in 256.
    """
    once, often = (copy.deepcopy(model) for model in [make_model()] * 2)

    def autocast() -> torch.autocast:
        return torch.autocast("cpu", dtype=torch.bfloat16)

    one = update_weights(once, sgd(once), [batch(0)], precision=autocast)
    many = update_weights(often, sgd(often), [batch(0)] * 64, precision=autocast)
    assert many.loss == pytest.approx(one.loss, rel=1e-6)
    assert many.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
    assert {parameter.grad.dtype for parameter in often.parameters()} == {torch.float32}


def test_a_micro_batch_without_scored_tokens_adds_nothing() -> None:
    empty = batch(1)
    empty[1].fill_(IGNORE_INDEX)
    with_it, without = (copy.deepcopy(model) for model in [make_model()] * 2)
    update_weights(with_it, sgd(with_it), [batch(0), empty])
    update_weights(without, sgd(without), [batch(0)])
    for ours, theirs in zip(with_it.parameters(), without.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("count", [1, 2])
def test_without_any_scored_token_no_update_is_made(count: int) -> None:
    model = make_model()
    before = copy.deepcopy(model.state_dict())
    inputs, targets = batch(0)
    update = update_weights(
        model, sgd(model), [(inputs, torch.full_like(targets, IGNORE_INDEX))] * count
    )
    assert math.isnan(update.loss)
    assert (update.made, update.clipped) == (False, False)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_update_is_scaled_to_the_clip_norm() -> None:
    """SGD at rate 1 moves the weights by the clipped gradient: its norm is the limit."""
    model = make_model()
    before = torch.nn.utils.parameters_to_vector(model.parameters()).clone()
    update = update_weights(model, sgd(model), [batch(0)], clip_norm=0.01)
    moved = torch.nn.utils.parameters_to_vector(model.parameters()) - before
    assert update.clipped
    assert update.grad_norm > 0.01
    assert float(moved.detach().norm()) == pytest.approx(0.01, rel=1e-3)


def test_the_first_bad_gradient_is_named() -> None:
    """In the order of the parameters; one without a gradient is passed over."""
    model = make_model()
    assert first_bad_gradient(model) is None
    for name in ("head.weight", "final_norm.bias"):
        parameter = model.get_parameter(name)
        parameter.grad = torch.full_like(parameter, math.inf)
    assert first_bad_gradient(model) == "final_norm.bias"
