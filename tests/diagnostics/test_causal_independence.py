"""Causal independence: maps of models whose answer fits on paper, and each pattern's cause."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_causal_independence, diagnose
from diagnostics._probe import Probe
from diagnostics.causal_independence import _positions_to_replace, measure_influence
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    Mix,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    causal_mix,
    masked_mix,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Lookup(nn.Module):
    """Logits at i are one-hot of the token at i + offset, clipped to the row."""

    def __init__(self, offset: int, V: int = 7) -> None:
        super().__init__()
        self.vocab_size, self.offset = V, offset
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        places = (torch.arange(ids.shape[1]) + self.offset).clamp(0, ids.shape[1] - 1)
        return self.scale * functional.one_hot(ids[:, places], self.vocab_size)


def test_influence_of_the_identity_model_is_the_identity() -> None:
    """A model that repeats its input moves by 1 exactly where a token changed."""
    probe = Probe(Pipeline(_Lookup(0)))
    influence, size = measure_influence(
        probe, probe.pipeline.model, torch.tensor([0, 3, 6, 2]), [0, 1, 2, 3]
    )
    assert torch.equal(influence, torch.eye(4))
    assert size == 1.0


def test_influence_of_the_peeking_model_is_one_above_the_diagonal() -> None:
    """A model that repeats the next token: rows 0..2 read token i + 1, the last reads itself."""
    probe = Probe(Pipeline(_Lookup(1)))
    influence, _ = measure_influence(
        probe, probe.pipeline.model, torch.tensor([0, 3, 6, 2]), [0, 1, 2, 3]
    )
    expected = torch.zeros(4, 4)
    expected[[0, 1, 2, 3], [1, 2, 3, 3]] = 1.0
    assert torch.equal(influence, expected)


def test_peeking_by_one_is_named_with_its_pairs() -> None:
    """Of the 6 pairs of a row of four, the 3 next neighbours leak."""
    result = check_causal_independence(_Lookup(1), torch.tensor([[0, 3, 6, 2]]))
    assert result.status is Status.FAIL
    assert result.numbers["leaking_pairs"] == 3
    assert result.numbers["judged_pairs"] == 6
    assert result.numbers["reach"] == 1
    assert "position 0 changes its prediction when token 1, in its future, changes" in result.claim


def _after_softmax(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    weights = (queries @ keys.transpose(2, 3) / 2).softmax(-1)
    return weights.tril() @ values


def _softmax_over_queries(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(2, 3) / 2
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(-2) @ values


def _softmax_over_heads(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(2, 3) / 2
    hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(hidden, -1e9).softmax(1) @ values


def _added_ones(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    scores = queries @ keys.transpose(2, 3) / 2
    return (scores + torch.ones_like(scores).tril()).softmax(-1) @ values


def _merged_without_transpose(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    mixed = causal_mix(queries, keys, values)
    B, H, T, D = mixed.shape
    return mixed.reshape(B, T, H, D).transpose(1, 2)


def _split_by_view(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    def wrong(x: Tensor) -> Tensor:
        return x.transpose(1, 2).reshape(x.shape)

    return causal_mix(wrong(queries), wrong(keys), wrong(values))


BROKEN: list[tuple[str, Mix, str]] = [
    ("no mask", masked_mix(lambda i, j: j >= 0 * i), "no_mask"),
    ("hidden scores set to 0", masked_mix(lambda i, j: j <= i, 0.0), "no_mask"),
    ("mask of ones added", _added_ones, "no_mask"),
    ("one diagonal too many", masked_mix(lambda i, j: j <= i + 1), "mask_too_wide"),
    ("meaning inverted", masked_mix(lambda i, j: j >= i), "mask_inverted"),
    ("hides itself, finite", masked_mix(lambda i, j: j < i, -1e9), "first_row"),
    ("hides itself, infinite", masked_mix(lambda i, j: j < i), "not_finite"),
    ("mask of 8 in a block of 12", masked_mix(lambda i, j: (j <= i) | (i >= 8)), "mask_too_small"),
    ("blocks of 4", masked_mix(lambda i, j: (j <= i) | (i // 4 == j // 4)), "chunked"),
    ("mask after softmax", _after_softmax, "normalised_over_future"),
    ("softmax over queries", _softmax_over_queries, "normalised_over_future"),
    ("filled with -10", masked_mix(lambda i, j: j <= i, -10.0), "normalised_over_future"),
    ("heads merged by reshape", _merged_without_transpose, "heads_mixed"),
    ("heads split by view", _split_by_view, "heads_mixed"),
]


@pytest.mark.parametrize("std", [None, 0.02])
@pytest.mark.parametrize("layers", [1, 2])
@pytest.mark.parametrize(("name", "mix", "reason"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_each_broken_mask_is_caught_for_its_reason(
    name: str, mix: Mix, reason: str, layers: int, std: float | None
) -> None:
    """Every pattern leaks with torch's default weights and with GPT-2's small ones."""
    result = check_causal_independence(TinyGPT(19, mix=mix, L=layers, std=std))
    assert result.status is Status.FAIL
    assert result.reason == f"causal_independence.{reason}"
    assert result.causes


def test_reach_grows_by_one_diagonal_a_layer() -> None:
    """Two layers with tril(diagonal=1) see two tokens ahead, three see three."""
    for layers in (2, 3):
        mix = masked_mix(lambda i, j: j <= i + 1)
        result = check_causal_independence(TinyGPT(19, mix=mix, L=layers))
        assert result.numbers["reach"] == layers
        assert f"({layers} here)" in result.causes[0]


def test_reversed_reading_is_named() -> None:
    """Tokens flipped on the way in: position i reads the last i + 1 tokens."""

    class Flipped(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            return super().hidden(ids.flip(1))

    result = check_causal_independence(Flipped())
    assert result.reason == "causal_independence.time_reversed"


class _Rotary(TinyGPT):
    """Positions by rotation of queries and keys."""

    def __init__(self) -> None:
        super().__init__(positions=False, mix=_rotated)


def _rotated(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    T, D = queries.shape[2:]
    angles = torch.arange(T)[:, None] / 10 ** torch.arange(D // 2)  # (T, D / 2)

    def turn(x: Tensor) -> Tensor:
        a, b = x.chunk(2, -1)
        cos, sin = angles.cos().to(x), angles.sin().to(x)
        return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)

    return causal_mix(turn(queries), turn(keys), values)


def _linear_bias(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    T = queries.shape[2]
    distance = torch.arange(T)[:, None] - torch.arange(T)[None, :]
    scores = queries @ keys.transpose(2, 3) / 2 - 0.5 * distance
    return scores.masked_fill(distance < 0, -math.inf).softmax(-1) @ values


class _PaddedVocabulary(TinyGPT):
    """Columns beyond the vocabulary are shut with minus infinity."""

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        logits = super().forward(ids)[0].clone()
        logits[..., 16:] = -math.inf
        return logits, None


class _SoftCapped(TinyGPT):
    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return 5 * torch.tanh(super().forward(ids)[0] / 5), None


class _DropoutInEval(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        return functional.dropout(super().hidden(ids), 0.3)


def _zero_head() -> TinyGPT:
    model = TinyGPT()
    nn.init.zeros_(model.head.weight)
    return model


HEALTHY: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "gpt": lambda: (TinyGPT(), {}),
    "tied": lambda: (TinyGPT(tied=True), {}),
    "no positions": lambda: (TinyGPT(positions=False), {}),
    "rotary": lambda: (_Rotary(), {}),
    "alibi": lambda: (TinyGPT(positions=False, mix=_linear_bias), {}),
    "sliding window": lambda: (TinyGPT(mix=masked_mix(lambda i, j: (j <= i) & (j > i - 3))), {}),
    "sink": lambda: (TinyGPT(mix=masked_mix(lambda i, j: (j == 0) | (j == i))), {}),
    "gru": lambda: (Recurrent(), {}),
    "convolution": lambda: (Convolution(), {}),
    "bigram": lambda: (Bigram(), {}),
    "experts": lambda: (MixtureOfExperts(), {}),
    "hugging face": lambda: (HFStyle(), {"labels": "same"}),
    "padded vocabulary": lambda: (_PaddedVocabulary(), {"vocab_size": 16}),
    "soft cap": lambda: (_SoftCapped(), {}),
    "zero head": lambda: (_zero_head(), {}),
    "bfloat16": lambda: (TinyGPT().bfloat16(), {}),
    "dropout in eval": lambda: (_DropoutInEval(), {}),
    "finite mask": lambda: (TinyGPT(mix=masked_mix(lambda i, j: j <= i, -1e4)), {}),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_designs_pass(name: str) -> None:
    """None of them reads the future; dropout in eval mode is for `modes` to report."""
    model, parts = HEALTHY[name]()
    result = check_causal_independence(model, **parts)
    assert (result.status, result.reason) == (Status.PASS, "causal_independence.ok")
    assert result.numbers["judged_pairs"] > 0


def test_leak_is_seen_behind_shut_columns() -> None:
    """Minus infinity in some columns must not make the limit infinite."""
    leaky = _PaddedVocabulary(mix=masked_mix(lambda i, j: j >= 0 * i))
    assert check_causal_independence(leaky, vocab_size=16).status is Status.FAIL


def test_mask_that_large_scores_overcome_warns() -> None:
    """A mask of -1e4 hides exactly now; with weights x10 these scores exceed it."""

    def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return masked_mix(lambda i, j: j <= i, -1e4)(40 * queries, keys, values)

    result = check_causal_independence(TinyGPT(C=32, mix=mix))
    assert (result.status, result.reason) == (Status.WARN, "causal_independence.finite_mask")
    assert "weights x10" in result.claim


def test_rows_that_read_each_other_are_run_one_by_one() -> None:
    """A mean over the batch is not a leak over time."""

    class Coupled(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            x = super().hidden(ids)
            return x - x.mean(0, keepdim=True) / 2

    assert check_causal_independence(Coupled()).status is Status.PASS


class _Stream(Recurrent):
    """A GRU language model whose embeddings go through an edit over time first."""

    def __init__(self, edit: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.edit = edit

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rnn(self.edit(self.embedding(x)))[0])


def _with_next(x: Tensor) -> Tensor:
    """RWKV's token shift, the wrong way round: half of the features come from the next token."""
    half = x.shape[-1] // 2
    return torch.cat([functional.pad(x, (0, 0, -1, 1))[..., :half], x[..., half:]], -1)


class _Mixer(nn.Module):
    """A linear layer over time, without the triangle that would make it causal."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocab_size=13, block_size=8)
        self.embedding, self.head = nn.Embedding(13, 16), nn.Linear(16, 13)
        self.over_time = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        T = x.shape[1]
        over_time = self.over_time.weight[:T, :T]
        return self.head(functional.linear(self.embedding(x).mT, over_time).mT)


class _BothWays(Recurrent):
    """A second pass of the GRU starts at the end of the row."""

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x)
        h = h + self.rnn(h.flip(1))[0].flip(1)
        return self.head(self.rnn(h)[0])


WITHOUT_ATTENTION: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "bidirectional gru": (
        lambda: Recurrent(bidirectional=True),
        "both_directions",
        "gru in rnn (tiny.py",
    ),
    "a second pass from the end": (_BothWays, "both_directions", "flip"),
    "convolution padded on both sides": (
        lambda: Convolution(left=1),
        "convolution_ahead",
        "conv1d in conv (tiny.py",
    ),
    "next token mixed in": (lambda: _Stream(_with_next), "shifted_back", "pad"),
    "rolled the wrong way": (lambda: _Stream(lambda x: x + x.roll(-1, 1)), "shifted_back", "roll"),
    "mean over the row": (
        lambda: _Stream(lambda x: x - x.mean(1, keepdim=True)),
        "normalised_over_future",
        "sub",
    ),
    "norm over the row": (
        lambda: _Stream(lambda x: functional.layer_norm(x, x.shape[1:])),
        "normalised_over_future",
        "layer_norm",
    ),
    "softmax over the row": (
        lambda: _Stream(lambda x: x.softmax(1)),
        "normalised_over_future",
        "softmax",
    ),
    "summed from the end": (
        lambda: _Stream(lambda x: x.flip(1).cumsum(1)),
        "time_reversed",
        "flip",
    ),
    "linear over time": (_Mixer, "leak", "linear"),
}


@pytest.mark.parametrize("name", WITHOUT_ATTENTION)
def test_leaks_without_attention_are_placed_and_no_mask_is_spoken_of(name: str) -> None:
    """The first call whose early positions move tells the cause, whatever the pattern is like."""
    make, reason, site = WITHOUT_ATTENTION[name]
    result = check_causal_independence(make())
    assert (result.status, result.reason) == (Status.FAIL, f"causal_independence.{reason}")
    assert site in result.where
    assert site in result.causes[0]
    assert "mask" not in f"{result.claim} {result.causes} {result.next_step}"


def test_the_reach_of_a_convolution_is_told() -> None:
    """A kernel of three with one zero on each side reads one token ahead."""
    result = check_causal_independence(Convolution(left=1))
    assert "positions read 1 ahead" in result.causes[0]


@pytest.mark.parametrize(
    ("mix", "words"),
    [
        (_after_softmax, "after the softmax"),
        (_softmax_over_queries, "over the queries"),
        (_softmax_over_heads, "over the heads"),
        (masked_mix(lambda i, j: j <= i, -10.0), "such as -10"),
    ],
)
def test_weights_that_were_seen_leave_one_cause(mix: Mix, words: str) -> None:
    """The softmax and what is read after it tell three causes of a faint leak apart."""
    result = check_causal_independence(TinyGPT(19, mix=mix))
    assert len(result.causes) == 1
    assert words in result.causes[0]
    assert "blocks.0.attention" in result.where


def test_batch_norm_leaks_in_train_mode_only_and_is_named() -> None:
    """Its mean runs over rows and later tokens; eval mode uses the running mean."""

    class Normed(TinyGPT):
        def __init__(self) -> None:
            super().__init__()
            self.batch_norm = nn.BatchNorm1d(16)

        def hidden(self, ids: Tensor) -> Tensor:
            return self.batch_norm(super().hidden(ids).transpose(1, 2)).transpose(1, 2)

    result = check_causal_independence(Normed())
    assert result.reason == "causal_independence.only_in_train_mode"
    assert "batch_norm" in result.causes[0]
    assert "mask" not in result.next_step


class BrokenAtTheStart(TinyGPT):
    """Logits of position 0 are NaN, whatever is read."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        return torch.cat([x[:, :1] * math.nan, x[:, 1:]], 1)


def test_nan_never_passes_and_is_told_as_nan_not_as_a_change() -> None:
    result = check_causal_independence(BrokenAtTheStart())
    assert (result.status, result.reason) == (Status.FAIL, "causal_independence.not_finite")
    assert result.claim == (
        "logits of position 0 are NaN, so that nothing tells whether token 1, in its future, moves "
        "them"
    )
    assert result.measured == "a difference of nan between two calls"
    assert result.where.startswith("11 of 66 (position, future token) pairs give NaN; first is")


def test_a_change_beside_nan_is_told_where_it_was_measured() -> None:
    """Position 1 reads the future, and position 0 is NaN: the sentence is about position 1."""
    model = BrokenAtTheStart(mix=masked_mix(lambda i, j: j > -1))
    result = check_causal_independence(model)
    assert result.reason == "causal_independence.not_finite"
    assert result.claim == (
        "position 1 changes its prediction when token 2, in its future, changes"
    )
    assert result.numbers["leaking_pairs"] == 66


def test_one_pair_is_told_in_the_singular() -> None:
    assert "(1 pair of 2 positions" in check_causal_independence(TinyGPT(block=2)).claim


def test_context_of_one_token_is_skipped() -> None:
    """Nothing can be measured, so that it is not a pass."""
    result = check_causal_independence(Bigram(), block_size=1)
    assert (result.status, result.reason) == (Status.SKIP, "causal_independence.one_token")


def test_declared_not_causal_is_skipped() -> None:
    """causal=False is a design, and the report says that nothing was measured."""
    pipeline = Pipeline(Recurrent(bidirectional=True), causal=False)
    result = diagnose(pipeline, only=["causal_independence"])["causal_independence"]
    assert result.status is Status.SKIP


def test_long_blocks_replace_neighbours_at_every_scale() -> None:
    """All positions up to 64; beyond, both ends and both sides of the powers of two."""
    assert _positions_to_replace(64, 64) == list(range(64))
    chosen = _positions_to_replace(256, 100)
    assert {0, 1, 63, 64, 65, 127, 128, 129, 254, 255} <= set(chosen)
    few = _positions_to_replace(256, 7)
    assert len(few) <= 7
    assert few[-1] == 255


def test_leak_at_the_end_of_a_long_block_is_seen() -> None:
    """A mask that covers 100 of 128 positions leaks only behind it."""
    mix = masked_mix(lambda i, j: (j <= i) | (i >= 100))
    result = check_causal_independence(TinyGPT(block=128, mix=mix))
    assert result.reason == "causal_independence.mask_too_small"


@pytest.mark.parametrize("shape", [(6,), (1, 1), (1, 2, 3)])
def test_wrong_token_shapes_are_refused(shape: tuple[int, ...]) -> None:
    """(B, T) with T >= 2 is wanted."""
    with pytest.raises(ValueError, match="T >= 2"):
        check_causal_independence(TinyGPT(), torch.zeros(shape, dtype=torch.int64))


def test_model_comes_back_untouched() -> None:
    """Weights, mode and random state are as before."""
    model = TinyGPT().train()
    before = copy.deepcopy(model.state_dict())
    state = torch.get_rng_state()
    check_causal_independence(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_padding_mask_that_replaces_the_causal_one_is_named() -> None:
    """Without an attention mask all is well; with one, even of ones, the future is read."""

    class Masked(TinyGPT):
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
            mix = causal_mix if attention_mask is None else functional.scaled_dot_product_attention
            for block in self.blocks:
                block.attention.mix = mix  # type: ignore[union-attr]
            return self.head(self.hidden(input_ids))

    result = check_causal_independence(Masked())
    assert (result.status, result.reason) == (
        Status.FAIL,
        "causal_independence.only_with_attention_mask",
    )
    assert result.claim.endswith("once an attention mask is passed")


def test_branch_that_loses_its_mask_in_train_mode_is_named() -> None:
    """Two code paths, one of which has no mask."""

    class TwoPaths(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            mix = functional.scaled_dot_product_attention if self.training else causal_mix
            for block in self.blocks:
                block.attention.mix = mix  # type: ignore[union-attr]
            return super().hidden(ids)

    result = check_causal_independence(TwoPaths())
    assert result.reason == "causal_independence.only_in_train_mode"


def test_dropout_in_train_mode_is_not_a_leak() -> None:
    """The same seed in every call gives the same dropout."""

    class Dropped(TinyGPT):
        def hidden(self, ids: Tensor) -> Tensor:
            return functional.dropout(super().hidden(ids), 0.3, self.training)

    assert check_causal_independence(Dropped()).status is Status.PASS


def test_model_that_never_repeats_itself_is_skipped() -> None:
    """A counter that changes the output is neither a leak nor a pass."""

    class Counting(TinyGPT):
        calls = 0

        def hidden(self, ids: Tensor) -> Tensor:
            Counting.calls += 1
            return super().hidden(ids) * (1 + Counting.calls)

    result = check_causal_independence(Counting())
    assert (result.status, result.reason) == (Status.SKIP, "causal_independence.not_repeatable")


def test_an_overflow_that_the_larger_weights_cause_is_no_leak() -> None:
    """A running mean weighted by exp(key): with keys below -745 it is 0 / 0, whatever follows."""

    class Weighted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
            self.key = nn.Embedding(9, 1)
            nn.init.constant_(self.key.weight, -80.0)

        def forward(self, ids: Tensor) -> Tensor:
            weight = self.key(ids).exp()
            mean = (weight * self.embedding(ids)).cumsum(1) / weight.cumsum(1)
            return self.head(mean)

    result = check_causal_independence(Weighted(), vocab_size=9)
    assert (result.status, result.reason) == (Status.PASS, "causal_independence.ok")
