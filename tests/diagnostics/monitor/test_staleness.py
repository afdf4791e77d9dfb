"""Gradients that were not cleared: the share is known by hand."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from diagnostics.monitor.staleness import old_share
from tests.diagnostics.monitor.loops import said, train


def products(now: Tensor, arrived: Tensor, before: Tensor) -> list[float]:
    rows = torch.stack([now, arrived, before])
    return (rows @ rows.T).flatten().tolist()


E1, E2, E3 = torch.eye(100)[:3]


@pytest.mark.parametrize(
    ("now", "share"),
    [
        (E1, None),  # cleared
        (0.1 * E1, None),  # cleared, and clipped
        (E1 + E2, 0.5**0.5),  # the old one whole
        (0.5 * E1 + 0.5 * E2, 0.5**0.5),  # and both clipped
        (E2, None),  # nothing arrived: another story
        (E1 + E3, None),  # the sum over two processes
        (E1 - E2, None),  # no loop subtracts
        (torch.zeros(100), None),
    ],
)
def test_shares(now: Tensor, share: float | None) -> None:
    """The new gradient is E1 and the old one E2, both of length 1."""
    found = old_share(products(now, E1, E2))
    assert found is None if share is None else found == pytest.approx(share)


def test_parallel_gradients_cannot_be_told_apart() -> None:
    assert old_share(products(3 * E1, E1, 2 * E1)) is None
    assert old_share([float("nan")] * 9) is None


@pytest.mark.parametrize("clip", [None, 1.0])
def test_a_loop_without_zero_grad_is_found_at_the_second_look(clip: float | None) -> None:
    """Looks are at updates 1 and 5, and each compares at the next update."""
    assert said(train(6, clear=False, clip=clip)) == [("gradient_not_cleared", 6)]


def test_no_hook_is_left_behind() -> None:
    from tests.diagnostics.tiny import TinyGPT

    model = TinyGPT(19)
    train(5, model)
    assert [n for n, p in model.named_parameters() if p._backward_hooks] == []
