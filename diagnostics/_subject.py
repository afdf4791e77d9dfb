"""What a report is about: the model, its weights, the ids and the options, as digests and counts.

So that two reports can be told apart: where the weights and the ids are the same, what differs
comes from elsewhere. Digests are SHA-256 in hexadecimal digits; equal content has equal digests on
every device, in every process, and on all machines of one byte order.

They cover the tensors of the state dict under their names there, persistent buffers included.
They do not cover what is kept outside of it: buffers that are not persistent, weights in a plain
list, which tensors are tied, the code. A wrapper that renames weights, as torch.compile and
DistributedDataParallel do, gives another digest.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from diagnostics._pipeline import Pipeline

BLOCK = 1 << 20  # ids that are hashed at once: 8 MB as int64
_ID_TYPES = (
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
)

_T = TypeVar("_T")


class _Hash(Protocol):
    def update(self, data: Any, /) -> None: ...


def measure_subject(
    pipeline: Pipeline,
    *,
    only: Iterable[str] | None = None,
    skip: Iterable[str] = (),
    fast: bool = False,
    overfit_steps: int = 300,
) -> dict[str, Any]:
    """Return what is measured and how, in plain values; call it before any check runs.

    model: name of its class.    parameters, trainable: counts of numbers, tied ones once.
    dtype: types of the parameters, such as "bfloat16, float32"; None where there are none.
    weights_sha256: see `digest_weights`.    train_ids_sha256, val_ids_sha256: see `digest_ids`.
    options: as `diagnose` takes them, names in order, each once.

    Whatever cannot be told is None. Never raises, and changes neither model nor ids.
    """
    model = pipeline.model
    return {
        "model": type(model).__name__,
        "parameters": _or_none(lambda: _count(model.parameters())),
        "trainable": _or_none(lambda: _count(p for p in model.parameters() if p.requires_grad)),
        "dtype": _or_none(lambda: _types(model)),
        "weights_sha256": digest_weights(model),
        "train_ids_sha256": digest_ids(pipeline.train_ids),
        "val_ids_sha256": digest_ids(pipeline.val_ids),
        "options": {
            "only": None if only is None else sorted(set(only)),
            "skip": sorted(set(skip)),
            "fast": bool(fast),
            "overfit_steps": overfit_steps,
        },
    }


def digest_weights(model: nn.Module) -> str | None:
    """Return the SHA-256 of the state dict: name, type, shape and bytes of each tensor, by name.

    Every field has its length before it, so that no two states give the same bytes. -0.0 differs
    from 0.0, and a NaN is what its bits are. None where the state dict is empty, raises, or holds
    what has no plain bytes: meta, quantised, sparse, lazy, subclasses, state that is no tensor.
    """
    return _or_none(lambda: _digest_state(model))


def digest_ids(ids: Any) -> str | None:
    """Return the SHA-256 of the shape and of the ids as int64, little-endian, whatever their type.

    ids: any shape, on any device; read in blocks. None where they are no tensor of integers.
    """
    return _or_none(lambda: _digest_ids(ids))


def _digest_state(model: nn.Module) -> str | None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the user's own hooks; nothing is being checked yet
        state = model.state_dict()
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name]
        if not _has_bytes(tensor):
            return None
        _add(found, name.encode("utf-8", "surrogatepass"))
        _add(found, str(tensor.dtype).encode())
        _add(found, str(tuple(tensor.shape)).encode())
        _add(found, _bytes_of(tensor))
    return found.hexdigest() if state else None


def _digest_ids(ids: Any) -> str | None:
    if not _has_bytes(ids) or ids.dtype not in _ID_TYPES:
        return None
    found = hashlib.sha256()
    _add(found, str(tuple(ids.shape)).encode())
    flat = ids.detach().reshape(-1)
    for start in range(0, len(flat), BLOCK):
        block = flat[start : start + BLOCK].cpu().to(torch.int64).contiguous()
        found.update(block.numpy().astype("<i8", copy=False).data)
    return found.hexdigest()


def _has_bytes(tensor: Any) -> bool:
    """Return whether the values lie in memory as they are; a subclass may mean others by them."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and tensor.layout is torch.strided
        and not tensor.is_meta
        and not tensor.is_quantized
    )


def _bytes_of(tensor: Tensor) -> memoryview:
    # a conjugated view only notes that it is one: its memory holds other values
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().data


def _add(found: _Hash, field: bytes | memoryview) -> None:
    found.update(len(field).to_bytes(8, "little"))
    found.update(field)


def _count(parameters: Iterable[Tensor]) -> int:
    return sum(parameter.numel() for parameter in parameters)


def _types(model: nn.Module) -> str | None:
    names = {str(parameter.dtype).removeprefix("torch.") for parameter in model.parameters()}
    return ", ".join(sorted(names)) or None


def _or_none(measure: Callable[[], _T]) -> _T | None:
    """Return None where the user's part raises, whatever it is: a report is worth more."""
    try:
        return measure()
    except Exception:
        return None
