"""Batch independence: maps predicted by hand, and each way in which rows can meet."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diagnostics import CheckResult, Pipeline, Status, check_batch_independence
from diagnostics._probe import Probe
from diagnostics._structure import bench
from diagnostics.batch_independence import measure_places, measure_rows
from tests.diagnostics.tiny import MixtureOfExperts, Recurrent, TinyGPT


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Neighbour(nn.Module):
    """Row b answers with the tokens of row b + 1, the last one with those of row 0."""

    def __init__(self, V: int = 7) -> None:
        super().__init__()
        self.vocab_size = V
        self.table = nn.Embedding(V, V)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids.roll(-1, 0))


class _Edited(TinyGPT):
    """A TinyGPT whose residual stream goes through an edit after each layer."""

    def __init__(self, edit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.edit = edit

    def hidden(self, ids: Tensor) -> Tensor:
        return self.edit(super().hidden(ids))


class _BatchFirstConfused(TinyGPT):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.confused = layers

    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for number, block in enumerate(self.blocks):
            x = block(x.transpose(0, 1)).transpose(0, 1) if number < self.confused else block(x)
        return self.norm(x)


class _EndToEnd(Recurrent):
    def forward(self, x: Tensor) -> Tensor:
        states = self.rnn(self.embedding(x.reshape(1, -1)))[0]
        return self.head(states).view(*x.shape, -1)


class _PositionsByRow(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(torch.arange(len(ids)))[:, None]
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _FirstRowForAll(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        return x + x[:1].mean(1, keepdim=True)


def _flat_in_the_other_order(x: Tensor) -> Tensor:
    return x.transpose(0, 1).reshape(x.shape)


def _standardise_over_batch(x: Tensor) -> Tensor:
    return (x - x.mean((0, 1))) / x.std((0, 1))


BROKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "attention over the batch": (lambda: _BatchFirstConfused(2), "batch_axis"),
    "one layer over the batch": (lambda: _BatchFirstConfused(1), "batch_axis"),
    "softmax over the batch": (lambda: _Edited(lambda x: x.softmax(0)), "batch_axis"),
    "rows laid end to end": (_EndToEnd, "end_to_end"),
    "statistics of the batch": (lambda: _Edited(_standardise_over_batch), "statistics"),
    "flat in the other order": (lambda: _Edited(_flat_in_the_other_order), "rows_mixed"),
    "positions by row": (_PositionsByRow, "slot"),
    "divided by the batch size": (lambda: _Edited(lambda x: x / len(x)), "alone"),
    "squeezed when alone": (
        lambda: _Edited(lambda x: x + 1 if x.squeeze().ndim == 2 else x),
        "alone",
    ),
}


def judge(model: nn.Module, **parts: object) -> CheckResult:
    return check_batch_independence(model, **parts)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", BROKEN)
def test_each_meeting_of_rows_fails_for_its_reason(name: str) -> None:
    make, reason = BROKEN[name]
    result = judge(make())
    assert result.status is Status.FAIL
    assert result.reason == f"batch_independence.{reason}", str(result)
    assert result.causes
    assert result.measured
    assert result.next_step


def test_the_call_in_which_rows_meet_tells_what_runs_over_the_batch() -> None:
    """Attention, or a softmax: one cause is left, and its place is named."""
    attention = judge(_BatchFirstConfused(1))
    assert "scaled_dot_product_attention in blocks.0.attention (tiny.py" in attention.where
    assert len(attention.causes) == 1
    assert "batch_first" in attention.causes[0]
    softmax = judge(_Edited(lambda x: x.softmax(0)))
    assert "it begins at softmax" in softmax.where
    assert len(softmax.causes) == 1
    assert "dim=0" in softmax.causes[0]


def test_train_mode_is_not_blamed_on_a_norm_that_is_not_there() -> None:
    """A mean over the batch in train mode only: no BatchNorm, no experts, no cause."""

    class Coupled(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x + x.mean(0, keepdim=True) if self.training else x

    result = judge(Coupled())
    assert (result.status, result.reason) == (Status.WARN, "batch_independence.train_only")
    assert result.causes == ()


def test_the_map_of_the_neighbour_model_is_the_shifted_identity() -> None:
    """Row i moves exactly when row i + 1 (modulo 3) is replaced, at every position."""
    with bench(Probe(Pipeline(_Neighbour()))) as model_bench:
        rows = measure_rows(model_bench, torch.tensor([[0, 3], [6, 2], [1, 1]]))
    assert torch.equal((rows > 0).all(2), torch.eye(3).roll(1, 1).bool())
    assert torch.equal((rows > 0).any(2), torch.eye(3).roll(1, 1).bool())


def test_one_token_arrives_where_the_model_reads_it() -> None:
    """Token 1 of row 1 (the middle of three rows of two) is read by row 0, position 1."""
    with bench(Probe(Pipeline(_Neighbour()))) as model_bench:
        places = measure_places(model_bench, torch.tensor([[0, 3], [6, 2], [1, 1]]))
    assert torch.equal(places > 0, torch.tensor([[False, True], [False, False], [False, False]]))


def test_the_claim_names_rows_and_counts_pairs() -> None:
    result = judge(_Neighbour(), tokens=torch.tensor([[0, 3], [6, 2], [1, 1]]))
    assert result.claim == "row 0 of a batch predicts otherwise when only row 1 changes"
    assert result.where.startswith("3 of 6 pairs of rows; first is (0, 1); it begins at roll (")
    assert result.numbers["leaking_pairs"] == 3


def test_a_first_row_that_is_added_to_all_is_read_by_all() -> None:
    """Only row 0 is read by others: 4 of the 20 pairs of five rows."""
    result = judge(_FirstRowForAll())
    assert result.status is Status.FAIL
    assert result.numbers["leaking_pairs"] == 4


def test_a_healthy_model_passes_with_its_numbers() -> None:
    result = judge(TinyGPT())
    assert result.reason == "batch_independence.ok"
    assert result.numbers["worst"] == 0.0
    assert (result.numbers["rows"], result.numbers["length"]) == (5, 12)


def test_a_block_of_five_gets_six_rows() -> None:
    """With B = T an axis that trades places would go unseen."""
    result = judge(TinyGPT(block=5))
    assert (result.numbers["rows"], result.numbers["length"]) == (6, 5)


class _Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm = nn.Embedding(13, 8), nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 13)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.embedding(ids).transpose(1, 2)).transpose(1, 2))


def test_batch_norm_is_a_warning_about_train_mode() -> None:
    """In eval mode BatchNorm uses its running averages, and rows are strangers."""
    result = judge(_Normed())
    assert result.status is Status.WARN
    assert result.reason == "batch_independence.train_only"
    assert "BatchNorm" in result.causes[0]


class _Capacity(MixtureOfExperts):
    """Each expert takes the first three tokens of the whole batch and drops the rest."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        x = self.embedding(ids)
        chosen = self.router(x).argmax(-1)
        mixed = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            here = chosen == number
            here &= (here.flatten().cumsum(0) <= 3).view_as(here)
            mixed[here] = expert(x[here])
        return self.head(x + mixed), None


def test_experts_that_drop_tokens_are_a_warning() -> None:
    result = judge(_Capacity())
    assert result.status is Status.WARN
    assert result.reason == "batch_independence.capacity"


def test_not_finite_is_named_as_that() -> None:
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    assert judge(model).reason == "batch_independence.not_finite"


def test_tokens_of_one_row_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(B, T\) with B >= 2, got \(1, 4\)"):
        judge(TinyGPT(), tokens=torch.zeros(1, 4, dtype=torch.long))


def test_nan_is_told_as_nan_not_as_a_change() -> None:
    model = TinyGPT()
    torch.nn.init.constant_(model.head.weight, math.nan)
    result = check_batch_independence(model)
    assert (result.status, result.reason) == (Status.FAIL, "batch_independence.not_finite")
    assert result.claim == "logits of row 0 are NaN, so that nothing tells whether row 1 moves them"
    assert result.measured == "a difference of nan between two calls"
