"""The contract of accumulation: micro-batches give the gradient of one batch of all their tokens.

Shapes: K micro-batches, B rows, T time, V vocabulary; B and T differ from one to the next.
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

Batches = list[tuple[Tensor, Tensor]]
IGNORED = -100  # a target that is not scored
LIMIT = 0.8  # of the gradient's norm
V = 7


def right_one_batch(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Lay all tokens end to end, and take one mean."""
    inputs = torch.cat([part.flatten() for part, _ in batches])
    targets = torch.cat([part.flatten() for _, part in batches])
    table = weights.clone().requires_grad_()
    loss = functional.cross_entropy(table[inputs], targets, ignore_index=-100)
    gradient = torch.autograd.grad(loss, table)[0]
    return gradient * min(1.0, 0.8 / max(float(gradient.norm()), 1e-12))


def right_shares(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Weigh the mean of each micro-batch with its share of the scored tokens."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros_like(weights)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            table = weights.clone().requires_grad_()
            loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
            total += torch.autograd.grad(loss, table)[0] * (count / sum(counts))
    norm = total.square().sum().sqrt()
    return total if norm <= 0.8 else total / norm * 0.8


def right_by_hand(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Add up the slopes of every scored token, and divide once, at the end."""
    probabilities = weights.softmax(-1)  # (V, V)
    pairs = torch.zeros_like(weights)  # how often a target follows an input
    for inputs, targets in reversed(batches):
        scored = targets.ne(-100)
        ones = torch.ones(int(scored.sum()), dtype=weights.dtype)
        pairs.index_put_((inputs[scored], targets[scored]), ones, accumulate=True)
    slopes = pairs.sum(1, keepdim=True) * probabilities - pairs
    gradient = slopes / pairs.sum()
    return gradient * (0.8 / gradient.norm().clamp(min=0.8))


def wrong_not_divided(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Add up the mean losses."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros_like(weights)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            table = weights.clone().requires_grad_()
            loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
            share = 1.0  # BROKEN: was share = count / sum(counts)
            total += torch.autograd.grad(loss, table)[0] * share
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def wrong_mean_of_means(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Give each micro-batch that scores something the same weight."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total, used = torch.zeros_like(weights), sum(count > 0 for count in counts)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if used and count:
            table = weights.clone().requires_grad_()
            loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
            loss = loss / used  # BROKEN: was loss = loss * count / sum(counts)
            total += torch.autograd.grad(loss, table)[0]
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def wrong_last_only(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Clear the gradient in each micro-batch: only the last one is left."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    gradient = torch.zeros_like(weights)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            table = weights.clone().requires_grad_()
            loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
            part = torch.autograd.grad(loss * count / sum(counts), table)[0]
            gradient = part  # BROKEN: was gradient = gradient + part
    return gradient * min(1.0, 0.8 / max(float(gradient.norm()), 1e-12))


def wrong_clipped_inside(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Clip the gradient of each micro-batch, and not their sum."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros_like(weights)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            table = weights.clone().requires_grad_()
            loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
            part = torch.autograd.grad(loss, table)[0]
            limit = 0.8  # BROKEN: was limit = math.inf
            part *= min(1.0, limit / max(float(part.norm()), 1e-12))
            total += part * (count / sum(counts))
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def wrong_four_expected(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Divide by four windows of the first one's size, also where the last window is short."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros_like(weights)
    for inputs, targets in batches:
        table = weights.clone().requires_grad_()
        logits = table[inputs].flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        tokens = sum(counts) * 4 / len(counts)  # BROKEN: was tokens = sum(counts)
        total += torch.autograd.grad(loss / tokens, table)[0]
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def wrong_counts_ignored(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Divide by all targets, those that are not scored included."""
    tokens, total = 0, torch.zeros_like(weights)
    for inputs, targets in batches:
        table = weights.clone().requires_grad_()
        logits = table[inputs].flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        total += torch.autograd.grad(loss, table)[0]
        tokens += targets.numel()  # BROKEN: was tokens += int((targets != -100).sum())
    total /= tokens
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def wrong_all_like_first(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Take every micro-batch to score as many tokens as the first one."""
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros_like(weights)
    for inputs, targets in batches:
        table = weights.clone().requires_grad_()
        logits = table[inputs].flatten(0, 1)
        loss = functional.cross_entropy(logits, targets.flatten(), reduction="sum")
        total += torch.autograd.grad(loss, table)[0]
    total /= counts[0] * len(counts)  # BROKEN: was total /= sum(counts)
    return total * min(1.0, 0.8 / max(float(total.norm()), 1e-12))


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Give windows of one, of equal and of unequal micro-batches, then of large gradients."""
    weights = torch.randn(V, V, dtype=torch.float64) / 2  # (V, V)
    windows = {
        "one micro-batch": [_batch(weights, 4, 6)],
        "4 equal micro-batches": [_batch(weights, 2, 6) for _ in range(4)],
        "3 micro-batches of unequal shape": [
            _batch(weights, B, T) for B, T in ((4, 6), (1, 3), (2, 5))
        ],
        "4 micro-batches in which targets are ignored": [
            _batch(weights, 2, 6, ignored=ignored) for ignored in (0, 8, 5, 11)
        ],
        "4 micro-batches, the second without a scored target": [
            _batch(weights, 2, 4, ignored=ignored) for ignored in (0, 8, 2, 0)
        ],
        "3 micro-batches with one large gradient": [
            _batch(weights, 1, 9), _batch(weights, 2, 4, repeated=True), _batch(weights, 3, 6),
        ],
        "3 micro-batches whose mean has to be clipped": [
            _batch(weights, 3, 5, repeated=True), _batch(weights, 2, 5, repeated=True),
            _batch(weights, 1, 3),
        ],
    }  # fmt: skip
    for name, batches in windows.items():
        wanted = right_one_batch(weights, batches)
        copies = [(inputs.clone(), targets.clone()) for inputs, targets in batches]
        gradient = as_tensor(
            implementation(weights.clone(), copies),
            "the gradient",
            shape=(V, V),
            dtype=torch.float64,
        )
        yield Finding(
            largest_difference(gradient, wanted),
            f"with {name} {_pattern(gradient, wanted, weights, batches)}",
        )


def _batch(
    weights: Tensor, B: int, T: int, *, ignored: int = 0, repeated: bool = False
) -> tuple[Tensor, Tensor]:
    """Return inputs and targets (B, T); repeated: one token and its least probable successor."""
    if repeated:
        inputs = torch.full((B, T), 3)
        targets = weights.argmin(1)[inputs]
    else:
        inputs = (torch.randperm(B * T) % V).view(B, T)
        targets = torch.randint(V, (B, T))
    targets.view(-1)[torch.randperm(B * T)[:ignored]] = IGNORED
    return inputs, targets


def _pattern(gradient: Tensor, wanted: Tensor, weights: Tensor, batches: Batches) -> str:
    """Say which factor or which usual mistake explains a gradient."""
    if not bool(gradient.isfinite().all()):
        return (
            f"the gradient has {int((~gradient.isfinite()).sum())} of {gradient.numel()} values "
            "that are not finite, expected 0"
        )
    sizes = f"has norm {float(gradient.norm()):.4g}, expected {float(wanted.norm()):.4g}"
    factor = float((gradient * wanted).sum() / wanted.square().sum())
    if largest_difference(gradient, factor * wanted) <= 1e-6:
        return f"the gradient is {factor:.3g} times the one of all scored tokens: it {sizes}"
    scoring = [pair for pair in batches if bool((pair[1] != IGNORED).any())]
    own = [right_one_batch(weights, [pair]) for pair in scoring]
    means = torch.stack(own).mean(0)
    if _is_multiple(gradient, means):
        return (
            f"each of {len(own)} micro-batches counts the same, whatever number of tokens it "
            f"scores: the gradient {sizes}"
        )
    if _is_multiple(gradient, own[-1]):
        return f"only the last of {len(own)} micro-batches is in the gradient: it {sizes}"
    return f"the gradient points elsewhere than the one of all scored tokens: it {sizes}"


def _is_multiple(a: Tensor, b: Tensor) -> bool:
    factor = float((a * b).sum() / b.square().sum())
    return largest_difference(a, factor * b) <= 1e-6


CONTRACT = Contract(
    check="accumulation",
    signature=("implementation(weights: Tensor, batches: list[tuple[Tensor, Tensor]]) -> Tensor"),
    promise=(
        "weights is (V, V), float64: row i holds the logits of the token after token i. batches "
        "is a window of micro-batches (inputs, targets), each (B, T), int64, of shapes that may "
        f"differ; a target of {IGNORED} is not scored, and at least one in the window is. It "
        "returns the gradient (V, V) that the optimizer gets: that of the mean cross-entropy over "
        f"all scored targets of the window, scaled down to a norm of {LIMIT} if that is exceeded."
    ),
    rights=(
        Right(name="one_batch", implementation=right_one_batch, note="all tokens end to end"),
        Right(name="shares", implementation=right_shares, note="means weighted by their shares"),
        Right(name="by_hand", implementation=right_by_hand, note="a table of counted pairs"),
    ),
    wrongs=(
        Wrong(
            name="not_divided",
            implementation=wrong_not_divided,
            note="the gradients of the micro-batches are added up",
        ),
        Wrong(
            name="mean_of_means",
            implementation=wrong_mean_of_means,
            note="each micro-batch counts the same",
        ),
        Wrong(
            name="last_only",
            implementation=wrong_last_only,
            note="only the last micro-batch counts",
        ),
        Wrong(
            name="four_expected",
            implementation=wrong_four_expected,
            note="a window of fewer than four micro-batches is divided by four",
        ),
        Wrong(
            name="clipped_inside",
            implementation=wrong_clipped_inside,
            note="each micro-batch is clipped on its own",
            held_out=True,
        ),
        Wrong(
            name="counts_ignored",
            implementation=wrong_counts_ignored,
            note="targets that are not scored count in the divisor",
            held_out=True,
        ),
        Wrong(
            name="all_like_first",
            implementation=wrong_all_like_first,
            note="every micro-batch is taken to score as many tokens as the first",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # float64 rounds at 1e-16; the nearest bug differs by 1e-2
)
