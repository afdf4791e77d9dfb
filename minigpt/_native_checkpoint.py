"""The native format: one `.safetensors` file with tensors and a card of everything else.

Tensors are named `model.<name>`, `optimizer.<index>.<key>` and `random.<name>`. The card is JSON
in the header's metadata: `python -c "import safetensors; print(safetensors.safe_open(FILE,
'pt').metadata()['card'])"` shows it without reading a weight.
"""

from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, BinaryIO

from torch import Tensor

from minigpt._checkpoint_contents import Contents, check_types
from minigpt._checkpoint_errors import CheckpointError, corrupt
from minigpt._safetensors_file import read_tensors, write_tensors

FORMAT = "minigpt-checkpoint"
FORMAT_VERSION = 1
CARD_FIELDS = tuple(  # everything that is neither tensors nor the optimizer's state
    field.name
    for field in dataclasses.fields(Contents)
    if field.name not in {"weights", "random_states", "optimizer_state"}
)


def write_native(file: BinaryIO, contents: Contents) -> None:
    """Write the contents to a new file. Raises TypeError for what the format cannot hold."""
    tensors = {
        f"model.{name}": tensor
        for name, tensor in contents.weights.items()
        if name not in contents.tied
    }
    for name, tensor in (contents.random_states or {}).items():
        tensors[f"random.{name}"] = tensor
    card: dict[str, Any] = {name: getattr(contents, name) for name in CARD_FIELDS}
    card |= {"format": FORMAT, "format_version": FORMAT_VERSION}
    card["has_random_states"] = contents.random_states is not None
    card["optimizer"] = None
    if contents.optimizer_state is not None:
        values: dict[str, dict[str, Any]] = {}
        for index, state in contents.optimizer_state["state"].items():
            values[str(index)] = {}
            for key, value in state.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{index}.{key}"] = value
                else:
                    values[str(index)][key] = value
        groups = contents.optimizer_state["param_groups"]
        card["optimizer"] = {"param_groups": groups, "values": values}
    try:
        text = json.dumps(card)
    except (TypeError, ValueError) as error:
        raise TypeError(f"the optimizer must have plain settings: {error}") from None
    write_tensors(file, tensors, {"card": text})


def read_native(path: str | os.PathLike[str]) -> Contents:
    """Read what `write_native` wrote; anything else raises CheckpointCorruptError."""
    tensors, metadata = read_tensors(path)
    try:
        card = json.loads(metadata["card"])
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
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
        found = f"a card that does not parse ({type(error).__name__}: {str(error)[:80]})"
        raise corrupt(path, wanted="a checkpoint of minigpt", found=found) from None
    return contents


def _take(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {
        name.removeprefix(prefix): tensor
        for name, tensor in tensors.items()
        if name.startswith(prefix)
    }


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
