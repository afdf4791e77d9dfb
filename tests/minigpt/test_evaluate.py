"""Evaluation against the loss written out over all tokens."""

import math
from contextlib import suppress

import pytest
import torch

from minigpt.evaluate import evaluate, evaluate_splits, evaluation_mode, window_count
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.parallel import ALONE

V, BLOCK = 7, 8


@pytest.fixture
def model() -> MiniGPT:
    """A model in train mode with dropout, which evaluation must not see."""
    torch.manual_seed(0)
    model = MiniGPT(MiniGPTConfig(V, BLOCK, 16, 2, 2, dropout=0.5))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(5)
    return model.train()


def make_ids(count: int) -> torch.Tensor:
    """Return (count,) random ids."""
    return torch.randint(V, (count,), generator=torch.Generator().manual_seed(count))


@pytest.mark.parametrize("count", [2, BLOCK, BLOCK + 1, BLOCK + 2, 5 * BLOCK, 5 * BLOCK + 4])
@pytest.mark.parametrize("batch_size", [1, 3, 64])
def test_every_token_counts_once(model: MiniGPT, count: int, batch_size: int) -> None:
    """The mean over windows of 8 and a shorter rest, whatever the batch size: sum / (N - 1)."""
    ids = make_ids(count)
    loss_sum = 0.0
    model.eval()
    for start in range(0, count - 1, BLOCK):
        inputs, targets = ids[start : start + BLOCK], ids[start + 1 : start + BLOCK + 1]
        logits = model(inputs[None, : len(targets)])[0][0]
        nats = -logits.log_softmax(dim=-1).gather(1, targets[:, None])
        loss_sum += nats.sum().item()
    model.train()
    actual = evaluate(model, ids, batch_size=batch_size)
    assert actual == pytest.approx(loss_sum / (count - 1), rel=1e-5)


def test_a_uniform_model_has_ln_v() -> None:
    """A head of zeros gives every token 1/V: ln V nats, however the ids are cut."""
    model = MiniGPT(MiniGPTConfig(V, BLOCK, 16, 2, 1))
    torch.nn.init.zeros_(model.head.weight)
    assert evaluate(model, make_ids(45)) == pytest.approx(math.log(V), abs=1e-6)


def test_a_subset_is_spread_evenly_and_always_the_same(model: MiniGPT) -> None:
    """Two of six windows are the first and the fourth."""
    ids = make_ids(6 * BLOCK + 1)
    first, fourth = ids[: BLOCK + 1], ids[3 * BLOCK : 4 * BLOCK + 1]
    expected = (evaluate(model, first) + evaluate(model, fourth)) / 2
    assert evaluate(model, ids, max_windows=2) == pytest.approx(expected, rel=1e-6)
    assert evaluate(model, ids, max_windows=2) == evaluate(model, ids, max_windows=2)


def test_more_windows_than_there_are_means_all(model: MiniGPT) -> None:
    """Asking for 1,000 windows of six reads everything, the rest at the end too."""
    ids = make_ids(6 * BLOCK + 5)
    assert window_count(ids, BLOCK) == 6
    assert evaluate(model, ids, max_windows=1000) == evaluate(model, ids)


def test_nothing_is_left_behind(model: MiniGPT) -> None:
    """Modes of every submodule, gradients and the random state stay as they were."""
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    random_state = torch.get_rng_state()
    evaluate(model, make_ids(40))
    assert [module.training for module in model.modules()] == before
    assert torch.equal(torch.get_rng_state(), random_state)
    assert all(p.grad is None and p.requires_grad for p in model.parameters())


def test_modes_return_after_an_error(model: MiniGPT) -> None:
    """An exception inside leaves the block in its mode."""
    model.blocks[0].eval()
    before = [module.training for module in model.modules()]
    with suppress(RuntimeError), evaluation_mode(model):
        assert not any(module.training for module in model.modules())
        raise RuntimeError
    assert [module.training for module in model.modules()] == before


@pytest.mark.parametrize("ids", [make_ids(1), make_ids(0), make_ids(8).view(2, 4)])
def test_ids_without_a_pair_are_refused(model: MiniGPT, ids: torch.Tensor) -> None:
    """One id has no next token, and a batch is not a split."""
    with pytest.raises(ValueError, match=r"shape \(N,\) with N >= 2"):
        evaluate(model, ids)


@pytest.mark.parametrize(("max_windows", "of_train"), [(3, 3), (0, 4), (9, 9)])
def test_both_splits_are_measured_alike(model: MiniGPT, max_windows: int, of_train: int) -> None:
    """Three windows of each; or all 4 and a rest of validation, and 4 of the training split."""
    validation, train = make_ids(4 * BLOCK + 5), make_ids(30 * BLOCK)
    expected = [
        evaluate(model, validation, max_windows=max_windows or None),
        evaluate(model, train, max_windows=of_train),
    ]
    losses = evaluate_splits(model, validation, train, max_windows=max_windows, team=ALONE)
    assert losses == expected
