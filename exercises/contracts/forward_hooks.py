"""The contract of the forward hooks: three steps whose outputs are finite, and what they should be.

Shapes: T time, C width.
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
    as_parts,
)

T, C = 7, 12
EPS = 1e-5
SHARP = 1000.0
FAR = 5e7  # where a variance from E[x^2] - E[x]^2 has lost its digits, and one from x - E[x] not
TOLERANCE = 1e-6  # right ones differ by 3e-8 in the rows at FAR; the nearest bug by 0.0008

Steps = tuple[Tensor, Tensor, Tensor]


def right_torch(x: Tensor, hidden: Tensor) -> Steps:
    """Use what torch has for each step."""
    normed = functional.layer_norm(x, x.shape[-1:])
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden.all(-1, keepdim=True), 0.0)
    return normed, weights, functional.softplus(1000 * (weights @ normed)) / 1000


def right_by_hand(x: Tensor, hidden: Tensor) -> Steps:
    """Write sums and exponentials, the largest of which is taken out before."""
    centred = x - x.sum(1, keepdim=True) / x.shape[1]
    normed = centred * (centred.square().mean(1, keepdim=True) + 1e-5).rsqrt()
    scores = torch.einsum("tc,sc->ts", normed, normed)
    parts = (scores - scores.amax(1, keepdim=True)).exp() * ~hidden
    total = parts.sum(1, keepdim=True)
    weights = parts / torch.where(total > 0, total, 1.0)
    sharp = 1000 * weights @ normed
    return normed, weights, torch.logaddexp(sharp, torch.zeros_like(sharp)) / 1000


def right_one_row(x: Tensor, hidden: Tensor) -> Steps:
    """Compute row by row, and choose the rows that may be read, if there are any."""
    normed = torch.stack([(row - row.mean()) / (row.var(correction=0) + 1e-5) ** 0.5 for row in x])
    weights = torch.zeros(len(x), len(x), dtype=x.dtype)
    for t, row in enumerate(normed):
        open_places = (~hidden[t]).nonzero()[:, 0]
        if len(open_places):
            weights[t, open_places] = (normed[open_places] @ row).softmax(0)
    mixed = weights @ normed
    above = mixed.clamp(min=0)
    return normed, weights, above + (-1000 * mixed.abs()).exp().log1p() / 1000


def wrong_no_root(x: Tensor, hidden: Tensor) -> Steps:
    """Divide by the variance, without its root."""
    centred = x - x.mean(1, keepdim=True)
    variance = centred.square().mean(1, keepdim=True)
    size = variance + 1e-5  # BROKEN: was size = (variance + 1e-5).sqrt()
    normed = centred / size
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    return normed, weights, functional.softplus(1000 * (weights @ normed)) / 1000


def wrong_overflow(x: Tensor, hidden: Tensor) -> Steps:
    """Write softplus as it stands in the book: exp of 710 is infinite."""
    normed = functional.layer_norm(x, x.shape[-1:])
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    sharp = 1000 * (weights @ normed)
    smooth = (1 + sharp.exp()).log()  # BROKEN: was smooth = functional.softplus(sharp)
    return normed, weights, smooth / 1000


def wrong_empty_row(x: Tensor, hidden: Tensor) -> Steps:
    """Take the softmax of a row in which everything is hidden: 0 / 0."""
    normed = functional.layer_norm(x, x.shape[-1:])
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    shown = weights  # BROKEN: was shown = weights.masked_fill(hidden, 0.0)
    return normed, shown, functional.softplus(1000 * (shown @ normed)) / 1000


def wrong_finite_mask(x: Tensor, hidden: Tensor) -> Steps:
    """Hide with a large negative number: a row in which all are hidden reads all of them."""
    normed = functional.layer_norm(x, x.shape[-1:])
    weights = (normed @ normed.T).masked_fill(hidden, -1e9).softmax(-1)
    shown = weights  # BROKEN: was shown = weights.masked_fill(hidden, 0.0)
    return normed, shown, functional.softplus(1000 * (shown @ normed)) / 1000


def wrong_one_pass(x: Tensor, hidden: Tensor) -> Steps:
    """Subtract two large numbers to get a small one."""
    mean = x.mean(1, keepdim=True)
    squares = x.square().mean(1, keepdim=True)
    variance = squares - mean**2  # BROKEN: was variance = (x - mean).square().mean(1, keepdim=True)
    normed = (x - mean) / (variance + 1e-5).sqrt()
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    return normed, weights, functional.softplus(1000 * (weights @ normed)) / 1000


def wrong_no_epsilon(x: Tensor, hidden: Tensor) -> Steps:
    """Divide by the deviation alone: a row of equal numbers has none."""
    centred = x - x.mean(1, keepdim=True)
    epsilon = 0.0  # BROKEN: was epsilon = 1e-5
    normed = centred / (centred.square().mean(1, keepdim=True) + epsilon).sqrt()
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    return normed, weights, functional.softplus(1000 * (weights @ normed)) / 1000


def wrong_other_axis(x: Tensor, hidden: Tensor) -> Steps:
    """Take mean and variance over the time."""
    axis = 0  # BROKEN: was axis = 1
    centred = x - x.mean(axis, keepdim=True)
    normed = centred / (centred.square().mean(axis, keepdim=True) + 1e-5).sqrt()
    weights = (normed @ normed.T).masked_fill(hidden, -math.inf).softmax(-1)
    weights = weights.masked_fill(hidden, 0.0)
    return normed, weights, functional.softplus(1000 * (weights @ normed)) / 1000


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Look at the steps from the first to the last, on rows of many sizes and on an empty one."""
    ordinary = torch.randn(T, C, dtype=torch.float64)
    sizes = torch.tensor([1.0, 1e3, 1e-3, 1.0, 0.0, 0.0, 30.0], dtype=torch.float64)
    middles = torch.tensor([0.0, 0.0, 0.0, FAR, 3.0, 0.0, -FAR], dtype=torch.float64)
    odd = ordinary * sizes[:, None] + middles[:, None]  # rows 4 and 5 are constant
    causal = torch.ones(T, T, dtype=torch.bool).triu(1)
    padded = causal | (torch.arange(T) < 2)  # nothing is left for the first two rows
    for words, x, hidden in (
        ("rows of many sizes", odd, causal),
        ("two rows that may read nothing", ordinary, padded),
    ):
        yield from _steps(implementation, words, x, hidden)


def _steps(
    implementation: Implementation, words: str, x: Tensor, hidden: Tensor
) -> Iterator[Finding]:
    normed, weights, output = as_parts(implementation(x, hidden), "normed", "weights", "output")
    wanted = right_by_hand(x, hidden)
    steps = (("normed", normed, C), ("weights", weights, T), ("output", output, C))
    for number, (name, value, width) in enumerate(steps):
        tensor = as_finite(value, f"{name}, with {words},", shape=(T, width), dtype=torch.float64)
        off = (tensor - wanted[number]).abs().amax(1)  # (T,)
        worst, row = float(off.amax()), int(off.argmax())
        yield Finding(
            worst,
            f"with {words} {name} is the first step that is wrong, in "
            f"{int((~(off <= TOLERANCE)).sum())} of {T} rows: row {row} is {worst:.3g} off, "
            f"{_pattern(name, tensor[row], wanted[number][row])}",
        )


def _pattern(name: str, row: Tensor, wanted: Tensor) -> str:
    """Say what a row looks like."""
    if name == "weights":
        return f"its weights sum to {float(row.sum()):.3g}, expected {float(wanted.sum()):.3g}"
    rms, healthy = (float(r.square().mean().sqrt()) for r in (row, wanted))
    return f"its RMS is {rms:.3g}, expected {healthy:.3g}"


CONTRACT = Contract(
    check="forward_hooks",
    signature="implementation(x: Tensor, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]",
    promise=(
        "x is (T, C), float64, finite, up to 1e9 in size; hidden is (T, T), bool. It returns the "
        "outputs of three steps, float64: (normed, weights, output). normed (T, C): each row of x "
        "minus its mean, divided by sqrt(v + 1e-5), where v is the mean square of what is left. "
        "weights (T, T): row t is the softmax of normed[t] . normed[s] over the places s that are "
        "not hidden[t, s], and 0 at the others; where all are hidden, the row is 0. output (T, C): "
        "log(1 + exp(1000 * m)) / 1000 with m = weights @ normed. All numbers are finite, whatever "
        "comes in."
    ),
    rights=(
        Right(name="torch", implementation=right_torch, note="torch's own functions"),
        Right(name="by_hand", implementation=right_by_hand, note="sums and exponentials"),
        Right(name="one_row", implementation=right_one_row, note="a loop over rows"),
    ),
    wrongs=(
        Wrong(
            name="no_root",
            implementation=wrong_no_root,
            note="rows are divided by the variance, not by its root",
        ),
        Wrong(
            name="overflow",
            implementation=wrong_overflow,
            note="an exponential is infinite, and the output with it",
        ),
        Wrong(
            name="empty_row",
            implementation=wrong_empty_row,
            note="the weights of a row that may read nothing are NaN",
        ),
        Wrong(
            name="finite_mask",
            implementation=wrong_finite_mask,
            note="a row that may read nothing reads everything",
            held_out=True,
        ),
        Wrong(
            name="one_pass",
            implementation=wrong_one_pass,
            note="the variance of numbers far from 0 has lost its digits",
            held_out=True,
        ),
        Wrong(
            name="no_epsilon",
            implementation=wrong_no_epsilon,
            note="a constant row is 0 / 0",
            held_out=True,
        ),
        Wrong(
            name="other_axis",
            implementation=wrong_other_axis,
            note="the norm runs over the time, not over the width",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
