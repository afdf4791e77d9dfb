"""What a checkpoint holds, as plain values, whatever the format of the file.

`gather` takes it out of a live model and optimizer; the two formats write and read it;
`checkpoint.load_checkpoint` builds the model from it.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from minigpt._checkpoint_errors import CheckpointTokenizerError, corrupt
from minigpt.fingerprint import tokenizer_fingerprint
from minigpt.model import MiniGPT
from minigpt.tokenizer import CharTokenizer
from minigpt.weights import build_without_memory, explain_state_dict_mismatch

WRAPPERS = ("_orig_mod", "module")  # where torch.compile and the data-parallel classes keep it
LOSSES = ("train_loss", "validation_loss", "best_validation_loss")


@dataclass(kw_only=True)
class Contents:
    """The fields of a checkpoint. Tensors lie on the CPU, contiguous, each with its own memory.

    tied: name -> the other name of the same weight; both are in `weights`.
    optimizer_state: as `optimizer.state_dict()` gives it; its parameters are numbers, and
    optimizer_parameters tells their names, so that they cannot be taken for one another.
    """

    config: dict[str, Any]
    weights: dict[str, Tensor]
    tied: dict[str, str] = field(default_factory=dict)
    chars: list[str] | None = None
    tokenizer_fingerprint: str | None = None
    corpus_fingerprint: str | None = None
    step: int = 0
    train_loss: float | None = None
    validation_loss: float | None = None
    best_validation_loss: float | None = None
    optimizer_class: str | None = None
    optimizer_parameters: list[str] | None = None
    optimizer_state: dict[str, Any] | None = None
    trainer_state: dict[str, Any] | None = None
    random_states: dict[str, Tensor] | None = None
    versions: dict[str, str] = field(default_factory=dict)


def gather(
    model: nn.Module,
    tokenizer: CharTokenizer,
    *,
    optimizer: torch.optim.Optimizer | None,
    step: int,
    losses: Mapping[str, Any],
    corpus_fingerprint: str | None,
    trainer_state: Mapping[str, Any] | None,
    random_states: Mapping[str, Tensor] | None,
) -> Contents:
    """Collect what is to be saved; nothing that is given is changed. Errors as save_checkpoint."""
    inner = unwrap(model)
    weights, tied = _plain_weights(inner)
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise ValueError(f"step must be a whole number >= 0, got {step!r}")
    if tokenizer.vocab_size > inner.config.vocab_size:
        raise CheckpointTokenizerError(
            f"the tokenizer must not have more characters than the model has ids, got "
            f"{tokenizer.vocab_size} and {inner.config.vocab_size}; save the tokenizer in use"
        )
    contents = Contents(
        config=inner.config.to_dict(),
        weights=weights,
        tied=tied,
        chars=list(tokenizer.chars),
        tokenizer_fingerprint=tokenizer_fingerprint(tokenizer.chars),
        corpus_fingerprint=corpus_fingerprint,
        step=step,
        trainer_state=None if trainer_state is None else _to_json("trainer_state", trainer_state),
        random_states=None
        if random_states is None
        else {name: to_plain(state) for name, state in random_states.items()},
        versions={
            "python": platform.python_version(),
            "torch": str(torch.__version__),
            "numpy": np.__version__,
        },
    )
    for name, loss in losses.items():
        setattr(contents, name, None if loss is None else float(loss))
    if optimizer is not None:
        contents.optimizer_class = type(optimizer).__name__
        contents.optimizer_parameters = name_parameters(inner, optimizer)
        contents.optimizer_state = _plain_optimizer_state(optimizer)
    return contents


def unwrap(model: nn.Module) -> MiniGPT:
    """Return the MiniGPT inside what torch.compile or data parallelism made of it."""
    inner: Any = model
    while not isinstance(inner, MiniGPT):
        inside = [getattr(inner, name) for name in WRAPPERS if hasattr(inner, name)]
        if not isinstance(inner, nn.Module) or not inside:
            raise TypeError(
                f"model must be a MiniGPT, whose configuration goes into the file, got "
                f"{type(model).__name__}; save other models with torch.save(model.state_dict())"
            )
        inner = inside[0]
    return inner


def name_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[str]:
    """Return the model's name for each parameter of the optimizer, in the optimizer's order.

    Raises ValueError when the optimizer holds a parameter that is not the model's.
    """
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    ours = [p for group in optimizer.param_groups for p in group["params"]]
    strangers = [tuple(parameter.shape) for parameter in ours if id(parameter) not in names]
    if strangers:
        raise ValueError(
            f"the optimizer must hold parameters of this model, got {len(strangers)} of "
            f"{len(ours)} that are not (the first has shape {strangers[0]}); was the model "
            "replaced or copied after the optimizer was made?"
        )
    return [names[id(parameter)].replace("_orig_mod.", "") for parameter in ours]


def to_plain(tensor: Tensor) -> Tensor:
    """Return the tensor on the CPU, contiguous, detached and in a storage of exactly its size."""
    plain = tensor.detach().cpu().contiguous()
    exact = plain.untyped_storage().nbytes() == plain.numel() * plain.element_size()
    return plain if exact else plain.clone()


def find_tied(state_dict: Mapping[str, Tensor]) -> dict[str, str]:
    """Return name -> first name, for names whose tensor is the very same memory."""
    first: dict[tuple[Any, ...], str] = {}
    tied = {}
    for name, tensor in state_dict.items():
        place = (str(tensor.device), tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        kept = first.setdefault(place, name)
        if kept != name and tensor.numel():
            tied[name] = kept
    return tied


def check_types(contents: Contents, path: str | os.PathLike[str]) -> None:
    """Raise CheckpointCorruptError for a field that is not of the kind it must be."""
    if not isinstance(contents.step, int) or contents.step < 0:
        raise corrupt(path, wanted="a step >= 0", found=f"a {type(contents.step).__name__}")
    kinds: list[tuple[str, type | tuple[type, ...]]] = [
        ("config", dict),
        ("tied", dict),
        ("versions", dict),
        ("trainer_state", (dict, type(None))),
        ("optimizer_state", (dict, type(None))),
        ("optimizer_parameters", (list, type(None))),
        ("optimizer_class", (str, type(None))),
        ("tokenizer_fingerprint", (str, type(None))),
        ("corpus_fingerprint", (str, type(None))),
        *((loss, (int, float, type(None))) for loss in LOSSES),
    ]
    for name, kind in kinds:
        value = getattr(contents, name)
        if not isinstance(value, kind):
            wanted = kind[0] if isinstance(kind, tuple) else kind
            found = f"a {type(value).__name__}"
            raise corrupt(path, wanted=f"a {wanted.__name__} as its {name}", found=found)


def _plain_weights(model: MiniGPT) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the weights under MiniGPT's own names, and which names are one weight."""
    # A block that was compiled by itself has a prefix in the middle of its names.
    state = {name.replace("_orig_mod.", ""): t for name, t in model.state_dict().items()}
    lines = explain_state_dict_mismatch(build_without_memory(model.config), state)
    if lines:
        raise TypeError(
            "model must be a MiniGPT of its own configuration, got one that was changed, which "
            "could not be loaded again:\n  " + "\n  ".join(lines)
        )
    if any(tensor.is_meta for tensor in state.values()):
        raise TypeError("model must hold numbers, got weights on the meta device")
    tied = find_tied(state)
    plain = {name: to_plain(tensor) for name, tensor in state.items() if name not in tied}
    return {name: plain[tied.get(name, name)] for name in state}, tied


def _plain_optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    raw = optimizer.state_dict()
    return {
        "state": {
            index: {
                key: to_plain(value) if isinstance(value, Tensor) else value
                for key, value in values.items()
            }
            for index, values in raw["state"].items()
        },
        "param_groups": [
            {
                key: value.item() if isinstance(value, Tensor) else value  # a learning rate
                for key, value in group.items()
            }
            for group in raw["param_groups"]
        ],
    }


def _to_json(name: str, value: Mapping[str, Any]) -> Any:
    """Return the value as it will be read back, before hours go into something unreadable."""
    try:
        return json.loads(json.dumps(dict(value)))
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"{name} must hold only what JSON can hold: {error}") from None
