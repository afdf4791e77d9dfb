"""What happens inside one forward call: every module's inputs and outputs, and every dropout.

Shapes: any; tensors are kept as the modules gave them, detached.
"""

from __future__ import annotations

import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from diagnostics._guard import same_bytes

_MODULE_SELF = "the model itself"
_DROPOUT_CALLS = {
    function
    for name in ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "dropout_")
    for holder in (functional, torch)
    if (function := getattr(holder, name, None)) is not None
}
_LIBRARIES = (
    Path(torch.__file__).parent,
    Path(__file__).parent,
    Path(sysconfig.get_path("stdlib")),
)


@dataclass(frozen=True)
class Call:
    """One call of one module; calls are listed in the order in which they ended.

    A module ends after the modules inside it, so the first call with a property is the innermost.
    """

    path: str  # full path, such as blocks.0.attention; the root has a name in words
    kind: str  # class name
    number: int  # 1 for the first call of this module, 2 for the second: modules may be shared
    module: nn.Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]

    @property
    def is_leaf(self) -> bool:
        """Whether the module holds no other module."""
        return next(self.module.children(), None) is None


def record_calls(
    model: nn.Module, run: Callable[[], object], *, keep_inputs: bool = True, clone: bool = False
) -> list[Call]:
    """Run `run()`, which calls the model, and return what each module read and gave.

    clone: keep copies, for models that change tensors in place afterwards.
    The hooks are removed again whatever happens; the user's own hooks stay.
    """
    calls: list[Call] = []
    counts: dict[str, int] = {}

    def watch(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            counts[path] = counts.get(path, 0) + 1
            inputs = tensors_in((args, kwargs)) if keep_inputs else ()
            calls.append(
                Call(
                    path or _MODULE_SELF,
                    type(module).__name__,
                    counts[path],
                    module,
                    tuple(t.clone() if clone else t for t in inputs),
                    tuple(t.clone() if clone else t for t in tensors_in(output)),
                )
            )

        return hook

    handles = []
    try:
        for path, module in model.named_modules():
            # scripted modules take no hook with keyword arguments
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_hook(watch(path), with_kwargs=True))
        run()
    finally:
        for handle in handles:
            handle.remove()
    return calls


def first_divergence(before: list[Call], after: list[Call]) -> Call | None:
    """Return the innermost first call that gave different tensors for equal inputs, or None."""
    known = {(call.path, call.number): call for call in before}
    for call in after:
        other = known.get((call.path, call.number))
        if other is None:
            continue
        if _all_same(call.inputs, other.inputs) and not _all_same(call.outputs, other.outputs):
            return call
    return None


def module_at(model: nn.Module, path: str) -> nn.Module:
    """Return the module of a dotted path; scripted modules refuse `get_submodule`."""
    return dict(model.named_modules(remove_duplicate=False))[path]


def tensors_in(value: Any) -> list[Tensor]:
    """Return every tensor in tensors, tuples, lists, dicts, dataclasses and output objects."""
    if isinstance(value, Tensor):
        return [value.detach()]
    if isinstance(value, Mapping):
        parts = list(value.values())
    elif isinstance(value, (tuple, list)):
        parts = list(value)
    elif _is_output_object(value):
        parts = list(vars(value).values())
    else:
        return []
    return [tensor for part in parts for tensor in tensors_in(part)]


def call_name(call: Call) -> str:
    """Return the path, with the number of the call where one module serves several places."""
    return call.path if call.number == 1 else f"{call.path} (call {call.number})"


@dataclass
class DropoutWatch(TorchFunctionMode):
    """Note every dropout that is active, and silence all of them when asked.

    fired: (probability, place in the user's code) of each dropout call that drops something.
    passive: places of dropout calls with a probability that were told training=False.
    """

    silence: bool = False
    fired: list[tuple[float, str]] = field(default_factory=list)
    passive: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Intercept torch's dropout functions; everything else runs as it is."""
        kwargs = dict(kwargs or {})
        p, training = _dropout_arguments(func, args, kwargs)
        if p > 0 and not training:
            self.passive.append(user_place())
        elif p > 0:
            self.fired.append((p, user_place()))
            if self.silence:
                if func in _DROPOUT_CALLS:
                    return args[0] if args else kwargs["input"]
                args, kwargs = _without_dropout(func, args, kwargs)
        return func(*args, **kwargs)


@contextmanager
def dropout_off(model: nn.Module) -> Iterator[None]:
    """Set every dropout probability that the model or its configuration holds to 0 meanwhile."""
    holders: dict[int, object] = {}
    for module in model.modules():
        for holder in (module, *(getattr(module, name, None) for name in ("config", "cfg"))):
            if holder is not None and hasattr(holder, "__dict__"):
                holders[id(holder)] = holder
        for _, lost in unregistered_modules(module):
            holders[id(lost)] = lost
    saved: list[tuple[object, str, float]] = []
    try:
        for holder in holders.values():
            for name, value in list(vars(holder).items()):
                if _is_dropout_probability(holder, name, value):
                    saved.append((holder, name, value))
                    object.__setattr__(holder, name, 0.0)  # frozen dataclasses too
        with DropoutWatch(silence=True):
            yield
    finally:
        for holder, name, value in saved:
            object.__setattr__(holder, name, value)


def declared_dropout(model: nn.Module) -> dict[str, float]:
    """Return {path: probability} of the dropout modules that should drop something."""
    return {
        path: float(p)
        for path, module in model.named_modules()
        if "drop" in type(module).__name__.lower()
        and isinstance(p := getattr(module, "p", None), float)
        and p > 0
    }


def unregistered_modules(module: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return modules kept in plain lists, tuples or dicts, which train(), eval() and to() miss."""
    found: list[tuple[str, nn.Module]] = []
    for name, value in vars(module).items():
        if name.startswith("_") or isinstance(value, (str, Tensor)):
            continue
        parts = value.values() if isinstance(value, dict) else value
        if isinstance(value, (list, tuple, dict)):
            found += [(name, part) for part in parts if isinstance(part, nn.Module)]
    return found


def user_place() -> str:
    """Return file:line of the innermost frame that is neither torch's, Python's nor ours."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        ours = any(folder in path.parents for folder in _LIBRARIES)
        if not ours and not frame.f_code.co_filename.startswith("<"):
            return f"{path.name}:{frame.f_lineno} in {frame.f_code.co_name}"
        frame = frame.f_back
    return ""


def _is_output_object(value: Any) -> bool:
    named = any(hasattr(value, name) for name in ("logits", "last_hidden_state"))
    return (named or is_dataclass(value)) and not isinstance(value, type)


def _dropout_arguments(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[float, bool]:
    """Return (probability, training flag) of a call of torch; (0, False) where it is no dropout."""
    if func in _DROPOUT_CALLS:
        training = kwargs.get("training", kwargs.get("train", args[2] if len(args) > 2 else True))
        p = kwargs.get("p", args[1] if len(args) > 1 else 0.5)
    elif func is functional.scaled_dot_product_attention:
        training, p = True, kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
    elif func is functional.multi_head_attention_forward:
        training = kwargs.get("training", args[13] if len(args) > 13 else True)
        p = kwargs.get("dropout_p", args[10] if len(args) > 10 else 0.0)
    else:
        return 0.0, False
    return float(p), bool(training)


def _without_dropout(
    func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    place = 4 if func is functional.scaled_dot_product_attention else 10
    if len(args) > place:
        return (*args[:place], 0.0, *args[place + 1 :]), kwargs
    return args, {**kwargs, "dropout_p": 0.0}


def _is_dropout_probability(holder: object, name: str, value: object) -> bool:
    if not isinstance(value, float) or not 0.0 < value <= 1.0:
        return False
    if "drop" in name.lower():
        return True
    return "drop" in type(holder).__name__.lower() and name in ("p", "prob", "rate")


def _all_same(a: tuple[Tensor, ...], b: tuple[Tensor, ...]) -> bool:
    return len(a) == len(b) and all(same_bytes(x, y) for x, y in zip(a, b, strict=True))


class MixedDevicesError(RuntimeError):
    """An operation got tensors of two devices. `place` is the user's line."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


class DeviceWatch(TorchDispatchMode):
    """Raise MixedDevicesError where an operation mixes tensors on `meta` with others.

    meta itself lets some pairs pass that a GPU refuses, an embedding read by CPU ids for one.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Look at the arguments of one operation; copies and index tensors may cross devices."""
        crossing = ("copy", "index.Tensor", "index_put", "_to_copy")
        if not any(word in str(func) for word in crossing):
            # a tensor without dimensions counts as a number, which every device takes
            tensors = [t for t in tensors_in((args, kwargs or {})) if t.ndim > 0]
            devices = {t.device.type for t in tensors}
            if "meta" in devices and len(devices) > 1:
                other = next(t for t in tensors if t.device.type != "meta")
                raise MixedDevicesError(
                    f"{func} got a tensor of shape {tuple(other.shape)} on {other.device.type} "
                    f"beside one on the model's device",
                    user_place(),
                )
        return func(*args, **(kwargs or {}))


def user_frame(error: BaseException) -> str | None:
    """Return the last frame of a traceback that is the user's: file:line in function: code."""
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        ours = any(folder in path.parents for folder in _LIBRARIES)
        if not ours and not frame.filename.startswith("<") and "site-packages" not in path.parts:
            return f"{path.name}:{frame.lineno} in {frame.name}: {(frame.line or '').strip()}"
    return None
