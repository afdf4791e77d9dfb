"""Events: what happens while the student's code runs, told as it happens to the side that watches.

Only what the other side has asked for becomes an event. Its reply may replace what it was shown: a
module's input or output, a gradient, and by way of the shared state weights and settings.
"""

from __future__ import annotations

import inspect
import sys
import weakref
from contextlib import ExitStack
from types import CodeType, FrameType, TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from exercises.isolation._parcel import Packer, sendable
from exercises.isolation._twin import Twin, same_bits

if TYPE_CHECKING:
    from exercises.isolation.pipeline_server import _Served

LIGHT = ("gradient", "written", "clip", "schedule")  # events that no other state comes with
_CLIP = inspect.unwrap(clip_grad_norm_).__code__


class Events:
    """The events of one question; inside the `with` block they are sent."""

    def __init__(self, served: _Served, asked: Any) -> None:
        self.served = served
        self.asked: dict[str, Any] = asked or {}
        self.given: list[tuple[Tensor, int]] = []  # arguments that want a gradient
        self.lent: list[tuple[Tensor, Tensor]] = []  # arguments, and copies made before the call
        self._stack = ExitStack()
        self._asked_schedule = False
        self._news: list[Any] = []  # gradients that were written and not yet told of

    def __enter__(self) -> Events:
        for each in self.asked.get("models", ()):
            twin = self.served.twins.get(each["handle"])
            if twin is not None:
                self._watch(twin, each)
        if self.asked.get("steps"):
            for handle in (
                register_optimizer_step_pre_hook(self._before_step),
                register_optimizer_step_post_hook(self._after_step),
            ):
                self._stack.callback(handle.remove)
        if self.asked.get("profile"):
            codes = self._schedule_codes()
            previous = sys.getprofile()
            self._stack.callback(sys.setprofile, previous)
            sys.setprofile(self._profile(codes))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()
        if self._news:
            self._tell_news()

    def closure(self) -> Any:
        """Have the other side compute the loss and its gradients, as step(closure) wants it."""
        return self._ask("closure", deep=True)

    def written(self) -> list[tuple[int, Tensor]]:
        """Return the arguments into which the student's code has written, by number."""
        return [
            (number, sendable(tensor))
            for number, (tensor, before) in enumerate(self.lent)
            if tensor.shape != before.shape or not same_bits(tensor, before)
        ]

    # ---- registration --------------------------------------------------------------------------

    def _watch(self, twin: Twin, asked: dict[str, Any]) -> None:
        for number in asked.get("before", ()):
            self._stack.callback(
                twin.modules[number]
                .register_forward_pre_hook(self._before(twin, number), with_kwargs=True)
                .remove
            )
        for number, always in asked.get("after", ()):
            self._stack.callback(
                twin.modules[number]
                .register_forward_hook(
                    self._after(twin, number), with_kwargs=True, always_call=bool(always)
                )
                .remove
            )
        for number in asked.get("gradients", ()):
            handle = twin.tensor(number).register_hook(self._gradient(twin, number))
            self._stack.callback(handle.remove)
        for number in asked.get("accumulated", ()):
            tensor = twin.tensor(number)
            if tensor.requires_grad:
                handle = tensor.register_post_accumulate_grad_hook(self._written(twin, number))
                self._stack.callback(handle.remove)

    def _before(self, twin: Twin, number: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any) -> Any:
            reply = self._ask("before", twin.handle, number, self._plain((args, kwargs)))
            return None if reply is None else self.served.open(reply)

        return hook

    def _after(self, twin: Twin, number: int) -> Any:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> Any:
            packer = Packer(self.served._special)
            packed = packer.pack(output)
            mark = self._mark(packer.graphs) if number == 0 else 0
            values = [sendable(tensor) for tensor in packer.graphs]
            given = self._plain((args, kwargs))
            reply = self._ask("after", twin.handle, number, given, packed, values, mark)
            return None if reply is None else self._replaced(reply, packer.graphs)

        return hook

    def _gradient(self, twin: Twin, number: int) -> Any:
        def hook(gradient: Tensor) -> Tensor | None:
            reply = self._ask("gradient", twin.handle, number, sendable(gradient))
            return None if reply is None else reply.to(gradient.dtype)

        return hook

    def _written(self, twin: Twin, number: int) -> Any:
        def hook(parameter: Tensor) -> None:
            self._news.append((twin.handle, number, twin.gradient_news(number)))

        return hook

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        given = self._plain((args, kwargs))
        self._ask("before_step", self.served.optimizer_reference(optimizer), given, deep=True)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        given = self._plain((args, kwargs))
        self._ask("after_step", self.served.optimizer_reference(optimizer), given, deep=True)

    # ---- profile -------------------------------------------------------------------------------

    def _profile(self, codes: set[CodeType]) -> Any:
        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "return" and frame.f_code is _CLIP and argument is not None:
                known = frame.f_locals
                parameters, gradients = known.get("parameters"), known.get("grads")
                if isinstance(parameters, list) and isinstance(gradients, list):
                    counts = len(parameters), len(gradients)
                    self._ask("clip", float(known["max_norm"]), float(argument), *counts)
            elif event == "call" and frame.f_code in codes and not self._asked_schedule:
                self._asked_schedule = True
                self._ask("schedule")

        return note

    def _schedule_codes(self) -> set[CodeType]:
        """Return the code that the schedule runs."""
        schedule = self.served.pipeline.learning_rate
        if schedule is None:
            return set()
        codes: set[CodeType] = set()
        previous = sys.getprofile()

        def note(frame: FrameType, event: str, argument: Any) -> None:
            if event == "call" and "site-packages" not in frame.f_code.co_filename:
                codes.add(frame.f_code)

        sys.setprofile(note)
        try:
            schedule(1)
        except Exception:  # any: `schedule` says where it raises
            return set()
        finally:
            sys.setprofile(previous)
        return codes

    # ---- the exchange --------------------------------------------------------------------------

    def _ask(self, kind: str, *payload: Any, deep: bool = False) -> Any:
        if self._news and kind != "written":
            self._tell_news()
        profile = sys.getprofile()
        sys.setprofile(None)
        try:
            touched = [each["handle"] for each in self.asked.get("models", ())]
            state: dict[str, Any] = {}
            if deep:
                state = self.served.changes(touched, gradients=True)
            elif kind not in LIGHT:
                state = {"random": self.served.random.changes(), "twins": self._modes(touched)}
            state["grad"] = torch.is_grad_enabled()
            state["autocast"] = torch.is_autocast_enabled("cpu")
            self.served.channel.send(("event", kind, state, *payload))
            reply = self.served.wait()
            self.served.apply(reply)
            torch.set_grad_enabled(state["grad"])
            if reply.get("stop"):
                raise RuntimeError("the side that watches has stopped this call")
            return reply.get("value")
        finally:
            sys.setprofile(profile)

    def _tell_news(self) -> None:
        """Tell of the gradients that were written since, all at once, before anything else."""
        news, self._news = self._news, []
        for handle, number, kind, value in self._ask("written", news):
            self.served.twins[handle].write_gradient(number, kind, value)

    def _modes(self, touched: list[int]) -> list[dict[str, Any]]:
        found = []
        for handle in touched:
            twin = self.served.twins.get(handle)
            if twin is not None and (modes := twin.mode_news()):
                found.append(modes)
        return found

    def _plain(self, value: Any) -> Any:
        with torch.no_grad():
            return Packer(self.served._special).pack(value)

    def _mark(self, graphs: list[Tensor]) -> int:
        """Hang a mark on the graphs that lives as long as they do, and return its number."""
        if not graphs:
            return 0
        number = next(self.served.numbers)
        mark = _Mark()
        self.served.alive.append((number, weakref.ref(mark)))
        for tensor in graphs:
            if tensor.grad_fn is not None:
                tensor.grad_fn.register_hook(_holding(mark))
        return number

    def _replaced(self, reply: Any, graphs: list[Tensor]) -> Any:
        """Return the output that the other side gave instead, with a graph through its hook."""
        packed, values, number = reply
        tensors = list(_Replaced.apply(self, number, values, *graphs)) if values else []
        from exercises.isolation._parcel import Opener

        return Opener(self.served._known, tensors).open(packed)

    def hook_vjp(self, number: int, gradients: list[Tensor | None]) -> list[Tensor | None]:
        """Have the other side differentiate through its hook."""
        found: list[Tensor | None] = self._ask("hook_vjp", number, gradients)
        return found


class _Mark:
    """Held by a graph and by nothing else."""


def _holding(mark: _Mark) -> Any:
    def hook(*gradients: Any) -> None:
        _ = mark

    return hook


class _Replaced(torch.autograd.Function):
    """The outputs that a hook of the other side gave for those of a module."""

    @staticmethod
    def forward(
        ctx: Any, events: Events, number: int, values: list[Tensor], *graphs: Tensor
    ) -> Any:
        """Return the values; number: of the hook's graph over there."""
        ctx.events, ctx.number = events, number
        ctx.set_materialize_grads(False)
        return tuple(value.clone() for value in values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> Any:
        """Ask the other side."""
        given = [None if g is None else sendable(g) for g in gradients]
        return (None, None, None, *ctx.events.hook_vjp(ctx.number, given))
