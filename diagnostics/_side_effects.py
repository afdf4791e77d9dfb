"""What a call into the user's code does to a model meanwhile, and what it leaves behind.

Shapes: B batch, T time.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._state import State, read_state
from diagnostics._trace import tensors_in

OnCall = Callable[[tuple[Tensor, ...], Any], None]  # (integer tensors given, what came back)


@dataclass
class Watch:
    """How the model was run while it was watched.

    calls: forward calls of the whole model.    training: paths of modules that ran in train mode.
    gradients_recorded: whether any call built a graph.
    """

    calls: int = 0
    training: set[str] = field(default_factory=set)
    gradients_recorded: bool = False


@contextmanager
def watched(model: nn.Module, on_call: OnCall | None = None) -> Iterator[Watch]:
    """Watch every forward call inside the block; the hooks are removed again whatever happens.

    on_call: called after each call of the whole model; it must not keep what it is given.
    """
    watch = Watch()

    def before(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if module.training:
                watch.training.add(path or "the model itself")
            watch.gradients_recorded |= torch.is_grad_enabled()

        return hook

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        watch.calls += 1
        if on_call is not None:
            given = tuple(
                tensor.detach()
                for tensor in tensors_in((args, kwargs))
                if not tensor.is_floating_point() and tensor.ndim in (1, 2)
            )
            with torch.no_grad():
                on_call(given, output)

    handles = [
        module.register_forward_pre_hook(before(path)) for path, module in model.named_modules()
    ]
    handles.append(model.register_forward_hook(after, with_kwargs=True))
    try:
        yield watch
    finally:
        for handle in handles:
            handle.remove()


@dataclass(frozen=True)
class Leftovers:
    """What differs after a call: names of tensors, and paths of modules."""

    weights: list[str]
    buffers: list[str]  # those that a state_dict holds
    gradients: list[str]
    left_in_eval: list[str]  # were in train mode before
    left_in_train: list[str]  # were in eval mode before

    @classmethod
    def find(cls, model: nn.Module, before: State) -> Leftovers:
        """Compare the model with its state before the call."""
        now = read_state(model)
        paths = [path or "the model itself" for path, _ in model.named_modules()]
        modes = list(zip(paths, before.training, now.training, strict=False))
        return cls(
            weights=[n for n, p in before.parameters.items() if _moved(p, now.parameters.get(n))],
            buffers=[
                n
                for n, b in before.buffers.items()
                if n in before.persistent and _moved(b, now.buffers.get(n))
            ],
            gradients=[n for n, g in before.gradients.items() if _moved(g, now.gradients.get(n))],
            left_in_eval=[path for path, was, is_now in modes if was and not is_now],
            left_in_train=[path for path, was, is_now in modes if is_now and not was],
        )


def random_states() -> tuple[bytes, bytes, bytes]:
    """Return the global random states of Python, NumPy and torch on the CPU, to compare."""
    numpy_state: Any = np.random.get_state()
    return (
        repr(random.getstate()).encode(),
        numpy_state[1].tobytes() + bytes([numpy_state[2] % 256]),
        torch.get_rng_state().numpy().tobytes(),
    )


def is_reset(first: tuple[bytes, ...], second: tuple[bytes, ...]) -> bool:
    """Whether calls under different seeds leave some generator in one state: they seeded it."""
    return any(a == b for a, b in zip(first, second, strict=True))


def _moved(before: Tensor | None, after: Tensor | None) -> bool:
    if before is None or after is None:
        return before is not after
    return not same_bytes(before, after)
