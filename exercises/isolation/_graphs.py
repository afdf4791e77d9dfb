"""The graph of a call: kept where the call was made, and led through by the side that asked.

Backward here asks over there for the product of the gradients with the Jacobian of the call.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from exercises.isolation._parcel import floating, sendable
from exercises.isolation.wire import WireError

if TYPE_CHECKING:
    from exercises.isolation._session import Session


class Graph:
    """What a call gave, and the leaves that its gradient flows into."""

    def __init__(self, outputs: list[Tensor]) -> None:
        self.outputs = outputs
        self.leaves = _leaves_of(outputs)

    def vjp(self, gradients: list[Tensor | None], wanted: list[bool]) -> list[Tensor | None]:
        """Return a gradient for each leaf that is wanted."""
        pairs = [(o, g) for o, g in zip(self.outputs, gradients, strict=True) if g is not None]
        leaves = [leaf for leaf, want in zip(self.leaves, wanted, strict=True) if want]
        if not pairs or not leaves:
            return [None] * len(self.leaves)
        outputs, given = [o for o, _ in pairs], [g.to(o.dtype) for o, g in pairs]
        with torch.enable_grad():
            try:
                found: list[Tensor | None] = list(
                    torch.autograd.grad(
                        outputs, leaves, given, retain_graph=True, allow_unused=True
                    )
                )
            except RuntimeError as error:
                if "checkpoint" not in str(error).lower():
                    raise
                found = _by_backward(outputs, leaves, given)
        each = iter(found)
        return [None if not want or (g := next(each)) is None else sendable(g) for want in wanted]


def _by_backward(
    outputs: list[Tensor], leaves: list[Tensor], given: list[Tensor]
) -> list[Tensor | None]:
    """Reentrant checkpointing allows backward() only."""
    saved = [leaf.grad for leaf in leaves]
    for leaf in leaves:
        leaf.grad = None
    try:
        torch.autograd.backward(outputs, given, retain_graph=True)
        return [leaf.grad for leaf in leaves]
    finally:
        for leaf, gradient in zip(leaves, saved, strict=True):
            leaf.grad = gradient


def _leaves_of(outputs: list[Tensor]) -> list[Tensor]:
    stack: list[Any] = [output.grad_fn for output in outputs]
    found = {id(output): output for output in outputs if output.grad_fn is None}
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if isinstance(variable, Tensor):
            found[id(variable)] = variable
        stack.extend(following for following, _ in node.next_functions)
    return list(found.values())


# ---- the side that asked -------------------------------------------------------------------


class RemoteCall:
    """The graph of one call, which the other side keeps as long as this object lives."""

    def __init__(self, session: Session, number: int, shapes: list[torch.Size]) -> None:
        self.session, self.number, self.shapes = session, number, shapes
        weakref.finalize(self, session.released.append, ("graph", number))

    def vjp(self, gradients: Sequence[Tensor | None], wanted: Sequence[bool]) -> list[Any]:
        """Ask for the gradients of the leaves."""
        sent = [None if g is None else sendable(g) for g in gradients]
        found = self.session.ask("vjp", self.number, sent, list(wanted))
        with self.session._guarded():
            for gradient, shape in zip(found, self.shapes, strict=True):
                if gradient is not None and floating(gradient).shape != shape:
                    raise WireError("a gradient of another shape than its weight came")
        return list(found)


class Remote(torch.autograd.Function):
    """The outputs of a call over there; backward asks for the product with its Jacobian."""

    @staticmethod
    def forward(ctx: Any, call: RemoteCall, values: list[Tensor], *leaves: Tensor) -> Any:
        """Return the values."""
        ctx.call = call
        ctx.set_materialize_grads(False)
        return tuple(values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Return a gradient for each leaf."""
        return (None, None, *ctx.call.vjp(gradients, ctx.needs_input_grad[2:]))


class Received(torch.autograd.Function):
    """Gives a tensor that is shown to a hook a node of a graph, as it has over there."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """Return the same values."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        """Pass the gradient on."""
        return gradient
