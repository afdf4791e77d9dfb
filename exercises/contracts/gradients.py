"""The contract of the gradients: the derivative of a small model's loss, for every parameter.

Shapes: B rows, T time, C width, V vocabulary.
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
    as_parts,
    as_tensor,
    largest_difference,
)

NAMES = ("table", "inner", "head")
SHAPES = ((3, 5, 4, 7), (1, 9, 3, 6), (2, 4, 5, 11))  # B, T, C, V
STEP = 1e-5  # of the finite differences


def right_autograd(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Write the loss, and let torch differentiate it."""
    leaves = [part.clone().requires_grad_() for part in (table, inner, head)]
    x = leaves[0][inputs]  # (B, T, C)
    logits = (x + (x @ leaves[1]).tanh()) @ leaves[2].T  # (B, T, V)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return torch.autograd.grad(loss, leaves)


def right_by_hand(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Walk back through the layers with the chain rule."""
    ids, wanted = inputs.flatten(), targets.flatten()  # (B * T,)
    x = table[ids]
    bent = (x @ inner).tanh()
    out = x + bent  # (B * T, C)
    slopes = (out @ head.T).softmax(-1)
    slopes[torch.arange(len(ids)), wanted] -= 1
    slopes /= len(ids)  # (B * T, V)
    of_out = slopes @ head
    of_bent = of_out * (1 - bent**2)
    of_x = of_out + of_bent @ inner.T
    of_table = torch.zeros_like(table).index_add_(0, ids, of_x)
    return of_table, x.T @ of_bent, slopes.T @ out


def right_one_hot(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Look tokens up with matrices of ones and zeros, so that products add up repeats."""
    chosen = functional.one_hot(inputs.reshape(-1), len(table)).to(table.dtype)  # (B * T, V)
    wanted = functional.one_hot(targets.reshape(-1), len(head)).to(table.dtype)
    x = chosen @ table
    bent = torch.tanh(x.matmul(inner))
    weights = torch.exp(torch.log_softmax((x + bent) @ head.t(), dim=1))
    slopes = (weights - wanted) / chosen.shape[0]
    of_bent = slopes @ head - slopes @ head * bent.square()
    of_table = chosen.T @ (slopes @ head + of_bent @ inner.t())
    of_head = torch.einsum("nv,nc->vc", slopes, x + bent)
    return of_table, torch.einsum("nc,nd->cd", x, of_bent), of_head


def wrong_detached(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Cut the bent branch off from the table: the other way round it still learns."""
    leaves = [part.clone().requires_grad_() for part in (table, inner, head)]
    x = leaves[0][inputs]  # (B, T, C)
    fed = x.detach()  # BROKEN: was fed = x
    logits = (x + (fed @ leaves[1]).tanh()) @ leaves[2].T  # (B, T, V)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return torch.autograd.grad(loss, leaves)


def wrong_overwritten(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Write the gradient of a repeated token over that of its last occurrence."""
    ids, wanted = inputs.flatten(), targets.flatten()  # (B * T,)
    x = table[ids]
    bent = (x @ inner).tanh()
    slopes = ((x + bent) @ head.T).softmax(-1)
    slopes[torch.arange(len(ids)), wanted] -= 1
    slopes /= len(ids)  # (B * T, V)
    of_bent = slopes @ head * (1 - bent**2)
    of_x = slopes @ head + of_bent @ inner.T
    add = False  # BROKEN: was add = True
    of_table = torch.zeros_like(table).index_put_((ids,), of_x, accumulate=add)
    return of_table, x.T @ of_bent, slopes.T @ (x + bent)


def wrong_transposed(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Go back through a square matrix without turning it round."""
    ids, wanted = inputs.flatten(), targets.flatten()  # (B * T,)
    x = table[ids]
    bent = (x @ inner).tanh()
    slopes = ((x + bent) @ head.T).softmax(-1)
    slopes[torch.arange(len(ids)), wanted] -= 1
    slopes /= len(ids)  # (B * T, V)
    of_bent = slopes @ head * (1 - bent**2)
    of_x = slopes @ head + of_bent @ inner  # BROKEN: was of_x = slopes @ head + of_bent @ inner.T
    of_table = torch.zeros_like(table).index_add_(0, ids, of_x)
    return of_table, x.T @ of_bent, slopes.T @ (x + bent)


def wrong_sum(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Differentiate the mean over rows of sums over time."""
    leaves = [part.clone().requires_grad_() for part in (table, inner, head)]
    x = leaves[0][inputs]  # (B, T, C)
    logits = (x + (x @ leaves[1]).tanh()) @ leaves[2].T  # (B, T, V)
    total = functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    loss = total / len(targets)  # BROKEN: was loss = total / targets.numel()
    return torch.autograd.grad(loss, leaves)


def wrong_padding_row(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Take token 0 for a pad, whose row gets no gradient."""
    leaves = [part.clone().requires_grad_() for part in (table, inner, head)]
    pad = 0  # BROKEN: was pad = None
    x = functional.embedding(inputs, leaves[0], padding_idx=pad)  # (B, T, C)
    logits = (x + (x @ leaves[1]).tanh()) @ leaves[2].T  # (B, T, V)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return torch.autograd.grad(loss, leaves)


def wrong_last_only(
    table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, ...]:
    """Let the gradient of the inner weights come from the last position of each row alone."""
    ids, wanted = inputs.flatten(), targets.flatten()  # (B * T,)
    x = table[ids]
    bent = (x @ inner).tanh()
    slopes = ((x + bent) @ head.T).softmax(-1)
    slopes[torch.arange(len(ids)), wanted] -= 1
    slopes /= len(ids)  # (B * T, V)
    of_bent = slopes @ head * (1 - bent**2)
    of_x = slopes @ head + of_bent @ inner.T
    of_table = torch.zeros_like(table).index_add_(0, ids, of_x)
    first = inputs.shape[1] - 1  # BROKEN: was first = 0
    kept = (torch.arange(len(ids)) % inputs.shape[1] >= first)[:, None] * of_bent
    return of_table, x.T @ kept, slopes.T @ (x + bent)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare each gradient with finite differences of the loss, which trust no chain rule."""
    for B, T, C, V in SHAPES:
        parts = [torch.randn(V, C), torch.randn(C, C), torch.randn(V, C)]
        parts = [part.double() for part in parts]
        inputs = torch.randint(V, (B, T))
        inputs[:, :2], inputs[inputs == V - 1] = 0, 1  # token 0 repeats, the last one is absent
        targets = torch.randint(V, (B, T))
        answer = implementation(*(part.clone() for part in parts), inputs, targets)
        for number, (name, value) in enumerate(zip(NAMES, as_parts(answer, *NAMES), strict=True)):
            shape = tuple(parts[number].shape)
            gradient = as_tensor(value, f"the gradient of {name}", shape=shape, dtype=torch.float64)
            slope = _finite_differences(parts, number, inputs, targets)
            where = f"the gradient of {name}, with inputs ({B}, {T}), "
            claim = where + _pattern(gradient, slope, inputs, name)
            yield Finding(largest_difference(gradient, slope), claim)


def _loss(parts: list[Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the loss (...) for parameters that may have leading dimensions (..., rows, C)."""
    table, inner, head = parts
    x = table[..., inputs.flatten(), :]  # (..., B * T, C)
    logits = (x + (x @ inner).tanh()) @ head.transpose(-1, -2)  # (..., B * T, V)
    wanted = targets.reshape(-1, 1).expand(*logits.shape[:-1], 1)
    return -logits.log_softmax(-1).gather(-1, wanted).mean(dim=(-1, -2))


def _finite_differences(
    parts: list[Tensor], number: int, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Return how much the loss moves per element of one parameter: all moves at once."""
    part = parts[number]
    moves = torch.eye(part.numel(), dtype=torch.float64).reshape(-1, *part.shape) * STEP
    losses = []
    for sign in (1, -1):
        moved = [other.expand(len(moves), *other.shape) for other in parts]
        moved[number] = part + sign * moves
        losses.append(_loss(moved, inputs, targets))
    return ((losses[0] - losses[1]) / (2 * STEP)).reshape(part.shape)


def _pattern(gradient: Tensor, slope: Tensor, inputs: Tensor, name: str) -> str:
    """Say how a gradient differs from the slope of the loss."""
    if not bool(gradient.isfinite().all()):
        return f"has {int((~gradient.isfinite()).sum())} values that are not finite, expected 0"
    if not bool(gradient.any()):
        return f"is 0 everywhere, expected a norm of {float(slope.norm()):.4g}"
    factor = float((gradient * slope).sum() / slope.square().sum())
    if largest_difference(gradient, factor * slope) <= 1e-6:
        return f"is {factor:.3g} times the slope of the loss, expected 1 time"
    off = (gradient - slope).abs().amax(1) > 1e-6  # (rows,)
    rows = f"differs from the slope of the loss in {int(off.sum())} of {len(off)} rows"
    size = f"by up to {largest_difference(gradient, slope):.4g}"
    if name == "table":
        counts = torch.bincount(inputs.flatten(), minlength=len(off))
        once = int((off & (counts == 1)).sum())
        repeated = int((off & (counts > 1)).sum())
        return f"{rows}, {size}: {once} of tokens that occur once, {repeated} of repeated ones"
    return f"{rows}, {size}"


CONTRACT = Contract(
    check="gradients",
    signature=(
        "implementation(table: Tensor, inner: Tensor, head: Tensor, inputs: Tensor, "
        "targets: Tensor) -> tuple[Tensor, Tensor, Tensor]"
    ),
    promise=(
        "table is (V, C), inner (C, C), head (V, C), all float64; inputs and targets are (B, T), "
        "int64. With x = table[inputs] the logits are (x + tanh(x @ inner)) @ head.T, and the loss "
        "is their mean cross-entropy over all B * T targets, in nats. It returns the derivatives "
        "of the loss with respect to (table, inner, head), in their shapes, float64."
    ),
    rights=(
        Right(name="autograd", implementation=right_autograd, note="torch differentiates the loss"),
        Right(name="by_hand", implementation=right_by_hand, note="the chain rule, layer by layer"),
        Right(name="one_hot", implementation=right_one_hot, note="matrices of ones and zeros"),
    ),
    wrongs=(
        Wrong(
            name="detached",
            implementation=wrong_detached,
            note="one of two branches does not reach the table",
        ),
        Wrong(
            name="overwritten",
            implementation=wrong_overwritten,
            note="a repeated token keeps its last gradient only",
        ),
        Wrong(
            name="sum",
            implementation=wrong_sum,
            note="the loss is not divided by the number of positions",
        ),
        Wrong(
            name="transposed",
            implementation=wrong_transposed,
            note="the way back uses a matrix that is not transposed",
            held_out=True,
        ),
        Wrong(
            name="padding_row",
            implementation=wrong_padding_row,
            note="the row of token 0 gets no gradient",
            held_out=True,
        ),
        Wrong(
            name="last_only",
            implementation=wrong_last_only,
            note="only the last position reaches the inner weights",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-6,  # finite differences round at 1e-10; the nearest bug differs by 1e-2
)
