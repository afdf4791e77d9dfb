"""Events of the student's process, played to the hooks that are registered here."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from exercises.isolation._blueprint import HookStandIn
from exercises.isolation._graphs import Received
from exercises.isolation._parcel import NOTHING, Packer, floating, sendable
from exercises.isolation.wire import WireError

if TYPE_CHECKING:
    from exercises.isolation._session import Session

REPLACED_MAX = 256  # graphs of hooks that are kept for a backward pass; the oldest goes first
POST_HOOKS = "_post_accumulate_grad_hooks"


class Player:
    """Plays the events of a session; what a handler returns goes back as the reply."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._numbers = itertools.count()
        self._replaced: dict[int, tuple[list[Tensor], list[Tensor]]] = {}

    def _module(self, handle: Any, number: Any) -> nn.Module:
        twin = self.session.twins.get(handle)
        if twin is None or type(number) is not int or not 0 <= number < len(twin.modules):
            raise WireError("an event names a module that is none")
        return twin.modules[number]

    def on_before(self, handle: Any, number: Any, given: Any) -> Any:
        module = self._module(handle, number)
        args, kwargs = self.session.opened(given)
        changed = False
        for key, hook in list(module._forward_pre_hooks.items()):
            if isinstance(hook, HookStandIn):
                continue
            if key in module._forward_pre_hooks_with_kwargs:
                result: Any = hook(module, args, kwargs)
                if result is not None:
                    (args, kwargs), changed = result, True
            elif (result := hook(module, args)) is not None:
                args, changed = result if isinstance(result, tuple) else (result,), True
        return self.session.pack((args, kwargs), []) if changed else None

    def on_after(
        self, handle: Any, number: Any, given: Any, packed: Any, values: Any, mark: Any
    ) -> Any:
        module = self._module(handle, number)
        args, kwargs = self.session.opened(given)
        leaves = [floating(value).requires_grad_() for value in values]
        graphs = [Received.apply(leaf) for leaf in leaves]
        output = original = self.session.opened(packed, graphs)
        for key, hook in list(module._forward_hooks.items()):
            if isinstance(hook, HookStandIn):
                continue
            if key in module._forward_hooks_with_kwargs:
                result: Any = hook(module, args, kwargs, output)
            else:
                result = hook(module, args, output)
            output = output if result is None else result
        if mark:
            self.session.held[mark] = graphs
        if output is original and (isinstance(output, Tensor) or not _has_fields(output)):
            return None
        return self._replacement(output, leaves)

    def _replacement(self, output: Any, leaves: list[Tensor]) -> Any:
        packer = Packer(_nothing)
        packed = packer.pack(output)
        number = next(self._numbers)
        self._replaced[number] = (packer.graphs, leaves)
        while len(self._replaced) > REPLACED_MAX:
            del self._replaced[next(iter(self._replaced))]
        return packed, [sendable(tensor) for tensor in packer.graphs], number

    def on_hook_vjp(self, number: Any, gradients: Any) -> Any:
        outputs, leaves = self._replaced[number]
        pairs = [(o, g) for o, g in zip(outputs, gradients, strict=True) if g is not None]
        if not pairs or not leaves:
            return [None] * len(leaves)
        with torch.enable_grad():
            found = torch.autograd.grad(
                [o for o, _ in pairs],
                leaves,
                [g for _, g in pairs],
                retain_graph=True,
                allow_unused=True,
            )
        return list(found)

    def on_gradient(self, handle: Any, number: Any, gradient: Any) -> Any:
        tensor = self.session.twins[handle].tensor(number)
        now = _shaped(gradient, tensor)
        for hook in list((tensor._backward_hooks or {}).values()):
            result = hook(now)
            now = now if result is None else result
        return None if now is gradient else sendable(now)

    def on_written(self, news: Any) -> Any:
        """Write gradients as they were written over there, one after the other."""
        replaced = []
        for handle, number, change in news:
            twin = self.session.twins[handle]
            if change is not None:
                twin.write_gradient(number, *change)
            tensor = twin.tensor(number)
            for hook in list((getattr(tensor, POST_HOOKS) or {}).values()):
                hook(tensor)
            changed = twin.gradient_news(number)
            if changed is not None:
                replaced.append((handle, number, *changed))
        return replaced

    def on_before_step(self, reference: Any, given: Any) -> None:
        self._on_step(reference, given, _global_optimizer_pre_hooks)

    def on_after_step(self, reference: Any, given: Any) -> None:
        self._on_step(reference, given, _global_optimizer_post_hooks)

    def _on_step(self, reference: Any, given: Any, hooks: Any) -> None:
        optimizer = self.session.opened(reference)
        args, kwargs = self.session.opened(given)
        for hook in list(hooks.values()):
            hook(optimizer, args, kwargs)

    def on_clip(self, limit: Any, size: Any, given: Any, with_gradient: Any) -> None:
        """Clip stand-ins of the same norm, for the profile that watches clip_grad_norm_."""
        stand_ins = [nn.Parameter(torch.zeros(1)) for _ in range(min(int(given), 10_000))]
        for number, parameter in enumerate(stand_ins[: int(with_gradient)]):
            parameter.grad = torch.full((1,), float(size) if number == 0 else 0.0)
        nn.utils.clip_grad_norm_(stand_ins, float(limit))

    def on_schedule(self) -> None:
        self.session.schedule_ran()

    def on_closure(self) -> Any:
        if self.session.closure is None:
            raise WireError("a closure is asked for that was not given")
        value = self.session.closure()
        return value.detach() if isinstance(value, Tensor) else value


def _has_fields(output: Any) -> bool:
    """Whether a hook can have put another value into the output that it was shown."""
    return isinstance(output, dict) or hasattr(output, "__dict__")


def _shaped(value: Any, like: Tensor) -> Tensor:
    if floating(value).shape != like.shape:
        raise WireError("a gradient of another shape than its weight came")
    return value


def _nothing(value: Any) -> Any:
    return NOTHING
