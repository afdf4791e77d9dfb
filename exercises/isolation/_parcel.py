"""Parcels: what the parts of a pipeline take and give, as plain data for the wire, and back.

None, bool, int, float and str travel as they are; everything else is a tuple that begins with its
kind. A tensor with a graph travels by number, and its values in a list of their own, so that the
side that opens the parcel can give it a graph again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exercises.isolation.wire import DTYPES, WireError

Special = Callable[[Any], Any]  # the packed form or the value of one thing; NOTHING: not special
NOTHING = object()
FIELDS_MAX = 64  # of an object of a class that the wire does not know
INTS_MIN = 16  # a longer list of whole numbers travels as one tensor
OUTPUT_FIELDS = ("logits", "loss", "ids", "input_ids", "attention_mask")  # of compiled classes


class Opaque:
    """A thing of the other side that is known by the name of its class and its plain fields."""


class OpaqueCallable(Opaque):
    """One that can be called over there, and not here."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Refuse: there is nothing here to run."""
        raise TypeError("this function is on the other side of the wire")


class Packer:
    """Packs values; `graphs` lists the tensors among them that have or want a gradient."""

    def __init__(self, special: Special) -> None:
        self._special = special
        self.graphs: list[Tensor] = []

    def pack(self, value: Any, depth: int = 0) -> Any:
        """Return the packed form. Raises WireError for what is nested too deep."""
        if depth > 8:
            raise WireError("a value is nested too deep for the wire")
        if value is None or type(value) in (bool, int, float, str):
            return value
        special = self._special(value)
        if special is not NOTHING:
            return special
        if isinstance(value, Tensor):
            return self._tensor(value)
        if isinstance(value, Mapping):
            pairs = [(self.pack(k, depth + 1), self.pack(v, depth + 1)) for k, v in value.items()]
            return ("dict", pairs)
        if isinstance(value, (list, tuple)):
            return self._row(value, depth)
        return _plain(value) if _is_plain(value) else self._object(value, depth)

    def _tensor(self, value: Tensor) -> Any:
        if value.requires_grad and torch.is_grad_enabled():
            self.graphs.append(value)
            return ("graph", len(self.graphs) - 1)
        return ("tensor", sendable(value))

    def _row(self, value: list[Any] | tuple[Any, ...], depth: int) -> Any:
        kind = "list" if isinstance(value, list) else "tuple"
        if len(value) > INTS_MIN and set(map(type, value)) == {int}:
            try:
                return ("ints", kind, torch.tensor(value, dtype=torch.int64))
            except (OverflowError, RuntimeError):
                pass
        return (kind, [self.pack(item, depth + 1) for item in value])

    def _object(self, value: Any, depth: int) -> Any:
        fields = vars(value).items() if hasattr(value, "__dict__") else ()
        known = [(k, v) for k, v in fields if not k.startswith("_")][:FIELDS_MAX]
        if not known:
            known = [(name, getattr(value, name)) for name in OUTPUT_FIELDS if hasattr(value, name)]
        packed = [
            (name, self.pack(field, depth + 1))
            for name, field in known
            if isinstance(field, (Tensor, np.ndarray, list, tuple)) or _is_plain(field)
        ]
        return ("object", type(value).__name__[:100], callable(value), packed)


class Opener:
    """Opens what a Packer packed; `graphs` are the tensors that stand for its own."""

    def __init__(self, special: Special, graphs: Iterable[Tensor] = ()) -> None:
        self._special = special
        self._graphs = list(graphs)

    def open(self, packed: Any) -> Any:
        """Return the value. Raises WireError for what is no packed form."""
        if packed is None or type(packed) in (bool, int, float, str):
            return packed
        special = self._special(packed)
        if special is not NOTHING:
            return special
        match packed:
            case ("tensor", value) if type(value) is Tensor:
                return value
            case ("graph", int() as number) if 0 <= number < len(self._graphs):
                return self._graphs[number]
            case ("list", list() as items):
                return [self.open(item) for item in items]
            case ("tuple", list() as items):
                return tuple(self.open(item) for item in items)
            case ("ints", str() as kind, value) if type(value) is Tensor and value.ndim == 1:
                return value.tolist() if kind == "list" else tuple(value.tolist())
            case ("dict", list() as pairs):
                return {self.open(key): self.open(item) for key, item in pairs}
            case _:
                return self._rarer(packed)

    def _rarer(self, packed: Any) -> Any:
        match packed:
            case ("numpy", value) if type(value) is Tensor:
                return value.numpy()
            case ("dtype", str() as name) if name in DTYPES:
                return DTYPES[name]
            case ("object", str() as name, bool() as can_be_called, list() as fields):
                base = OpaqueCallable if can_be_called else Opaque
                value = type(name, (base,), {})()
                for field, item in fields:
                    object.__setattr__(value, str(field), self.open(item))
                return value
        raise WireError("a value came that has no known form")


def sendable(value: Tensor) -> Tensor:
    """Return a plain tensor with the same values, dense and on the CPU."""
    value = value.detach()
    if value.layout != torch.strided:
        value = value.to_dense()
    return value if type(value) is Tensor else value.as_subclass(Tensor)


def floating(value: Any) -> Tensor:
    """Return a plain tensor of floating point numbers. Raises WireError for anything else."""
    if type(value) is not Tensor or not value.is_floating_point():
        raise WireError("a tensor with a gradient came that is none")
    return value


def _is_plain(value: Any) -> bool:
    kinds = (bool, int, float, str, np.generic, np.ndarray, torch.dtype, PurePath, type(None))
    return isinstance(value, kinds)


def _plain(value: Any) -> Any:
    """Pack a number of NumPy, a subclass of a plain type, an array or a dtype."""
    if isinstance(value, np.ndarray):
        if not value.flags.writeable or not value.flags.c_contiguous:
            value = np.array(value)
        return ("numpy", torch.from_numpy(value))
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, torch.dtype):
        return ("dtype", str(value).removeprefix("torch."))
    if isinstance(value, PurePath):
        return str(value)
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), str)
    return kind(value)
