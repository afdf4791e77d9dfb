"""A session: the trusted side of the conversation with a student's process.

It asks, keeps both sides' models equal, plays the events of a question to the hooks that are
registered here, and believes nothing: what has another form than it must have ends the session.
"""

from __future__ import annotations

import sys
import weakref
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack

from exercises.isolation._graphs import Remote, RemoteCall
from exercises.isolation._parcel import NOTHING, Opener, Packer, floating, sendable
from exercises.isolation._played_events import Player
from exercises.isolation._random_states import RandomStates
from exercises.isolation._served_watch import take_findings, told
from exercises.isolation._told_errors import raise_at, read_error
from exercises.isolation._twin import Names, OptimizerTwin, Twin
from exercises.isolation.channel import (
    Channel,
    PeerGoneError,
    PeerTimeoutError,
    RemoteError,
    value_of,
)
from exercises.isolation.wire import WireError

_MISSHAPEN = (
    KeyError, IndexError, TypeError, ValueError, AttributeError, RuntimeError, OverflowError,
    OSError, MemoryError, WireError,
)  # fmt: skip


class LostError(BaseException):
    """The student's process ended, took too long or sent nonsense: nothing is known any more.

    It is no Exception, so that no check takes it for something that the student's code raised.
    """


class LostQuietlyError(Exception):
    """The same for a caller who looks at `Session.lost` before believing any verdict."""


LIGHT = ("gradient", "written", "clip", "schedule")  # events that no other state comes with
DEEP = ("before_step", "after_step", "closure")  # events with gradients and optimizers


class Session:
    """One student's process. `models` and `optimizers` build what stands for its own here."""

    def __init__(self, channel: Channel, *, quiet: bool = False) -> None:
        self.channel, self.quiet = channel, quiet
        self.lost = self.lost_by = ""  # why, and the class of the error that showed it
        self.random = RandomStates()
        self.twins: weakref.WeakValueDictionary[int, Twin] = weakref.WeakValueDictionary()
        self.roots: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
        self.optimizers: weakref.WeakValueDictionary[int, OptimizerTwin] = (
            weakref.WeakValueDictionary()
        )
        self.strangers: dict[int, Tensor] = {}
        self.names = Names()
        self.released: list[tuple[str, int]] = []
        self.build_model: Callable[[int, Any], nn.Module] = _not_built
        self.build_optimizer: Callable[[int, Any], Any] = _not_built
        self.schedule_ran: Callable[[], None] = lambda: None
        self.closure: Callable[[], Any] | None = None
        self.original: Twin | None = None
        self.twins_max = 0  # so many models, and copies that are no longer used are let go
        self._player = Player(self)
        self._touched: list[Twin] = []
        self.held: dict[int, Any] = {}
        self._pending: BaseException | None = None

    # ---- questions -----------------------------------------------------------------------------

    def ask(
        self,
        name: str,
        *arguments: Any,
        touched: Sequence[Twin] = (),
        deep: bool = False,
        events: dict[str, Any] | None = None,
        lent: Sequence[Any] = (),
    ) -> Any:
        """Ask, and return the packed value.

        touched: models whose values are compared, not only their version counters.
        deep: gradients and optimizers travel too.    events: what is to be watched meanwhile.
        lent: tensors and arrays among the arguments, in order; what was written there comes back.
        Raises what the student's code raised, under its own name.
        """
        if self.lost:
            self._lose(self.lost)
        profile = take_profile()
        modes = [mode for mode in _get_current_function_mode_stack() if told(mode) is not None]
        outer, self._touched = self._touched, list(touched)
        try:
            with self._guarded():
                state = self._state(touched, deep=deep)
                state |= {"touched": [twin.handle for twin in touched], "deep": deep}
                state["watchers"] = [told(mode) for mode in modes]
                state["released"] = self.released[: (count := len(self.released))]
                del self.released[:count]  # more may have been added by now
                if events:
                    state["events"] = events
            reply = self._exchange((name, state, *arguments), profile)
            with self._guarded():
                self._settle(reply, modes, lent)
        finally:
            self._touched = outer
            give_profile(profile)
        if self._pending is not None:
            pending, self._pending = self._pending, None
            raise pending
        if "error" in reply:
            with self._guarded():
                error, place = read_error(reply["error"])
            raise_at(error, place)
        torch.set_grad_enabled(reply["grad"] is True)
        return reply["value"]

    def _settle(self, reply: dict[str, Any], modes: Sequence[Any], lent: Sequence[Any]) -> None:
        """Take over everything that comes with an answer beside its value."""
        self._take_over(reply)
        for mode, findings in zip(modes, reply["watchers"], strict=True):
            take_findings(mode, findings)
        for number, value in reply.get("written", ()):
            _write_back(lent[number], value)
        self.held = {n: t for n, t in self.held.items() if n in reply["alive"]}

    def _exchange(self, question: Any, profile: Any) -> dict[str, Any]:
        try:
            self.channel.send(question)
            while True:
                message = self.channel.receive()
                if isinstance(message, tuple) and message[:1] == ("event",):
                    self.channel.send(("reply", self._event(profile, *message[1:])))
                    continue
                reply = value_of(message)
                if not isinstance(reply, dict):
                    raise WireError("an answer without a state")
                return reply
        except (PeerGoneError, PeerTimeoutError, WireError, RemoteError) as error:
            self._lose(_why(error), error)
            raise

    def _lose(self, why: str, error: Exception | None = None) -> NoReturn:
        if not self.lost:
            self.lost, self.lost_by = why, type(error).__name__
        raise (LostQuietlyError if self.quiet else LostError)(self.lost) from error

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """Work apart from the watchers of torch's functions; what does not fit ends the session."""
        try:
            with torch._C.DisableTorchFunction():
                yield
        except _MISSHAPEN as error:
            self._lose(
                f"an answer had no known form ({type(error).__name__}: {error!s:.200})", error
            )

    # ---- the shared state ----------------------------------------------------------------------

    def _state(self, touched: Sequence[Twin], *, deep: bool) -> dict[str, Any]:
        twins = []
        hooks_off: list[Any] = []
        for twin in list(self.twins.values()):
            fully = any(twin is each for each in touched)
            changed = twin.changes(fully=fully, gradients=deep and fully)
            if changed:
                twins.append(changed)
            if fully:
                hooks_off += _missing_hooks(twin)
        optimizers = []
        if deep:
            optimizers = [c for each in list(self.optimizers.values()) if (c := each.changes())]
        autocast = torch.is_autocast_enabled("cpu")
        return {
            "twins": twins,
            "optimizers": optimizers,
            "random": self.random.changes(),
            "grad": torch.is_grad_enabled(),
            "hooks_off": hooks_off,
            "autocast": [("cpu", Packer(_nothing).pack(torch.get_autocast_dtype("cpu")))]
            if autocast
            else [],
        }

    def _take_over(self, state: dict[str, Any]) -> None:
        for changed in state["twins"]:
            twin = self.twins.get(changed["handle"])
            if twin is not None:
                twin.apply(changed)
        for changed in state.get("optimizers", ()):
            optimizer = self.optimizers.get(changed["number"])
            if optimizer is not None:
                optimizer.apply(changed)
        self.random.apply(state["random"])

    # ---- parcels -------------------------------------------------------------------------------

    def pack(
        self, value: Any, given: list[Tensor] | None = None, lent: list[Any] | None = None
    ) -> Any:
        """Pack an argument.

        Tensors that want a gradient are listed in `given`, other ones and arrays in `lent`.
        """

        def special(thing: Any) -> Any:
            if isinstance(thing, nn.Module) and "_link" in vars(thing):
                return ("model", vars(thing)["_link"].twin.handle)
            if "_twin" in getattr(thing, "__dict__", {}):
                return ("optimizer", thing._twin.number)
            if isinstance(thing, Tensor) and thing.requires_grad and given is not None:
                if torch.is_grad_enabled():
                    given.append(thing)
                    return ("given", len(given) - 1, sendable(thing))
                if lent is not None:
                    lent.append(thing)
                return ("tensor", sendable(thing))
            if isinstance(thing, (Tensor, np.ndarray)) and lent is not None:
                lent.append(thing)
            if hasattr(thing, "__fspath__"):
                return _path_name(thing)
            return NOTHING

        packer = Packer(special)
        packed = packer.pack(value)
        if packer.graphs:
            raise WireError("a tensor with a graph cannot be sent in this place")
        return packed

    def open(self, answer: Any, given: Sequence[Tensor] = ()) -> Any:
        """Open what a part gave; a tensor with a graph gets one here, through the other side."""
        with self._guarded():
            tensors: Sequence[Tensor] = ()
            if "graph" in answer:
                leaves = [self._leaf(name, given) for name in answer["leaves"]]
                call = RemoteCall(self, answer["graph"], [leaf.shape for leaf in leaves])
                values = [floating(value) for value in answer["tensors"]]
                tensors = Remote.apply(call, values, *leaves)
            return self.opened(answer["value"], tensors)

    def opened(self, packed: Any, tensors: Sequence[Tensor] = ()) -> Any:
        """Open a packed value, with tensors for those that have a graph."""
        return Opener(self._known, tensors).open(packed)

    def _known(self, packed: Any) -> Any:
        match packed:
            case ("model", int() as handle, blueprint):
                known = self.roots.get(handle)
                if known is not None:
                    return known
                return self.build_model(handle, blueprint)
            case ("optimizer", int() as number, described):
                twin = self.optimizers.get(number)
                return self.build_optimizer(number, described) if twin is None else twin.optimizer
            case ("iterator", int() as number):
                return self._iterate(number)
        return NOTHING

    def _iterate(self, number: int) -> Iterator[Any]:
        while True:
            try:
                value = self.open(self.ask("next", number))
            except StopIteration:
                return
            yield value

    def _leaf(self, name: Any, given: Sequence[Tensor]) -> Tensor:
        match name:
            case ("weight", int() as handle, int() as number) if handle in self.twins:
                return self.twins[handle].tensor(number)
            case ("given", int() as number) if 0 <= number < len(given):
                return given[number]
            case ("stranger", int() as number, bool() as is_parameter, Tensor() as value):
                return self.stranger(number, value, is_parameter)
        raise WireError("a leaf came that is none")

    def stranger(self, number: int, value: Tensor | None = None, parameter: bool = True) -> Tensor:
        """Return a trained tensor that no model here lists."""
        if number not in self.strangers:
            if value is None:
                raise WireError("an unknown tensor is named")
            held = floating(value)
            self.strangers[number] = nn.Parameter(held) if parameter else held.requires_grad_()
        return self.strangers[number]

    def weight_name(self, tensor: Tensor) -> Any:
        """Return the name of a parameter, the same on both sides."""
        name = self.names.name_of(tensor, self.twins)
        if name is not None:
            return name
        for number, stranger in self.strangers.items():
            if stranger is tensor:
                return ("stranger", number)
        raise WireError("an optimizer holds a tensor that the other side does not know")

    def weight(self, name: Any) -> Tensor:
        """Return the tensor of such a name."""
        match name:
            case ("weight", int() as handle, int() as number) if handle in self.twins:
                return self.twins[handle].tensor(number)
            case ("stranger", int() as number):
                return self.stranger(number)
        raise WireError("a weight is named that is none")

    # ---- events --------------------------------------------------------------------------------

    def _event(self, profile: Any, kind: Any, state: Any, *payload: Any) -> dict[str, Any]:
        """Play one event to the hooks here; what a hook raises is raised after the question."""
        value, stop = None, False
        with self._guarded():
            if kind not in LIGHT:
                self._take_over(state)
            handler = getattr(self._player, f"on_{kind}", None)
            if handler is None or type(kind) is not str:
                raise WireError("an event came that is none")
        grads = torch.is_grad_enabled()
        try:
            torch.set_grad_enabled(state.get("grad") is True)
            give_profile(profile)
            with torch.autocast("cpu") if state.get("autocast") is True else nullcontext():
                value = handler(*payload)
        except (LostError, LostQuietlyError, WireError):
            raise
        except BaseException as error:  # of a hook, also Ctrl-C: it ends the question first
            self._pending, stop = error, True
        finally:
            take_profile()
            torch.set_grad_enabled(grads)
        reply: dict[str, Any] = {}
        with self._guarded():
            if kind in DEEP:
                reply = self._state(self._touched, deep=True)
            elif kind not in LIGHT:
                reply["random"] = self.random.changes()
        return reply | {"value": value, "stop": stop}


def take_profile() -> Any:
    """Switch a profile function off and return it; it would see the wire at work."""
    profile = sys.getprofile()
    if callable(profile):
        sys.setprofile(None)
    return profile


def give_profile(profile: Any) -> None:
    """Switch it on again; a profiler written in C has never been switched off."""
    if callable(profile):
        sys.setprofile(profile)


def _path_name(path: Any) -> Any:
    """Name a path for the other side, which has a folder of its own."""
    path = Path(path)
    return ("path", f"{zlib.crc32(str(path.parent).encode()):08x}", path.name)


def _missing_hooks(twin: Twin) -> list[Any]:
    """Return the other side's hooks whose stand-ins were taken away here."""
    expected: list[Any] = getattr(twin, "hooks", [])
    missing = []
    for number, table, key in expected:
        held = getattr(twin.modules[number], table).values()
        if not any(getattr(hook, "place", None) == (number, table, key) for hook in held):
            missing.append((twin.handle, number, table, key))
    return missing


def _write_back(lent: Any, value: Any) -> None:
    """Write into an argument what the other side has written into its copy."""
    kept = torch.from_numpy(lent) if isinstance(lent, np.ndarray) else lent.detach()
    if type(value) is not Tensor or value.shape != kept.shape:
        raise WireError("an argument came back in another shape")
    kept.copy_(value)


def _why(error: Exception) -> str:
    if isinstance(error, PeerGoneError):
        return "the process of the code under examination has ended"
    if isinstance(error, PeerTimeoutError):
        return "the process of the code under examination has used up its time"
    if isinstance(error, RemoteError):  # what its side of the wire could not send
        return f"the code under examination gave an answer that does not fit: {error.message:.200}"
    return f"the process of the code under examination sent nonsense: {error!s:.200}"


def _nothing(value: Any) -> Any:
    return NOTHING


def _not_built(number: int, described: Any) -> Any:
    raise WireError("something came that cannot be built here")
