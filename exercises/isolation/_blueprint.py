"""Blueprints: the tree of a model's modules with all that can be looked at, as plain data.

`draw` describes a model; `build` makes modules of it that hold the same names, settings, weights
and ties, and no code. A module that is one of torch's usual layers is an instance of it there too.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from exercises.isolation._parcel import Opaque, sendable
from exercises.isolation._twin import HOOK_TABLES, Place
from exercises.isolation.wire import DTYPES, WireError

BASES = (
    "Linear", "Embedding", "LayerNorm", "RMSNorm", "BatchNorm1d", "GroupNorm", "Dropout",
    "Dropout1d", "Dropout2d", "AlphaDropout", "ModuleList", "ModuleDict", "Sequential",
    "MultiheadAttention", "TransformerEncoder", "TransformerDecoder", "Conv1d",
)  # fmt: skip
MODULES_MAX = 10_000
NUMBERS_MAX = 64 * 1024 * 1024  # of one memory that several parameters lie over
PLAIN = (bool, int, float, str, type(None))


@dataclass
class Drawing:
    """A model's modules, tensors and configurations in the order in which both sides count."""

    modules: list[nn.Module] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    objects: list[Any] = field(default_factory=list)


def draw(model: nn.Module) -> tuple[dict[str, Any], Drawing]:
    """Return the blueprint of a model, and what it numbers."""
    drawing = Drawing(modules=_all_modules(model))
    numbers = {id(module): n for n, module in enumerate(drawing.modules)}
    tensors: dict[int, int] = {}
    modules = [_drawn_module(module, numbers, drawing, tensors) for module in drawing.modules]
    # configurations are found while modules are drawn; they may hold others
    objects: list[Any] = []
    while len(objects) < len(drawing.objects):
        held = drawing.objects[len(objects)]
        fields = held if isinstance(held, dict) else vars(held)
        drawn = {
            name: value for name, value in fields.items() if type(value) in PLAIN and _is_name(name)
        }
        objects.append((type(held).__name__, isinstance(held, dict), drawn))
    held_tensors = [vars(drawing.modules[m])[t][n] for m, t, n in drawing.places]
    return {
        "modules": modules,
        "objects": objects,
        "tensors": [_drawn_tensor(tensor) for tensor in held_tensors],
        "memories": _memories(held_tensors),
    }, drawing


def signature_of(function: Any) -> list[tuple[str, int, bool, Any]] | None:
    """Return (name, kind, has a default, plain default) of each argument; None: not known."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return None
    return [
        (
            p.name,
            int(p.kind),
            p.default is not p.empty,
            p.default if type(p.default) in PLAIN else None,
        )
        for p in parameters
    ]


def signature_from(drawn: Any, *, bound: bool = False) -> inspect.Signature | None:
    """Return the signature that was described; bound: with a `self` before the others."""
    if drawn is None:
        return None
    kinds = {int(kind): kind for kind in inspect._ParameterKind}
    first = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)] if bound else []
    try:
        return inspect.Signature(
            [
                *first,
                *(
                    inspect.Parameter(
                        name, kinds[kind], default=default if has_default else inspect._empty
                    )
                    for name, kind, has_default, default in drawn
                ),
            ]
        )
    except (TypeError, ValueError, KeyError) as error:
        raise WireError("a signature came that is none") from error


def _all_modules(model: nn.Module) -> list[nn.Module]:
    """Return the registered modules, then those that stand in plain lists and dictionaries."""
    found = list(model.modules())
    known = {id(module) for module in found}
    for module in found:  # grows meanwhile: a stray module may hold further ones
        for _, held in _stray_modules(module):
            for stray in held:
                new = [inner for inner in stray.modules() if id(inner) not in known]
                known.update(map(id, new))
                found += new
    if len(found) > MODULES_MAX:
        raise WireError(f"the model has {len(found)} modules, too many for the wire")
    return found


def _stray_modules(module: nn.Module) -> list[tuple[str, list[nn.Module]]]:
    found = []
    for name, value in vars(module).items():
        if name.startswith("_") or not isinstance(value, (list, tuple, dict)):
            continue
        parts = value.values() if isinstance(value, dict) else value
        held = [part for part in parts if isinstance(part, nn.Module)]
        if held:
            found.append((name, held))
    return found


def _drawn_module(
    module: nn.Module, numbers: dict[int, int], drawing: Drawing, tensors: dict[int, int]
) -> dict[str, Any]:
    number = numbers[id(module)]
    tables = {}
    for table in ("_parameters", "_buffers"):
        drawn: list[tuple[str, int | None]] = []
        for name, tensor in vars(module)[table].items():
            if tensor is not None and str(tensor.dtype).removeprefix("torch.") not in DTYPES:
                continue  # complex numbers have no place on the wire; forward has them over there
            if tensor is not None and id(tensor) not in tensors:
                tensors[id(tensor)] = len(drawing.places)
                drawing.places.append((number, table, name))
            drawn.append((name, None if tensor is None else tensors[id(tensor)]))
        tables[table] = drawn
    return {
        "kind": type(module).__name__,
        "home": str(type(module).__module__),
        "base": _base_of(module),
        "tables": tables,
        "volatile": sorted(module._non_persistent_buffers_set),
        "children": [
            (name, None if child is None else numbers[id(child)])
            for name, child in module._modules.items()
        ],
        "strays": [
            (name, [numbers[id(stray)] for stray in held]) for name, held in _stray_modules(module)
        ],
        "settings": _drawn_settings(module, drawing),
        "training": bool(module.training),
        "signature": signature_of(module.forward),
        "own_train": type(module).train is not nn.Module.train,
        "hooks": _drawn_hooks(module, numbers),
    }


def _base_of(module: nn.Module) -> str | None:
    for kind in type(module).__mro__:
        if kind.__name__ in BASES and getattr(nn, kind.__name__, None) is kind:
            return kind.__name__
    return None


def _drawn_settings(module: nn.Module, drawing: Drawing) -> list[tuple[str, str, Any]]:
    """Return plain attributes, loose tensors, and the configurations that a module holds."""
    drawn: list[tuple[str, str, Any]] = []
    for name, value in vars(module).items():
        if (name.startswith("_") and name != "_tied_weights_keys") or name == "training":
            continue
        if type(value) in PLAIN:
            drawn.append((name, "plain", value))
        elif isinstance(value, (tuple, list)) and value and {*map(type, value)} <= {*PLAIN}:
            drawn.append((name, "plain", type(value)(value) if type(value) is tuple else [*value]))
        elif isinstance(value, Tensor):
            known = str(value.dtype).removeprefix("torch.") in DTYPES and value.numel() < 1 << 20
            if known and not value.requires_grad and not value.is_meta:
                drawn.append((name, "tensor", sendable(value)))
        elif _is_configuration(value):
            index = next((n for n, o in enumerate(drawing.objects) if o is value), None)
            if index is None:
                index = len(drawing.objects)
                drawing.objects.append(value)
            drawn.append((name, "object", index))
    return drawn


def _is_configuration(value: Any) -> bool:
    if isinstance(value, (nn.Module, torch.Generator, type)) or callable(value):
        return False
    fields: dict[Any, Any] = value if type(value) is dict else getattr(value, "__dict__", {})
    return any(type(item) in PLAIN for item in fields.values())


def _is_name(name: Any) -> bool:
    return type(name) is str and not name.startswith("_")


def _drawn_hooks(module: nn.Module, numbers: dict[int, int]) -> list[tuple[str, int, Any]]:
    drawn = []
    for table in HOOK_TABLES:
        for key, function in getattr(module, table, {}).items():
            inner = getattr(function, "__func__", function)
            facts = {
                "home": str(getattr(function, "__module__", type(function).__module__) or ""),
                "name": str(getattr(function, "__qualname__", type(function).__qualname__)),
                "own": id(getattr(function, "__self__", None)) in numbers,
                "code": id(getattr(inner, "__code__", type(inner))),
            }
            drawn.append((table, key, facts))
    return drawn


def _drawn_tensor(tensor: Tensor) -> dict[str, Any]:
    return {
        "value": None if tensor.is_meta else sendable(tensor),
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "parameter": isinstance(tensor, nn.Parameter),
        "wanted": bool(tensor.requires_grad),
        "inference": bool(tensor.is_inference()),
    }


def _memories(tensors: list[Tensor]) -> list[tuple[int, list[tuple[int, int, list[int]]]]]:
    """Return, for each memory that several tensors lie over, its length and who lies where."""
    together: dict[int, list[int]] = {}
    for number, tensor in enumerate(tensors):
        if tensor.layout == torch.strided and not tensor.is_meta and tensor.numel():
            together.setdefault(tensor.untyped_storage().data_ptr(), []).append(number)
    memories = []
    for numbers in together.values():
        first = tensors[numbers[0]]
        alike = all(tensors[n].dtype == first.dtype for n in numbers)
        length = first.untyped_storage().nbytes() // first.element_size()
        if len(numbers) > 1 and alike and length <= NUMBERS_MAX:
            places = [
                (n, int(tensors[n].storage_offset()), list(tensors[n].stride())) for n in numbers
            ]
            memories.append((length, places))
    return memories


# ---- the other side --------------------------------------------------------------------------


class Mirror:
    """What every module that stands for another one has. `_link` leads to the other side."""

    _link: Any
    _number: int


class HookStandIn:
    """A hook of the other side, which runs there. `place` finds it, `code` tells equal ones."""

    def __init__(self, place: tuple[int, str, int], facts: Mapping[str, Any]) -> None:
        self.place = place
        self.__module__ = "torch" if facts.get("own") else str(facts.get("home"))
        self.__qualname__ = str(facts.get("name"))

    def __call__(self, *arguments: Any) -> None:
        """Change nothing: the hook itself acts on the other side."""

    def __deepcopy__(self, memo: Any) -> HookStandIn:
        return self


def build(
    blueprint: dict[str, Any],
    forward: Callable[[Mirror, tuple[Any, ...], dict[str, Any]], Any],
    train: Callable[[Mirror, bool], None],
) -> Drawing:
    """Return modules as described, whose calls go to `forward` and whose modes to `train`."""
    try:
        return _build(blueprint, forward, train)
    except (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError) as error:
        raise WireError("the description of a model came that is none") from error


def _build(blueprint: dict[str, Any], forward: Any, train: Any) -> Drawing:
    drawn = blueprint["modules"]
    if not 0 < len(drawn) <= MODULES_MAX:
        raise ValueError("no modules")
    tensors = [_built_tensor(each) for each in blueprint["tensors"]]
    _join(tensors, blueprint["memories"])
    objects = [_built_object(*each) for each in blueprint["objects"]]
    modules = [_bare_module(each, forward, train) for each in drawn]
    found = Drawing(modules=modules, objects=objects)
    seen: set[int] = set()
    for number, (module, each) in enumerate(zip(modules, drawn, strict=True)):
        for table in ("_parameters", "_buffers"):
            for name, index in each["tables"][table]:
                vars(module)[table][str(name)] = None if index is None else tensors[index]
                if index is not None and index not in seen:
                    if index != len(seen):
                        raise ValueError("tensors are counted in another order")
                    seen.add(index)
                    found.places.append((number, table, str(name)))
        module._non_persistent_buffers_set.update(map(str, each["volatile"]))
        for name, index in each["children"]:
            module._modules[str(name)] = None if index is None else modules[index]
        for name, indices in each["strays"]:
            if name[:1] == "_" or hasattr(nn.Module, name):
                raise ValueError("modules in a place that is a module's own")
            vars(module)[str(name)] = [modules[index] for index in indices]
        for name, kind, value in each["settings"]:
            if name != "_tied_weights_keys" and (name[:1] == "_" or hasattr(nn.Module, name)):
                continue  # nothing that comes may stand in the place of a module's own parts
            vars(module)[str(name)] = objects[value] if kind == "object" else value
        _add_hooks(module, number, each["hooks"])
        module.training = bool(each["training"])
    if len(seen) != len(tensors):
        raise ValueError("tensors that no module holds")
    return found


def _built_tensor(drawn: dict[str, Any]) -> Tensor:
    dtype, value = DTYPES[drawn["dtype"]], drawn["value"]
    with torch.inference_mode() if drawn["inference"] else torch.inference_mode(False):
        if value is None:
            value = torch.empty(drawn["shape"], dtype=dtype, device="meta")
        elif type(value) is not Tensor or value.dtype is not dtype:
            raise ValueError("no tensor")
        else:
            value = value.clone()
        if drawn["parameter"]:
            return nn.Parameter(value, requires_grad=bool(drawn["wanted"]))
        return value.requires_grad_(bool(drawn["wanted"]))


def _join(tensors: list[Tensor], memories: Any) -> None:
    for length, places in memories:
        if not 0 < length <= NUMBERS_MAX:
            raise ValueError("a memory of no possible length")
        memory = torch.zeros(length, dtype=tensors[places[0][0]].dtype)
        for number, offset, strides in places:
            tensor = tensors[number]
            with torch.no_grad():  # as_strided refuses what lies outside of the memory
                laid = memory.as_strided(tensor.shape, strides, offset)
                laid.copy_(tensor)
                tensor.data = laid


def _built_object(kind: str, is_dict: bool, fields: dict[str, Any]) -> Any:
    if is_dict:
        return dict(fields)
    value = type(str(kind), (Opaque,), {})()
    vars(value).update(fields)
    return value


_CLASSES: dict[tuple[Any, ...], Any] = {}


def _bare_module(drawn: dict[str, Any], forward: Any, train: Any) -> Any:
    kind, home, base = str(drawn["kind"]), str(drawn["home"]), drawn["base"]
    if base is not None and base not in BASES:
        raise ValueError("no base")
    key = (kind, home, base, repr(drawn["signature"]), bool(drawn["own_train"]), forward, train)
    if key not in _CLASSES:
        _CLASSES[key] = _class_for(drawn, forward, train)
    module = _CLASSES[key].__new__(_CLASSES[key])
    nn.Module.__init__(module)
    return module


def _class_for(drawn: dict[str, Any], forward: Any, train: Any) -> type:
    base = nn.Module if drawn["base"] is None else getattr(nn, drawn["base"])

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return forward(self, arguments, named)

    def switch(self: Any, mode: bool = True) -> Any:
        train(self, mode)
        return self

    signature = signature_from(drawn["signature"], bound=True)
    if signature is not None:
        call.__signature__ = signature  # type: ignore[attr-defined]
    members: dict[str, Any] = {"forward": call, "__module__": str(drawn["home"])}
    if drawn["own_train"]:
        members["train"] = switch
    return type(str(drawn["kind"]), (Mirror, base), members)


def _add_hooks(module: Any, number: int, hooks: Any) -> None:
    for table, key, facts in hooks:
        if table not in HOOK_TABLES:
            raise ValueError("no table of hooks")
        code = int(facts["code"])
        kind = _CLASSES.setdefault((HookStandIn, code), type("Hook", (HookStandIn,), {}))
        if table.startswith("_backward"):
            module._is_full_backward_hook = True
        handle = torch.utils.hooks.RemovableHandle(vars(module)[table])
        vars(module)[table][handle.id] = kind((number, table, int(key)), facts)
