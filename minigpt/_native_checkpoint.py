"""The native format: one `.safetensors` file with tensors and a card of everything else.

Nothing in such a file can be executed, and any reader of the `safetensors` format reads it. Tensors
are named `model.<name>`, `optimizer.<index>.<key>` and `random.<name>`. The card is JSON in the
header's metadata: `python -c "import safetensors; print(safetensors.safe_open(FILE,
'pt').metadata()['card'])"` shows it without reading a weight.

A digest is added, because one flipped bit in a weight gives a model that loads, runs and is
slightly wrong: SHA-256 over the card and, for each tensor, name, dtype, shape and checksum. All of
it is compared on every load, before anything is returned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from pathlib import Path
from typing import Any, BinaryIO

from safetensors import SafetensorError
from torch import Tensor

from minigpt._checkpoint_contents import Contents, check_types
from minigpt._checkpoint_errors import CheckpointError, corrupt
from minigpt._tensor_file import get_bytes, read_tensors, write_tensors

FORMAT = "minigpt-checkpoint"
FORMAT_VERSION = 2  # 1 had SHA-256 over the bytes of all tensors in its digest; it still loads
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
    # and equal contents would give unequal files. Its zeros are the first 64 zeros in the file.
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
    start, checksums = write_tensors(file, tensors, {"card": text})
    file.seek(start.index(NO_DIGEST.encode()))  # known only now that every byte has been seen
    file.write(_digest(text, tensors, checksums).encode())


def read_native(path: str | os.PathLike[str]) -> Contents:
    """Read what `write_native` wrote; anything else raises CheckpointCorruptError.

    The library compares all that the header claims with the size of the file before any memory
    is taken. Nothing is returned unless the digest fits. Raises OSError for an unreadable file.
    """
    tensors, text, checksums = _read_file(path)
    try:
        card = json.loads(text)
        if card["format"] != FORMAT or card["format_version"] not in (1, FORMAT_VERSION):
            found = f"{str(card['format'])[:40]} {str(card['format_version'])[:40]}"
            remedy = "a newer version of this package may have written it: update the package"
            wanted = f"{FORMAT} {FORMAT_VERSION}"
            raise corrupt(path, wanted=wanted, found=found, remedy=remedy)
        blank = text.replace(card["sha256"], NO_DIGEST, 1)
        computed = _digest(blank, tensors, None if card["format_version"] == 1 else checksums)
        if computed != card["sha256"]:
            raise corrupt(
                path,
                wanted=f"content with the digest {card['sha256'][:12]}... of its card",
                found=f"{computed[:12]}...: at least one bit has changed since it was written",
            )
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


def _read_file(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Tensor], str, dict[str, int]]:
    """Return the tensors, the card, and the checksum of each tensor."""
    with Path(path).open("rb") as start:  # the library's OSErrors do not name the file
        first = start.read(4)
    if not first:
        raise corrupt(path, wanted="a .safetensors file", found="an empty file")
    if first == b"PK\x03\x04":  # the container of torch.save
        remedy = "if torch.save made it, rename it to .pt"
        raise corrupt(path, wanted="a .safetensors file", found="a zip archive", remedy=remedy)
    try:
        tensors, metadata, checksums = read_tensors(path)
    except (SafetensorError, RuntimeError, ValueError) as error:
        raise corrupt(path, wanted="a .safetensors file", found=str(error)[:160]) from None
    if "card" not in metadata:
        found = "a .safetensors file without a card: made by another program, or damaged"
        raise corrupt(path, wanted="a checkpoint of minigpt", found=found)
    return tensors, metadata["card"], checksums


def _digest(card: str, tensors: dict[str, Tensor], checksums: dict[str, int] | None) -> str:
    """Return SHA-256 over the card and all tensors by name; without checksums, over their bytes."""
    names = sorted(tensors)
    table: list[list[Any]] = [
        [name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names
    ]
    for name, row in zip(names, table, strict=True):
        row += [] if checksums is None else [checksums[name]]
    digest = hashlib.sha256(json.dumps([card, table]).encode())
    if checksums is None:
        for name in names:
            digest.update(get_bytes(tensors[name]))
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
