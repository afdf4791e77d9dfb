"""The smallest sizes: no check ends in an error because V, T or B is 1, 2 or 3."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from diagnostics import Pipeline, Report, Status, diagnose
from tests.diagnostics.tiny import HFStyle, TinyGPT, random_pair

NEED_A_CHOICE = (
    "loss", "initial_loss", "batch_independence", "causal_independence", "positions", "context",
    "gradients", "optimizer", "overfit", "honesty",
)  # fmt: skip


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3)


def small(V: int, T: int, B: int, *, skip: tuple[str, ...] = ()) -> Report:
    """Diagnose a healthy model of V tokens and a block of T on a batch of B rows."""
    torch.manual_seed(1)
    model = TinyGPT(V, block=T)
    pair = random_pair(V, B=B, T=T)
    parts = Pipeline(model, batch=pair, fresh=True, make_optimizer=adam)
    return diagnose(parts, overfit_steps=100, skip=["environment", *skip])


@pytest.mark.parametrize("V", [1, 2, 3])
@pytest.mark.parametrize("T", [1, 2])
@pytest.mark.parametrize("B", [1, 2])
def test_no_check_fails_or_breaks_by_its_sizes_alone(V: int, T: int, B: int) -> None:
    report = small(V, T, B, skip=("honesty",))
    bad = [r.reason for r in report.results if r.status in (Status.ERROR, Status.FAIL)]
    assert bad == []


def test_a_vocabulary_of_one_token_is_measured_by_no_check_that_needs_a_choice() -> None:
    """Every probability is 1 and every gradient 0: neither a pass nor a failure."""
    report = small(1, 4, 2)
    for check in NEED_A_CHOICE:
        assert report[check].status is Status.SKIP, check
        assert report[check].claim == (
            "not measured: a vocabulary of one token leaves nothing to predict"
        )
    assert report["shapes"].status is Status.PASS
    assert report["prefix"].status is Status.PASS


def test_a_block_of_one_token_leaves_the_loss_unmeasured() -> None:
    report = small(5, 1, 4, skip=("honesty", "overfit"))
    assert report["loss"].status is Status.SKIP
    assert report["loss"].claim == "not measured: a row of one token has no order to look at"


def test_rows_of_one_token_in_a_longer_block_are_scored_as_others_are() -> None:
    pair = random_pair(19, B=4, T=1)
    report = diagnose(Pipeline(TinyGPT(), batch=pair), only=["loss"])
    assert report["loss"].reason == "loss.ok"
    assert "your batch" in [case["batch"] for case in report["loss"].numbers["cases"]]


def test_labels_of_which_none_is_scored_are_no_batch_to_learn() -> None:
    """A row of one token has no next one: under labels="same" nothing is left to score."""
    ids = random_pair(19, B=4, T=1)[0]
    batch = {"input_ids": ids, "labels": ids.clone()}
    parts = Pipeline(HFStyle(), batch=batch, labels="same", fresh=True, make_optimizer=adam)
    report = diagnose(parts, only=["initial_loss", "optimizer", "overfit"], overfit_steps=5)
    assert report["overfit"].status is Status.SKIP
    assert report["overfit"].reason == "overfit.nothing_scored"
    assert report["initial_loss"].reason == "initial_loss.ok"
    assert report["optimizer"].reason == "optimizer.not_finite"
    assert report["optimizer"].claim == (
        "the loss of the batch is nan before the first step, so that no step can be judged by it"
    )
    assert not report["optimizer"].causes


def test_batches_of_the_few_rows_that_two_tokens_make_repeat_by_nature() -> None:
    """Two rows of one token out of two: 4 batches in all, drawn 32 times."""
    ids = torch.randint(2, (200,), generator=torch.Generator().manual_seed(0))

    def batch(split: str) -> tuple[torch.Tensor, torch.Tensor]:
        starts = torch.randint(len(ids) - 1, (2, 1))
        return ids[starts], ids[starts + 1]

    parts = Pipeline(TinyGPT(2), batch=batch, train_ids=ids)
    assert diagnose(parts, only=["batches"])["batches"].status is Status.PASS


@pytest.mark.parametrize("V", [2, 3])
def test_honesty_measures_two_and_three_tokens(V: int) -> None:
    torch.manual_seed(0)
    result = diagnose(Pipeline(TinyGPT(V)), only=["honesty"])["honesty"]
    assert (result.status, result.reason) == (Status.PASS, "honesty.ok")
    assert set(result.numbers) == {"uniform", "chain"}
    assert result.numbers["uniform"]["entropy"] == pytest.approx(math.log(V))
    assert ("no chain to learn" in result.claim) == (V == 2)


def test_honesty_needs_two_tokens_that_are_no_padding() -> None:
    result = diagnose(Pipeline(TinyGPT(2), pad_id=0), only=["honesty"])["honesty"]
    assert (result.status, result.reason) == (Status.SKIP, "honesty.one_symbol")
    assert result.claim == "not measured: one token of the vocabulary is no padding"
