"""What a model is made of, and how two models differ: names, shapes, values, ties.

Tensors are compared on the CPU, bit for bit.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._text import Text, say

WRAPPERS = ("_orig_mod.", "module.")  # torch.compile, DataParallel
HALVES = (torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class StateDifference:
    """How the tensors of a checkpoint differ from those that a model wants."""

    missing: list[str]  # wanted, not found
    unexpected: list[str]  # found, not wanted
    mismatched: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]  # name: (wanted, found)
    sentences: tuple[Text, ...] = ()  # the same in words, what it means first

    @property
    def is_empty(self) -> bool:
        """Whether names and shapes agree."""
        return not (self.missing or self.unexpected or self.mismatched)

    def __str__(self) -> str:
        return "\n".join(self.sentences) if self.sentences else "names and shapes agree"


@dataclass
class State:
    """A copy of everything that makes up a model, on the CPU."""

    parameters: dict[str, Tensor]  # tied ones under every name
    buffers: dict[str, Tensor]
    persistent: set[str]  # buffers that a state_dict holds
    trainable: dict[str, bool]
    ties: set[frozenset[str]]  # groups of names that share storage
    training: list[bool] = field(default_factory=list)  # mode of every module
    device: str = "cpu"
    gradients: dict[str, Tensor | None] = field(default_factory=dict)


def read_state(model: nn.Module) -> State:
    """Return a copy of a model's state; wrapper prefixes are taken off the names."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    first = next(iter(parameters.values()), None)
    return State(
        parameters={bare_name(n): p.detach().cpu().clone() for n, p in parameters.items()},
        buffers={bare_name(n): b.detach().cpu().clone() for n, b in buffers.items()},
        persistent={bare_name(n) for n in model.state_dict() if n in buffers},
        trainable={bare_name(n): p.requires_grad for n, p in parameters.items()},
        ties=_ties({bare_name(n): p for n, p in parameters.items()}),
        training=[module.training for module in model.modules()],
        device="cpu" if first is None else str(first.device),
        gradients={
            bare_name(n): None if p.grad is None else p.grad.detach().cpu().clone()
            for n, p in parameters.items()
        },
    )


def compare_state_dicts(
    expected: Mapping[str, Tensor], found: Mapping[str, Tensor]
) -> StateDifference:
    """Compare names and shapes of what a model wants with what a checkpoint holds, in words.

    expected: model.state_dict().    found: the checkpoint's.
    The first sentences say what the numbers mean: another vocabulary size, width or depth.
    """
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    shapes = {
        name: (tuple(tensor.shape), tuple(found[name].shape))
        for name, tensor in expected.items()
        if name in found and tensor.shape != found[name].shape
    }
    sentences = [*_readings(expected, found, missing, unexpected, shapes)]
    for count, words in (
        (missing, "missing from the checkpoint"),
        (unexpected, "unexpected in it"),
    ):
        if count:
            sentences.append(
                say("{n:name|names} {words}: {names}", n=len(count), words=words, names=some(count))
            )
    for name, (wanted, came) in list(shapes.items())[:3]:
        sentences.append(
            say("{name}: wanted shape {wanted}, got {came}", name=name, wanted=wanted, came=came)
        )
    if len(shapes) > 3:
        sentences.append(say("and {more} more shapes differ", more=len(shapes) - 3))
    return StateDifference(missing, unexpected, shapes, tuple(sentences))


def fitting_change(saved: Tensor, loaded: Tensor, all_saved: Mapping[str, Tensor]) -> str | None:
    """Name what turns the saved tensor into the loaded one; None where nothing known does."""
    if saved.is_floating_point() and loaded.is_floating_point():
        for half in HALVES:
            if same_bytes(saved.to(half).to(loaded.dtype), loaded):
                return f"rounded to {str(half).removeprefix('torch.')}"
    if saved.ndim == 2 and same_bytes(saved.T.contiguous(), loaded):
        return "transposed"
    for name, other in all_saved.items():
        if same_bytes(other, loaded):
            return f"replaced by {name}"
    return None


def bare_name(name: str) -> str:
    """Take the prefixes of wrappers off a name."""
    for wrapper in WRAPPERS:
        name = name.removeprefix(wrapper)
    return name


def some(names: list[str], most: int = 3) -> str:
    """Name a few, and say how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _ties(parameters: Mapping[str, Tensor]) -> set[frozenset[str]]:
    groups: dict[tuple[int, int], set[str]] = {}
    for name, parameter in parameters.items():
        if parameter.numel():
            place = (parameter.untyped_storage().data_ptr(), int(parameter.storage_offset()))
            groups.setdefault(place, set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def _readings(
    expected: Mapping[str, Tensor],
    found: Mapping[str, Tensor],
    missing: list[str],
    unexpected: list[str],
    shapes: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]],
) -> list[Text]:
    """Say what the differences mean for the architecture."""
    depths = [_depth(expected), _depth(found)]
    readings: list[Text] = []
    if depths[0] != depths[1] and (missing or unexpected):
        readings.append(
            say("the model has {a} layers, the checkpoint {b}", a=depths[0], b=depths[1])
        )
    if missing and {bare_name(n) for n in missing} <= {bare_name(n) for n in unexpected}:
        readings.append(say("the names differ by a wrapper's prefix only"))
    # a width shows in most tensors, a vocabulary or a block size in one or two
    changed = [
        (wanted, came)
        for pair in shapes.values()
        for wanted, came in zip(*pair, strict=False)
        if wanted != came and len(pair[0]) == len(pair[1])
    ]
    for wanted, came in sorted(set(changed), key=changed.index):
        count = changed.count((wanted, came))
        kind = (
            "embedding dimension"
            if count > max(2, len(expected) // 4)
            else "vocabulary or block size"
        )
        readings.append(
            say(
                "{kind}: the model wants {wanted}, the checkpoint has {came}",
                kind=kind,
                wanted=wanted,
                came=came,
            )
        )
        if kind == "embedding dimension":
            break  # every other width follows from it
    return readings


def _depth(names: Mapping[str, Tensor]) -> int:
    """Return how many numbered layers the names speak of."""
    numbers = [int(m) for name in names for m in re.findall(r"\.(\d+)\.", f".{name}")[:1]]
    return max(numbers, default=-1) + 1
