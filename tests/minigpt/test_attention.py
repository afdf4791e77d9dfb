"""Attention written out is the kernel's function, with its gradients, and when it is taken."""

import copy
import math

import pytest
import torch
from torch import Tensor

from minigpt import attention
from minigpt.attention import attend, attend_written_out, readable, written_out_is_faster
from minigpt.model import KeyValueCache, MiniGPT, MiniGPTConfig
from minigpt.seed import set_seed

CONFIG = MiniGPTConfig(
    vocab_size=11, block_size=7, embedding_dim=6, num_heads=2, num_layers=2, expansion_factor=3
)
TOLERANCE = {torch.float64: 1e-14, torch.float32: 2e-6, torch.bfloat16: 0.02}


def draw(T: int, S: int, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries (2, 3, T, 4), keys and values (2, 3, S, 4) that want gradients."""
    generator = torch.Generator().manual_seed(7)
    shapes = ((2, 3, T, 4), (2, 3, S, 4), (2, 3, S, 4))
    parts = [torch.randn(shape, generator=generator).to(dtype) for shape in shapes]
    return parts[0].requires_grad_(), parts[1].requires_grad_(), parts[2].requires_grad_()


def take(monkeypatch: pytest.MonkeyPatch, written_out: bool) -> None:
    monkeypatch.setattr(attention, "written_out_is_faster", lambda q, k: written_out)


def test_who_may_read_what() -> None:
    """Two queries at the end of four positions read three keys and four."""
    expected = torch.tensor([[True, True, True, False], [True, True, True, True]])
    assert torch.equal(readable(2, 4, torch.device("cpu")), expected)


def test_by_hand() -> None:
    """Keys of zero give equal weights: each position gets the mean of the values so far."""
    values = torch.tensor([3.0, 5.0, 10.0]).view(1, 1, 3, 1)
    zeros = torch.zeros_like(values)
    for form in (attend, attend_written_out):
        mixed = form(torch.ones_like(values), zeros, values)
        assert mixed.flatten().tolist() == pytest.approx([3.0, 4.0, 6.0])


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize(("T", "S"), [(1, 1), (5, 5), (1, 6), (3, 6)], ids=str)
def test_both_forms_agree_with_gradients(T: int, S: int, dtype: torch.dtype) -> None:
    """Whole sequences, one token, and queries behind a cache: outputs and all three gradients."""
    results = []
    for form in (attend, attend_written_out):
        inputs = draw(T, S, dtype)
        mixed = form(*inputs)
        gradients = torch.autograd.grad(mixed.float().square().sum(), inputs)
        results.append((mixed, *gradients))
    for ours, theirs in zip(*results, strict=True):
        assert ours.dtype == dtype
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE[dtype] * 5, rtol=TOLERANCE[dtype])


def test_a_hidden_key_has_weight_zero_exactly() -> None:
    """In float64 a change of the last key and value moves no bit of what is before it."""
    queries, keys, values = (part.detach() for part in draw(5, 5, torch.float64))
    before = attend_written_out(queries, keys, values)
    keys[:, :, 4] += 1e3
    values[:, :, 4] -= 1e6
    after = attend_written_out(queries, keys, values)
    assert torch.equal(before[:, :, :4], after[:, :, :4])
    assert not torch.equal(before[:, :, 4], after[:, :, 4])
    assert bool(after.isfinite().all())


def test_scores_beyond_range_leave_no_nan() -> None:
    """Scores of 1e30 are a choice of one key, not an overflow."""
    queries = torch.full((1, 1, 2, 1), 1e15)
    keys = torch.tensor([1e15, -1e15]).view(1, 1, 2, 1)
    values = torch.tensor([3.0, 5.0]).view(1, 1, 2, 1)
    assert attend_written_out(queries, keys, values).flatten().tolist() == [3.0, 3.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_model_is_the_same_in_both_forms(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Logits, loss and every gradient of the whole model."""
    set_seed(3)
    model = MiniGPT(CONFIG).to(dtype)
    ids = torch.randint(11, (2, 8))
    results: list[list[Tensor]] = []
    for written_out in (False, True):
        take(monkeypatch, written_out)
        twin = copy.deepcopy(model)
        logits, loss = twin(ids[:, :-1], ids[:, 1:])
        assert loss is not None
        loss.backward()
        gradients = [p.grad for p in twin.parameters() if p.grad is not None]
        assert len(gradients) == len(list(twin.parameters()))
        results.append([logits, loss, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, atol=TOLERANCE[dtype], rtol=1e-5)


def test_the_cache_is_the_same_in_both_forms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading 3, 2 and 1 tokens one after the other gives the logits of reading 6 at once."""
    set_seed(3)
    model = MiniGPT(CONFIG).double().eval()
    ids = torch.randint(11, (2, 6))
    take(monkeypatch, False)
    expected = model(ids)[0]
    take(monkeypatch, True)
    cache = KeyValueCache(CONFIG, 2, device=torch.device("cpu"), dtype=torch.float64)
    parts = [model(part, cache=cache)[0] for part in ids.split([3, 2, 1], dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), expected, atol=1e-13, rtol=1e-13)


def test_dropout_leaves_weights_in_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values of 1 come out as a sum of weights: 1 on average, less or more in one draw."""
    torch.manual_seed(0)
    queries, keys, _ = (part.detach() for part in draw(64, 64, torch.float32))
    values = torch.ones_like(keys)
    assert attend_written_out(queries, keys, values).allclose(values)
    dropped = attend_written_out(queries, keys, values, dropout=0.5)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.1)
    assert float(dropped.std()) > 0.1


def test_when_attention_is_written_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only on chips with AVX-512, for bfloat16, or short float32 rows under medium."""

    def faster(T: int, S: int, dtype: torch.dtype, precision: str = "highest") -> bool:
        monkeypatch.setattr(torch, "get_float32_matmul_precision", lambda: precision)
        queries, keys, _ = draw(T, S, dtype)
        return written_out_is_faster(queries, keys)

    monkeypatch.setattr(attention, "HAS_AVX512", False)
    assert not faster(8, 8, torch.bfloat16, "medium")
    monkeypatch.setattr(attention, "HAS_AVX512", True)
    assert faster(8, 8, torch.bfloat16)
    assert faster(64, 64, torch.float32, "medium")
    assert not faster(65, 65, torch.float32, "medium")
    assert not faster(8, 8, torch.float32)
    assert not faster(8, 8, torch.float64, "medium")
    assert not faster(1, 8, torch.bfloat16)
    assert not written_out_is_faster(
        torch.empty(1, 1, 8, 4, dtype=torch.bfloat16, device="meta"),
        torch.empty(1, 1, 8, 4, dtype=torch.bfloat16, device="meta"),
    )


def test_mode_and_gradients_do_not_choose_the_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Train or eval, with gradients or without: the same bits, under bfloat16 autocast."""
    monkeypatch.setattr(attention, "HAS_AVX512", True)
    set_seed(3)
    model = MiniGPT(CONFIG)
    ids = torch.randint(11, (2, 7))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = model(ids)[0]
        model.eval()
        assert torch.equal(model(ids)[0], expected)
        with torch.no_grad():
            assert torch.equal(model(ids)[0], expected)


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_model_can_be_traced_as_one_graph(dynamic: bool) -> None:
    """torch.compile meets nothing that it has to leave to Python.

    Dynamic: lengths are symbols, as torch makes them of itself once it has seen two of them.
    """
    torch.compiler.reset()  # what other tests have compiled decides nothing here
    model = MiniGPT(CONFIG)
    compiled = torch.compile(model, backend="eager", fullgraph=True, dynamic=dynamic)
    for T in (7, 5):
        ids = torch.randint(11, (2, T))
        torch.testing.assert_close(compiled(ids, ids)[1], model(ids, ids)[1])


def test_double_backward() -> None:
    """The written form has second derivatives: of a sum of squares by hand, and finite here."""
    queries, keys, values = draw(4, 4, torch.float64)
    mixed = attend_written_out(queries, keys, values)
    first = torch.autograd.grad(mixed.sum(), queries, create_graph=True)[0]
    second = torch.autograd.grad(first.square().sum(), keys)[0]
    assert float(second.abs().max()) > 0
    assert math.isfinite(float(second.sum()))
