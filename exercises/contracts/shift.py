"""The contract of the shift: a batch loader whose targets are the tokens after the inputs.

Shapes: N tokens of data, B rows, T time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_parts,
    as_tensor,
    count_unequal,
)

T = 16  # the window that the contract asks for
DATA_LENGTH = 200
ROWS_WANTED = 400  # drawn over many batches, so that every start of 184 is due


def right_slices(data: Tensor) -> tuple[Tensor, Tensor]:
    """Cut each window of T + 1 tokens out with slices."""
    starts = torch.randint(len(data) - 16, (8,)).tolist()
    windows = torch.stack([data[start : start + 17] for start in starts])  # (B, T + 1)
    return windows[:, :-1].clone(), windows[:, 1:].clone()


def right_index_arithmetic(data: Tensor) -> tuple[Tensor, Tensor]:
    """Compute the place of every token, and gather."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    return data[places], data[places + 1]


def right_unfold(data: Tensor) -> tuple[Tensor, Tensor]:
    """Look at every window through a view, and select some."""
    windows = data.unfold(0, 17, 1)  # (N - T, T + 1)
    chosen = windows.index_select(0, torch.randperm(len(windows))[:8])
    return chosen.narrow(1, 0, 16).contiguous(), chosen.narrow(1, 1, 16).contiguous()


def wrong_identical(data: Tensor) -> tuple[Tensor, Tensor]:
    """Cut inputs and targets in the same place."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    inputs = data[places]
    targets = data[places]  # BROKEN: was targets = data[places + 1]
    return inputs, targets


def wrong_two_ahead(data: Tensor) -> tuple[Tensor, Tensor]:
    """Shift twice."""
    places = torch.randint(len(data) - 17, (8, 1)) + torch.arange(16)  # (B, T)
    inputs = data[places]
    targets = data[places + 2]  # BROKEN: was targets = data[places + 1]
    return inputs, targets


def wrong_wrapped(data: Tensor) -> tuple[Tensor, Tensor]:
    """Roll each row, which carries its first token round to its end."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    inputs = data[places]
    targets = inputs.roll(-1, 1)  # BROKEN: was targets = data[places + 1]
    return inputs, targets


def wrong_backwards(data: Tensor) -> tuple[Tensor, Tensor]:
    """Swap the pair: every target is the token before its input."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    earlier, later = data[places], data[places + 1]
    return later, earlier  # BROKEN: was return earlier, later


def wrong_rows_rolled(data: Tensor) -> tuple[Tensor, Tensor]:
    """Shift along the batch as well: each row gets the targets of the row above."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    inputs = data[places]
    targets = data[places + 1].roll(1, 0)  # BROKEN: was targets = data[places + 1]
    return inputs, targets


def wrong_first_row_only(data: Tensor) -> tuple[Tensor, Tensor]:
    """Get the first row right, and copy the inputs in the others."""
    places = torch.randint(len(data) - 16, (8, 1)) + torch.arange(16)  # (B, T)
    inputs, targets = data[places], data[places].clone()
    targets[:1] = data[places[:1] + 1]  # BROKEN: was targets[:] = data[places + 1]
    return inputs, targets


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Feed data in which every token is unlike its neighbours by a known amount, and compare."""
    data = torch.arange(DATA_LENGTH) * 7 + int(torch.randint(1000, ()))  # (N,)
    rows = 0
    while rows < ROWS_WANTED:
        pair = as_parts(implementation(data), "inputs", "targets")
        inputs = as_tensor(pair[0], "inputs", dtype=torch.int64)
        if inputs.ndim != 2 or inputs.shape[1] != T or not len(inputs):
            yield Finding(float("inf"), f"inputs has shape {tuple(inputs.shape)}, wanted (B, {T})")
            return
        targets = as_tensor(pair[1], "targets", shape=tuple(inputs.shape), dtype=torch.int64)
        wrong = count_unequal(targets, inputs + 7)
        moved = ((targets - inputs) // 7).flatten().mode().values  # the usual distance
        where = f"in {wrong} of {targets.numel()} places"
        yield Finding(wrong, f"targets are not one token after the inputs {where}: most of them "
                             f"moved by {int(moved)}, expected 1")  # fmt: skip
        rows += len(inputs)


CONTRACT = Contract(
    check="shift",
    signature="implementation(data: Tensor) -> tuple[Tensor, Tensor]",
    promise=(
        f"data is (N,), int64, N >= {2 * T}. It returns (inputs, targets), both (B, {T}), int64: "
        "B windows from random places of data, and the same windows one token later."
    ),
    rights=(
        Right(name="slices", implementation=right_slices, note="slices of one window"),
        Right(name="index", implementation=right_index_arithmetic, note="index arithmetic"),
        Right(name="unfold", implementation=right_unfold, note="a view of all windows"),
    ),
    wrongs=(
        Wrong(
            name="identical",
            implementation=wrong_identical,
            note="targets are cut where the inputs are cut",
        ),
        Wrong(
            name="two_ahead",
            implementation=wrong_two_ahead,
            note="targets are two tokens ahead",
        ),
        Wrong(
            name="wrapped",
            implementation=wrong_wrapped,
            note="the last target of each row is the row's first token",
        ),
        Wrong(
            name="backwards",
            implementation=wrong_backwards,
            note="targets are one token behind",
            held_out=True,
        ),
        Wrong(
            name="rows_rolled",
            implementation=wrong_rows_rolled,
            note="each row has the targets of another row",
            held_out=True,
        ),
        Wrong(
            name="first_row_only",
            implementation=wrong_first_row_only,
            note="only the first row is shifted",
            held_out=True,
        ),
    ),
    examine=examine,
)
