"""Models that stand here for models of another process: real weights, and calls that go over."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import torch
from torch import Tensor, nn

from exercises.isolation._blueprint import HookStandIn, Mirror, build
from exercises.isolation._session import Session
from exercises.isolation._twin import HOOK_TABLES, Twin
from exercises.isolation.wire import WireError

COPIES_MAX = 8  # models of one session before those that are no longer used are looked for


class Link:
    """What ties the modules of one model to its twin; a copy of it is a copy over there too."""

    def __init__(self, session: Session, twin: Twin) -> None:
        self.session, self.twin = session, twin
        weakref.finalize(self, session.released.append, ("model", twin.handle))

    def __deepcopy__(self, memo: dict[int, Any]) -> Link:
        twin = self.twin
        _let_go(self.session)
        handle = self.session.ask("clone", twin.handle, touched=[twin])
        if type(handle) is not int or handle in self.session.twins:
            raise WireError("a copy came without a number of its own")
        new = Link.__new__(Link)
        memo[id(self)] = new
        modules = [copy.deepcopy(module, memo) for module in twin.modules]
        copied = Twin(handle, modules, twin.places, copy.deepcopy(twin.objects, memo))
        copied.hooks = twin.hooks
        copied.inherit(twin)
        Link.__init__(new, self.session, copied)
        _register(self.session, copied)
        return new


def build_model(session: Session, handle: int, blueprint: Any) -> nn.Module:
    """Return a model as described. Raises WireError for what describes none."""
    if not isinstance(blueprint, dict):
        raise WireError("a model came without its description")
    drawing = build(blueprint, _call, _train)
    twin = Twin(handle, drawing.modules, drawing.places, drawing.objects)
    twin.hooks = [
        hook.place
        for module in drawing.modules
        for table in HOOK_TABLES
        for hook in getattr(module, table).values()
        if isinstance(hook, HookStandIn)
    ]
    twin.agree(attributes=True)
    link = Link(session, twin)
    for number, module in enumerate(drawing.modules):
        vars(module)["_link"], vars(module)["_number"] = link, number
    _register(session, twin)
    return drawing.modules[0]


def wanted_events(twins: list[Twin], *, own: int | None = None) -> list[dict[str, Any]]:
    """Return which modules and weights carry hooks here that have to be called.

    own: number of the module that is called itself, whose hooks torch calls here.
    """
    wanted = []
    for twin in twins:
        before, after = [], []
        for number, module in enumerate(twin.modules):
            if number == own:
                continue
            if _mine(module._forward_pre_hooks):
                before.append(number)
            if _mine(module._forward_hooks):
                after.append((number, bool(module._forward_hooks_always_called)))
        events: dict[str, Any] = {"handle": twin.handle, "before": before, "after": after}
        if own is None:
            tensors = list(enumerate(twin.tensors()))
            events["gradients"] = [n for n, t in tensors if t._backward_hooks]
            events["accumulated"] = [
                n for n, t in tensors if getattr(t, "_post_accumulate_grad_hooks", None)
            ]
        wanted.append(events)
    return wanted


def _let_go(session: Session) -> None:
    """Drop copies that nobody holds: their modules refer to one another in a circle."""
    if len(session.twins) >= session.twins_max:
        gc.collect()
        session.twins_max = max(COPIES_MAX, 2 * len(session.twins))


def _register(session: Session, twin: Twin) -> None:
    session.twins[twin.handle] = twin
    session.roots[twin.handle] = twin.modules[0]


def _mine(hooks: Any) -> bool:
    return any(not isinstance(hook, HookStandIn) for hook in hooks.values())


def _call(module: Mirror, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    session, twin = module._link.session, module._link.twin
    given: list[Tensor] = []
    if any(tensor.is_meta for tensor in twin.tensors()):
        return _call_on_meta(module, arguments, named)
    lent: list[Any] = []
    packed = session.pack(arguments, given, lent), session.pack(named, given, lent)
    events = {"models": wanted_events([twin], own=module._number)}
    answer = session.ask(
        "call", twin.handle, module._number, *packed, touched=[twin], events=events, lent=lent
    )
    return session.open(answer, given)


def _call_on_meta(module: Mirror, arguments: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """Run a copy over there on the meta device; only shapes come back."""
    session, twin = module._link.session, module._link.twin
    sent = [
        torch.zeros(a.shape, dtype=a.dtype) if isinstance(a, Tensor) and a.is_meta else a
        for a in arguments
    ]
    shapes = session.ask(
        "meta", twin.handle, module._number, session.pack(sent), session.pack(named)
    )
    with session._guarded():
        return tuple(torch.empty(shape, device="meta") for shape in shapes)


def _train(module: Mirror, mode: bool) -> None:
    """Call the other side's own train(); the modes that it sets come back with the answer."""
    session, twin = module._link.session, module._link.twin
    session.ask("train", twin.handle, module._number, bool(mode), touched=[twin])
