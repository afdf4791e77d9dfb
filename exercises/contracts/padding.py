"""The contract of padding: causal attention in which no token reads a pad.

Shapes: B rows, H heads, T time, D head size.
"""

from __future__ import annotations

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
    as_tensor,
    largest_difference,
)

H, D = 3, 4
LENGTHS = (1, 7, 4, 5)  # tokens of the rows


def right_masks(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Join three masks: causal, padding, and itself, so that every softmax has an entry."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    visible = causal & real[:, None, None, :] | torch.eye(T, dtype=torch.bool)
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def right_rows_alone(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Cut the pads out of each row, and put the results back in their places."""
    mixed = torch.zeros_like(values)
    for row in range(len(real)):
        places = real[row].nonzero().flatten()
        q, k, v = (part[row].index_select(1, places) for part in (queries, keys, values))
        mixed[row, :, places] = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed


def right_sums(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Collect numerator and denominator, from the first position to the last."""
    scaled, mixed = queries * queries.shape[-1] ** -0.5, []
    for t in range(queries.shape[2]):
        scores = (scaled[:, :, t : t + 1] * keys[:, :, : t + 1]).sum(-1)  # (B, H, t + 1)
        seen = real[:, None, : t + 1]
        scores = scores.masked_fill(~seen, -1e300)  # or a large one of a pad leaves 0 of the rest
        weights = (scores - scores.amax(-1, keepdim=True)).exp() * seen
        total = weights.sum(-1, keepdim=True)  # 0 where only pads came so far
        weights = weights / torch.where(total > 0, total, 1.0)
        mixed.append((weights[..., None] * values[:, :, : t + 1]).sum(2))
    return torch.stack(mixed, dim=2)


def wrong_mask_ignored(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Accept the padding mask, and let everything be a token."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    padding = real.new_ones(real.shape)  # BROKEN: was padding = real
    visible = causal & padding[:, None, None, :] | torch.eye(T, dtype=torch.bool)
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def wrong_causal_lost(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Use the padding mask in place of the causal one where there are pads."""
    T = queries.shape[2]
    visible = torch.ones(T, T, dtype=torch.bool).tril()
    if not bool(real.all()):
        padding = real[:, None, None, :]
        visible = padding  # BROKEN: was visible = visible & padding
        visible = visible | torch.eye(T, dtype=torch.bool)
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def wrong_after_softmax(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Take the weights of pads away after the softmax, so that the rest sums to less than 1."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    weights = scores.masked_fill(~causal, float("-inf")).softmax(-1) * real[:, None, None, :]
    total = weights.sum(-1, keepdim=True)
    share = torch.ones_like(total)  # BROKEN: was share = torch.where(total > 0, total, 1.0)
    return weights / share @ values


def wrong_blind_pads(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Leave a pad at the start nothing to read: its softmax is 0 / 0."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    itself = torch.zeros(T).bool()  # BROKEN: was itself = torch.ones(T).bool()
    visible = causal & real[:, None, None, :] | itself.diag()
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def wrong_first_row(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Give every row the mask of the first one."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    padding = real[:1]  # BROKEN: was padding = real
    visible = causal & padding[:, None, None, :] | torch.eye(T, dtype=torch.bool)
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def wrong_pads_on_the_right(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Read only the number of tokens from the mask: right if all pads stand at the end."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    padding = torch.arange(T) < real.sum(1, keepdim=True)  # BROKEN: was padding = real
    visible = causal & padding[:, None, None, :] | torch.eye(T, dtype=torch.bool)
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    return scores.masked_fill(~visible, float("-inf")).softmax(-1) @ values


def wrong_too_small(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor:
    """Lower the scores of pads by a number that is not large enough to hide them."""
    T = queries.shape[2]
    causal = torch.ones(T, T, dtype=torch.bool).tril()
    scores = queries @ keys.transpose(2, 3) / queries.shape[3] ** 0.5  # (B, H, T, T)
    scores = scores.masked_fill(~causal, float("-inf"))
    drop = 5.0  # BROKEN: was drop = 1e9
    return (scores - drop * ~real[:, None, None, :]).softmax(-1) @ values


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Pad rows of unequal length on the right, on the left and on both sides."""
    rows = [tuple(torch.randn(H, length, D).double() for _ in range(3)) for length in LENGTHS]
    alone = [
        functional.scaled_dot_product_attention(q, k, v, is_causal=True) for q, k, v in rows
    ]  # (H, length, D) each
    for side in ("nowhere", "right", "left", "both sides"):
        used = [3] if side == "nowhere" else list(range(len(rows)))
        T = max(LENGTHS[row] for row in used) + 2 * (side == "both sides")
        starts = [_start(T - LENGTHS[row], side) for row in used]
        real = torch.zeros(len(used), T, dtype=torch.bool)
        parts = [3 * torch.randn(len(used), H, T, D).double() for _ in range(3)]
        for place, (row, start) in enumerate(zip(used, starts, strict=True)):
            real[place, start : start + LENGTHS[row]] = True
            for part, tokens in zip(parts, rows[row], strict=True):
                part[place, :, start : start + LENGTHS[row]] = tokens
        mixed = _mixed(implementation, parts, real)
        if side == "right":
            yield from _judge_future(implementation, parts, real)
        yield from _judge(mixed, [alone[row] for row in used], starts, side)


def _mixed(implementation: Implementation, parts: list[Tensor], real: Tensor) -> Tensor:
    return as_tensor(
        implementation(*(part.clone() for part in parts), real.clone()),
        "the result",
        shape=tuple(parts[0].shape),
        dtype=torch.float64,
    )


def _start(pads: int, side: str) -> int:
    return {"left": pads, "both sides": pads // 2}.get(side, 0)


def _judge(mixed: Tensor, alone: list[Tensor], starts: list[int], side: str) -> Iterator[Finding]:
    """Compare the tokens of each row with the same row alone; all else must be finite."""
    odd = int((~mixed.isfinite()).sum())
    yield Finding(
        odd,
        f"with pads {_on(side)} {odd} of {mixed.numel()} values are not finite, expected 0: also "
        "a pad needs a softmax over at least 1 entry",
    )
    gaps = [
        largest_difference(row[:, start : start + due.shape[1]], due)
        for row, due, start in zip(mixed, alone, starts, strict=True)
    ]
    worst = gaps.index(max(gaps))
    changed = sum(not gap <= CONTRACT.tolerance for gap in gaps)
    yield Finding(
        max(gaps),
        f"with pads {_on(side)} the tokens of {changed} of {len(gaps)} rows come out otherwise "
        f"than alone, worst in row {worst}, of length {alone[worst].shape[1]}, by "
        f"{gaps[worst]:.4g}, expected 0",
    )


def _judge_future(
    implementation: Implementation, parts: list[Tensor], real: Tensor
) -> Iterator[Finding]:
    """Change the last token of each row, which no other token of the row may read."""
    before = _mixed(implementation, parts, real)
    changed = [part.clone() for part in parts]
    last = real.cumsum(1) == real.sum(1, keepdim=True)
    for part in changed[1:]:  # keys and values
        part.transpose(1, 2)[last & real] += 1.0
    after = _mixed(implementation, changed, real)
    kept = (real & ~last)[:, None, :, None].expand_as(before)
    moved = largest_difference(after[kept], before[kept])
    yield Finding(
        moved,
        f"with pads on the right earlier tokens move by {moved:.4g} when the last token of their "
        "row changes, expected 0: no token reads the future",
    )


def _on(side: str) -> str:
    return side if side == "nowhere" else f"on {side}" if " " in side else f"on the {side}"


CONTRACT = Contract(
    check="padding",
    signature=(
        "implementation(queries: Tensor, keys: Tensor, values: Tensor, real: Tensor) -> Tensor"
    ),
    promise=(
        "queries, keys and values are (B, H, T, D), float64; real is (B, T), bool: True where a "
        "token is, False where a pad is, on any side of the tokens; each row has a token. It "
        "returns (B, H, T, D), float64: at each token the mean of the values of the tokens of its "
        "row up to itself, weighted by the softmax of query * key / root of D. At a pad it returns "
        "anything finite."
    ),
    rights=(
        Right(name="masks", implementation=right_masks, note="three masks, joined"),
        Right(name="rows_alone", implementation=right_rows_alone, note="every row by itself"),
        Right(name="sums", implementation=right_sums, note="position by position"),
    ),
    wrongs=(
        Wrong(
            name="mask_ignored",
            implementation=wrong_mask_ignored,
            note="pads are read like tokens",
        ),
        Wrong(
            name="causal_lost",
            implementation=wrong_causal_lost,
            note="the padding mask takes the place of the causal one",
        ),
        Wrong(
            name="after_softmax",
            implementation=wrong_after_softmax,
            note="pads are removed after the softmax, and the weights sum to less than 1",
        ),
        Wrong(
            name="blind_pads",
            implementation=wrong_blind_pads,
            note="a pad at the start has nothing to read and becomes NaN",
            held_out=True,
        ),
        Wrong(
            name="first_row",
            implementation=wrong_first_row,
            note="all rows get the mask of the first one",
            held_out=True,
        ),
        Wrong(
            name="pads_on_the_right",
            implementation=wrong_pads_on_the_right,
            note="pads are taken to stand at the end of the row",
            held_out=True,
        ),
        Wrong(
            name="too_small",
            implementation=wrong_too_small,
            note="the scores of pads are lowered by too little",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # float64 rounds at 1e-15; the nearest bug differs by 1e-2
)
