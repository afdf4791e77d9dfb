"""Context: reaches predicted by hand, windows that are declared, and tokens that nobody reads."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Status, check_context
from diagnostics.context import mixing_modules
from tests.diagnostics.architectures import Llama
from tests.diagnostics.tiny import (
    Bigram,
    Convolution,
    HFStyle,
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


def test_nan_is_no_verdict_on_the_context() -> None:
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    assert check_context(model).reason == "context.not_finite"


def test_one_token_is_refused_and_a_block_of_one_skipped() -> None:
    with pytest.raises(ValueError, match=r"T >= 2, got \(1, 1\)"):
        check_context(TinyGPT(), torch.zeros(1, 1, dtype=torch.long))
    assert check_context(Bigram(), block_size=1).status is Status.SKIP
