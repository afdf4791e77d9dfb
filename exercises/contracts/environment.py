"""The contract of the environment: a layer that is watched, and computes as if it were not.

Shapes: B rows, D width of the input, H of the layer that is watched, C of the output.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

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
    as_number,
    as_parts,
    largest_difference,
)

D, H, C = 4, 6, 3
TOLERANCE = 1e-9  # right ones differ by 1e-14, the nearest bug, half precision, by 0.0003


def right_hook(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Watch a module with a forward hook that returns nothing."""
    layer, head = (nn.Linear(w.shape[1], w.shape[0], bias=False).double() for w in (first, second))
    layer.weight = nn.Parameter(first.clone())
    head.weight = nn.Parameter(second.clone())
    seen: list[Tensor] = []
    handle = layer.register_forward_hook(lambda _, __, output: seen.append(output.detach()))
    loss = head(torch.tanh(layer(x))).square().mean()
    handle.remove()
    gradients = torch.autograd.grad(loss, (layer.weight, head.weight))
    return loss.detach(), gradients[0], gradients[1], seen[0].abs().max()


def right_by_hand(x: Tensor, first: Tensor, second: Tensor) -> list[Any]:
    """Write the derivatives out, without any graph that a look could disturb."""
    hidden = torch.einsum("bd,hd->bh", x, first)
    active = hidden.tanh()
    output = torch.einsum("bh,ch->bc", active, second)
    slope = 2 * output / output.numel()  # (B, C)
    inner = (slope @ second) * (1 - active * active)  # (B, H)
    loss = float((output * output).sum()) / output.numel()
    return [loss, inner.T @ x, slope.T @ active, max(hidden.max().item(), -hidden.min().item())]


def right_two_passes(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Look in a pass of its own, and compute in another one."""
    with torch.no_grad():
        largest = torch.linalg.vector_norm(functional.linear(x, first), math.inf)
    weights = [first.detach().clone().requires_grad_(), second.detach().clone().requires_grad_()]
    output = functional.linear(functional.linear(x, weights[0]).tanh(), weights[1])
    loss = functional.mse_loss(output, torch.zeros_like(output))
    gradients = torch.autograd.grad(loss, weights)
    return loss.detach(), gradients[0], gradients[1], largest


def wrong_detached(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Hand back what was looked at, cut off from the graph."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    seen = []

    def watch(output: Tensor) -> Tensor:
        looked_at = output.detach()
        seen.append(looked_at.abs().max())
        return looked_at  # BROKEN: was return output

    loss = (watch(x @ a.T).tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b), allow_unused=True, materialize_grads=True)
    return loss.detach(), gradients[0], gradients[1], seen[0]


def wrong_in_place(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Take absolute values in place: the tensor that was detached is the same memory."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    seen = []

    def watch(output: Tensor) -> Tensor:
        sizes = output.detach().abs_()  # BROKEN: was sizes = output.detach().abs()
        seen.append(sizes.max())
        return output

    loss = (watch(x @ a.T).tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], seen[0]


def wrong_no_grad(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Compute the layer that is watched in a mode without gradients."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    with torch.no_grad():  # BROKEN: was with torch.enable_grad():
        hidden = x @ a.T
    largest = hidden.detach().abs().max()
    loss = (hidden.tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b), allow_unused=True, materialize_grads=True)
    return loss.detach(), gradients[0], gradients[1], largest


def wrong_signed(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Record the largest value, which overlooks a larger negative one."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    hidden = x @ a.T
    sizes = hidden.detach()  # BROKEN: was sizes = hidden.detach().abs()
    loss = (hidden.tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], sizes.max()


def wrong_half(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Hand back a copy that went through half precision."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    hidden = x @ a.T
    kept = hidden.half()  # BROKEN: was kept = hidden.double()
    largest = hidden.detach().abs().max()
    loss = (kept.double().tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], largest


def wrong_outliers_cut(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Cut off what is far out, which changes nothing as long as nothing is."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    hidden = x @ a.T
    largest = hidden.detach().abs().max()
    limit = 4.0  # BROKEN: was limit = math.inf
    loss = (hidden.clamp(-limit, limit).tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], largest


def wrong_gradient_cut(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Return a clipped gradient from a hook that was meant to look at it."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    hidden = x @ a.T
    slopes = []

    def look(gradient: Tensor) -> Tensor:
        slopes.append(gradient.abs().max())
        return gradient.clamp(-0.001, 0.001)  # BROKEN: was return gradient

    hidden.register_hook(look)
    loss = (hidden.tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], hidden.detach().abs().max()


def wrong_first_row(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    """Record what the first row of the batch shows."""
    a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
    hidden = x @ a.T
    rows = hidden.detach()[:1]  # BROKEN: was rows = hidden.detach()
    loss = (hidden.tanh() @ b.T).square().mean()
    gradients = torch.autograd.grad(loss, (a, b))
    return loss.detach(), gradients[0], gradients[1], rows.abs().max()


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare with the same computation unwatched, of one row and several, small and large."""
    for B, scale in ((5, 1.0), (1, 1.0), (7, 6.0)):
        x, first, second = _draw(B, scale)
        told = f"x (B, D) = ({B}, {D})"
        names = ("loss", "first_gradient", "second_gradient", "largest")
        loss, *gradients, largest = _unwatched(x, first, second)
        parts = as_parts(implementation(x, first, second), *names)
        given = as_number(parts[0], "loss")
        yield Finding(
            abs(given - float(loss)),
            f"with {told} the loss is {given:.9g}, and {float(loss):.9g} when nothing watches",
        )
        for name, weight, value, wanted in zip(
            names[1:3], (first, second), parts[1:3], gradients, strict=True
        ):
            gradient = as_finite(value, name, shape=tuple(weight.shape), dtype=torch.float64)
            yield Finding(
                largest_difference(gradient, wanted),
                f"with {told} {name} {_describe(gradient, wanted)}",
            )
        seen = as_number(parts[3], "largest")
        yield Finding(
            abs(seen - float(largest)),
            f"with {told} largest is {seen:.6g}, and the largest size in hidden is "
            f"{float(largest):.6g}",
        )


def _draw(B: int, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    """Draw x (B, D), first (H, D), second (C, H); the largest hidden value is a negative one.

    It stands in the last row, so that neither a sign nor a row can be left out unseen.
    """
    x = torch.randn(B, D, dtype=torch.float64)
    first = torch.randn(H, D, dtype=torch.float64)
    second = torch.randn(C, H, dtype=torch.float64)
    hidden = x @ first.T  # (B, H)
    row, column = divmod(int(hidden.abs().argmax()), H)
    x = torch.cat((x[:row], x[row + 1 :], x[row : row + 1]))
    return x * scale * -hidden[row, column].sign(), first, second


def _unwatched(x: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, ...]:
    with torch.enable_grad():  # whatever an implementation has left behind
        a, b = first.clone().requires_grad_(), second.clone().requires_grad_()
        hidden = x @ a.T  # (B, H)
        loss = (hidden.tanh() @ b.T).square().mean()
        gradients = torch.autograd.grad(loss, (a, b))
    return (loss.detach(), *gradients, hidden.detach().abs().max())


def _describe(gradient: Tensor, wanted: Tensor) -> str:
    """Say how far off it is, and name a gradient that is cut off or scaled."""
    if not gradient.any():
        return (
            f"is 0 in all {gradient.numel()} entries, expected up to {wanted.abs().max():.3g}: no "
            "gradient passes the place that is watched"
        )
    far = largest_difference(gradient, wanted)
    ratio = float(gradient.norm() / wanted.norm())
    return (
        f"is off by up to {far:.3g}; its length is {ratio:.4g} times that of the gradient when "
        "nothing watches"
    )


CONTRACT = Contract(
    check="environment",
    signature=(
        "implementation(x: Tensor, first: Tensor, second: Tensor) -> "
        "tuple[float | Tensor, Tensor, Tensor, float | Tensor]"
    ),
    promise=(
        "x is (B, D), first (H, D) and second (C, H), all float64. A layer computes hidden = "
        "x @ first.T; then output = tanh(hidden) @ second.T, and loss is the mean of output ** 2 "
        "over all its entries. The layer is watched, and watching changes nothing. It returns "
        "(loss, first_gradient, second_gradient, largest): the loss, its gradients for first "
        "(H, D) and second (C, H), float64, and the largest absolute value in hidden. loss and "
        "largest are numbers, or tensors of one element."
    ),
    rights=(
        Right(name="hook", implementation=right_hook, note="a forward hook that returns nothing"),
        Right(name="by_hand", implementation=right_by_hand, note="derivatives written out"),
        Right(name="two_passes", implementation=right_two_passes, note="a pass of its own"),
    ),
    wrongs=(
        Wrong(
            name="detached",
            implementation=wrong_detached,
            note="what is handed on after the look is cut off from the graph",
        ),
        Wrong(
            name="in_place",
            implementation=wrong_in_place,
            note="looking at sizes makes the values themselves positive",
        ),
        Wrong(
            name="no_grad",
            implementation=wrong_no_grad,
            note="the layer is computed in a mode without gradients",
        ),
        Wrong(
            name="signed",
            implementation=wrong_signed,
            note="a large negative value is overlooked",
        ),
        Wrong(
            name="half",
            implementation=wrong_half,
            note="what is handed on went through half precision",
            held_out=True,
        ),
        Wrong(
            name="outliers_cut",
            implementation=wrong_outliers_cut,
            note="values beyond 4 are cut off",
            held_out=True,
        ),
        Wrong(
            name="gradient_cut",
            implementation=wrong_gradient_cut,
            note="a hook that looks at the gradient hands back a clipped one",
            held_out=True,
        ),
        Wrong(
            name="first_row",
            implementation=wrong_first_row,
            note="only the first row of the batch is looked at",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
