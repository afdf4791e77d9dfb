"""The attention weights that are listened to are those of torch."""

from __future__ import annotations

import math

import torch
from torch.nn import functional

from diagnostics.monitor.ear import attention_weights


def test_the_weights_are_those_of_the_fused_function() -> None:
    """Mixing the values by them gives what torch gives, with each kind of mask and scale."""
    q, k, v = torch.randn(3, 2, 4, 6, 8)
    mask = torch.ones(6, 6).tril().bool()
    for settings in (
        {"is_causal": True},
        {"attn_mask": mask},
        {"attn_mask": torch.zeros(6, 6).masked_fill(~mask, -math.inf), "scale": 0.3},
        {},
    ):
        weights = attention_weights(q, k, v, **settings)  # type: ignore[arg-type]
        assert weights is not None
        wanted = functional.scaled_dot_product_attention(q, k, v, **settings)  # type: ignore[arg-type]
        torch.testing.assert_close(weights @ v, wanted)
    assert attention_weights(q.expand(2, 4, 6, 8), k[:, :2], v[:, :2]) is not None
