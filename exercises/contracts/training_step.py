"""The contract of the training step: the gradient of each batch is used once, in its own step.

Shapes: S steps, N tokens of a batch, V vocabulary.
"""

from __future__ import annotations

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
    as_parts,
    as_tensor,
    largest_difference,
)

RATE = 0.5
LIMIT = 0.6  # of the gradient's norm: above that of mixed tokens, below that of a repeated one
V = 7


def right_backward(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Change one parameter in place, and clear its gradient after each step."""
    table = nn.Parameter(weights.clone())
    losses = []
    for batch, wanted in zip(inputs, targets, strict=True):
        loss = functional.cross_entropy(table[batch], wanted)
        loss.backward()
        nn.utils.clip_grad_norm_([table], 0.6)
        with torch.no_grad():
            if table.grad is not None:
                table.sub_(table.grad, alpha=0.5)
                table.grad.zero_()
        losses.append(loss.detach())
    return table.detach(), torch.stack(losses)


def right_autograd(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Ask for the gradient of each loss, so that nothing has to be cleared."""
    table = weights.clone()
    losses = torch.zeros(len(inputs), dtype=torch.float64)
    for step in range(len(inputs)):
        table.requires_grad_()
        loss = functional.cross_entropy(table[inputs[step]], targets[step])
        gradient = torch.autograd.grad(loss, table)[0]
        factor = min(1.0, 0.6 / max(float(gradient.norm()), 1e-12))
        losses[step] = loss.detach()
        table = table.detach() - 0.5 * factor * gradient
    return table, losses


def right_by_hand(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Write the derivative: probabilities, minus 1 at the target, over the number of tokens."""
    table, losses = weights.T.contiguous().T, []
    for batch, wanted in zip(inputs.unbind(), targets.unbind(), strict=True):
        logs = table[batch].log_softmax(-1)  # (N, V)
        slopes = logs.exp()
        losses.append(-logs.gather(1, wanted[:, None]).mean())
        slopes[torch.arange(len(batch)), wanted] -= 1
        gradient = torch.zeros_like(table).index_add(0, batch, slopes / len(batch))
        norm = gradient.square().sum().sqrt()
        table = table - 0.5 * gradient * (0.6 / norm.clamp(min=0.6))
    return table, torch.stack(losses)


def wrong_not_cleared(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Add each gradient to those before it."""
    table, losses = weights.clone(), []
    gradient = torch.zeros_like(weights)
    for batch, wanted in zip(inputs, targets, strict=True):
        table.requires_grad_()
        loss = functional.cross_entropy(table[batch], wanted)
        new = torch.autograd.grad(loss, table)[0]
        gradient = gradient + new  # BROKEN: was gradient = new
        factor = min(1.0, 0.6 / max(float(gradient.norm()), 1e-12))
        table = table.detach() - 0.5 * factor * gradient
        losses.append(loss.detach())
    return table, torch.stack(losses)


def wrong_no_minimum(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Bring every gradient to the limit, the small ones too."""
    table, losses = weights.clone(), []
    for batch, wanted in zip(inputs, targets, strict=True):
        table.requires_grad_()
        loss = functional.cross_entropy(table[batch], wanted)
        gradient = torch.autograd.grad(loss, table)[0]
        norm = max(float(gradient.norm()), 1e-12)
        factor = 0.6 / norm  # BROKEN: was factor = min(1.0, 0.6 / norm)
        table = table.detach() - 0.5 * factor * gradient
        losses.append(loss.detach())
    return table, torch.stack(losses)


def wrong_clip_per_row(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Clip the gradient of each row on its own."""
    table, losses = weights.clone(), []
    for batch, wanted in zip(inputs, targets, strict=True):
        table.requires_grad_()
        loss = functional.cross_entropy(table[batch], wanted)
        gradient = torch.autograd.grad(loss, table)[0]
        norm = gradient.norm(dim=1, keepdim=True)  # BROKEN: was norm = gradient.norm()
        factor = 0.6 / norm.clamp(min=0.6)
        table = table.detach() - 0.5 * factor * gradient
        losses.append(loss.detach())
    return table, torch.stack(losses)


def wrong_one_step_late(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Step before the backward pass: each step uses the gradient of the batch before."""
    table, losses = weights.clone(), []
    gradients = [torch.zeros_like(weights)]
    for batch, wanted in zip(inputs, targets, strict=True):
        table.requires_grad_()
        loss = functional.cross_entropy(table[batch], wanted)
        gradients.append(torch.autograd.grad(loss, table)[0])
        gradient = gradients[-2]  # BROKEN: was gradient = gradients[-1]
        factor = min(1.0, 0.6 / max(float(gradient.norm()), 1e-12))
        table = table.detach() - 0.5 * factor * gradient
        losses.append(loss.detach())
    return table, torch.stack(losses)


def wrong_squared_norm(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Compare the sum of squares with the limit, without its root."""
    table, losses = weights.clone(), []
    for batch, wanted in zip(inputs, targets, strict=True):
        table.requires_grad_()
        loss = functional.cross_entropy(table[batch], wanted)
        gradient = torch.autograd.grad(loss, table)[0]
        norm = float((gradient**2).sum())  # BROKEN: was norm = float((gradient**2).sum() ** 0.5)
        factor = min(1.0, 0.6 / max(norm, 1e-12))
        table = table.detach() - 0.5 * factor * gradient
        losses.append(loss.detach())
    return table, torch.stack(losses)


def wrong_loss_afterwards(
    weights: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Report the loss of the batch after the step on it, which is always lower."""
    table, losses = weights.clone(), []
    for batch, wanted in zip(inputs, targets, strict=True):
        before = table.requires_grad_()
        loss = functional.cross_entropy(before[batch], wanted)
        gradient = torch.autograd.grad(loss, before)[0]
        factor = min(1.0, 0.6 / max(float(gradient.norm()), 1e-12))
        table = before.detach() - 0.5 * factor * gradient
        rows = table[batch]  # BROKEN: was rows = before[batch]
        losses.append(functional.cross_entropy(rows, wanted).detach())
    return table, torch.stack(losses)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Take one small step, one that has to be clipped, and then several with both kinds."""
    weights = torch.randn(V, V, dtype=torch.float64) / 2  # (V, V)
    mixed, repeated = _mixed_batch(12), _repeated_batch(weights, 12)
    gradient = _gradient(weights, *mixed)
    moved = (weights - _run(implementation, weights, [mixed])[0]) / RATE
    yield Finding(
        largest_difference(moved, gradient),
        f"one step on 12 mixed tokens uses a gradient of norm {float(moved.norm()):.4g}, expected "
        f"the batch's own, of norm {float(gradient.norm()):.4g}{_part_of(moved, gradient)}",
    )
    gradient = _gradient(weights, *repeated)
    moved = (weights - _run(implementation, weights, [repeated])[0]) / RATE
    yield Finding(
        largest_difference(moved, _clipped(gradient)),
        f"a gradient of norm {float(gradient.norm()):.4g} was used with norm "
        f"{float(moved.norm()):.4g}, expected {LIMIT}: one factor for all rows brings it to there",
    )
    yield from _several_steps(implementation, weights, [mixed, _mixed_batch(12), _mixed_batch(12)])
    batches = [_mixed_batch(9), _repeated_batch(weights, 9), _mixed_batch(9), _mixed_batch(9)]
    yield from _several_steps(implementation, weights, batches)


def _several_steps(
    implementation: Implementation, weights: Tensor, batches: list[tuple[Tensor, Tensor]]
) -> Iterator[Finding]:
    """Compare every step with what it should be, given the weights that the one before left."""
    table, last = weights, torch.zeros_like(weights)
    for count in range(1, len(batches) + 1):
        after, losses = _run(implementation, weights, batches[:count])
        own = _gradient(table, *batches[count - 1])
        loss = float(_loss(table, *batches[count - 1]))
        moved = (table - after) / RATE
        parts = f"{_share(moved, own, last)} times its own gradient"
        if count > 1:
            parts += f" and {_share(moved, last, own)} times that of the step before"
        yield Finding(
            largest_difference(moved, _clipped(own)),
            f"step {count} of {len(batches)} uses {parts}, expected "
            f"{_share(_clipped(own), own, last)} times its own alone, cut to a norm of {LIMIT}",
        )
        yield Finding(
            abs(float(losses[count - 1]) - loss),
            f"step {count} reports a loss of {float(losses[count - 1]):.4g}, expected {loss:.4g}, "
            f"as it was before the step (after it: {float(_loss(after, *batches[count - 1])):.4g})",
        )
        table, last = after, own


def _run(
    implementation: Implementation, weights: Tensor, batches: list[tuple[Tensor, Tensor]]
) -> tuple[Tensor, Tensor]:
    inputs, targets = (torch.stack(part) for part in zip(*batches, strict=True))  # (S, N)
    parts = as_parts(implementation(weights.clone(), inputs, targets), "weights", "losses")
    after = as_tensor(parts[0], "weights", shape=tuple(weights.shape), dtype=torch.float64)
    return after, as_tensor(parts[1], "losses", shape=(len(batches),), dtype=torch.float64)


def _mixed_batch(length: int) -> tuple[Tensor, Tensor]:
    """Return inputs and targets in which no token is common, so that the gradient is small."""
    return torch.randperm(length) % V, torch.randint(V, (length,))


def _repeated_batch(weights: Tensor, length: int) -> tuple[Tensor, Tensor]:
    """Return one token over and over with its least probable target: the largest gradient."""
    token = int(torch.randint(V, ()))
    inputs = torch.full((length,), token)
    inputs[-2:] = (token + 1) % V  # a second row, which clipping row by row would leave alone
    return inputs, weights.argmin(1)[inputs]


def _loss(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    return functional.cross_entropy(weights[inputs], targets)


def _gradient(weights: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    table = weights.clone().requires_grad_()
    return torch.autograd.grad(_loss(table, inputs, targets), table)[0]


def _clipped(gradient: Tensor) -> Tensor:
    return gradient * min(1.0, LIMIT / float(gradient.norm()))


def _part_of(moved: Tensor, gradient: Tensor) -> str:
    """Say by which one factor two tensors differ, if they do."""
    factor = float((moved * gradient).sum() / gradient.square().sum())
    if not largest_difference(moved, factor * gradient) <= 1e-4 or abs(factor - 1) < 1e-3:
        return ""
    return f": it is {factor:.3g} times that"


def _share(moved: Tensor, gradient: Tensor, other: Tensor) -> str:
    """Return the factor of `gradient` in moved = a * gradient + b * other, by least squares."""
    if not bool(moved.isfinite().all()):
        return "nan"
    columns = torch.stack([gradient.flatten(), other.flatten()], dim=1)  # (V * V, 2)
    factors = torch.linalg.pinv(columns) @ moved.flatten()
    return f"{round(float(factors[0]), 2):g}"


CONTRACT = Contract(
    check="training_step",
    signature=(
        "implementation(weights: Tensor, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]"
    ),
    promise=(
        "weights is (V, V), float64: row i holds the logits of the token after token i. inputs and "
        "targets are (S, N), int64: step s trains on inputs[s] and targets[s]. A step takes the "
        "gradient of the mean cross-entropy in nats, scales it down to a norm of "
        f"{LIMIT} if its norm is larger, and subtracts {RATE} times it from the weights. It "
        "returns (the weights after S steps, the losses (S,) of the batches, each right before "
        "its step), float64."
    ),
    rights=(
        Right(
            name="backward", implementation=right_backward, note="one parameter, changed in place"
        ),
        Right(name="autograd", implementation=right_autograd, note="a gradient asked for by name"),
        Right(name="by_hand", implementation=right_by_hand, note="the derivative written out"),
    ),
    wrongs=(
        Wrong(
            name="not_cleared",
            implementation=wrong_not_cleared,
            note="gradients of all steps so far add up",
        ),
        Wrong(
            name="no_minimum",
            implementation=wrong_no_minimum,
            note="small gradients are scaled up to the limit",
        ),
        Wrong(
            name="clip_per_row",
            implementation=wrong_clip_per_row,
            note="each row of the gradient is clipped on its own",
        ),
        Wrong(
            name="one_step_late",
            implementation=wrong_one_step_late,
            note="each step uses the gradient of the batch before",
            held_out=True,
        ),
        Wrong(
            name="squared_norm",
            implementation=wrong_squared_norm,
            note="the square of the norm is compared with the limit",
            held_out=True,
        ),
        Wrong(
            name="loss_afterwards",
            implementation=wrong_loss_afterwards,
            note="the reported loss is the one after the step",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-4,  # clip_grad_norm_ adds 1e-6 to the norm; the nearest bug differs by 3e-2
)
