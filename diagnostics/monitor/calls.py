"""Calling the user's model with what the loop gave to `step`, once more, without a trace.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.nn import functional

from diagnostics._adapter import TARGET_NAMES, find_logits

Forward = Callable[[Any, Any, Any], Any]  # (model, inputs, targets) -> what the model returns
_LIBRARIES = ("torch", "transformers", "accelerate", "peft")
_WRAPPERS = ("_orig_mod", "module")  # torch.compile; DataParallel and DistributedDataParallel


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the model inside compile and data-parallel wrappers.

    A hook does not run inside compiled code, and one process that calls a distributed model alone
    would wait for the others for ever.
    """
    for _ in range(4):  # wrappers in wrappers
        wrapped = hasattr(model, "_orig_mod") or "parallel" in type(model).__name__.lower()
        inner = [getattr(model, name, None) for name in _WRAPPERS] if wrapped else []
        found = next((part for part in inner if isinstance(part, nn.Module)), None)
        if found is None:
            break
        model = found
    return model


def call(model: nn.Module, inputs: Any, targets: Any, forward: Forward | None) -> Any:
    """Call the model as the loop does: by `forward`, by name for a dict, by position otherwise."""
    if forward is not None:
        return forward(model, inputs, targets)
    if isinstance(inputs, Mapping):
        return model(**inputs)
    given = tuple(inputs) if isinstance(inputs, (tuple, list)) else (inputs,)
    if targets is None:
        return model(*given)
    names = list(inspect.signature(unwrapped(model).forward).parameters)
    name = next((name for name in TARGET_NAMES if name in names[len(given) :]), None)
    return model(*given) if name is None else model(*given, **{name: targets})


def loss_of(raw: Any, targets: Any) -> Tensor | None:
    """Return the loss in what a model returned, or cross-entropy of its logits, or None."""
    if isinstance(raw, Tensor) and raw.ndim == 0:
        return raw
    loss, logits = _loss_in(raw), find_logits(raw)
    if loss is not None:
        return loss.mean()
    if logits is None or not isinstance(targets, Tensor):
        return None
    if logits.ndim == 3 and logits.shape[:2] == targets.shape:
        return functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
    return None


def _loss_in(raw: Any) -> Tensor | None:
    loss = raw.get("loss") if isinstance(raw, Mapping) else getattr(raw, "loss", None)
    if loss is None and isinstance(raw, (tuple, list)):
        small = (p for p in raw if isinstance(p, Tensor) and p.is_floating_point() and p.ndim < 2)
        loss = next(small, None)
    return loss if isinstance(loss, Tensor) else None


def rows_of(value: Any, most: int) -> Any:
    """Return the first rows of a batch: tensors alone, or in a tuple, list or dict."""
    if isinstance(value, Tensor):
        return value[:most] if value.ndim > 1 else value
    if isinstance(value, Mapping):
        return {name: rows_of(part, most) for name, part in value.items()}
    if isinstance(value, (tuple, list)):
        return tuple(rows_of(part, most) for part in value)
    return value


def words_of(error: Exception) -> str:
    """Return the kind of an error and the first line of its message, at most 200 characters."""
    message = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {message}"[:200]


@contextmanager
def hooks_set_aside(model: nn.Module) -> Iterator[None]:
    """Take the user's hooks off for a moment: an extra call must not reach their counters.

    Those of libraries stay: weight norm, quantisation and adapters compute with them.
    """
    tables = [
        table
        for module in model.modules()
        for name in ("_forward_hooks", "_forward_pre_hooks")
        if (table := getattr(module, name, None))
    ]
    saved = [dict(table) for table in tables]
    for table in tables:
        for key, hook in list(table.items()):
            home = str(getattr(hook, "__module__", type(hook).__module__) or "")
            if home.split(".")[0] not in _LIBRARIES:
                del table[key]
    try:
        yield
    finally:
        for table, hooks in zip(tables, saved, strict=True):
            table.clear()
            table.update(hooks)
