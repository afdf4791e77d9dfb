"""Context: reaches predicted by hand, windows that are declared, and tokens that nobody reads."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Status, check_context
from diagnostics.context import mixing_modules
from tests.diagnostics.architectures import Llama
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
    Mix,
    Recurrent,
    TinyGPT,
    causal_mix,
    masked_mix,
)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Shifted(TinyGPT):
    """Shifts its input by one inside: position t predicts from tokens before t."""

    def hidden(self, ids: Tensor) -> Tensor:
        return super().hidden(torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], 1))


class _Overwritten(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        x = self.tokens(ids)
        for block in self.blocks:
            block(x)
        return self.norm(x)


class _RowsOfOne(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        return super().hidden(ids.reshape(-1, 1)).view(*ids.shape, -1)


def _chunked(i: Tensor, j: Tensor) -> Tensor:
    return (j <= i) & (i // 4 == j // 4)


BROKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "diagonal only": (lambda: TinyGPT(mix=masked_mix(lambda i, j: j == i)), "unused"),
    "output overwritten": (_Overwritten, "unused"),
    "rows of one token": (_RowsOfOne, "unused"),
    "values set to zero": (lambda: TinyGPT(mix=lambda q, k, v: causal_mix(q, k, 0 * v)), "unused"),
    "shifted inside": (_Shifted, "self_hidden"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_fails_for_its_reason(name: str) -> None:
    make, reason = BROKEN[name]
    result = check_context(make())
    assert result.status is Status.FAIL
    assert result.reason == f"context.{reason}", str(result)
    assert result.causes
    assert result.measured


@pytest.mark.parametrize(
    ("make", "reach"),
    [
        (lambda: TinyGPT(block=9), 8),
        (lambda: Recurrent(), 31),
        (lambda: Convolution(width=3), 2),
        (lambda: Convolution(width=5), 4),
        (lambda: TinyGPT(L=1, mix=masked_mix(lambda i, j: (j <= i) & (j > i - 3))), 2),
        (lambda: TinyGPT(L=3, mix=masked_mix(lambda i, j: (j <= i) & (j > i - 3))), 6),
    ],
)
def test_the_reach_is_that_of_the_design(make: Callable[[], nn.Module], reach: int) -> None:
    """T - 1 without a window; width - 1 for a convolution; layers x (window - 1) with one."""
    assert check_context(make()).numbers["reach"] == reach


def test_the_share_of_a_full_reader_is_one() -> None:
    result = check_context(TinyGPT(block=5))
    assert result.reason == "context.ok"
    assert result.numbers["share"] == 1.0
    assert result.claim.endswith("reach 4 tokens back, of 4 possible")


def test_a_shift_inside_is_a_warning_where_labels_are_the_inputs() -> None:
    result = check_context(HFStyle(_Shifted()), labels="same")
    assert (result.status, result.reason) == (Status.WARN, "context.self_hidden")
    # position 0 reads a constant, every other one the token before it
    assert result.numbers["blind"] == 12


def _declared(window: int, allowed: int, name: str = "sliding_window") -> TinyGPT:
    model = TinyGPT(mix=masked_mix(lambda i, j: (j <= i) & (j > i - allowed)))
    model.config.num_layers = 2
    setattr(model.config, name, window)
    return model


def test_the_declared_window_has_to_be_the_one_that_is_measured() -> None:
    """Window 4 in two layers reaches 6 tokens back; one key more in each layer reaches 8."""
    good = check_context(_declared(4, 4))
    assert (good.reason, good.numbers["reach"]) == ("context.ok", 6)
    result = check_context(_declared(4, 5))
    assert (result.status, result.reason) == (Status.FAIL, "context.window")
    assert result.claim == (
        "the configuration declares sliding_window=4, but predictions reach 8 tokens back"
    )
    assert "off by one" in result.causes[0]
    assert check_context(_declared(4, 3)).reason == "context.window"


def test_a_window_under_another_name_may_count_otherwise() -> None:
    result = check_context(_declared(4, 5, "window_size"))
    assert (result.status, result.reason) == (Status.WARN, "context.window")


def test_a_window_wider_than_the_block_says_nothing() -> None:
    assert check_context(_declared(4096, 12)).reason == "context.ok"
    assert check_context(Llama(window=4)).reason == "context.ok"


def test_designs_with_little_context_are_warnings() -> None:
    assert check_context(Bigram()).reason == "context.bigram"
    assert check_context(Convolution()).reason == "context.short"
    result = check_context(TinyGPT(mix=masked_mix(_chunked)))
    assert (result.status, result.reason) == (Status.WARN, "context.chunked")
    assert result.numbers["chunk"] == 4


def test_tokens_that_no_later_position_reads_are_listed() -> None:
    """A mask whose columns 2 and 5 are empty off the diagonal."""
    mix = masked_mix(lambda i, j: (j == i) | ((j <= i) & (j != 2) & (j != 5)))
    result = check_context(TinyGPT(mix=mix))
    assert (result.status, result.reason) == (Status.WARN, "context.unread_tokens")
    assert result.numbers["unread"] == [2, 5]


def test_mixing_layers_are_known_by_type_or_name() -> None:
    assert mixing_modules(Recurrent()) == ["rnn"]
    assert mixing_modules(Convolution()) == ["conv"]
    assert mixing_modules(TinyGPT(L=1)) == ["blocks.0.attention"]
    assert mixing_modules(Bigram()) == []


class _Rewired(TinyGPT):
    """A TinyGPT whose blocks are joined in another way: `join` gets a block and the stream."""

    def __init__(self, join: Callable[[nn.Module, Tensor], Tensor], **parts: Any) -> None:
        super().__init__(**parts)
        self.join = join

    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = self.join(block, x)
        return self.norm(x)


def _overwritten(block: Any, x: Tensor) -> Tensor:
    x = block.attention(block.norm1(x))
    x = x + x
    return x + block.mlp(block.norm2(x))


def _plain(block: Any, x: Tensor) -> Tensor:
    return block.mlp(block.norm2(block.attention(block.norm1(x))))


def _wrong_tap(block: Any, x: Tensor) -> Tensor:
    return x + block.mlp(block.norm2(x + block.attention(block.norm1(x))))


def _mlp_overwrites(block: Any, x: Tensor) -> Tensor:
    return block.mlp(block.norm2(x + block.attention(block.norm1(x))))


class _WithinMLP(nn.Module):
    """A feed-forward layer that holds its own residual path and norm."""

    def __init__(self, mlp: nn.Module, norm: nn.Module) -> None:
        super().__init__()
        self.inner, self.norm = mlp, norm

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(self.norm(x))


class _ResidualInside(TinyGPT):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block.mlp = _WithinMLP(block.mlp, block.norm2)  # type: ignore[arg-type]

    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block.mlp(x + block.attention(block.norm1(x)))  # type: ignore[operator]
        return self.norm(x)


def _over_heads(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Attention on (B, T, H, D) as it comes from the split: heads attend to heads."""
    q, k, v = (part.transpose(1, 2) for part in (queries, keys, values))
    return functional.scaled_dot_product_attention(q, k, v).transpose(1, 2)


def _parallel(block: Any, x: Tensor) -> Tensor:
    h = block.norm1(x)
    return x + block.attention(h) + block.mlp(h)


def _post_norm(block: Any, x: Tensor) -> Tensor:
    x = block.norm1(x + block.attention(x))
    return block.norm2(x + block.mlp(x))


def _sandwich(block: Any, x: Tensor) -> Tensor:
    x = x + block.norm2(block.attention(block.norm1(x)))
    return x + block.norm2(block.mlp(block.norm1(x)))


class _SharedProjection(TinyGPT):
    """Each token is split into heads of 8 first, and three layers of 8 x 8 serve both heads."""

    def __init__(self) -> None:
        super().__init__()
        self.small = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))
        for block in self.blocks:
            block.attention.forward = self._attend  # type: ignore[union-attr]

    def _attend(self, x: Tensor) -> Tensor:
        heads = x.view(*x.shape[:2], 2, 8)
        q, k, v = (linear(heads).transpose(1, 2) for linear in self.small)
        return causal_mix(q, k, v).transpose(1, 2).flatten(2)


def _scaled(factor: Callable[[int, int], float]) -> Mix:
    """Attention with a factor on the scores that is told by H and D."""

    def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        H, T, D = queries.shape[1:]
        scores = queries @ keys.transpose(2, 3) * factor(H, D)
        hidden = torch.ones(T, T, dtype=torch.bool, device=queries.device).triu(1)
        return scores.masked_fill(hidden, -math.inf).softmax(-1) @ values

    return mix


def _normed_queries(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    queries, keys = (functional.normalize(part, dim=-1) for part in (queries, keys))
    return functional.scaled_dot_product_attention(
        queries, keys, values, is_causal=True, scale=10.0
    )


def _scaled_before(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    C = queries.shape[1] * queries.shape[3]
    return causal_mix(queries * (queries.shape[3] / C) ** 0.5, keys, values)


ODD: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "stream overwritten": (lambda: _Rewired(_overwritten), "no_residual"),
    "no residual paths": (lambda: _Rewired(_plain), "no_residual"),
    "the feed-forward layer overwrites": (lambda: _Rewired(_mlp_overwrites), "no_residual"),
    "second sum from the input": (lambda: _Rewired(_wrong_tap), "attention_bypassed"),
    "divided by the root of the width": (
        lambda: TinyGPT(mix=_scaled(lambda H, D: (H * D) ** -0.5)),
        "score_scale",
    ),
    "divided by the root of the heads": (
        lambda: TinyGPT(H=4, C=32, mix=_scaled(lambda H, D: H**-0.5)),
        "score_scale",
    ),
    "queries scaled to the width": (lambda: TinyGPT(mix=_scaled_before), "score_scale"),
    "projection shared by heads": (_SharedProjection, "shared_projection"),
}


@pytest.mark.parametrize("name", ODD)
def test_attention_that_is_not_what_it_seems_is_a_warning(name: str) -> None:
    """A person has to judge: each of these can be meant."""
    make, reason = ODD[name]
    result = check_context(make())
    assert result.reason == f"context.{reason}", str(result)
    assert result.status is Status.WARN


@pytest.mark.parametrize(
    "make",
    [
        lambda: _Rewired(_parallel),
        _ResidualInside,
        lambda: _Rewired(_post_norm),
        lambda: _Rewired(_sandwich),
        lambda: TinyGPT(mix=_scaled(lambda H, D: 1.0)),  # T5
        lambda: TinyGPT(mix=_scaled(lambda H, D: 1 / D)),  # muP
        lambda: TinyGPT(C=64, H=8, mix=_scaled(lambda H, D: 1 / D)),  # muP, where C = D * D
        lambda: TinyGPT(C=64, H=8, mix=_scaled(lambda H, D: D**-0.5)),  # and H = D
        lambda: TinyGPT(mix=_normed_queries),
        lambda: _Rewired(_plain, L=1),
        lambda: Recurrent(),
        lambda: Llama(),
    ],
)
def test_healthy_ways_to_join_and_to_scale_pass(make: Callable[[], nn.Module]) -> None:
    assert check_context(make()).reason == "context.ok"


def test_heads_that_attend_to_heads_read_no_earlier_token() -> None:
    """Without the transpose, softmax runs over the heads of one token: the cause is named."""
    result = check_context(TinyGPT(mix=_over_heads))
    assert (result.status, result.reason) == (Status.FAIL, "context.unused")
    assert "heads of one token" in result.causes[0]


def test_the_scale_is_told_with_both_sizes() -> None:
    """Two heads of 8: the root of 16 is 4, so that the factor is 0.25."""
    result = check_context(TinyGPT(mix=_scaled(lambda H, D: (H * D) ** -0.5)))
    assert result.claim == (
        "attention scores are divided by the root of the width of the model, 16, where one head "
        "is 8 wide"
    )
    assert result.numbers["scale"] == pytest.approx(0.25)


def test_models_without_weights_over_tokens_are_not_told_of_masks() -> None:
    """A shift inside a recurrent model, and a GRU whose output is thrown away."""

    class Shifted(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(torch.cat([torch.zeros_like(x[:, :1]), x[:, :-1]], 1))

    class Unused(Recurrent):
        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.embedding(x) + 0 * self.rnn(self.embedding(x))[0])

    for model, reason in ((Shifted(), "self_hidden"), (Unused(), "unused")):
        result = check_context(model)
        assert (result.status, result.reason) == (Status.FAIL, f"context.{reason}")
        assert "mask" not in f"{result.claim} {result.causes} {result.next_step}"


def test_nan_is_no_verdict_on_the_context() -> None:
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    assert check_context(model).reason == "context.not_finite"


def test_one_token_is_refused_and_a_block_of_one_skipped() -> None:
    with pytest.raises(ValueError, match=r"T >= 2, got \(1, 1\)"):
        check_context(TinyGPT(), torch.zeros(1, 1, dtype=torch.long))
    assert check_context(Bigram(), block_size=1).status is Status.SKIP


def test_a_state_that_forgets_has_no_window() -> None:
    """In float32 the trace of a token sinks below rounding; a window of 14 ends at once."""

    class Forgetting(nn.Module):
        vocab_size = 9

        def __init__(self) -> None:
            super().__init__()
            self.embedding, self.head = nn.Embedding(9, 4), nn.Linear(4, 9)
            self.cut: int | None = None

        def forward(self, ids: Tensor) -> Tensor:
            t = torch.arange(ids.shape[1])
            distance = t[:, None] - t[None, :]
            kept = torch.where(distance >= 0, 0.5 ** distance.clamp(min=0).float(), 0.0)
            if self.cut is not None:
                kept = kept.masked_fill(distance >= self.cut, 0.0)
            mixed = kept @ self.embedding(ids).float()
            return self.head(mixed.to(self.head.weight.dtype))

    torch.manual_seed(0)
    model = Forgetting()
    result = check_context(model)
    assert (result.status, result.reason) == (Status.PASS, "context.ok")
    assert 10 < result.numbers["reach"] < 25
    assert "fades into rounding" in result.claim
    model.cut = result.numbers["reach"]
    assert check_context(model).reason == "context.short"


class _HidesId(nn.Module):
    """One causal head whose mask takes an id for padding; what lies before a reset is not read."""

    def __init__(self, hidden: int, *, reset: int = -1) -> None:
        super().__init__()
        self.hidden, self.reset = hidden, reset
        self.embedding = nn.Embedding(13, 8)
        self.attention = nn.Linear(8, 24)
        self.head = nn.Linear(8, 13)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        x, T = self.embedding(ids), ids.shape[1]
        part = (ids == self.reset).long().cumsum(1) - (ids == self.reset).long()  # text number
        seen = torch.ones(T, T, dtype=torch.bool).tril() & (part[:, :, None] == part[:, None])
        seen &= (ids != self.hidden)[:, None] | torch.eye(T, dtype=torch.bool)
        q, k, v = self.attention(x).split(8, 2)
        return self.head(x + functional.scaled_dot_product_attention(q, k, v, attn_mask=seen))


class _Letters:
    """Id 3 is a newline, and id 4 a mark between texts."""

    vocab_size = 13

    def encode(self, text: str) -> list[int]:
        """Return ids."""
        return ["abc\n|defghijk".index(letter) for letter in text]

    def decode(self, ids: list[int]) -> str:
        """Return text."""
        return "".join("<end>" if i == 4 else "abc\n|defghijk"[i] for i in ids)


_TEXT_IDS = torch.randint(0, 13, (2000,), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("pad_id", [3, None])
def test_an_id_of_the_text_that_is_hidden_as_padding_fails(pad_id: int | None) -> None:
    """The newline has to be seen; whether it is declared as padding makes no difference."""
    result = check_context(
        _HidesId(3), train_ids=_TEXT_IDS, vocab_size=13, tokenizer=_Letters(), pad_id=pad_id
    )
    assert (result.status, result.reason) == (Status.FAIL, "context.hidden_id")
    assert result.numbers["hidden"] == [3]
    assert ("pad_id" in result.causes[0]) == (pad_id == 3)


def test_a_hidden_mark_is_a_warning_and_a_text_of_its_own_is_none() -> None:
    """A mark may be hidden on purpose; and what stands before it may be another text."""
    for tokenizer in (_Letters(), None):
        parts = {"train_ids": _TEXT_IDS, "vocab_size": 13, "tokenizer": tokenizer}
        result = check_context(_HidesId(4), **parts)
        assert (result.status, result.reason) == (Status.WARN, "context.hidden_id")
        assert check_context(_HidesId(4, reset=4), **parts).reason != "context.hidden_id"
        assert check_context(_HidesId(-1), **parts).reason == "context.ok"


def test_padding_in_the_data_may_be_hidden() -> None:
    """Rows of 9 ids with 7 pads after them, one after another: no run is short."""
    rows = _TEXT_IDS[:1800].view(-1, 9) % 12
    padded = functional.pad(rows, (0, 7), value=12).flatten()
    result = check_context(_HidesId(12), train_ids=padded, vocab_size=13, tokenizer=_Letters())
    assert result.reason == "context.ok"
