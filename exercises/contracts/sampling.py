"""The contract of sampling: temperature, top-k and nucleus, each as it is defined.

Shapes: B rows, V vocabulary, K tokens that survive top-k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from diagnostics._sampling_readings import Setting, distribution
from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    largest_difference,
)

B, V = 3, 13
SPREAD = 2.0  # standard deviation of the logits
COLD = 0.002  # a temperature at which exp(logit / temperature) overflows in float64
TIED = 5  # equal logits at the top of a row, of which TIES_KEPT survive
TIES_KEPT = 2

Filters = tuple[float, int, float]  # temperature, top_k, top_p


def right_sorted(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Sort each row, cut it, and put what is left back in its places."""
    ordered, order = (logits / temperature).sort(dim=-1, descending=True)  # (B, V)
    p = ordered[:, :top_k].softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def right_loop(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Walk through each row from its best token down, with plain numbers."""
    rows = []
    for row in logits.tolist():
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]
        weights = [math.exp((row[i] - row[best[0]]) / temperature) for i in best]
        total, mass, kept = math.fsum(weights), 0.0, {}
        for token, weight in zip(best, weights, strict=True):
            if mass < top_p:
                kept[token] = weight
            mass += weight / total
        left = math.fsum(kept.values())
        rows.append([kept.get(token, 0.0) / left for token in range(len(row))])
    return torch.tensor(rows, dtype=torch.float64)


def right_pairwise(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Compare every token with every other, and sort nothing."""
    scaled = logits / temperature
    places = torch.arange(logits.shape[1])
    mine, other = scaled[:, :, None], scaled[:, None, :]
    tied = (other == mine) & (places < places[:, None])
    ahead = (other > mine) | tied  # (B, V, V): whether token j comes before token i
    scaled = scaled.masked_fill(ahead.sum(dim=2) >= top_k, -math.inf)
    mass_before = torch.einsum("bij,bj->bi", ahead.double(), scaled.softmax(dim=1))
    return scaled.masked_fill(mass_before >= top_p, -math.inf).softmax(dim=1)


def right_from_below(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Shuffle the vocabulary, close tokens from the least probable one up, and shuffle back."""
    shuffled = torch.randperm(logits.shape[1])
    scaled = (logits / temperature)[:, shuffled]
    closed = torch.ones_like(scaled, dtype=torch.bool)
    closed = closed.scatter(1, scaled.topk(top_k).indices, False)
    scaled = scaled.masked_fill(closed, -math.inf)
    p, order = scaled.softmax(dim=1).sort(dim=1)  # the least probable first
    closed = torch.zeros_like(closed).scatter(1, order, p.cumsum(dim=1) <= 1.0 - top_p)
    return scaled.masked_fill(closed, -math.inf).softmax(dim=1)[:, shuffled.argsort()]


def wrong_small_fill(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Fill what top-k removes with a number close to 0, which is a logit like any other."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    fill = -1e-10  # BROKEN: was fill = -math.inf
    scaled = scaled.scatter(1, order[:, top_k:], fill)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    removed = torch.zeros_like(p).bool().scatter(1, order, p.cumsum(dim=-1) - p >= top_p)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_crossing_dropped(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Keep what lies fully below top_p: the token that reaches it is lost."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    scaled = scaled.scatter(1, order[:, top_k:], -math.inf)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    late = p.cumsum(dim=-1) > top_p  # BROKEN: was late = p.cumsum(dim=-1) - p >= top_p
    late[:, 0] = False
    removed = torch.zeros_like(late).scatter(1, order, late)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_multiplied(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Multiply by the temperature: a cold setting makes the text wilder."""
    scaled = logits * temperature  # BROKEN: was scaled = logits / temperature
    ordered, order = scaled.sort(dim=-1, descending=True)  # (B, V)
    p = ordered[:, :top_k].softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def wrong_mask_gathered(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Read the mask of the sorted tokens at the order, where it has to be written there."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    scaled = scaled.scatter(1, order[:, top_k:], -math.inf)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    late = p.cumsum(dim=-1) - p >= top_p
    removed = late.gather(1, order)  # BROKEN: was removed = late.scatter(1, order, late)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_order_of_first_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Sort the first row only, and cut every row by that order."""
    scaled = logits / temperature
    order = scaled[:1].argsort(dim=-1, descending=True).expand_as(scaled)  # BROKEN: was order = scaled.argsort(dim=-1, descending=True)  # noqa: E501  # fmt: skip
    p = scaled.gather(1, order[:, :top_k]).softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)
