"""Twins: one model, or one optimizer, that exists on both sides of a wire and stays the same.

Both sides number modules, tensors and plain objects alike. Each keeps a copy of what the other one
last knew, and sends what differs from it, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from exercises.isolation._parcel import sendable
from exercises.isolation.wire import WireError

Place = tuple[int, str, str]  # number of the module, its table, the name in it
HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_PLAIN = (bool, int, float, str, type(None))


class Twin:
    """One model. `objects` are configurations: plain objects or dictionaries that modules hold."""

    def __init__(
        self, handle: int, modules: list[nn.Module], places: list[Place], objects: list[Any]
    ) -> None:
        self.handle, self.modules, self.places, self.objects = handle, modules, places, objects
        self.known: list[Tensor | None] = [None] * len(places)
        self.known_gradients: list[Tensor | None] = [None] * len(places)
        self._gradients: list[Tensor | None] = [None] * len(places)  # the very objects
        self._hints: list[tuple[int, int]] = []
        self._modes: list[bool] = []
        self._wanted: list[bool] = []
        self._attributes: list[tuple[int, str, Any]] = []
        self.hooks: list[tuple[int, str, int]] = []  # of the other side

    def tensor(self, number: int) -> Tensor:
        """Return a tensor by its number, as the module holds it now."""
        module, table, name = self.places[number]
        held: Tensor = vars(self.modules[module])[table][name]
        return held

    def tensors(self) -> list[Tensor]:
        """Return all tensors in their order."""
        return [self.tensor(number) for number in range(len(self.places))]

    def agree(self, *, attributes: bool) -> None:
        """Take the present state as known to both sides."""
        for number, tensor in enumerate(self.tensors()):
            self.known[number] = _copy(tensor)
            gradient = tensor.grad if tensor.is_leaf else None
            self._gradients[number] = gradient
            self.known_gradients[number] = None if gradient is None else _copy(gradient)
        self._hints = _hints(self.tensors())
        self._modes = [module.training for module in self.modules]
        self._wanted = [tensor.requires_grad for tensor in self.tensors()]
        if attributes:
            self._attributes = self._read_attributes()

    def inherit(self, other: Twin) -> None:
        """Take over what is known of another model, of which this one is a copy."""
        self.known = list(other.known)
        self._modes, self._wanted = list(other._modes), list(other._wanted)
        self._attributes = list(other._attributes)

    def changes(self, *, fully: bool, gradients: bool) -> dict[str, Any]:
        """Return what the other side does not know yet, and take it as known.

        fully: compare values; else only where a version counter or an address has changed.
        """
        changed: dict[str, Any] = {}
        tensors = self.tensors()
        hints = _hints(tensors)
        if fully or hints != self._hints:
            values = self._changed_values(tensors)
            if values:
                changed["values"] = values
            wanted = [tensor.requires_grad for tensor in tensors]
            if wanted != self._wanted:
                changed["wanted"], self._wanted = wanted, wanted
        self._hints = hints
        changed |= self.mode_news()
        if gradients and (found := self._changed_gradients(tensors)):
            changed["gradients"] = found
        if fully and (moved := self._changed_attributes()):
            changed["attributes"] = moved
        if changed:
            changed["handle"] = self.handle
        return changed

    def apply(self, changed: dict[str, Any]) -> None:
        """Take over what the other side sent. Raises WireError where it does not fit."""
        for number, value in changed.get("values", ()):
            self._write(number, value)
        for number, kind, value in changed.get("gradients", ()):
            self.write_gradient(number, kind, value)
        if "wanted" in changed:
            self._wanted = _flags(changed["wanted"], len(self.places))
            for tensor, wanted in zip(self.tensors(), self._wanted, strict=True):
                if tensor.requires_grad != wanted:
                    tensor.requires_grad_(wanted)
        if "modes" in changed:
            self._modes = _flags(changed["modes"], len(self.modules))
            for module, training in zip(self.modules, self._modes, strict=True):
                module.training = training
        for holder, name, value in changed.get("attributes", ()):
            self._write_attribute(holder, str(name), value)
        self._hints = _hints(self.tensors())

    def write_gradient(self, number: int, kind: str, value: Tensor | None) -> None:
        """Take over one gradient: "same" is written into the tensor that holds it."""
        tensor = self.tensor(number)
        if value is not None and value.shape != tensor.shape:
            raise WireError("a gradient of another shape than its weight came")
        if kind == "same" and value is not None and tensor.grad is not None:
            with torch.no_grad():
                tensor.grad.copy_(value)
        else:
            tensor.grad = value
        self._gradients[number] = tensor.grad
        self.known_gradients[number] = None if value is None else value.clone()

    def gradient_news(self, number: int) -> tuple[str, Tensor | None] | None:
        """Return how one gradient differs from what is known; None: it does not."""
        tensor = self.tensor(number)
        found = self._changed_gradient(number, tensor.grad if tensor.is_leaf else None)
        return None if found is None else found[1:]

    def mode_news(self) -> dict[str, Any]:
        """Return the modes where the other side does not know them."""
        modes = [module.training for module in self.modules]
        if modes == self._modes:
            return {}
        self._modes = modes
        return {"handle": self.handle, "modes": modes}

    def _changed_values(self, tensors: list[Tensor]) -> list[tuple[int, Tensor]]:
        values = []
        for number, tensor in enumerate(tensors):
            known = self.known[number]
            if tensor.is_meta:  # without values; a call of such a model is made on a copy
                continue
            if known is None or not same_bits(tensor, known):
                copied = _copy(tensor)
                self.known[number] = copied
                values.append((number, copied))
        return values

    def _changed_gradients(self, tensors: list[Tensor]) -> list[tuple[int, str, Tensor | None]]:
        found = [
            self._changed_gradient(number, tensor.grad if tensor.is_leaf else None)
            for number, tensor in enumerate(tensors)
        ]
        return [each for each in found if each is not None]

    def _changed_gradient(
        self, number: int, gradient: Tensor | None
    ) -> tuple[int, str, Tensor | None] | None:
        known = self.known_gradients[number]
        same = gradient is self._gradients[number]
        if gradient is None:
            self.known_gradients[number] = self._gradients[number] = None
            return None if known is None else (number, "new", None)
        if same and known is not None and same_bits(sendable(gradient), known):
            return None
        copied = _copy(gradient)
        self.known_gradients[number], self._gradients[number] = copied, gradient
        return number, "same" if same else "new", copied

    def _write(self, number: int, value: Any) -> None:
        if type(value) is not Tensor:
            raise WireError("a weight came that is no tensor")
        tensor = self.tensor(number)
        self.known[number] = value
        inference = tensor.is_inference()
        if tensor.shape != value.shape or tensor.dtype != value.dtype or tensor.is_meta:
            if tensor.shape == value.shape or not isinstance(tensor, nn.Parameter):
                tensor.data = value.clone()
                return
            raise WireError("a weight of another shape came")
        with torch.inference_mode() if inference else torch.no_grad():
            try:
                tensor.copy_(value)
            except RuntimeError:  # an expanded one: several places lie over one number
                tensor.data = value.clone()

    def _holders(self) -> list[Any]:
        return [*self.modules, *self.objects]

    def _read_attributes(self) -> list[tuple[int, str, Any]]:
        """Return every plain setting of modules and configurations."""
        return [
            (number, name, value)
            for number, holder in enumerate(self._holders())
            for name, value in _fields(holder).items()
            if type(value) in _PLAIN and type(name) is str and name[:1] != "_"
        ]

    def _changed_attributes(self) -> list[tuple[int, str, Any]]:
        fields = [_fields(holder) for holder in self._holders()]
        moved = []
        for place, (number, name, known) in enumerate(self._attributes):
            value = fields[number].get(name, known)
            if value is not known and type(value) in _PLAIN and not _equal(value, known):
                moved.append((number, name, value))
                self._attributes[place] = (number, name, value)
        return moved

    def _write_attribute(self, number: int, name: str, value: Any) -> None:
        holder = self._holders()[number]
        if name.startswith("_") or type(value) not in _PLAIN:
            raise WireError("a setting came that is none")
        if isinstance(holder, dict):
            holder[name] = value
        elif name in _fields(holder):
            object.__setattr__(holder, name, value)  # frozen dataclasses too


class OptimizerTwin:
    """One optimizer. `ref` names a parameter for the other side, `deref` finds it again."""

    def __init__(
        self,
        number: int,
        optimizer: Any,
        ref: Callable[[Tensor], Any],
        deref: Callable[[Any], Tensor],
    ) -> None:
        self.number, self.optimizer, self._ref, self._deref = number, optimizer, ref, deref
        self._settings: list[dict[str, Any]] = []
        self._state: dict[tuple[int, str], Any] = {}
        self._keys: list[tuple[Any, list[str]]] = []

    def agree(self) -> None:
        """Take the present state as known to both sides."""
        self.changes()

    def changes(self) -> dict[str, Any]:
        """Return settings and state where the other side does not know them."""
        changed: dict[str, Any] = {}
        settings = [settings_of(group) for group in self.optimizer.param_groups]
        if not _equal(settings, self._settings):
            changed["settings"] = settings
            self._settings = [_frozen(group) for group in settings]
        state = state_of(self.optimizer, self._ref)
        keys = [(ref, list(fields)) for ref, fields in state]
        moved = [
            (place, name, value)
            for place, (_, fields) in enumerate(state)
            for name, value in fields.items()
            if not _equal(value, self._state.get((place, name)))
        ]
        if keys != self._keys or moved:
            changed["keys"], changed["state"] = keys, moved
            kept = {} if keys != self._keys else dict(self._state)
            if keys != self._keys:
                moved = [(p, n, v) for p, (_, f) in enumerate(state) for n, v in f.items()]
                changed["state"] = moved
            kept.update({(place, name): _frozen(value) for place, name, value in moved})
            self._keys, self._state = keys, kept
        if changed:
            changed["number"] = self.number
        return changed

    def apply(self, changed: dict[str, Any]) -> None:
        """Take over what the other side sent."""
        groups = self.optimizer.param_groups
        if "settings" in changed:
            if len(changed["settings"]) != len(groups):
                raise WireError("an optimizer came with other groups than before")
            for group, settings in zip(groups, changed["settings"], strict=True):
                write_settings(group, settings)
        if "keys" in changed:
            if changed["keys"] != self._keys:
                self._rebuild(changed["keys"])
            for place, name, value in changed["state"]:
                held = self.optimizer.state[self._deref(changed["keys"][place][0])]
                _write_state(held, str(name), value)
            self._keys = changed["keys"]
        self._settings = [_frozen(settings_of(group)) for group in groups]
        self._state = {
            (place, name): _frozen(value)
            for place, (_, fields) in enumerate(state_of(self.optimizer, self._ref))
            for name, value in fields.items()
        }

    def _rebuild(self, keys: list[tuple[Any, list[str]]]) -> None:
        """Drop state that the other side does not have, and keep the order of what it has."""
        old = dict(self.optimizer.state)
        self.optimizer.state.clear()
        for ref, names in keys:
            parameter = self._deref(ref)
            held = old.get(parameter, {})
            self.optimizer.state[parameter] = {n: held[n] for n in names if n in held}


class Names:
    """The names under which both sides know a weight: ("weight", handle, number)."""

    def __init__(self) -> None:
        self._found: dict[int, tuple[str, int, int]] = {}

    def name_of(self, tensor: Tensor, twins: Mapping[int, Twin]) -> tuple[str, int, int] | None:
        """Return a weight's name; None for a tensor that no model lists."""
        if (name := self._known(tensor, twins)) is not None:
            return name
        for handle, twin in list(twins.items()):
            for number, held in enumerate(twin.tensors()):
                self._found[id(held)] = ("weight", handle, number)
        return self._known(tensor, twins)

    def _known(self, tensor: Tensor, twins: Mapping[int, Twin]) -> tuple[str, int, int] | None:
        name = self._found.get(id(tensor))
        twin = None if name is None else twins.get(name[1])
        return name if name and twin and twin.tensor(name[2]) is tensor else None


def settings_of(group: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a group that are plain; its parameters are another matter."""
    return {n: v for n, v in group.items() if n != "params" and type(n) is str and _is_setting(v)}


def write_settings(group: dict[str, Any], settings: dict[str, Any]) -> None:
    """Bring a group to these settings; what is not plain stays."""
    for name in settings_of(group):
        if name not in settings:
            del group[name]
    for name, value in settings.items():
        if name == "params":
            raise WireError("the parameters of a group are no setting")
        if not _equal(group.get(name, NotImplemented), value):
            group[name] = value


def state_of(optimizer: Any, ref: Callable[[Tensor], Any]) -> list[tuple[Any, dict[str, Any]]]:
    """Return the plain part of an optimizer's state, parameter by parameter."""
    state = getattr(optimizer, "state", {})
    return [
        (
            ref(parameter),
            {name: value for name, value in fields.items() if _is_setting(value)},
        )
        for parameter, fields in state.items()
        if isinstance(parameter, Tensor) and isinstance(fields, dict)
    ]


def same_bits(a: Tensor, b: Tensor) -> bool:
    """Whether two dense tensors are equal bit for bit; much faster than by value and sign."""
    if a.dtype != b.dtype or a.shape != b.shape or a.is_meta != b.is_meta:
        return False
    if a.is_meta:
        return True
    word = _WORDS[a.element_size()]
    return torch.equal(a.detach().view(word), b.detach().view(word))


def _write_state(held: dict[str, Any], name: str, value: Any) -> None:
    old = held.get(name)
    fits = (
        type(value) is Tensor
        and isinstance(old, Tensor)
        and old.shape == value.shape
        and old.dtype == value.dtype
    )
    if fits and isinstance(old, Tensor):
        with torch.no_grad():
            old.copy_(value)
    else:
        held[name] = value


def _copy(tensor: Tensor) -> Tensor:
    # made in inference mode, a copy could not be written to outside of it
    with torch.no_grad(), torch.inference_mode(False) if tensor.is_inference() else nullcontext():
        return sendable(tensor).clone(memory_format=torch.contiguous_format)


def _hints(tensors: list[Tensor]) -> list[tuple[int, int]]:
    return [
        (0 if t.is_meta else t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors
    ]


def _fields(holder: Any) -> dict[str, Any]:
    return holder if isinstance(holder, dict) else vars(holder)


def _flags(value: Any, length: int) -> list[bool]:
    if type(value) is not list or len(value) != length or set(map(type, value)) - {bool}:
        raise WireError("a row of flags of another length came")
    return value


def _is_setting(value: Any) -> bool:
    if type(value) is tuple:
        return all(type(item) in _PLAIN for item in value)
    return type(value) in _PLAIN or type(value) is Tensor


def _equal(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        return type(a) is type(b) is Tensor and same_bits(a, b)
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, (list, tuple)) and type(a) is type(b):
        return len(a) == len(b) and all(map(_equal, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_equal(a[k], b[k]) for k in a)
    return type(a) is type(b) and bool(a == b)


def _frozen(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _frozen(item) for name, item in value.items()}
    return _copy(value) if isinstance(value, Tensor) else value
