"""Numbers out of what loops have."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from diagnostics.monitor.update import global_norm, one_number, read_rates


def test_one_number_in_any_form() -> None:
    assert one_number(2) == 2.0
    assert one_number(torch.tensor([2.0], requires_grad=True)).requires_grad is False  # type: ignore[union-attr]
    with pytest.raises(ValueError, match=r"one element, got shape \(2,\)"):
        one_number(torch.ones(2))
    with pytest.raises(ValueError, match="one element, got NoneType"):
        one_number(None)  # type: ignore[arg-type]


def test_a_group_without_a_rate_is_left_out() -> None:
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.5)
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})
    del optimizer.param_groups[1]["lr"]
    assert read_rates([optimizer]) == (0.5,)


@pytest.mark.parametrize("layout", ["alike", "types", "sparse"])
def test_the_norm_over_all_gradients(layout: str) -> None:
    """3 and 4 make 5, whatever they are kept in; who has none does not count."""
    a, b, c = (nn.Parameter(torch.zeros(1)) for _ in range(3))
    if layout == "types":
        b = nn.Parameter(torch.zeros(1, dtype=torch.bfloat16))
    a.grad, b.grad = torch.full_like(a, 3.0), torch.full_like(b, 4.0)
    if layout == "sparse":
        b.grad = b.grad.to_sparse()
    total, parts = global_norm([a, b, c])
    assert total is not None
    assert float(total) == 5.0
    told = None if parts is None else [float(part) for part in parts]
    assert told == (None if layout == "alike" else [3.0, 4.0])
    a.grad = None
    b.grad = torch.full_like(b, math.nan)
    total, _ = global_norm([a, b, c])
    assert total is not None
    assert math.isnan(float(total))
    assert global_norm([c]) == (None, None)
