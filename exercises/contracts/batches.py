"""The contract of the batches: a loader whose rows are any windows of the split that was named.

Shapes: N tokens of a split, B rows, T time, R rows of several calls.
"""

from __future__ import annotations

import math
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

T = 12  # the window that the contract asks for
FEW = {"train": 15, "val": 14}  # tokens: three windows and two
MANY = {"train": 3000, "val": 1000}
APART = 100_000  # between the tokens of the two splits
ROWS_FEW, ROWS_MANY, CALLS = 40, 256, 4
REACH_MIN = 0.9  # of the starts; 1024 draws stay below it with a chance of 1e-47
MEAN_NOISE = 0.08  # of the starts around 0.5; nine standard deviations of 1024 draws
DISTINCT_MIN = 0.7  # of what is expected; one standard deviation is 0.015


def right_index(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Draw whole numbers, and gather."""
    ids = data[split]
    places = torch.randint(len(ids) - 12, (rows, 1)) + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def right_slices(data: dict[str, Tensor], split: str, rows: int) -> list[Tensor]:
    """Cut one window after the other, each at a fraction of the data."""
    ids = data[split]
    windows = []
    for _ in range(rows):
        start = math.floor(torch.rand((), dtype=torch.float64).item() * (len(ids) - 12))
        windows.append(ids[start : start + 13])
    whole = torch.stack(windows)  # (B, T + 1)
    return [whole[:, :-1], whole[:, 1:]]


def right_weights(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Choose among all windows, which have equal weights."""
    windows = data[split].unfold(0, 13, 1)  # (N - T, T + 1)
    chosen = windows[torch.ones(len(windows)).multinomial(rows, replacement=True)]
    return chosen.narrow(1, 0, 12).contiguous(), chosen.narrow(1, 1, 12).contiguous()


def wrong_always_the_same(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Make the loader reproducible at the wrong place: each call starts over."""
    ids = data[split]
    generator = torch.Generator().manual_seed(0)  # BROKEN: was generator = None
    starts = torch.randint(len(ids) - 12, (rows, 1), generator=generator)
    places = starts + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_same_rows(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Draw one start for the whole batch."""
    ids = data[split]
    drawn = 1  # BROKEN: was drawn = rows
    starts = torch.randint(len(ids) - 12, (drawn, 1)).expand(rows, 1)
    places = starts + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_val_reads_train(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Take the training tokens for both splits."""
    ids = data["train"]  # BROKEN: was ids = data[split]
    places = torch.randint(len(ids) - 12, (rows, 1)) + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_last_window(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Subtract one too many, so that the last window is never drawn."""
    ids = data[split]
    count = max(1, len(ids) - 13)  # BROKEN: was count = len(ids) - 12
    places = torch.randint(count, (rows, 1)) + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_shorter_bound(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Use a bound that is safe for both splits, and never read the rest of the longer one."""
    ids = data[split]
    length = min(map(len, data.values()))  # BROKEN: was length = len(ids)
    places = torch.randint(length - 12, (rows, 1)) + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_side_by_side(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Start on a grid of whole windows only."""
    ids = data[split]
    step = 12  # BROKEN: was step = 1
    starts = torch.randint(len(ids) - 12, (rows, 1)) // step * step
    places = starts + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_coarse(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Draw fractions of 8 bits, which know only some hundred places."""
    ids = data[split]
    kind = torch.bfloat16  # BROKEN: was kind = torch.float64
    fractions = torch.rand(rows, 1, dtype=kind).double()
    starts = (fractions * (len(ids) - 12)).long()
    places = starts + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def wrong_leaning(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]:
    """Prefer the beginning of the data."""
    ids = data[split]
    fractions = torch.rand(rows, 1).square()  # BROKEN: was fractions = torch.rand(rows, 1)
    starts = (fractions.double() * (len(ids) - 12)).long()
    places = starts + torch.arange(12)  # (B, T)
    return ids[places], ids[places + 1]


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Count where rows start: in long data, and in data with few windows, where each is due."""
    for lengths, rows in ((MANY, ROWS_MANY), (FEW, ROWS_FEW)):
        data = _counting_data(lengths)
        for split, ids in data.items():
            calls: list[Tensor] = []
            while len(calls) < CALLS:
                pair = as_parts(implementation(data, split, rows), "inputs", "targets")
                inputs = as_tensor(pair[0], "inputs", shape=(rows, T), dtype=torch.int64)
                targets = as_tensor(pair[1], "targets", shape=(rows, T), dtype=torch.int64)
                yield from _judge_rows(data, split, inputs, targets)
                calls.append(inputs[:, 0] - ids[0])
            starts = torch.stack(calls)  # (calls, B)
            if lengths is FEW:
                yield _judge_few(starts, split, len(ids) - T)
            else:
                yield from _judge_many(starts, split, len(ids) - T)


def _counting_data(lengths: dict[str, int]) -> dict[str, Tensor]:
    """Make splits in which every token tells its own place."""
    first = int(torch.randint(1000, ()))
    return {
        split: torch.arange(length) + first + number * APART
        for number, (split, length) in enumerate(lengths.items())
    }


def _judge_rows(
    data: dict[str, Tensor], split: str, inputs: Tensor, targets: Tensor
) -> Iterator[Finding]:
    """Hold each row to the split that was asked for, and to being a window of it."""
    ids = data[split]
    other = data["val" if split == "train" else "train"]
    foreign = int(torch.isin(inputs, other).any(dim=1).sum())
    yield Finding(
        float(foreign),
        f"{foreign} of {len(inputs)} rows of {split!r} were read from the other split",
    )
    starts = inputs[:, :1]
    outside = int(((starts < ids[0]) | (starts > ids[-1] - T)).sum())
    yield Finding(
        float(outside), f"{outside} of {len(inputs)} rows start where {split!r} has no whole window"
    )
    wrong = count_unequal(inputs, starts + torch.arange(T))
    wrong += count_unequal(targets, inputs + 1)
    yield Finding(
        float(wrong),
        f"{wrong} of {2 * inputs.numel()} tokens are not those of a window and its next tokens",
    )


def _judge_few(starts: Tensor, split: str, count: int) -> Finding:
    """Find every one of a few windows among the starts (calls, B)."""
    missing = sorted(set(range(count)) - set(starts.flatten().tolist()))
    where = ", the last one," if missing == [count - 1] else ""
    return Finding(
        float(len(missing)),
        f"of the {count} windows of {count + T} tokens the one from {(*missing, 0)[0]}{where} is "
        f"never drawn: {len(missing)} missing in {starts.numel()} rows of {split!r}",
    )


def _judge_many(starts: Tensor, split: str, count: int) -> Iterator[Finding]:
    """Compare the starts (calls, B) with draws of which each is as likely as any other."""
    calls, B = starts.shape
    same = int((starts == starts[0]).all(dim=1).sum()) - 1
    yield Finding(
        float(same), f"{same + 1} of {calls} calls for {split!r} give the very same batch"
    )
    copies = B - min(len(row.unique()) for row in starts)
    alike = copies if copies > B // 2 else 0
    yield Finding(
        float(alike), f"only {B - copies} of {B} rows of a batch of {split!r} are different"
    )
    flat = starts.flatten()  # (R,)
    low, high = int(flat.min()), int(flat.max())
    told = f"{len(flat)} rows of {split!r} start from {low} to {high}"
    reached = (high - low + 1) / count
    short = 0.0 if reached >= REACH_MIN else 1 - reached
    yield Finding(short, f"{told}, and its {count} windows start from 0 to {count - 1}")
    step = math.gcd(*flat.tolist())
    yield Finding(float(step - 1), f"{told}, always at a multiple of {step}, expected any place")
    expected = count * -math.expm1(len(flat) * math.log1p(-1 / count))
    distinct = len(flat.unique())
    few = 0.0 if distinct >= DISTINCT_MIN * expected else 1 - distinct / expected
    yield Finding(few, f"{told}, at {distinct} places only, expected about {expected:.0f}")
    mean = float(flat.double().mean()) / (count - 1)
    leaning = 0.0 if abs(mean - 0.5) <= MEAN_NOISE else abs(mean - 0.5)
    yield Finding(leaning, f"{told}, on average at {mean:.3f} of the length, expected 0.5")


CONTRACT = Contract(
    check="batches",
    signature=(
        "implementation(data: dict[str, Tensor], split: str, rows: int) -> tuple[Tensor, Tensor]"
    ),
    promise=(
        'data holds the tokens "train" and "val", each (N,), int64, N >= 13; split is one of the '
        "two names. It returns (inputs, targets), both (rows, 12), int64: windows of data[split], "
        "and the same windows one token later. Each row is drawn on its own, at every call anew, "
        "and each of the N - 12 windows is as likely as any other."
    ),
    rights=(
        Right(name="index", implementation=right_index, note="index arithmetic"),
        Right(name="slices", implementation=right_slices, note="one slice after the other"),
        Right(name="weights", implementation=right_weights, note="a choice among all windows"),
    ),
    wrongs=(
        Wrong(
            name="always_the_same",
            implementation=wrong_always_the_same,
            note="every call returns the same batch",
        ),
        Wrong(
            name="same_rows",
            implementation=wrong_same_rows,
            note="all rows of a batch are the same window",
        ),
        Wrong(
            name="val_reads_train",
            implementation=wrong_val_reads_train,
            note="both splits are read from the training tokens",
        ),
        Wrong(
            name="last_window",
            implementation=wrong_last_window,
            note="the last window is never drawn",
            held_out=True,
        ),
        Wrong(
            name="shorter_bound",
            implementation=wrong_shorter_bound,
            note="of the longer split only as much is read as the shorter one has",
            held_out=True,
        ),
        Wrong(
            name="side_by_side",
            implementation=wrong_side_by_side,
            note="rows start at multiples of the window only",
            held_out=True,
        ),
        Wrong(
            name="coarse",
            implementation=wrong_coarse,
            note="rows start at some hundred places only, however long the data are",
            held_out=True,
        ),
        Wrong(
            name="leaning",
            implementation=wrong_leaning,
            note="the beginning of the data is read more often than its end",
            held_out=True,
        ),
    ),
    examine=examine,
)
