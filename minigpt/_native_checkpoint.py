"""The native format: one `.safetensors` file with tensors and a card of everything else.

The `safetensors` library writes and reads it; nothing in such a file can be executed. Tensors are
named `model.<name>`, `optimizer.<index>.<key>` and `random.<name>`. The card is JSON in the
header's metadata: `python -c "import safetensors; print(safetensors.safe_open(FILE,
'pt').metadata()['card'])"` shows it without reading a weight.

Two things are added here. A digest: one flipped bit in a weight gives a model that loads, runs
and is slightly wrong. And copies: the library maps the file, so that overwriting it would change,
or crash, a program that has loaded it. Its tensors also start at any address, where some matrix
products round differently, which would end the bit-for-bit resume; torch's copies do not.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from minigpt._checkpoint_contents import Contents, check_types
from minigpt._checkpoint_errors import CheckpointError, corrupt

FORMAT = "minigpt-checkpoint"
FORMAT_VERSION = 1
CARD_FIELDS = tuple(  # everything that is neither tensors nor the optimizer's state
    field.name
    for field in dataclasses.fields(Contents)
    if field.name not in {"weights", "random_states", "optimizer_state"}
)
NO_DIGEST = "0" * 64  # stands in the card while the digest is computed


def write_native(file: BinaryIO, contents: Contents) -> None:
    """Write the contents to a new file. Raises TypeError for what the format cannot hold."""
    tensors = {
        f"model.{name}": tensor
        for name, tensor in contents.weights.items()
        if name not in contents.tied
    }
    for name, tensor in (contents.random_states or {}).items():
        tensors[f"random.{name}"] = tensor
    # The digest is in the card and not beside it: the library writes several texts in any order,
    # and equal contents would give unequal files. Its zeros are the first 64 zeros in the card.
    card: dict[str, Any] = {"sha256": NO_DIGEST, "format": FORMAT, "format_version": FORMAT_VERSION}
    card |= {name: getattr(contents, name) for name in CARD_FIELDS}
    card["has_random_states"] = contents.random_states is not None
    card["optimizer"] = None
    if contents.optimizer_state is not None:
        card["optimizer"], more = _split_optimizer(**contents.optimizer_state)
        tensors |= more
    try:
        text = json.dumps(card)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the optimizer must have plain settings: {error}") from None
    text = text.replace(NO_DIGEST, _digest(text, tensors), 1)
    # Through memory: the library turns a full disk into an error that does not say so.
    file.write(_to_bytes(tensors, text))


def read_native(path: str | os.PathLike[str]) -> Contents:
    """Read what `write_native` wrote; anything else raises CheckpointCorruptError.

    The library compares all that the header claims with the size of the file before any memory
    is taken. Nothing is returned unless the digest fits. Raises OSError for an unreadable file.
    """
    tensors, text = _read_file(path)
    try:
        card = json.loads(text)
        _compare_digests(path, card["sha256"], text, tensors)
        if card["format"] != FORMAT or card["format_version"] != FORMAT_VERSION:
            found = f"{str(card['format'])[:40]} {str(card['format_version'])[:40]}"
            remedy = "a newer version of this package may have written it: update the package"
            wanted = f"{FORMAT} {FORMAT_VERSION}"
            raise corrupt(path, wanted=wanted, found=found, remedy=remedy)
        contents = Contents(weights={}, **{name: card[name] for name in CARD_FIELDS})
        check_types(contents, path)
        contents.weights = _take(tensors, "model.")
        contents.weights |= {name: contents.weights[kept] for name, kept in contents.tied.items()}
        if card["has_random_states"]:
            contents.random_states = _take(tensors, "random.")
        if card["optimizer"] is not None:
            contents.optimizer_state = _join_optimizer(tensors, **card["optimizer"])
    except CheckpointError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        found = f"a card that does not parse ({type(error).__name__}: {str(error)[:80]})"
        raise corrupt(path, wanted="a checkpoint of minigpt", found=found) from None
    return contents


def _to_bytes(tensors: dict[str, Tensor], card: str) -> bytes:
    """Return the bytes of the file; tensors that share memory are replaced by copies."""
    seen: set[int] = set()  # the library refuses such tensors
    for name, tensor in tensors.items():
        if tensor.data_ptr() in seen:
            tensors[name] = tensor.clone()
        seen.add(tensor.data_ptr())
    try:
        return safetensors.torch.save(tensors, {"card": card})
    except KeyError as error:
        raise TypeError(f"tensors must have a dtype of the format, got {error}") from None


def _read_file(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], str]:
    """Return the tensors, in memory of their own, and the card."""
    with Path(path).open("rb") as start:  # the library's OSErrors do not name the file
        first = start.read(4)
    if not first:
        raise corrupt(path, wanted="a .safetensors file", found="an empty file")
    if first == b"PK\x03\x04":  # the container of torch.save
        remedy = "if torch.save made it, rename it to .pt"
        raise corrupt(path, wanted="a .safetensors file", found="a zip archive", remedy=remedy)
    try:
        with safe_open(path, "pt") as file:
            metadata, names = file.metadata() or {}, file.keys()
            tensors = {name: file.get_tensor(name).clone() for name in names}
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise corrupt(path, wanted="a .safetensors file", found=str(error)[:160]) from None
    if "card" not in metadata:
        found = "a .safetensors file without a card: made by another program, or damaged"
        raise corrupt(path, wanted="a checkpoint of minigpt", found=found)
    return tensors, metadata["card"]


def _compare_digests(
    path: str | os.PathLike[str], stored: str, text: str, tensors: dict[str, Tensor]
) -> None:
    computed = _digest(text.replace(stored, NO_DIGEST, 1), tensors)
    if computed != stored:
        raise corrupt(
            path,
            wanted=f"content with the digest {stored[:12]}... of its card",
            found=f"{computed[:12]}...: at least one bit has changed since it was written",
        )


def _digest(card: str, tensors: dict[str, Tensor]) -> str:
    """Return SHA-256 over the card, the names, dtypes and shapes, and all bytes, by name."""
    names = sorted(tensors)
    table = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    digest = hashlib.sha256(json.dumps([card, table]).encode())
    for name in names:
        content: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()  # the same memory
        digest.update(content)
    return digest.hexdigest()


def _take(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


def _split_optimizer(
    *, state: dict[int, dict[str, Any]], param_groups: Any
) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Return what of the optimizer's state dict goes into the card, and its tensors."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, dict[str, Any]] = {str(index): {} for index in state}
    for index, entries in state.items():
        for key, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                values[str(index)][key] = value
    return {"param_groups": param_groups, "values": values}, tensors


def _join_optimizer(
    tensors: dict[str, Tensor], *, param_groups: Any, values: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Return the state dict as the optimizer gave it: whole numbers as keys, betas as a tuple."""
    state: dict[int, dict[str, Any]] = {int(index): dict(v) for index, v in values.items()}
    for name, tensor in _take(tensors, "optimizer.").items():
        index, _, key = name.partition(".")
        state[int(index)][key] = tensor
    groups = [
        {
            key: tuple(value) if isinstance(value, list) and key != "params" else value
            for key, value in group.items()
        }
        for group in param_groups
    ]
    return {"state": state, "param_groups": groups}
