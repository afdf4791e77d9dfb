"""The contract of the context: attention that reads a window of tokens, up to the newest one.

Shapes: B rows, T time, C width, H heads, D head size.
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

CASES = ((2, 7, 3, 5, 7), (1, 9, 2, 4, 3), (3, 5, 2, 3, 1), (2, 6, 4, 2, 5))  # B, T, H, D, window


def right_mask(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Hide what is later than the position, and what lies beyond the window."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    visible = ones.tril() & ones.triu(1 - window)
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def right_slices(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Cut the window of each position out of keys and values, head by head."""
    parts = [part.chunk(heads, dim=2) for part in (queries, keys, values)]
    mixed = []
    for q, k, v in zip(*parts, strict=True):  # (B, T, D) each
        rows = []
        for t in range(q.shape[1]):
            seen = slice(max(0, t + 1 - window), t + 1)
            now = q[:, t : t + 1]  # (B, 1, D)
            rows.append(functional.scaled_dot_product_attention(now, k[:, seen], v[:, seen]))
        mixed.append(torch.cat(rows, dim=1))
    return torch.cat(mixed, dim=2)


def right_unfold(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Put empty places in front, and look at every window through a view."""
    B, T, C = queries.shape
    padded = [functional.pad(part, (0, 0, window - 1, 0)) for part in (keys, values)]
    k, v = (part.unfold(1, window, 1).reshape(B, T, heads, -1, window) for part in padded)
    q = queries.reshape(B, T, heads, -1) * (C // heads) ** -0.5
    scores = torch.einsum("bthd,bthdw->bthw", q, k)
    places = torch.arange(T)[:, None] + torch.arange(window) - window + 1  # (T, W)
    weights = scores.masked_fill((places < 0)[:, None], float("-inf")).softmax(-1)
    return torch.einsum("bthw,bthdw->bthd", weights, v).flatten(2)


def wrong_itself_only(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int
) -> Tensor:
    """Build a mask that leaves each position itself and nothing else."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    places = torch.arange(T)
    ages = places[:, None] - places
    oldest = 0  # BROKEN: was oldest = window - 1
    visible = (ages >= 0) & (ages <= oldest)
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_newest_hidden(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int
) -> Tensor:
    """Hide the newest token; the first position, which has no other, keeps it."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    past = ones.tril(-1)  # BROKEN: was past = ones.tril()
    visible = past & ones.triu(1 - window)
    visible |= ~visible.any(1, keepdim=True) & torch.eye(T, dtype=torch.bool)
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_one_too_far(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int
) -> Tensor:
    """Read a window of earlier tokens besides the newest: one too many."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    band = ones.triu(-window)  # BROKEN: was band = ones.triu(1 - window)
    visible = ones.tril() & band
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_blocks(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Cut the row into pieces of a window's length, and never look across a cut."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    places = torch.arange(T)
    oldest = places // window * window  # BROKEN: was oldest = places - window + 1
    visible = (places <= places[:, None]) & (places >= oldest[:, None])
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_scale(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) -> Tensor:
    """Divide by the root of the whole width."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    visible = ones.tril() & ones.triu(1 - window)
    size = C  # BROKEN: was size = C // heads
    scores = q @ k.transpose(2, 3) / size**0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_heads_reshaped(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int
) -> Tensor:
    """Lay the heads side by side without moving time back to its place."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    visible = ones.tril() & ones.triu(1 - window)
    scores = q @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.reshape(B, T, C)  # BROKEN: was return mixed.transpose(1, 2).reshape(B, T, C)


def wrong_newest_query(
    queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int
) -> Tensor:
    """Ask with the newest query for all positions: right for the last one alone."""
    B, T, C = queries.shape
    q, k, v = (part.view(B, T, heads, -1).transpose(1, 2) for part in (queries, keys, values))
    ones = torch.ones(T, T, dtype=torch.bool)
    visible = ones.tril() & ones.triu(1 - window)
    asked = q[:, :, -1:]  # BROKEN: was asked = q
    scores = asked @ k.transpose(2, 3) / (C // heads) ** 0.5  # (B, H, T, T)
    mixed = scores.expand(-1, -1, T, -1).masked_fill(~visible, float("-inf")).softmax(-1) @ v
    return mixed.transpose(1, 2).reshape(B, T, C)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Read with equal scores which tokens are seen, then compare with scores that differ."""
    for B, T, H, D, window in CASES:
        shape = (B, T, H * D)
        where = f"with {H} heads and a window of {window} in a row of {T}"
        zeros = torch.zeros(shape, dtype=torch.float64)
        marks = (2.0 ** torch.arange(T).double())[:, None].expand(shape)  # one bit per token
        seen = _mixed(implementation, [zeros, zeros, marks], H, window)
        wanted = _reference(zeros, zeros, marks, heads=H, window=window)
        yield Finding(
            largest_difference(seen, wanted),
            f"{where}, {_reading(seen, wanted, window)}",
        )
        parts = [torch.randn(shape, dtype=torch.float64) for _ in range(3)]
        parts[0] *= 3  # so that the weights differ much from one token to the next
        mixed = _mixed(implementation, parts, H, window)
        yield Finding(
            largest_difference(mixed, _reference(*parts, heads=H, window=window)),
            f"{where}, the right tokens are read, but {_mixing(mixed, parts, H, window)}",
        )


def _mixed(implementation: Implementation, parts: list[Tensor], heads: int, window: int) -> Tensor:
    return as_tensor(
        implementation(*(part.clone() for part in parts), heads, window),
        "the result",
        shape=tuple(parts[0].shape),
        dtype=torch.float64,
    )


def _reference(queries: Tensor, keys: Tensor, values: Tensor, *, heads: int, window: int) -> Tensor:
    q, k, v = (part.unflatten(2, (heads, -1)).transpose(1, 2) for part in (queries, keys, values))
    ages = torch.arange(q.shape[2])[:, None] - torch.arange(q.shape[2])
    visible = (ages >= 0) & (ages < window)
    mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=visible)
    return mixed.transpose(1, 2).flatten(2)


def _reading(seen: Tensor, wanted: Tensor, window: int) -> str:
    """Say what the position that is worst off reads: with equal scores it is a mean of marks."""
    gaps = (seen - wanted).abs().nan_to_num(nan=float("inf"))
    t = int(gaps.amax(dim=(0, 2)).argmax())
    value = float(seen[:, t].flatten()[gaps[:, t].flatten().argmax()])
    first = max(0, t + 1 - window)
    expected = f"expected {first} to {t}" if first < t else f"expected {t} alone"
    for count in range(1, seen.shape[1] + 1):
        bits = _bits(value * count)
        if len(bits) == count:
            return f"position {t} reads the tokens {', '.join(map(str, bits))}, {expected}"
    return f"position {t} mixes the tokens to {value:.4g}, not a mean of whole marks, {expected}"


def _mixing(mixed: Tensor, parts: list[Tensor], heads: int, window: int) -> str:
    """Say in how many places the weights of the tokens are wrong, or by which factor scores are."""
    queries, keys, values = parts
    C, D = queries.shape[2], queries.shape[2] // heads
    for name, factor in ((f"C = {C}", heads**-0.5), ("1", D**0.5), (f"{D} twice", D**-0.5)):
        usual = _reference(queries * factor, keys, values, heads=heads, window=window)
        if largest_difference(mixed, usual) <= CONTRACT.tolerance:
            return f"their scores are divided by the root of {name}, expected D = {D}"
    due = _reference(queries, keys, values, heads=heads, window=window)
    gaps = (mixed - due).abs().unflatten(2, (heads, D)).amax(dim=(0, 3))  # (T, H)
    bad = ~(gaps <= CONTRACT.tolerance)
    ends = f"position 0 {_right(bad[0])}, position {len(bad) - 1} {_right(bad[-1])}"
    return (
        f"{int(bad.sum())} of {bad.numel()} (position, head) pairs give them wrong weights, "
        f"expected 0: off by up to {float(gaps.amax()):.4g}; {ends}"
    )


def _right(bad: Tensor) -> str:
    return "is wrong" if bool(bad.any()) else "is right"


def _bits(total: float) -> list[int]:
    """Return which powers of 2 make up a whole number; none if it is not whole."""
    if not 0 < total < 2.0**30 or abs(total - round(total)) > 1e-6:
        return []
    return [bit for bit in range(30) if round(total) >> bit & 1]


CONTRACT = Contract(
    check="context",
    signature=(
        "implementation(queries: Tensor, keys: Tensor, values: Tensor, heads: int, window: int) "
        "-> Tensor"
    ),
    promise=(
        "queries, keys and values are (B, T, C), float64; C is heads * D, and head h owns the "
        "channels h * D to h * D + D - 1. It returns (B, T, C), float64: for each head, position t "
        "gets the mean of the values at positions t - window + 1 to t, those before 0 left out, "
        "weighted by the softmax of query * key / root of D. 1 <= window <= T."
    ),
    rights=(
        Right(name="mask", implementation=right_mask, note="a band as a mask"),
        Right(name="slices", implementation=right_slices, note="slices, head by head"),
        Right(name="unfold", implementation=right_unfold, note="a view of all windows"),
    ),
    wrongs=(
        Wrong(
            name="itself_only",
            implementation=wrong_itself_only,
            note="each position reads itself and nothing else",
        ),
        Wrong(
            name="newest_hidden",
            implementation=wrong_newest_hidden,
            note="a position does not read its own token",
        ),
        Wrong(
            name="one_too_far",
            implementation=wrong_one_too_far,
            note="the window is one token too long",
        ),
        Wrong(
            name="blocks",
            implementation=wrong_blocks,
            note="the row is cut into pieces that do not see one another",
            held_out=True,
        ),
        Wrong(
            name="scale",
            implementation=wrong_scale,
            note="scores are divided by the root of the whole width",
            held_out=True,
        ),
        Wrong(
            name="heads_reshaped",
            implementation=wrong_heads_reshaped,
            note="heads and time are mixed up when the heads are joined",
            held_out=True,
        ),
        Wrong(
            name="newest_query",
            implementation=wrong_newest_query,
            note="all positions ask with the query of the last one",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # float64 rounds at 1e-14; the nearest bug differs by 1e-1
)
