"""The contract of batch independence: a layer in which every row is computed by itself.

Shapes: B batch, T time, C width.
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
    as_finite,
    largest_difference,
)

B, T, C = 4, 5, 7
TOLERANCE = 1e-9  # rounding makes 2e-15; the nearest bug moves something by 0.1


def right_cumsum(x: Tensor) -> Tensor:
    """Sum up along the time, and divide by how many were summed."""
    normed = functional.layer_norm(x, x.shape[-1:])
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return normed.cumsum(1) / counts[:, None]


def right_matrix(x: Tensor) -> Tensor:
    """Multiply with a lower triangle whose rows sum to 1."""
    T = x.shape[1]
    centred = x - x.mean(2, keepdim=True)
    normed = centred * (centred.square().mean(2, keepdim=True) + 1e-5).rsqrt()
    weights = torch.ones(T, T, dtype=x.dtype).tril()
    return (weights / weights.sum(1, keepdim=True)) @ normed


def right_one_row(x: Tensor) -> Tensor:
    """Compute one row after the other, and one position after the other."""
    rows = []
    for row in x:  # (T, C)
        deviation = (row.var(1, correction=0) + 1e-5).sqrt()
        mean, means = torch.zeros_like(row[0]), []
        for t, vector in enumerate(row):
            mean = mean + ((vector - vector.mean()) / deviation[t] - mean) / (t + 1)
            means.append(mean)
        rows.append(torch.stack(means))
    return torch.stack(rows)


def right_time_first(x: Tensor) -> Tensor:
    """Move the time to the front, loop over it, and move it back."""
    steps = functional.layer_norm(x.transpose(0, 1), x.shape[-1:])  # (T, B, C)
    out = torch.zeros_like(steps)
    for t in range(len(steps)):
        out[t] = steps[: t + 1].mean(0)
    return out.permute(1, 0, 2)


def wrong_batch_axis(x: Tensor) -> Tensor:
    """Run along the batch where the time is meant."""
    normed = functional.layer_norm(x, x.shape[-1:])
    axis = 0  # BROKEN: was axis = 1
    counts = torch.ones_like(normed).cumsum(axis)
    return normed.cumsum(axis) / counts


def wrong_batch_statistics(x: Tensor) -> Tensor:
    """Centre each channel over the whole batch, as batch norm does."""
    mean = x.mean((0, 1))  # BROKEN: was mean = x.mean(2, keepdim=True)
    centred = x - mean
    normed = centred / (centred.square().mean(2, keepdim=True) + 1e-5).sqrt()
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return normed.cumsum(1) / counts[:, None]


def wrong_divided(x: Tensor) -> Tensor:
    """Divide by the number of rows, as if a mean over the batch were taken here."""
    normed = functional.layer_norm(x, x.shape[-1:])
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    means = normed.cumsum(1) / counts[:, None]
    return means / len(x)  # BROKEN: was return means


def wrong_carried(x: Tensor) -> Tensor:
    """Start the sum at 0 for the first row alone, and let the others go on from there."""
    normed = functional.layer_norm(x, x.shape[-1:])
    total, rows = torch.zeros_like(normed[0, 0]), []
    for row in normed:
        fresh = total  # BROKEN: was fresh = torch.zeros_like(total)
        sums = row.cumsum(0) + fresh  # (T, C)
        total = sums[-1]
        rows.append(sums / torch.arange(1, len(row) + 1, dtype=x.dtype)[:, None])
    return torch.stack(rows)


def wrong_one_variance(x: Tensor) -> Tensor:
    """Forget the axis of the variance: one number for the whole batch."""
    centred = x - x.mean(2, keepdim=True)
    squares = centred.square()
    variance = squares.mean()  # BROKEN: was variance = squares.mean(2, keepdim=True)
    normed = centred / (variance + 1e-5).sqrt()
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    return normed.cumsum(1) / counts[:, None]


def wrong_rows_mixed(x: Tensor) -> Tensor:
    """Move the time to the front, and come back by a reshape."""
    steps = functional.layer_norm(x.transpose(0, 1), x.shape[-1:])  # (T, B, C)
    counts = torch.arange(1, len(steps) + 1, dtype=x.dtype)
    means = steps.cumsum(0) / counts[:, None, None]
    return means.reshape(x.shape)  # BROKEN: was return means.transpose(0, 1)


def wrong_last_slot(x: Tensor) -> Tensor:
    """Drop the last row as if the batch were padded, and repeat the one before it."""
    normed = functional.layer_norm(x, x.shape[-1:])
    counts = torch.arange(1, x.shape[1] + 1, dtype=x.dtype)
    means = normed.cumsum(1) / counts[:, None]
    kept = max(1, len(x) - 1)  # BROKEN: was kept = len(x)
    return means[torch.arange(len(x)).clamp(max=kept - 1)]


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Change one row at a time, then ask each row alone, then compare with the definition."""
    x = 2 * torch.randn(B, T, C, dtype=torch.float64) + 1
    together = _called(implementation, x)
    influence = torch.zeros(B, B, dtype=torch.float64)
    for changed in range(B):
        other = x.clone()
        other[changed] = 2 * torch.randn(T, C, dtype=torch.float64) - 1
        moved = (_called(implementation, other) - together).abs().amax((1, 2))
        influence[:, changed] = moved
    yield _read_by_others(influence)
    alone = torch.cat([_called(implementation, x[row : row + 1]) for row in range(B)])
    yield _alone(alone, together)
    order = torch.arange(B).roll(1)
    yield _another_slot(_called(implementation, x[order]), together[order])
    yield _distance(together, right_matrix(x))


def _called(implementation: Implementation, x: Tensor) -> Tensor:
    shape = tuple(x.shape)
    return as_finite(implementation(x), "the result", shape=shape, dtype=torch.float64)


def _read_by_others(influence: Tensor) -> Finding:
    """Judge (B, B): how far the row of each line moved when the row of each column changed."""
    others = influence.masked_fill(torch.eye(B, dtype=torch.bool), 0.0)
    pairs = (~(others <= TOLERANCE)).nonzero().tolist()
    row, changed = pairs[0] if pairs else (1, 0)
    pattern = ""
    if pairs and all(reader > read for reader, read in pairs):
        pattern = ", and only rows further down move"
    elif len(pairs) == B * (B - 1):
        pattern = ", so each row reads all others"
    return Finding(
        float(others.amax()),
        f"row {row} moved by {float(others[row, changed]):.3g} when only row {changed} changed, "
        f"expected 0: {len(pairs)} of {B * (B - 1)} pairs of rows are like that{pattern}",
    )


def _alone(alone: Tensor, together: Tensor) -> Finding:
    off = [largest_difference(a, b) for a, b in zip(alone, together, strict=True)]
    count = sum(not size <= TOLERANCE for size in off)
    ratio = float((alone * together).sum() / together.square().sum())
    size = largest_difference(alone, together * ratio) / max(1.0, abs(ratio))
    pattern = f": alone it is {ratio:.3g} times as large" if size <= TOLERANCE else ""
    return Finding(
        max(off),
        f"{count} of {B} rows give something else alone than in a batch of {B}, up to "
        f"{max(off):.3g} off, expected 0{pattern}",
    )


def _another_slot(moved: Tensor, wanted: Tensor) -> Finding:
    off = [largest_difference(a, b) for a, b in zip(moved, wanted, strict=True)]
    count = sum(not size <= TOLERANCE for size in off)
    return Finding(
        max(off),
        f"{count} of {B} rows give something else in another slot of the batch, up to "
        f"{max(off):.3g} off, expected 0: every row went one slot down, the last one to the top",
    )


def _distance(result: Tensor, wanted: Tensor) -> Finding:
    places = (result - wanted).abs().amax(2)  # (B, T)
    count = int((~(places <= TOLERANCE)).sum())
    return Finding(
        float(places.amax()),
        f"rows do not read one another, but {count} of {places.numel()} vectors are up to "
        f"{float(places.amax()):.3g} away from the mean of the normalised vectors up to theirs",
    )


CONTRACT = Contract(
    check="batch_independence",
    signature="implementation(x: Tensor) -> Tensor",
    promise=(
        "x is (B, T, C), float64: B rows that have nothing to do with one another, T vectors of "
        "width C each; B and T are at least 1, C at least 2. It returns (B, T, C), float64. Every "
        "vector is normalised by itself: its mean is subtracted, and what is left is divided by "
        "sqrt(v + 1e-5), where v is the mean of its squares. At [b, t] of the result stands the "
        "mean of the normalised vectors 0 to t of row b."
    ),
    rights=(
        Right(name="cumsum", implementation=right_cumsum, note="running sums"),
        Right(name="matrix", implementation=right_matrix, note="a triangular matrix"),
        Right(name="one_row", implementation=right_one_row, note="a loop over rows"),
        Right(name="time_first", implementation=right_time_first, note="a loop over the time"),
    ),
    wrongs=(
        Wrong(
            name="batch_axis",
            implementation=wrong_batch_axis,
            note="the mean runs over rows in place of the time",
        ),
        Wrong(
            name="batch_statistics",
            implementation=wrong_batch_statistics,
            note="vectors are centred with the mean of the whole batch",
        ),
        Wrong(
            name="divided",
            implementation=wrong_divided,
            note="the result is divided by the number of rows",
        ),
        Wrong(
            name="carried",
            implementation=wrong_carried,
            note="each row begins with the sum of the rows above it",
            held_out=True,
        ),
        Wrong(
            name="one_variance",
            implementation=wrong_one_variance,
            note="one variance is used for the whole batch",
            held_out=True,
        ),
        Wrong(
            name="rows_mixed",
            implementation=wrong_rows_mixed,
            note="a reshape puts vectors into other rows",
            held_out=True,
        ),
        Wrong(
            name="last_slot",
            implementation=wrong_last_slot,
            note="the last row of a batch gets the result of the row above it",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
