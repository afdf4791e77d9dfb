"""The user's objects come back untouched: snapshots of models and random states."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_HOOK_DICTS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks_with_kwargs",
)


@contextmanager
def untouched(models: Iterable[nn.Module], tensors: Iterable[Tensor] = ()) -> Iterator[None]:
    """Put back weights, buffers, modes, gradients, hooks, tensors and random states at the end.

    Also after an exception and after Ctrl-C. Values are written back in place, and only where
    they changed, so that optimizers and aliases keep pointing at the same storage.
    """
    snapshots = [_ModelSnapshot(model) for model in models]
    saved_tensors = [(tensor, tensor.detach().clone()) for tensor in tensors]
    grad_enabled = torch.is_grad_enabled()
    try:
        with kept_random_states():
            yield
    finally:
        torch.set_grad_enabled(grad_enabled)
        for snapshot in snapshots:
            snapshot.restore()
        for tensor, saved in saved_tensors:
            _write_back(tensor, saved)


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put back the global random states of Python, NumPy and torch at the end."""
    python_state = random.getstate()
    numpy_state = np.random.get_state()
    torch_state = torch.get_rng_state()
    cuda_states = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else None
    try:
        yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
        torch.set_rng_state(torch_state)
        if cuda_states is not None:
            torch.cuda.set_rng_state_all(cuda_states)


@dataclass(frozen=True)
class EntryState:
    """torch's global switches as the user's program had them when a check was asked for."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[str, ...]  # device types on which autocast was on
    anomaly_mode: bool
    default_dtype: torch.dtype
    default_device: str  # type only, such as "cpu"

    @classmethod
    def read(cls) -> EntryState:
        """Read the switches; call it before changing any of them."""
        types = [name for name in ("cpu", "cuda", "mps") if _autocast_is_on(name)]
        return cls(
            torch.is_grad_enabled(),
            torch.is_inference_mode_enabled(),
            tuple(types),
            torch.is_anomaly_enabled(),
            torch.get_default_dtype(),
            torch.get_default_device().type,
        )

    @contextmanager
    def set_aside(self) -> Iterator[None]:
        """Switch gradients on, and inference mode and autocast off, for as long as it lasts."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            for device_type in self.autocast:
                stack.enter_context(torch.autocast(device_type, enabled=False))
            yield


def _autocast_is_on(device_type: str) -> bool:
    try:
        return torch.is_autocast_enabled(device_type)
    except (RuntimeError, TypeError):  # a build without that device
        return False


def seed_everything(seed: int) -> None:
    """Seed the global random states of Python, NumPy and torch (every device)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # torch.manual_seed also queues a seed, with a stack trace, for devices that were never used
    # (4 ms a call); here only devices in use are seeded.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed_all(seed)
    if torch.backends.mps.is_available():
        torch.mps.manual_seed(seed)


@contextmanager
def borrowed(model: nn.Module) -> Iterator[nn.Module]:
    """Lend the model itself, with cloned storage, for cases where a deep copy is not independent.

    At the end each parameter and buffer gets its own storage back: exact whatever happened.
    """
    parameters = [(p, p.data, p.grad, p.requires_grad) for p in model.parameters()]
    buffers = [
        (module, name, buffer)
        for module in model.modules()
        for name, buffer in module._buffers.items()
        if buffer is not None
    ]
    modes = [(module, module.training) for module in model.modules()]
    clones: dict[int, Tensor] = {}
    for parameter, data, _, _ in parameters:
        parameter.data = data.clone()
        parameter.grad = None
    for module, name, buffer in buffers:
        module._buffers[name] = clones.setdefault(id(buffer), buffer.clone())
    try:
        yield model
    finally:
        for parameter, data, grad, requires_grad in parameters:
            parameter.data = data
            _set_requires_grad(parameter, requires_grad)
            parameter.grad = grad
        for module, name, buffer in buffers:
            module._buffers[name] = buffer
        for module, training in modes:
            module.training = training


class _ModelSnapshot:
    def __init__(self, model: nn.Module) -> None:
        self.modules = list(model.modules())
        self.modes = [module.training for module in self.modules]
        self.hooks = [
            {name: dict(getattr(module, name)) for name in _HOOK_DICTS if hasattr(module, name)}
            for module in self.modules
        ]
        self.parameters = [
            (parameter, parameter.detach().clone(), parameter.requires_grad, parameter.grad, None)
            if parameter.grad is None
            else (
                parameter,
                parameter.detach().clone(),
                parameter.requires_grad,
                parameter.grad,
                parameter.grad.detach().clone(),
            )
            for parameter in model.parameters()
        ]
        self.buffers = [
            (module, name, buffer, None if buffer is None else buffer.clone())
            for module in self.modules
            for name, buffer in module._buffers.items()
        ]

    def restore(self) -> None:
        for module, training, hooks in zip(self.modules, self.modes, self.hooks, strict=True):
            module.training = training
            for name, saved in hooks.items():
                current: dict[Any, Any] = getattr(module, name)
                if dict(current) != saved:
                    current.clear()
                    current.update(saved)
        for parameter, data, requires_grad, grad, grad_copy in self.parameters:
            _write_back(parameter.data, data)
            _set_requires_grad(parameter, requires_grad)
            parameter.grad = grad
            if grad is not None and grad_copy is not None:
                _write_back(grad, grad_copy)
        for module, name, buffer, buffer_copy in self.buffers:
            module._buffers[name] = buffer
            if buffer is not None and buffer_copy is not None:
                _write_back(buffer, buffer_copy)


def _write_back(tensor: Tensor, saved: Tensor) -> None:
    # tensors made in inference mode can only be written to in inference mode
    with torch.inference_mode() if tensor.is_inference() else torch.no_grad():
        if tensor.is_meta or same_bytes(tensor, saved):
            return
        tensor.copy_(saved)


def _set_requires_grad(parameter: nn.Parameter, requires_grad: bool) -> None:
    if parameter.requires_grad != requires_grad:  # refused for inference tensors, even when equal
        parameter.requires_grad_(requires_grad)


def same_bytes(a: Tensor, b: Tensor) -> bool:
    """Compare two tensors bit for bit; NaN equals itself, 0.0 differs from -0.0."""
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return not a.is_floating_point() or torch.equal(a.signbit(), b.signbit())
    if not a.is_floating_point():
        return False
    both_nan = a.isnan() & b.isnan()
    return bool(((a == b) | both_nan).all())
