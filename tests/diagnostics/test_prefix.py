"""Prefix: differences predicted by hand, and each dependence on the length by its pattern."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_prefix
from diagnostics._probe import Probe
from diagnostics._structure import bench
from diagnostics.prefix import measure_prefixes
from tests.diagnostics.test_batch_independence import _Capacity
from tests.diagnostics.tiny import Recurrent, TinyGPT, causal_mix, masked_mix


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Length(nn.Module):
    """Logits are one-hot of the token, plus the length of the row at column 0."""

    def __init__(self, V: int = 7) -> None:
        super().__init__()
        self.vocab_size = V
        self.one = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        logits = functional.one_hot(ids, self.vocab_size) * self.one
        return logits + ids.shape[1] * functional.one_hot(torch.tensor(0), self.vocab_size)


def test_differences_of_the_length_model_are_the_tokens_cut_off() -> None:
    """Of 4 tokens, a prefix of k is 4 - k short: in every logit of column 0, nowhere else."""
    with bench(Probe(Pipeline(_Length()))) as model_bench:
        found = measure_prefixes(model_bench, torch.tensor([[0, 3, 6, 2]]))
    assert {k: d.tolist() for k, d in found.items()} == {1: [3.0], 2: [2.0] * 2, 3: [1.0] * 3}


class _Edited(TinyGPT):
    def __init__(self, edit: Callable[[Tensor], Tensor], **parts: object) -> None:
        super().__init__(**parts)  # type: ignore[arg-type]
        self.edit = edit

    def hidden(self, ids: Tensor) -> Tensor:
        return self.edit(super().hidden(ids))


class _Placed(TinyGPT):
    """Positions as told by a function of T."""

    def __init__(self, places: Callable[[int], Tensor]) -> None:
        super().__init__()
        self.places = places

    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(self.places(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


def _last_is_special(x: Tensor) -> Tensor:
    return torch.cat([x[:, :-1], 2 * x[:, -1:].tanh()], 1)


def _split_and_merged_by_view(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    B, H, T, D = queries.shape
    q, k, v = (part.transpose(1, 2).reshape(B, H, T, D) for part in (queries, keys, values))
    return causal_mix(q, k, v).reshape(B, T, H, D).transpose(1, 2)


def _scores_by_length(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return causal_mix(queries * keys.shape[2], keys, values)


def _fused_from_eight_on(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    return causal_mix(queries, keys, values) * (1 if queries.shape[2] >= 4 else 2)


def _running_length(x: Tensor) -> Tensor:
    T = x.shape[1]
    return torch.cat([x[:, :3], x[:, 3:] * T], 1)


BROKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "branch for one token": (
        lambda: _Edited(lambda x: x.sin() if x.shape[1] == 1 else x),
        "one_token",
    ),
    "squeezed time": (
        lambda: _Edited(lambda x: x if x.squeeze(1).ndim == 3 else x.flip(-1)),
        "one_token",
    ),
    "mean over time": (lambda: _Edited(lambda x: x - x.mean(1, keepdim=True)), "reads_ahead"),
    "no mask": (lambda: TinyGPT(mix=masked_mix(lambda i, j: j >= 0 * i)), "reads_ahead"),
    "divided by T": (lambda: _Edited(lambda x: x / x.shape[1]), "scaled_by_length"),
    "last position": (lambda: _Edited(_last_is_special), "last_position"),
    "reversed positions": (
        lambda: _Placed(lambda T: torch.arange(T).flip(0)),
        "positions_from_end",
    ),
    "aligned to the end": (
        lambda: _Placed(lambda T: torch.arange(12 - T, 12)),
        "positions_from_end",
    ),
    "heads split and merged by view": (
        lambda: TinyGPT(mix=_split_and_merged_by_view),
        "heads_mixed",
    ),
    "scores times T": (lambda: TinyGPT(mix=_scores_by_length), "beyond"),
    "two kernels": (lambda: TinyGPT(mix=_fused_from_eight_on), "some_lengths"),
    "later half by T": (lambda: _Edited(_running_length), "beyond"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_dependence_on_the_length_fails_for_its_reason(name: str) -> None:
    make, reason = BROKEN[name]
    result = check_prefix(make())
    assert result.status is Status.FAIL
    assert result.reason == f"prefix.{reason}", str(result)
    assert result.causes
    assert result.next_step


def test_the_factor_is_measured() -> None:
    """Divided by the length, the whole of 12 is 1/12 of what a single token gets."""
    result = check_prefix(_Edited(lambda x: x / x.shape[1]))
    assert "0.08333 times the prefix of 1" in result.causes[0]


def test_the_claim_names_length_and_position() -> None:
    result = check_prefix(_Length(), torch.tensor([[0, 3, 6, 2]]))
    assert result.claim == ("cut to 1 of 4 tokens, the same row predicts otherwise at position 0")
    assert result.numbers["lengths_wrong"] == [1, 2, 3]
    assert result.numbers["worst"] == 3.0


def test_positions_from_the_block_end_that_do_not_move_are_only_a_relabelling() -> None:
    """Row 11 - t for position t, whatever T is: another name for each row, nothing else."""
    assert check_prefix(_Placed(lambda T: 11 - torch.arange(T))).reason == "prefix.ok"


def test_a_recurrent_model_and_a_block_of_two_pass() -> None:
    assert check_prefix(Recurrent()).numbers["lengths"] == [1, 2, 3, 16, 31]
    result = check_prefix(TinyGPT(block=2))
    assert result.reason == "prefix.ok"
    assert result.numbers["lengths"] == [1]


def test_capacity_of_experts_is_a_warning() -> None:
    result = check_prefix(_Capacity())
    assert (result.status, result.reason) == (Status.WARN, "prefix.capacity")


def test_one_token_of_context_has_no_prefix() -> None:
    result = check_prefix(TinyGPT(), block_size=1)
    assert (result.status, result.reason) == (Status.SKIP, "prefix.one_token_context")


def test_a_single_token_is_refused() -> None:
    with pytest.raises(ValueError, match=r"T >= 2, got \(2, 1\)"):
        check_prefix(TinyGPT(), torch.zeros(2, 1, dtype=torch.long))


def test_nan_is_told_as_nan_not_as_a_change() -> None:
    model = TinyGPT()
    torch.nn.init.constant_(model.head.weight, math.nan)
    result = check_prefix(model)
    assert (result.status, result.reason) == (Status.FAIL, "prefix.not_finite")
    assert result.claim == (
        "logits at position 0 are NaN, so that nothing tells whether a row that is cut to 1 of 12 "
        "tokens predicts otherwise"
    )
