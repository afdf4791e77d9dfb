"""Optimizers that stand here for optimizers of another process: real groups, steps that go over."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from exercises.isolation._blueprint import signature_from
from exercises.isolation._session import Session
from exercises.isolation._twin import OptimizerTwin
from exercises.isolation.wire import WireError


def build_optimizer(session: Session, number: int, described: Any) -> Any:
    """Return an optimizer as described. Raises WireError for what describes none."""
    if not isinstance(described, dict):
        raise WireError("an optimizer came without its description")
    for stranger, value in described["foreign"]:
        session.stranger(stranger, value)
    groups = [
        {"params": [session.weight(name) for name in names], **dict(settings)}
        for names, settings in described["groups"]
    ]
    state: Any = defaultdict(dict)
    for name, fields in described["state"]:
        state[session.weight(name)] = dict(fields)
    kind = _class_for(described)
    optimizer = kind.__new__(kind)
    held = {"param_groups": groups, "state": state, "defaults": {}}
    if issubclass(kind, Optimizer):
        Optimizer.__setstate__(optimizer, held)
    else:
        vars(optimizer).update(held)
    twin = OptimizerTwin(number, optimizer, session.weight_name, session.weight)
    optimizer._twin, optimizer._session = twin, session
    twin.agree()
    session.optimizers[number] = twin
    weakref.finalize(optimizer, session.released.append, ("optimizer", number))
    return optimizer


def weights_of(optimizer: Any) -> list[Any]:
    """Return the twins of the models whose weights an optimizer holds."""
    session: Session = optimizer._session
    held = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return [t for t in session.twins.values() if any(id(w) in held for w in t.tensors())]


def _class_for(described: dict[str, Any]) -> Any:
    base: Any = object
    if described["is_torch"] is True:
        base = Optimizer
        name = described["base"]
        found = getattr(torch.optim, name, None) if type(name) is str else None
        if isinstance(found, type) and issubclass(found, Optimizer):
            base = found

    def step(self: Any, closure: Callable[[], Any] | None = None) -> Any:
        return _step(self, closure)

    signature = signature_from(described["signature"], bound=True)
    if signature is not None:
        step.__signature__ = signature  # type: ignore[attr-defined]
    members: dict[str, Any] = {"step": step}
    if base is object:
        members["zero_grad"] = Optimizer.zero_grad
    return type(str(described["kind"])[:100], (base,), members)


def _step(optimizer: Any, closure: Callable[[], Any] | None) -> Any:
    session: Session = optimizer._session
    before, session.closure = session.closure, closure
    try:
        answer = session.ask(
            "step",
            optimizer._twin.number,
            closure is not None,
            touched=weights_of(optimizer),
            deep=True,
        )
    finally:
        session.closure = before
    return session.open(answer)
