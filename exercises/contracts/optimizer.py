"""The contract of the optimizer: AdamW's rule, for every tensor, with decay of matrices only."""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from exercises.contracts._contract import (
    BrokenPromiseError,
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    largest_difference,
)

RATE, FAST, SLOW, TINY, DECAY = 0.01, 0.9, 0.99, 1e-8, 0.1
SHAPES = ((5, 4), (6,), (3, 7), (2,), (2, 3, 4))  # matrices, vectors, a block; no two alike


def right_per_tensor(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Take one tensor after the other through all of its steps."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            if now.ndim >= 2:
                now = now * (1 - 0.01 * 0.1)
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now = now - 0.01 * (mean / (1 - 0.9**step)) / size
        after.append(now)
    return after


def right_one_vector(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Lay all tensors end to end, and decay with a vector of ones and zeros."""
    now = torch.cat([weight.flatten() for weight in weights])
    decays = torch.cat([torch.full_like(w, 0.1 * (w.ndim > 1)).flatten() for w in weights])
    mean, square = torch.zeros_like(now), torch.zeros_like(now)
    for step, row in enumerate(gradients, 1):
        gradient = torch.cat([part.flatten() for part in row])
        mean.lerp_(gradient, 0.1)
        square.mul_(0.99).addcmul_(gradient, gradient, value=0.01)
        now -= 0.01 * decays * now
        size = square.sqrt() / math.sqrt(1 - 0.99**step) + 1e-8
        now -= mean / size * (0.01 / (1 - 0.9**step))
    pieces = now.split([weight.numel() for weight in weights])
    return [piece.view_as(weight) for piece, weight in zip(pieces, weights, strict=True)]


def right_weighted_sums(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Keep no averages: weigh all gradients so far anew in every step."""
    after = tuple(weight.clone() for weight in weights)
    for count in range(1, len(gradients) + 1):
        ages = torch.arange(count - 1, -1, -1, dtype=torch.float64)  # the newest has age 0
        for place, now in enumerate(after):
            past = torch.stack([row[place] for row in gradients[:count]])  # (steps, ...)
            shape = (count,) + (1,) * now.ndim
            fast, slow = (base**ages / (base**ages).sum() for base in (0.9, 0.99))
            mean = (fast.view(shape) * past).sum(0)
            square = (slow.view(shape) * past.square()).sum(0)
            shrink = 0.999 if now.dim() >= 2 else 1.0
            now.mul_(shrink).sub_(mean / (square.sqrt() + 1e-8), alpha=0.01)
    return list(after)


def wrong_no_correction(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Leave out the correction for averages that start at 0."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        bias_correction = False  # BROKEN: was bias_correction = True
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            fast = 1 - 0.9**step if bias_correction else 1.0
            slow = 1 - 0.99**step if bias_correction else 1.0
            now = now * (1 - 0.01 * 0.1 * (now.ndim >= 2))
            now = now - 0.01 * (mean / fast) / ((square / slow).sqrt() + 1e-8)
        after.append(now)
    return after


def wrong_decay_sign(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Let the decay push the weights outwards."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            if now.ndim >= 2:
                now = now * (1 + 0.01 * 0.1)  # BROKEN: was now = now * (1 - 0.01 * 0.1)
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now = now - 0.01 * (mean / (1 - 0.9**step)) / size
        after.append(now)
    return after


def wrong_last_left_out(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Stop one tensor short: the last one keeps its values."""
    after = [weight.clone() for weight in weights]
    count = len(weights) - 1  # BROKEN: was count = len(weights)
    for place in range(count):
        now = after[place]
        mean, square = torch.zeros_like(now), torch.zeros_like(now)
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now *= 1 - 0.01 * 0.1 if now.ndim >= 2 else 1.0
            now -= 0.01 * (mean / (1 - 0.9**step)) / size
    return after


def wrong_shared_clock(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Count the updates of all tensors with one counter: right for a model of one tensor."""
    after = [weight.clone() for weight in weights]
    means = [torch.zeros_like(weight) for weight in weights]
    squares = [torch.zeros_like(weight) for weight in weights]
    updates = 0
    for row in gradients:
        for now, mean, square, gradient in zip(after, means, squares, row, strict=True):
            step = updates + 1  # BROKEN: was step = updates // len(weights) + 1
            updates += 1
            mean.mul_(0.9).add_(gradient, alpha=0.1)
            square.mul_(0.99).add_(gradient**2, alpha=0.01)
            now *= 1 - 0.01 * 0.1 if now.ndim >= 2 else 1.0
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now -= 0.01 * (mean / (1 - 0.9**step)) / size
    return after


def wrong_vectors_decay(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Let vectors decay as well as matrices."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            if now.ndim >= 1:  # BROKEN: was if now.ndim >= 2:
                now = now * (1 - 0.01 * 0.1)
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now = now - 0.01 * (mean / (1 - 0.9**step)) / size
        after.append(now)
    return after


def wrong_decay_in_gradient(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Add the decay to the gradient, as in Adam with L2: the averages divide it away."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        decay = 0.1 if weight.ndim >= 2 else 0.0
        decoupled = False  # BROKEN: was decoupled = True
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            if decoupled:
                now = now * (1 - 0.01 * decay)
            else:
                gradient = gradient + decay * now
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            size = (square / (1 - 0.99**step)).sqrt() + 1e-8
            now = now - 0.01 * (mean / (1 - 0.9**step)) / size
        after.append(now)
    return after


def wrong_tiny_in_root(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]:
    """Add the small number under the root, where it is as large as 1e-4."""
    after = []
    for place, weight in enumerate(weights):
        mean, square = torch.zeros_like(weight), torch.zeros_like(weight)
        now = weight.clone()
        for step, gradient in enumerate((row[place] for row in gradients), 1):
            mean = 0.9 * mean + 0.1 * gradient
            square = 0.99 * square + 0.01 * gradient**2
            now = now * (1 - 0.01 * 0.1 * (now.ndim >= 2))
            long = square / (1 - 0.99**step)
            size = (long + 1e-8).sqrt()  # BROKEN: was size = long.sqrt() + 1e-8
            now = now - 0.01 * (mean / (1 - 0.9**step)) / size
        after.append(now)
    return after


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Take one step from 0, then the decay alone, several steps, and one with tiny gradients."""
    zeros = [torch.zeros(shape, dtype=torch.float64) for shape in SHAPES]
    weights = [5 + torch.rand(shape, dtype=torch.float64) for shape in SHAPES]
    ordinary = [_gradients() for _ in range(4)]
    for place, after in enumerate(_run(implementation, zeros, ordinary[:1])):
        wanted = -RATE * ordinary[0][place].sign()
        yield Finding(
            largest_difference(after, wanted),
            f"the first step moves tensor {place}, of shape {SHAPES[place]}, by "
            f"{float(after.abs().mean()):.4g} on average, expected {RATE}, the rate, against its "
            "gradient's sign",
        )
    for place, after in enumerate(_run(implementation, weights, [zeros])):
        wanted = weights[place] * (1 - RATE * DECAY * (after.ndim >= 2))
        factor = float((after / weights[place]).mean())
        yield Finding(
            largest_difference(after, wanted),
            f"a step with gradients of 0 multiplies tensor {place}, of shape "
            f"{SHAPES[place]}, by {factor:.4g}, "
            f"expected {float((wanted / weights[place]).mean()):.4g}: the decay alone",
        )
    small = [[part * 1e-6 for part in row] for row in ordinary]
    runs = ((1, ordinary, "ordinary"), (2, ordinary, "ordinary"), (4, ordinary, "ordinary"),
            (1, small, "tiny"), (3, small, "tiny"))  # fmt: skip
    for count, gradients, kind in runs:
        yield from _several_steps(implementation, weights, gradients[:count], kind)


def _several_steps(
    implementation: Implementation,
    weights: list[Tensor],
    gradients: list[list[Tensor]],
    kind: str,
) -> Iterator[Finding]:
    wanted = right_per_tensor(weights, gradients)
    for place, after in enumerate(_run(implementation, weights, gradients)):
        moved, due = (float((w - weights[place]).norm()) for w in (after, wanted[place]))
        yield Finding(
            largest_difference(after, wanted[place]),
            f"after {len(gradients)} {'step' if len(gradients) == 1 else 'steps'} with {kind} "
            f"gradients tensor {place}, of shape {SHAPES[place]}, has moved by a norm of "
            f"{moved:.4g}, expected {due:.4g}",
        )


def _run(
    implementation: Implementation, weights: list[Tensor], gradients: list[list[Tensor]]
) -> list[Tensor]:
    answer = implementation([weight.clone() for weight in weights], gradients)
    if not isinstance(answer, list | tuple) or len(answer) != len(weights):
        raise BrokenPromiseError(f"it returned no list of {len(weights)} tensors")
    return [
        as_tensor(after, f"tensor {place}", shape=SHAPES[place], dtype=torch.float64)
        for place, after in enumerate(answer)
    ]


def _gradients() -> list[Tensor]:
    """Return gradients of either sign, none of them near 0."""
    drawn = [torch.randn(shape, dtype=torch.float64) for shape in SHAPES]
    return [part + 0.1 * part.sign() for part in drawn]


CONTRACT = Contract(
    check="optimizer",
    signature=(
        "implementation(weights: list[Tensor], gradients: list[list[Tensor]]) -> list[Tensor]"
    ),
    promise=(
        "weights are tensors of any shapes, float64; gradients[s] holds their gradients in step s, "
        "in the same order. Each step is one of AdamW: the running means of the gradient and of "
        f"its square keep {FAST} and {SLOW} of themselves and are corrected for their start at 0; "
        f"a weight moves by {RATE} * mean / (root of the mean square + {TINY:g}); before that, "
        f"tensors of two or more dimensions shrink by {RATE} * {DECAY} of their size, vectors do "
        "not. It returns the weights after all steps."
    ),
    rights=(
        Right(name="per_tensor", implementation=right_per_tensor, note="tensor after tensor"),
        Right(name="one_vector", implementation=right_one_vector, note="all tensors in one vector"),
        Right(name="weighted_sums", implementation=right_weighted_sums, note="no running averages"),
    ),
    wrongs=(
        Wrong(
            name="no_correction",
            implementation=wrong_no_correction,
            note="the averages are not corrected for their start at 0",
        ),
        Wrong(
            name="decay_sign",
            implementation=wrong_decay_sign,
            note="the decay makes weights larger",
        ),
        Wrong(
            name="last_left_out",
            implementation=wrong_last_left_out,
            note="the last tensor is never updated",
        ),
        Wrong(
            name="shared_clock",
            implementation=wrong_shared_clock,
            note="every tensor advances the step count of all",
            held_out=True,
        ),
        Wrong(
            name="vectors_decay",
            implementation=wrong_vectors_decay,
            note="vectors decay too",
            held_out=True,
        ),
        Wrong(
            name="decay_in_gradient",
            implementation=wrong_decay_in_gradient,
            note="the decay is added to the gradient",
            held_out=True,
        ),
        Wrong(
            name="tiny_in_root",
            implementation=wrong_tiny_in_root,
            note="the small number that prevents a division by 0 stands under the root",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-6,  # the small number costs 1e-9 of a step; decay alone moves 5e-3
)
