"""The contract of the prefix: a recurrence that gives the start of a row what it gives the row.

Shapes: B batch, T time, L block (the longest row), C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

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
)

B, C, V, L = 3, 5, 11, 16
CUTS = (1, 2, 3, 5, 8, 11, 15)
TOLERANCE = 1e-9  # rounding makes 4e-15; the nearest bug is 0.1 off


def right_loop(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Go through the time with one state."""
    state, rows = torch.zeros(len(tokens), embedding.shape[1], dtype=embedding.dtype), []
    for t in range(tokens.shape[1]):
        state = state / 2 + embedding[tokens[:, t]] + positions[t]
        rows.append(state @ embedding.T)  # (B, V)
    return torch.stack(rows, dim=1)


def right_matrix(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Weigh all earlier tokens at once, with a triangle of powers of 1/2."""
    T = tokens.shape[1]
    x = functional.embedding(tokens, embedding) + positions[:T]  # (B, T, C)
    distance = torch.arange(T)[:, None] - torch.arange(T)
    weights = torch.where(distance >= 0, 0.5**distance, 0.0).to(x.dtype)
    return functional.linear(weights @ x, embedding)


def right_doubling(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Add what stands 1, 2, 4 and so on places before: each round doubles the reach."""
    state = embedding[tokens] + positions[None, : tokens.shape[1]]
    step = 1
    while step < tokens.shape[1]:
        before = functional.pad(state, (0, 0, step, 0))[:, : tokens.shape[1]]
        state = state + before * 0.5**step
        step *= 2
    return torch.einsum("btc,vc->btv", state, embedding)


def right_logits_first(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Turn tokens and positions into logits first, and run over these, in place."""
    T = tokens.shape[1]
    logits = (embedding @ embedding.T)[tokens] + (positions[:T] @ embedding.T)
    for t in range(1, T):
        logits[:, t] += logits[:, t - 1] / 2
    return logits


def wrong_from_end(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Count positions from the end of the block: right for a full block alone."""
    T = tokens.shape[1]
    first = len(positions) - T  # BROKEN: was first = 0
    x = embedding[tokens] + positions[first : first + T]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    return x @ embedding.T


def wrong_by_length(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Divide by the length of the row."""
    T = tokens.shape[1]
    x = embedding[tokens] + positions[:T]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    return x @ embedding.T / T  # BROKEN: was return x @ embedding.T


def wrong_one_token(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Leave the position out where there is one token only."""
    T = tokens.shape[1]
    needed = T > 1  # BROKEN: was needed = True
    x = embedding[tokens] + positions[:T] * needed
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    return x @ embedding.T


def wrong_padded_left(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Pad rows to a multiple of 4 on the left, and count the padding as positions."""
    T = tokens.shape[1]
    padding = -T % 4  # BROKEN: was padding = 0
    places = (padding + torch.arange(T)) % len(positions)
    x = embedding[tokens] + positions[places]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    return x @ embedding.T


def wrong_stretched(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Spread the positions of every row over the whole block."""
    T, last = tokens.shape[1], len(positions) - 1
    places = torch.linspace(0, last, T).long()  # BROKEN: was places = torch.arange(T)
    x = embedding[tokens] + positions[places]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    return x @ embedding.T


def wrong_centred(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Subtract the mean over the row, which the later tokens have a part in."""
    T = tokens.shape[1]
    x = embedding[tokens] + positions[:T]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    logits = x @ embedding.T
    return logits - logits.mean(1, keepdim=True)  # BROKEN: was return logits


def wrong_last_again(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor:
    """Run over the last position twice, as if it were the next one."""
    T = tokens.shape[1]
    x = embedding[tokens] + positions[:T]
    for t in range(1, T):
        x[:, t] += x[:, t - 1] / 2
    again = x[:, -1] / 2  # BROKEN: was again = 0
    x[:, -1] += again
    return x @ embedding.T


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Run full blocks, cut them, and compare each cut with the start of the whole."""
    tokens = torch.randint(V, (B, L))
    embedding = torch.randn(V, C, dtype=torch.float64)
    positions = torch.randn(L, C, dtype=torch.float64)
    whole = _called(implementation, tokens, embedding, positions)
    cut = {k: _called(implementation, tokens[:, :k], embedding, positions) for k in CUTS}

    def moved(first: int) -> Tensor:
        return right_matrix(tokens, embedding, positions.roll(-first, 0))

    yield _cuts(whole, cut, moved)
    changed = tokens.clone()
    changed[:, -1] = (tokens[:, -1] + 1) % V
    after = _called(implementation, changed, embedding, positions)
    size = float((after - whole)[:, :-1].abs().amax())
    yield Finding(
        size,
        f"logits before position {L - 1} moved by up to {size:.3g} when only the last token of a "
        "row changed, expected 0",
    )
    yield _distance(whole, right_loop(tokens, embedding, positions))


def _called(
    implementation: Implementation, tokens: Tensor, embedding: Tensor, positions: Tensor
) -> Tensor:
    return as_finite(
        implementation(tokens, embedding, positions),
        f"the result for {tokens.shape[1]} tokens",
        shape=(len(tokens), tokens.shape[1], V),
        dtype=torch.float64,
    )


def _cuts(whole: Tensor, cut: dict[int, Tensor], moved: Callable[[int], Tensor]) -> Finding:
    """Compare logits (B, k, V) of the first k tokens with the first k of the whole row.

    moved: (first) -> the logits of the whole row, had its positions been counted from there.
    """
    sizes = {k: float((cut[k] - whole[:, :k]).abs().amax()) for k in cut}
    wrong = [k for k in cut if not sizes[k] <= TOLERANCE]
    first = wrong[0] if wrong else CUTS[0]
    words = "token alone gives" if first == 1 else f"{first} tokens alone give"
    return Finding(
        max(sizes.values()),
        f"the first {words} logits that are up to {sizes[first]:.3g} off those of the whole row of "
        f"{whole.shape[1]}, expected 0: {len(wrong)} of {len(cut)} lengths differ"
        f"{_pattern(whole, cut, moved, wrong) if wrong else ''}",
    )


def _pattern(
    whole: Tensor, cut: dict[int, Tensor], moved: Callable[[int], Tensor], wrong: list[int]
) -> str:
    """Say what explains the first length that differs, or what all of them have in common."""
    k = wrong[0]
    start = whole[:, :k]
    for first in range(1, L):
        if bool(((cut[k] - moved(first)[:, :k]).abs() <= TOLERANCE).all()):
            return f", as if positions were counted from {first} on"
    if wrong == [1]:
        return ", and it is the length of one token"
    if all(bool(((cut[k] - whole[:, :k])[:, :-1].abs() <= TOLERANCE).all()) for k in wrong):
        return ", each at its last position alone"
    ratio = float((cut[k] * start).sum() / start.square().sum())
    if bool(((cut[k] - ratio * start).abs() <= TOLERANCE).all()):
        return f", here by a factor of {ratio:.4g}"
    return ""


def _distance(whole: Tensor, wanted: Tensor) -> Finding:
    places = (whole - wanted).abs().amax(2)  # (B, L)
    count = int((~(places <= TOLERANCE)).sum())
    return Finding(
        float(places.amax()),
        f"all lengths agree, but {count} of {places.numel()} positions are up to "
        f"{float(places.amax()):.3g} away from x[t] + s[t - 1] / 2, times embedding.T",
    )


CONTRACT = Contract(
    check="prefix",
    signature="implementation(tokens: Tensor, embedding: Tensor, positions: Tensor) -> Tensor",
    promise=(
        "tokens is (B, T), int64, T from 1 to L; embedding is (V, C) and positions (L, C), "
        "float64. With x[t] = embedding[tokens[b, t]] + positions[t], counted from 0, the state "
        "is s[0] = x[0] and s[t] = x[t] + s[t - 1] / 2. It returns the logits s @ embedding.T, "
        "(B, T, V), float64. So the logits of the first k tokens are the first k logits of the "
        "whole row, for every k from 1 to T."
    ),
    rights=(
        Right(name="loop", implementation=right_loop, note="one state, step by step"),
        Right(name="matrix", implementation=right_matrix, note="a triangle of powers"),
        Right(name="doubling", implementation=right_doubling, note="rounds of doubled reach"),
        Right(
            name="logits_first",
            implementation=right_logits_first,
            note="the recurrence runs over logits",
        ),
    ),
    wrongs=(
        Wrong(
            name="from_end",
            implementation=wrong_from_end,
            note="positions are counted from the end of the block",
        ),
        Wrong(
            name="by_length",
            implementation=wrong_by_length,
            note="logits are divided by the length of the row",
        ),
        Wrong(
            name="one_token",
            implementation=wrong_one_token,
            note="a single token gets no position",
        ),
        Wrong(
            name="padded_left",
            implementation=wrong_padded_left,
            note="padding on the left moves the positions, unless T is a multiple of 4",
            held_out=True,
        ),
        Wrong(
            name="stretched",
            implementation=wrong_stretched,
            note="positions are spread over the block, whatever the length",
            held_out=True,
        ),
        Wrong(
            name="centred",
            implementation=wrong_centred,
            note="the mean over the row is subtracted",
            held_out=True,
        ),
        Wrong(
            name="last_again",
            implementation=wrong_last_again,
            note="the last position of a row is counted half as much again",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
