"""The contract of causal independence: attention in which position t reads tokens 0 to t.

Shapes: B batch, H heads, T time, D head size.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_finite,
    largest_difference,
)

B, H, D = 3, 2, 4
SHORT, LONG = 7, 24  # tokens: in the short row every one is replaced, in the long one some are
LONG_REPLACED = (1, 17, 23)


def right_fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Leave all of it to torch."""
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).flatten(2)


def right_filled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Fill the scores of later keys with minus infinity."""
    T = q.shape[2]
    scores = torch.einsum("bhtd,bhsd->bhts", q, k) / math.sqrt(q.shape[3])  # (B, H, T, T)
    earlier = torch.arange(T)[:, None] >= torch.arange(T)
    weights = torch.where(earlier, scores, -math.inf).softmax(-1)
    return torch.einsum("bhts,bhsd->bthd", weights, v).reshape(len(q), T, -1)


def right_growing(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Give each position the keys up to its own, so that there is nothing to hide."""
    rows = []
    for t in range(q.shape[2]):
        scores = (k[:, :, : t + 1] * q[:, :, t : t + 1]).sum(-1) * q.shape[3] ** -0.5  # (B, H, t+1)
        weights = scores.softmax(-1)[..., None]
        rows.append((weights * v[:, :, : t + 1]).sum(2).flatten(1))  # (B, H * D)
    return torch.stack(rows, dim=1)


def right_divided_late(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Cut the exponentials off, and divide by the sum of what is left.

    The largest score is sought up to t: a large one behind t would leave 0 of all the others.
    """
    scores = q @ k.mT / q.shape[3] ** 0.5  # (B, H, T, T)
    largest = scores.cummax(-1).values.diagonal(dim1=-2, dim2=-1)  # (B, H, T)
    parts = (scores - largest[..., None]).exp().tril()
    mixed = parts @ v / parts.sum(-1, keepdim=True)  # (B, H, T, D)
    return torch.cat(mixed.unbind(1), dim=-1)


def wrong_no_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Switch the mask off."""
    causal = False  # BROKEN: was causal = True
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return mixed.transpose(1, 2).flatten(2)


def wrong_diagonal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Keep one diagonal too many: the token that is to be predicted can be read."""
    T = q.shape[2]
    every = torch.ones(T, T, dtype=torch.bool)
    kept = every.tril(1)  # BROKEN: was kept = every.tril()
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    return mixed.transpose(1, 2).flatten(2)


def wrong_after_softmax(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Hide the weights in place of the scores: the sum still runs over later tokens."""
    scores = q @ k.mT / math.sqrt(q.shape[3])  # (B, H, T, T)
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    shown = scores  # BROKEN: was shown = scores.masked_fill(hidden, -math.inf)
    mixed = shown.softmax(-1).masked_fill(hidden, 0.0) @ v
    return mixed.transpose(1, 2).flatten(2)


def wrong_heads_unmoved(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Join the heads without moving the time axis back."""
    B, _, T, _ = q.shape
    mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    moved = mixed  # BROKEN: was moved = mixed.transpose(1, 2)
    return moved.reshape(B, T, -1)


def wrong_inverted(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Hand over the places to hide where torch wants the places to keep."""
    T = q.shape[2]
    hidden = torch.ones(T, T, dtype=torch.bool).triu(1)
    mask = hidden  # BROKEN: was mask = ~hidden
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


def wrong_zero_scores(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Set hidden scores to 0, of which exp makes 1."""
    scores = q @ k.mT / math.sqrt(q.shape[3])  # (B, H, T, T)
    hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
    filler = 0.0  # BROKEN: was filler = -math.inf
    weights = scores.masked_fill(hidden, filler).softmax(-1)
    return (weights @ v).transpose(1, 2).flatten(2)


def wrong_first_open(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Open the first row of the mask, for fear of a softmax over nothing."""
    T = q.shape[2]
    kept = torch.ones(T, T, dtype=torch.bool).tril()
    kept[0] = True  # BROKEN: was kept[0, 0] = True
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    return mixed.transpose(1, 2).flatten(2)


def wrong_short_mask(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Make the mask for 16 positions; longer rows are open beyond it."""
    T = q.shape[2]
    places = torch.arange(T)
    hidden = places > places[:, None]
    hidden &= places < 16  # BROKEN: was hidden &= places < T
    kept = ~hidden
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=kept)
    return mixed.transpose(1, 2).flatten(2)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Replace later tokens and see what moves; then compare with the formula."""
    for T, replaced in ((SHORT, tuple(range(1, SHORT))), (LONG, LONG_REPLACED)):
        q, k, v = (torch.randn(B, H, T, D, dtype=torch.float64) for _ in range(3))
        before = _called(implementation, q, k, v)
        by_key, by_value = [], []
        for j in replaced:
            other_k, other_v = k.clone(), v.clone()
            other_k[:, :, j] += torch.randn(B, H, D, dtype=torch.float64)
            other_v[:, :, j] += torch.randn(B, H, D, dtype=torch.float64)
            by_key.append(_moved(before, _called(implementation, q, other_k, v)))
            by_value.append(_moved(before, _called(implementation, q, k, other_v)))
        yield _leak(torch.stack(by_key, dim=1), torch.stack(by_value, dim=1), replaced)
        yield _distance(before, _formula(q, k, v))


def _called(implementation: Implementation, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    shape = (B, q.shape[2], H * D)
    return as_finite(implementation(q, k, v), "the result", shape=shape, dtype=torch.float64)


def _moved(before: Tensor, after: Tensor) -> Tensor:
    """Return (T,): how far each position of (B, T, H * D) moved."""
    return (after - before).abs().amax((0, 2))


def _leak(by_key: Tensor, by_value: Tensor, replaced: tuple[int, ...]) -> Finding:
    """Judge two maps (T, J): how far position t moved when token replaced[j] did."""
    T = len(by_key)
    future = torch.arange(T)[:, None] < torch.tensor(replaced)
    influence = torch.maximum(by_key, by_value)
    leaks = future & ~(influence <= TOLERANCE)
    pairs = [(int(i), replaced[int(column)]) for i, column in leaks.nonzero()] or [(0, replaced[0])]
    i, j = pairs[0]
    worst = [float(moved[future].amax()) for moved in (by_key, by_value)]
    return Finding(
        max(worst),
        f"position {i} moved by {float(influence[i, replaced.index(j)]):.3g} when only token {j}, "
        f"later than it, changed, expected 0: {int(leaks.sum())} of {int(future.sum())} pairs leak "
        f"in rows of {T} tokens{_pattern(pairs, int(future.sum()), *worst)}",
    )


def _pattern(pairs: list[tuple[int, int]], possible: int, by_key: float, by_value: float) -> str:
    """Say what all (position, later token) that leak have in common."""
    if by_value <= TOLERANCE:
        return ", through keys alone: something sums over what is hidden afterwards"
    if by_key <= TOLERANCE:
        return ", through values alone: their weight is fixed, and not 0"
    if all(i == 0 for i, _ in pairs):
        return ", all of them at position 0"
    if all(j == i + 1 for i, j in pairs):
        return ", each of them one token ahead"
    if len(pairs) == possible:
        return ", so nothing is hidden"
    first = min(j for _, j in pairs)
    if first >= SHORT:  # in a long row some earlier token was replaced as well, and did not leak
        return f", all of them through tokens from {first} on"
    return ""


def _distance(result: Tensor, wanted: Tensor) -> Finding:
    """Compare with the formula, and say at how many positions it does not hold."""
    T = result.shape[1]
    off = [largest_difference(result[:, t], wanted[:, t]) for t in range(T)]
    count = sum(not distance <= TOLERANCE for distance in off)
    return Finding(
        max(off),
        f"no later token is read, but {count} of {T} positions are up to {max(off):.3g} away from "
        f"the mean of v over tokens 0 to t, weighted by the softmax of q . k / sqrt({D})",
    )


def _formula(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    hidden = torch.ones(q.shape[2], q.shape[2], dtype=torch.bool).triu(1)
    scores = (q @ k.mT / math.sqrt(D)).masked_fill(hidden, -math.inf)
    return (scores.softmax(-1) @ v).transpose(1, 2).flatten(2)  # (B, T, H * D)


TOLERANCE = 1e-9  # right ones differ by 2e-15 through rounding; the nearest bug by more than 0.01

CONTRACT = Contract(
    check="causal_independence",
    signature="implementation(q: Tensor, k: Tensor, v: Tensor) -> Tensor",
    promise=(
        "q, k and v are (B, H, T, D), float64: queries, keys and values of B rows, H heads, T "
        "positions. It returns (B, T, H * D), float64, head after head in the last axis: for each "
        "row, head and position t the mean of v over positions 0 to t, weighted by the softmax of "
        "q[t] . k[s] / sqrt(D) over s = 0 to t. All numbers are finite, "
        "and nothing later than t changes it."
    ),
    rights=(
        Right(name="fused", implementation=right_fused, note="torch's own attention"),
        Right(name="filled", implementation=right_filled, note="scores filled with -inf"),
        Right(name="growing", implementation=right_growing, note="a loop over growing prefixes"),
        Right(name="divided_late", implementation=right_divided_late, note="exp, cut, divide"),
    ),
    wrongs=(
        Wrong(name="no_mask", implementation=wrong_no_mask, note="no token is hidden"),
        Wrong(name="diagonal", implementation=wrong_diagonal, note="one token ahead is read"),
        Wrong(
            name="after_softmax",
            implementation=wrong_after_softmax,
            note="later tokens are hidden after the softmax has summed over them",
        ),
        Wrong(
            name="heads_unmoved",
            implementation=wrong_heads_unmoved,
            note="heads are joined by a reshape that mixes positions",
        ),
        Wrong(
            name="inverted",
            implementation=wrong_inverted,
            note="later tokens are read, and the earlier ones hidden",
            held_out=True,
        ),
        Wrong(
            name="zero_scores",
            implementation=wrong_zero_scores,
            note="hidden scores are 0, so that hidden tokens still weigh exp(0)",
            held_out=True,
        ),
        Wrong(
            name="first_open",
            implementation=wrong_first_open,
            note="position 0 reads the whole row, all others are right",
            held_out=True,
        ),
        Wrong(
            name="short_mask",
            implementation=wrong_short_mask,
            note="tokens from position 16 on are hidden from nobody",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
