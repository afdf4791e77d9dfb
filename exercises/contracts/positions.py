"""The contract of the positions: every token gets the vector of its own place in the sequence.

Shapes: B rows, T time, C width, V vocabulary, P positions of the table.
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
    count_unequal,
)

V, C, P = 9, 5, 12
CASES = ((3, 7, 0), (2, 12, 0), (1, 4, 0), (3, 4, 5), (2, 1, 11), (4, 3, 9))  # B, T, start


def right_lookup(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Look both tables up, and add."""
    places = torch.arange(start, start + ids.shape[1])
    return tokens[ids] + positions[places]


def right_slice(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Cut the rows of the positions out of their table."""
    x = functional.embedding(ids, tokens)
    return positions[start : start + ids.shape[1]].unsqueeze(0).add(x)


def right_one_by_one(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Walk along the sequence, and lay time first until the end."""
    B, T = ids.shape
    x = torch.empty(T, B, tokens.shape[1], dtype=tokens.dtype)  # (T, B, C)
    for t in range(T):
        x[t] = positions[start + t]
        x[t] += tokens.index_select(0, ids[:, t])
    return x.transpose(0, 1)


def wrong_not_added(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Look the positions up, and give back the tokens alone."""
    places = torch.arange(start, start + ids.shape[1])
    x = tokens[ids]
    weight = 0.0  # BROKEN: was weight = 1.0
    return x + weight * positions[places]


def wrong_start_ignored(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Count from 0 in every call: right until there is a cache."""
    end = start + ids.shape[1]
    first = 0  # BROKEN: was first = start
    places = torch.arange(first, first + end - start)
    return tokens[ids] + positions[places]


def wrong_limit_too_low(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Keep the index in the table with a limit that is one too low."""
    places = torch.arange(start, start + ids.shape[1])
    last = len(positions) - 2  # BROKEN: was last = len(positions) - 1
    return tokens[ids] + positions[places.clamp(max=last)]


def wrong_by_row(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Count on from one row to the next: right for the first row alone."""
    B, T = ids.shape
    places = torch.arange(B * T).view(B, T) + start
    places = places % len(positions)  # BROKEN: was places = places[:1]
    return tokens[ids] + positions[places]


def wrong_from_one(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Count positions from 1, and let the last one wrap round."""
    places = torch.arange(start, start + ids.shape[1])
    first = 1  # BROKEN: was first = 0
    return tokens[ids] + positions[(places + first) % len(positions)]


def wrong_first_occurrence(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Give a repeated token the place of its first occurrence."""
    same = ids[:, :, None] == ids[:, None, :]  # (B, T, T)
    ones = torch.eye(ids.shape[1], dtype=torch.bool)
    found = same  # BROKEN: was found = same & ones
    found = (found | ones).int()
    return tokens[ids] + positions[start + found.argmax(2)]


def wrong_one_vector(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor:
    """Read one row for the whole call: the newest position's, as in a step of one token."""
    newest = start + ids.shape[1] - 1
    oldest = newest  # BROKEN: was oldest = start
    places = torch.arange(start, newest + 1).clamp(min=oldest)
    return tokens[ids] + positions[places]


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Take tables of numbers that tell which rows were added, and read the rows off."""
    for B, T, start in CASES:
        tokens = torch.arange(V)[:, None].double() + torch.zeros(V, C).double()
        positions = 100.0 * (1 + torch.arange(P))[:, None].double() + torch.zeros(P, C).double()
        tokens += torch.randint(1, 9, (V, C)) / 1024  # exact, and different in each channel
        positions += torch.randint(1, 9, (P, C)) / 64
        ids = torch.randint(V, (B, T))
        ids[:, T // 2 :] = ids[:, :1]  # a token that repeats
        x = as_tensor(
            implementation(ids.clone(), tokens.clone(), positions.clone(), start),
            "the result",
            shape=(B, T, C),
            dtype=torch.float64,
        )
        places = torch.arange(start, start + T)
        wanted = functional.embedding(ids, tokens) + positions[places]
        wrong = count_unequal(x, wanted)
        yield Finding(
            wrong,
            f"with ids ({B}, {T}) and start {start} {wrong} of {x.numel()} values are wrong: "
            f"{_rows_read(x, ids, tokens, places)}",
        )


def _rows_read(x: Tensor, ids: Tensor, tokens: Tensor, places: Tensor) -> str:
    """Say which rows of the position table were added, in the worst row of the batch."""
    read = (x - tokens[ids]).mean(-1) / 100 - 1  # (B, T)
    if not bool(read.isfinite().all()):
        return "some are not finite, expected none"
    off = (read.round() != places).sum(1)  # (B,)
    row = int(off.argmax())
    rows = ", ".join(
        str(place) if 0 <= place < P else "none" for place in read[row].round().int().tolist()
    )
    expected = f"{int(places[0])} to {int(places[-1])}" if len(places) > 1 else int(places[0])
    return f"row {row} reads the positions {rows}, expected {expected}"


CONTRACT = Contract(
    check="positions",
    signature=(
        "implementation(ids: Tensor, tokens: Tensor, positions: Tensor, start: int) -> Tensor"
    ),
    promise=(
        "ids is (B, T), int64; tokens is (V, C) and positions is (P, C), both float64, with a "
        "vector per token and a vector per position. start is the number of tokens that were read "
        "before these, as with a cache; start + T <= P. It returns (B, T, C), float64: at time t "
        "of each row the vector of the token plus the vector of position start + t."
    ),
    rights=(
        Right(name="lookup", implementation=right_lookup, note="two look-ups"),
        Right(name="slice", implementation=right_slice, note="a slice of the position table"),
        Right(name="one_by_one", implementation=right_one_by_one, note="position by position"),
    ),
    wrongs=(
        Wrong(
            name="not_added",
            implementation=wrong_not_added,
            note="positions are looked up and not added",
        ),
        Wrong(
            name="start_ignored",
            implementation=wrong_start_ignored,
            note="positions count from 0 in every call",
        ),
        Wrong(
            name="limit_too_low",
            implementation=wrong_limit_too_low,
            note="the last two positions share a vector",
        ),
        Wrong(
            name="by_row",
            implementation=wrong_by_row,
            note="positions go on from one row of the batch to the next",
            held_out=True,
        ),
        Wrong(
            name="from_one",
            implementation=wrong_from_one,
            note="positions count from 1",
            held_out=True,
        ),
        Wrong(
            name="first_occurrence",
            implementation=wrong_first_occurrence,
            note="a repeated token gets the position of its first occurrence",
            held_out=True,
        ),
        Wrong(
            name="one_vector",
            implementation=wrong_one_vector,
            note="all tokens of a call get the position of the newest",
            held_out=True,
        ),
    ),
    examine=examine,
)
