"""Padding: what a mask can do wrong, and what a model without a mask can be asked."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from diagnostics import CheckResult, Status, check_padding
from diagnostics._probe import MissingPartError
from tests.diagnostics.tiny import HFStyle, TinyGPT, cross_entropy


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Masked(TinyGPT):
    """Takes an attention_mask; `fault` names what it does wrong with it."""

    def __init__(self, fault: str = "", L: int = 2) -> None:
        super().__init__(L=L)
        self.fault = fault

    def forward(  # type: ignore[override]
        self, input_ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        B, T = input_ids.shape
        places = torch.arange(T).expand(B, T)
        if attention_mask is not None and self.fault != "columns":
            places = (attention_mask.long().cumsum(1) - 1).clamp(min=0)
        assert self.positions is not None
        x = self.tokens(input_ids) + self.positions(places)
        bias = self._bias(B, T, attention_mask).to(x.dtype)

        def mix(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return (q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + bias).softmax(-1) @ v

        for block in self.blocks:
            block.attention.mix = mix  # type: ignore[union-attr]
            x = block(x)
        return self.head(self.norm(x))

    def _bias(self, B: int, T: int, attention_mask: Tensor | None) -> Tensor:
        visible = torch.ones(T, T, dtype=torch.bool).tril().expand(B, T, T)
        fill = -math.inf
        if attention_mask is not None and self.fault != "unread":
            keys = attention_mask.bool()[:, None, :].expand(B, T, T)
            if self.fault == "inverted":
                keys = ~keys
            if self.fault == "replaces":
                visible = keys
            elif self.fault == "or":
                visible = visible | keys
            else:
                visible = visible & keys
            if self.fault != "nan":
                visible = visible | torch.eye(T, dtype=torch.bool)
            if self.fault == "weak":  # hides the future well and the pads badly
                bias = torch.zeros(B, T, T).masked_fill(~keys, -3.0)
                return bias.masked_fill(~torch.ones(T, T).tril().bool(), -math.inf)[:, None]
        return torch.zeros(B, T, T).masked_fill(~visible, fill)[:, None]


class _BoolOnly(_Masked):
    def _bias(self, B: int, T: int, attention_mask: Tensor | None) -> Tensor:
        if attention_mask is not None and attention_mask.dtype != torch.bool:
            raise TypeError("a mask of bool is wanted")
        return super()._bias(B, T, attention_mask)


def judge(fault: str) -> CheckResult:
    return check_padding(_Masked(fault))


@pytest.mark.parametrize(
    ("fault", "status", "reason"),
    [
        ("", Status.PASS, "ok"),
        ("columns", Status.WARN, "left_positions"),
        ("unread", Status.FAIL, "pads_read"),
        ("weak", Status.FAIL, "pads_read"),
        ("replaces", Status.FAIL, "causal_mask_lost"),
        ("or", Status.FAIL, "causal_mask_lost"),
        ("inverted", Status.FAIL, "mask_of_ones"),
        ("nan", Status.FAIL, "not_finite"),
    ],
)
def test_each_use_of_the_mask_gets_its_verdict(fault: str, status: Status, reason: str) -> None:
    result = judge(fault)
    assert result.status is status, str(result)
    assert result.reason == f"padding.{reason}"
    assert result.measured
    assert bool(result.causes) is (status is not Status.PASS)


def test_a_sound_mask_is_judged_on_both_sides_and_may_be_of_bool() -> None:
    for model in (_Masked(), _BoolOnly()):
        result = check_padding(model, pad_id=4)
        assert result.claim == (
            "rows of 12, 6, 1 tokens predict the same alone as padded on the right and left"
        )


def test_nan_at_pads_spreads_to_real_tokens_in_the_second_layer() -> None:
    """Padded on the left, rows of 6 and 1 of 12 begin with 6 and 11 pads that see nothing."""
    one = check_padding(_Masked("nan", L=1))
    assert one.claim == "row 1, padded on the left, gives NaN at position 0, a pad"
    assert (one.numbers["real"], one.numbers["pads"]) == (0, 17)
    two = check_padding(_Masked("nan", L=2))
    assert two.claim == "row 1, padded on the left, gives NaN at position 6, a real token"
    assert (two.numbers["real"], two.numbers["pads"]) == (7, 17)


def test_without_a_mask_only_the_right_is_judged() -> None:
    result = check_padding(TinyGPT(), pad_id=0)
    assert result.status is Status.PASS
    assert result.claim.endswith("padded on the right")
    assert result.numbers["masked"] is False


class _CountsPads(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        return super().hidden(ids) * (1 + (ids == 0).sum(1)[:, None, None])


def test_a_length_that_counts_pads_changes_the_row() -> None:
    result = check_padding(_CountsPads(), pad_id=0)
    assert (result.status, result.reason) == (Status.FAIL, "padding.right")
    assert check_padding(_CountsPads(), pad_id=1).status is Status.PASS


def test_a_mask_that_is_handed_nowhere_is_a_warning() -> None:
    result = check_padding(HFStyle(), labels="same")
    assert (result.status, result.reason) == (Status.WARN, "padding.mask_ignored")


class _SquareMask(TinyGPT):
    """Its attention_mask is (T, T), as the caller's causal mask."""

    def forward(  # type: ignore[override]
        self, ids: Tensor, attention_mask: Tensor | None = None
    ) -> Tensor:
        if attention_mask is not None and attention_mask.shape != (ids.shape[1],) * 2:
            raise ValueError("attention_mask must be (T, T)")
        return self.head(self.hidden(ids))


def test_a_mask_of_another_shape_is_not_judged() -> None:
    with pytest.raises(MissingPartError, match="pad_id"):
        check_padding(_SquareMask())
    assert check_padding(_SquareMask(), pad_id=0).status is Status.PASS


def test_without_pad_and_mask_nothing_can_be_asked() -> None:
    with pytest.raises(MissingPartError, match="needs pad_id"):
        check_padding(TinyGPT())


def _left_padded(*, with_mask: bool) -> dict[str, Tensor]:
    """Three rows of eight, of which two begin with pads (id 0)."""
    ids = torch.randint(1, 19, (3, 8))
    mask = torch.ones_like(ids)
    mask[0, :3], mask[2, :5] = 0, 0
    batch = {"input_ids": ids * mask, "labels": ids}
    return batch | ({"attention_mask": mask} if with_mask else {})


def _without_mask(model: nn.Module, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(ids)
    return logits, cross_entropy(logits, targets)


def _with_mask(model: nn.Module, ids: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logits = model(ids, attention_mask=(ids != 0).long())
    return logits, cross_entropy(logits, targets)


def test_a_mask_that_the_call_drops_fails_where_the_batch_is_padded_on_the_left() -> None:
    batch = _left_padded(with_mask=True)
    result = check_padding(_Masked(), batch=batch, forward=_without_mask)
    assert (result.status, result.reason) == (Status.FAIL, "padding.mask_not_passed")
    assert result.claim.startswith("2 of 3 rows of the batch begin with pads")
    fine = check_padding(_Masked(), batch=batch, forward=_with_mask, pad_id=0)
    assert (fine.status, fine.reason) == (Status.PASS, "padding.ok")


def test_left_pads_without_a_mask_are_a_warning_and_the_model_may_take_one() -> None:
    """A batch of ids alone: whether pads are meant to be read, nobody can tell."""
    batch = _left_padded(with_mask=False)
    for parts in ({"forward": _without_mask}, {}):
        result = check_padding(_Masked(), batch=batch, pad_id=0, **parts)  # type: ignore[arg-type]
        assert (result.status, result.reason) == (Status.WARN, "padding.left_without_mask")


def test_a_mask_that_goes_with_the_batch_is_used() -> None:
    assert check_padding(_Masked(), batch=_left_padded(with_mask=True)).reason == "padding.ok"


def test_pads_on_the_right_need_no_mask() -> None:
    batch = {name: ids.flip(1) for name, ids in _left_padded(with_mask=True).items()}
    result = check_padding(_Masked(), batch=batch, forward=_without_mask)
    assert result.reason == "padding.ok"
