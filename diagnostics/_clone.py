"""`copy.deepcopy` for modules, several times faster on small ones, with the same result.

A check wants a fresh copy for every trial, and a tiny model is some thirty modules with a dozen
mostly empty dictionaries each: copying those one by one costs more than running the model. Here
every module gets its shell first, so that whatever refers to it finds the copy; then only what is
not empty and not a constant is handed to `copy.deepcopy`.

One thing differs: `copy.deepcopy` gives each parameter a memory of its own, so that two parameters
that lie over the same numbers (`head.weight.data = table.weight.data`) would come apart, and the
copy would be trained and saved as another model. Here they stay together.
"""

from __future__ import annotations

import copy
import itertools
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

Model = TypeVar("Model", bound=nn.Module)
_OWN_WAYS = (
    "__copy__",
    "__deepcopy__",
    "__reduce__",
    "__reduce_ex__",
    "__getstate__",
    "__setstate__",
    "__getnewargs__",
    "__getnewargs_ex__",
    "__slots__",
)
_CONSTANTS = frozenset({bool, int, float, str, type(None)})
_BOOKKEEPING = frozenset(vars(nn.Module()))  # torch's own attributes, shared by no two modules


def clone(model: Model) -> Model:
    """Return a deep copy. Raises whatever a class raises that refuses to be copied."""
    memo: dict[int, Any] = {}
    plain = [module for module in model.modules() if _copies_as_usual(type(module))]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in plain:
        vars(memo[id(module)]).update(
            {
                # constants and torch's empty dictionaries, which most attributes are, come first
                name: value
                if type(value) in _CONSTANTS
                else value.copy()
                if name in _BOOKKEEPING and not value
                else _copy(name, value, memo)
                for name, value in vars(module).items()
            }
        )
    copied = copy.deepcopy(model, memo)  # from the memo, unless its class has a way of its own
    for mine, original in zip(copied.parameters(), model.parameters(), strict=True):
        if original.is_leaf and not mine.is_leaf:  # TorchScript copies as autograd's clone does
            mine.detach_().requires_grad_(original.requires_grad)
    _join_memory(model, copied)
    return copied


def _join_memory(model: nn.Module, copied: nn.Module) -> None:
    """Lay the copies of parameters that share numbers over the same numbers again."""
    pairs = dict(zip(model.parameters(), copied.parameters(), strict=True))
    together: dict[int, list[nn.Parameter]] = {}
    for original in pairs:
        if type(original.data) is Tensor and original.layout == torch.strided:
            memory = 0 if original.is_meta else original.untyped_storage().data_ptr()
            together.setdefault(memory, []).append(original)
    for memory, originals in together.items():
        mine = [pairs[original] for original in originals]
        if memory == 0 or len({p.untyped_storage().data_ptr() for p in mine}) < len(mine):
            continue
        if len(originals) < 2 or not _overlap(originals):
            continue  # parts of one buffer, as in a GRU, share no number
        storage = originals[0].untyped_storage().clone()
        for original, twin in zip(originals, mine, strict=True):
            place = (original.storage_offset(), original.shape, original.stride())
            twin.data = original.data.new_empty(0).set_(storage, *place)


def _overlap(tensors: list[nn.Parameter]) -> bool:
    """Whether two tensors of one memory share a number; they span what their strides reach."""
    spans = []
    for tensor in tensors:
        first = tensor.storage_offset() * tensor.element_size()
        reach = sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
        spans.append((first, first + (reach + 1) * tensor.element_size() * (tensor.numel() > 0)))
    spans.sort()
    return any(later[0] < earlier[1] for earlier, later in itertools.pairwise(spans))


def _copy(name: str, value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, (int, float, str)):
        return value
    if name in _BOOKKEEPING and type(value) is dict:  # parameters, buffers, children
        return {key: copy.deepcopy(each, memo) for key, each in value.items()}
    return copy.deepcopy(value, memo)


def _copies_as_usual(kind: type) -> bool:
    """Whether no class below nn.Module says how it wants to be copied."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return not any(name in vars(base) for base in own for name in _OWN_WAYS)
