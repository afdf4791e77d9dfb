"""The contract of the modes: dropout that works while training, and only then.

Shapes: N rows, C width, H hidden units.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_finite,
)

N, C, H = 96, 5, 64
SHARES = (0.2, 0.6)  # probabilities to be dropped with
SHARE_LIMIT = 0.08  # from p: of 3,000 numbers right code is 0.01 off through chance, others 0.2
EXACT = 1e-9  # rounding makes 2e-15
ALIKE_LIMIT = 0.85  # share of equal drops: of 1,500 independent ones 0.68 or 0.52, of copies 1


def right_function(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Tell the function of torch in which mode it is."""
    hidden = functional.linear(x, weight).relu()
    return functional.dropout(hidden, p, training=training)


def right_module(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Switch a module of torch."""
    return nn.Dropout(p).train(training)((x @ weight.T).clamp(min=0))


def right_uniform(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Draw a number for each unit, and keep those that are not below p."""
    hidden = torch.relu(x @ weight.T)
    if training:
        kept = torch.rand_like(hidden) >= p
        hidden = hidden * kept / (1 - p)
    return hidden


def right_before_relu(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Drop before the relu, which changes nothing: relu of 0 is 0. It draws in both modes."""
    keep = 1 - p if training else 1.0
    sums = torch.einsum("nc,hc->nh", x, weight)
    kept = torch.bernoulli(torch.full_like(sums, keep).T).T
    return torch.where(kept > 0, sums / keep, 0.0).relu()


def wrong_always_on(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Leave dropout on, whatever the mode."""
    hidden = functional.linear(x, weight).relu()
    mode = True  # BROKEN: was mode = training
    return functional.dropout(hidden, p, mode)


def wrong_not_scaled(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Drop, and do not make up for what is missing."""
    hidden = torch.relu(x @ weight.T)
    if training:
        kept = torch.rand_like(hidden) >= p
        hidden = hidden * kept  # BROKEN: was hidden = hidden * kept / (1 - p)
    return hidden


def wrong_keep_and_drop(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Take the probability to drop for the probability to keep."""
    hidden = torch.relu(x @ weight.T)
    keep = p if p > 0 else 1.0  # BROKEN: was keep = 1 - p
    if training:
        hidden = hidden * torch.bernoulli(torch.full_like(hidden, keep)) / keep
    return hidden


def wrong_scaled_twice(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Make up for dropout in both modes: divide while training, and multiply afterwards."""
    hidden = torch.relu(x @ weight.T)
    if training:
        return hidden * (torch.rand_like(hidden) >= p) / (1 - p)
    return hidden * (1 - p)  # BROKEN: was return hidden


def wrong_one_mask(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Draw one mask, and use it for all rows."""
    hidden = torch.relu(x @ weight.T)
    if training:
        rows = 1  # BROKEN: was rows = len(hidden)
        kept = torch.rand(rows, hidden.shape[1]) >= p
        hidden = hidden * kept / (1 - p)
    return hidden


def wrong_fixed_mask(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Seed the mask with a constant: every step drops the same units."""
    hidden = torch.relu(x @ weight.T)
    if training:
        seed = 0  # BROKEN: was seed = int(torch.randint(2**31, ()))
        generator = torch.Generator().manual_seed(seed)
        kept = torch.rand(hidden.shape, generator=generator) >= p
        hidden = hidden * kept / (1 - p)
    return hidden


def wrong_other_function(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor:
    """Leave the relu to the mode that evaluates."""
    sums = x @ weight.T
    hidden = sums if training else sums.relu()  # BROKEN: was hidden = sums.relu()
    return functional.dropout(hidden, p, training)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Ask in evaluation, in training without dropout, and in training with it, several times."""
    x = torch.randn(N, C, dtype=torch.float64)
    weight = torch.randn(H, C, dtype=torch.float64)
    hidden = torch.relu(x @ weight.T)  # (N, H)
    for p in (0.0, *SHARES):
        first, again = (_called(implementation, x, weight, p, False) for _ in range(2))
        yield _repeatable(first, again, p)
        yield _plain(first, hidden, f"in evaluation with p = {p}")
    yield _plain(_called(implementation, x, weight, 0.0, True), hidden, "in training with p = 0")
    for p in SHARES:
        dropped = [_called(implementation, x, weight, p, True) for _ in range(3)]
        yield _values(dropped[0], hidden, p)
        yield _share(torch.stack(dropped), hidden, p)
        yield _rows_alike(dropped[0], hidden, p)
        yield _calls_alike(dropped, hidden, p)


def _called(
    implementation: Implementation, x: Tensor, weight: Tensor, p: float, training: bool
) -> Tensor:
    result = implementation(x, weight, p, training)
    return as_finite(result, "the result", shape=(N, H), dtype=torch.float64)


def _repeatable(first: Tensor, again: Tensor, p: float) -> Finding:
    count = int((first != again).sum())
    return Finding(
        count,
        f"in evaluation with p = {p} two equal calls differ at {count} of {first.numel()} places, "
        f"expected 0: {float((first == 0).double().mean()):.0%} of the numbers are 0, so something "
        "is still drawn at random",
    )


def _plain(result: Tensor, hidden: Tensor, words: str) -> Finding:
    """Compare with what has no dropout."""
    count = int((~((result - hidden).abs() <= EXACT)).sum())
    ratio = float((result * hidden).sum() / hidden.square().sum())
    scaled = bool(((result - ratio * hidden).abs() <= EXACT).all())
    pattern = f": each is {ratio:.3g} times that" if scaled else ""
    if int((result < 0).sum()):
        pattern = f": {int((result < 0).sum())} of them are below 0"
    return Finding(
        count,
        f"{words} {count} of {hidden.numel()} numbers are not relu(x @ weight.T){pattern}",
    )


def _values(dropped: Tensor, hidden: Tensor, p: float) -> Finding:
    """Every number is 0 or the plain one divided by 1 - p."""
    kept = dropped != 0
    wrong = kept & ~((dropped - hidden / (1 - p)).abs() <= EXACT)
    count = int(wrong.sum())
    ratio = float((dropped[kept] / hidden[kept]).median()) if bool(kept.any()) else 0.0
    swapped = abs(ratio * p - 1) <= EXACT
    return Finding(
        count,
        f"in training with p = {p} {count} of {int(kept.sum())} numbers that are kept are not "
        f"relu(x @ weight.T) / (1 - p): they are {ratio:.4g} times as large as without dropout, "
        f"expected {1 / (1 - p):.4g}{', so p is taken for the share to keep' if swapped else ''}",
    )


def _share(dropped: Tensor, hidden: Tensor, p: float) -> Finding:
    """Count zeros among the numbers that are not 0 without dropout."""
    share = float((dropped[:, hidden > 0] == 0).double().mean())
    return Finding(
        int(not abs(share - p) <= SHARE_LIMIT),
        f"in training with p = {p} a share of {share:.3f} of all numbers is dropped, expected "
        f"{p} within {SHARE_LIMIT}",
    )


def _rows_alike(dropped: Tensor, hidden: Tensor, p: float) -> Finding:
    """Compare each row with the one above, where a drop can be seen in both."""
    seen = (hidden[1:] > 0) & (hidden[:-1] > 0)
    zero = dropped == 0
    share = float((zero[1:] == zero[:-1])[seen].double().mean())
    return Finding(
        int(not share <= ALIKE_LIMIT),
        f"in training with p = {p} a row drops the same units as the row above it at a share of "
        f"{share:.3f} of the places, expected about {p * p + (1 - p) ** 2:.2f}: each number has a "
        "draw of its own",
    )


def _calls_alike(dropped: list[Tensor], hidden: Tensor, p: float) -> Finding:
    zeros = [(call == 0)[hidden > 0] for call in dropped]
    shares = [float((a == b).double().mean()) for a, b in itertools.combinations(zeros, 2)]
    count = sum(not share <= ALIKE_LIMIT for share in shares)
    return Finding(
        count,
        f"in training with p = {p} {count} of {len(shares)} pairs of calls drop the same numbers "
        f"(a share of {max(shares):.3f} agrees), expected new draws in every call",
    )


CONTRACT = Contract(
    check="modes",
    signature=("implementation(x: Tensor, weight: Tensor, p: float, training: bool) -> Tensor"),
    promise=(
        "x is (N, C) and weight (H, C), float64; p is a probability, from 0 to less than 1. It "
        "returns (N, H), float64. Without training that is relu(x @ weight.T), the same at every "
        "call and for every p. While training each of its numbers is replaced by 0 with "
        "probability p, by a random draw of its own in every call, and the others are divided by "
        "1 - p. With p = 0 both modes agree."
    ),
    rights=(
        Right(name="function", implementation=right_function, note="torch's function"),
        Right(name="module", implementation=right_module, note="torch's module"),
        Right(name="uniform", implementation=right_uniform, note="uniform numbers, compared"),
        Right(name="before_relu", implementation=right_before_relu, note="dropped before relu"),
    ),
    wrongs=(
        Wrong(
            name="always_on",
            implementation=wrong_always_on,
            note="dropout goes on in evaluation",
        ),
        Wrong(
            name="not_scaled",
            implementation=wrong_not_scaled,
            note="what is kept is not divided by 1 - p",
        ),
        Wrong(
            name="scaled_twice",
            implementation=wrong_scaled_twice,
            note="evaluation multiplies by 1 - p, though training has divided by it",
        ),
        Wrong(
            name="keep_and_drop",
            implementation=wrong_keep_and_drop,
            note="p is taken for the probability to keep",
            held_out=True,
        ),
        Wrong(
            name="one_mask",
            implementation=wrong_one_mask,
            note="all rows drop the same units",
            held_out=True,
        ),
        Wrong(
            name="fixed_mask",
            implementation=wrong_fixed_mask,
            note="all calls drop the same numbers",
            held_out=True,
        ),
        Wrong(
            name="other_function",
            implementation=wrong_other_function,
            note="training leaves the relu out",
            held_out=True,
        ),
    ),
    examine=examine,
)
