"""Putting weights into a model, all of them or none, and explaining why they do not fit.

`load_state_dict(strict=False)` is the quiet way to lose a model: with a prefix on every name it
loads nothing, and the random weights go on to write nonsense. Here loading is strict, and what
does not fit is turned into what it points to: another vocabulary, another width, another depth,
a wrapper's prefix.

Shapes: C embedding_dim, V vocab_size.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from minigpt._checkpoint_errors import CheckpointConfigError
from minigpt.model import MiniGPT, MiniGPTConfig

NAMES_SHOWN = 4  # of each kind; one wrong number in the configuration misfits every layer


def load_weights(
    model: nn.Module, state_dict: Mapping[str, Tensor], *, strict: bool = True, assign: bool = False
) -> list[str]:
    """Load a state dict; return what did not fit as lines of text, none when all of it did.

    strict: anything that does not fit raises CheckpointConfigError and leaves `model` as it was.
    strict=False loads only the names and shapes that fit. That is for looking into a file, not
    for use: the rest of the model keeps the weights it had.
    assign: the model takes over the given tensors, with their dtype, instead of copying them.
    """
    lines = explain_state_dict_mismatch(model, state_dict)
    if strict and lines:
        raise CheckpointConfigError(
            "the weights do not fit the model, nothing was loaded:\n  " + "\n  ".join(lines)
        )
    expected = model.state_dict()
    fitting = {
        name: tensor
        for name, tensor in state_dict.items()
        if name in expected and not _misfits(expected[name], tensor)
    }
    model.load_state_dict(fitting, strict=strict, assign=assign)
    return lines


def explain_state_dict_mismatch(model: nn.Module, state_dict: Mapping[str, Tensor]) -> list[str]:
    """Return lines that list what does not fit and say what it points to; [] when all fits.

    missing: names that the model has and the weights have not. unexpected: the other way round.
    size: both have the name, with different shapes. Then come the likely reason and, for a
    MiniGPT, the configuration that would fit.
    """
    expected = model.state_dict()
    missing = [name for name in expected if name not in state_dict]
    unexpected = [name for name in state_dict if name not in expected]
    sizes = [
        f"{name}: model {_describe(expected[name])}, weights {_describe(tensor)}"
        for name, tensor in state_dict.items()
        if name in expected and _misfits(expected[name], tensor)
    ]
    if not (missing or unexpected or sizes):
        return []
    lines = [
        *_list_some(f"missing: {len(missing)} of the model's {len(expected)} names", missing),
        *_list_some(f"unexpected: {len(unexpected)} names that it does not have", unexpected),
        *_list_some(f"size: {len(sizes)} names with another shape or kind of number", sizes),
    ]
    prefix = _find_prefix(expected, state_dict)
    if prefix:
        lines.append(
            f"all names start with {prefix!r}, which a wrapper (torch.compile, data parallel) puts "
            f"there: load {{name.removeprefix({prefix!r}): t for name, t in weights.items()}}"
        )
        state_dict = {name.removeprefix(prefix): tensor for name, tensor in state_dict.items()}
    if isinstance(model, MiniGPT):
        lines += _compare_numbers(model.config, infer_config_numbers(state_dict))
    return lines


def infer_config_numbers(state_dict: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the numbers of the configuration that the shapes of MiniGPT's weights reveal.

    Every field but num_heads and dropout, which leave no trace; {} for another model's weights.
    """
    try:
        vocab_size, embedding_dim = state_dict["token_embedding.weight"].shape  # (V, C)
        block_size, _ = state_dict["position_embedding.weight"].shape
        hidden_dim, _ = state_dict["blocks.0.feed_forward.expand.weight"].shape
        expansion_factor = hidden_dim // embedding_dim
    except (KeyError, ValueError, AttributeError, ZeroDivisionError):
        return {}
    layers = {match[1] for name in state_dict if (match := re.match(r"blocks\.(\d{1,9})\.", name))}
    return {
        "vocab_size": vocab_size,
        "block_size": block_size,
        "embedding_dim": embedding_dim,
        "num_layers": len(layers),
        "expansion_factor": expansion_factor,
    }


def build_without_memory(config: MiniGPTConfig) -> MiniGPT:
    """Return a MiniGPT on the meta device: names and shapes, no numbers yet.

    Drawing fresh weights takes longer than reading the trained ones that replace them.
    """
    with torch.device("meta"), _SkipInitialisation():
        return MiniGPT(config)


class _SkipInitialisation(TorchFunctionMode):
    """Turns the functions of torch.nn.init that draw numbers into no-ops.

    On the meta device they would draw nothing, but import torch's compiler: two seconds.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", None) == "torch.nn.init":
            return kwargs["tensor"] if "tensor" in kwargs else args[0]
        return func(*args, **kwargs)


def _misfits(expected: Tensor, found: Tensor) -> bool:
    same_kind = expected.is_floating_point() == found.is_floating_point()
    return expected.shape != found.shape or not same_kind


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _list_some(title: str, items: list[str]) -> list[str]:
    if not items:
        return []
    rest = len(items) - NAMES_SHOWN
    shown = [f"  {item}" for item in items[:NAMES_SHOWN]]
    return [title, *shown, *([f"  and {rest} more"] if rest > 0 else [])]


def _find_prefix(expected: Iterable[str], found: Iterable[str]) -> str:
    """Return the text before each found name that makes some of the model's names, or ''."""
    found, expected = list(found), set(expected)
    if not found or not expected.isdisjoint(found):
        return ""
    for position in (match.end() for match in re.finditer(r"\.", found[0])):
        prefix = found[0][:position]
        if all(name.startswith(prefix) for name in found) and found[0][position:] in expected:
            return prefix
    return ""


def _compare_numbers(config: MiniGPTConfig, found: dict[str, int]) -> list[str]:
    """Say which numbers of the configuration differ, and which configuration would fit."""
    if not found:
        return ["the names are not those of a MiniGPT: the weights belong to another model class"]
    wanted = config.to_dict()
    differing = [
        f"the model has {name} = {wanted[name]}, the weights were made with {name} = {number}"
        for name, number in found.items()
        if wanted[name] != number
    ]
    if not differing:
        return ["the configuration agrees: single tensors were renamed, lost or replaced"]
    numbers = ", ".join(f"{name}={number}" for name, number in found.items())
    fits = f"these weights fit MiniGPTConfig({numbers}, num_heads=...)"
    return [*differing, f"{fits}; num_heads leaves no trace in the shapes"]
