"""`copy.deepcopy` for modules, several times faster on small ones, with the same result.

A check wants a fresh copy for every trial, and a tiny model is some thirty modules with a dozen
mostly empty dictionaries each: copying those one by one costs more than running the model. Here
every module gets its shell first, so that whatever refers to it finds the copy; then only what is
not empty and not a constant is handed to `copy.deepcopy`.
"""

from __future__ import annotations

import copy
from typing import Any, TypeVar

from torch import nn

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
_BOOKKEEPING = frozenset(vars(nn.Module()))  # torch's own attributes, shared by no two modules


def clone(model: Model) -> Model:
    """Return a deep copy. Raises whatever a class raises that refuses to be copied."""
    memo: dict[int, Any] = {}
    plain = [module for module in model.modules() if _copies_as_usual(type(module))]
    for module in plain:
        memo[id(module)] = type(module).__new__(type(module))
    for module in plain:
        copied = {name: _copy(name, value, memo) for name, value in vars(module).items()}
        vars(memo[id(module)]).update(copied)
    copied = copy.deepcopy(model, memo)  # from the memo, unless its class has a way of its own
    for mine, original in zip(copied.parameters(), model.parameters(), strict=True):
        if original.is_leaf and not mine.is_leaf:  # TorchScript copies as autograd's clone does
            mine.detach_().requires_grad_(original.requires_grad)
    return copied


def _copy(name: str, value: Any, memo: dict[int, Any]) -> Any:
    if isinstance(value, (bool, int, float, str, type(None))):
        return value
    if name in _BOOKKEEPING and not value:
        return value.copy()
    if name in _BOOKKEEPING and type(value) is dict:  # parameters, buffers, children
        return {key: copy.deepcopy(each, memo) for key, each in value.items()}
    return copy.deepcopy(value, memo)


def _copies_as_usual(kind: type) -> bool:
    """Whether no class below nn.Module says how it wants to be copied."""
    own = kind.__mro__[: kind.__mro__.index(nn.Module)]
    return not any(name in vars(base) for base in own for name in _OWN_WAYS)
