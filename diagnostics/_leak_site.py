"""Where a leak begins: the first call of torch that gives other numbers where none may move.

Shapes: N the axis that is looked at, time or batch; any number of other axes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from diagnostics._trace import tensors_in, user_place

# by the name of the function; what reads a table of weights (N, N) is attention whatever its name
KINDS = {
    "attention": ("scaled_dot_product_attention", "multi_head_attention_forward"),
    "linear": ("linear", "addmm"),
    "recurrence": ("gru", "lstm", "rnn_tanh", "rnn_relu"),
    "convolution": ("conv1d", "conv2d", "conv_transpose1d", "max_pool1d", "avg_pool1d"),
    "flip": ("flip", "fliplr", "flipud"),
    "moved": (
        "roll",
        "pad",
        "cat",
        "concat",
        "concatenate",
        "stack",
        "hstack",
        "vstack",
        "column_stack",
        "__getitem__",
        "__setitem__",
        "copy_",
        "gather",
        "index_select",
        "take_along_dim",
        "narrow",
        "select_scatter",
        "slice_scatter",
        "index_copy",
    ),
    "reshaped": ("reshape", "view", "reshape_as", "view_as", "unflatten", "flatten"),
    "over_axis": (
        "softmax",
        "log_softmax",
        "layer_norm",
        "group_norm",
        "instance_norm",
        "batch_norm",
        "rms_norm",
        "normalize",
        "standardize",
    ),
}


@dataclass(frozen=True)
class LeakSite:
    """The first call whose output moves where it may not."""

    kind: str  # a key of KINDS, or "other"
    function: str  # name of the function of torch
    place: str  # file:line in the user's code, or ""
    path: str  # innermost module that was running, or ""
    weights: str = ""  # what is wrong with attention weights, in one word, such as "late_mask"


@dataclass(frozen=True)
class Trace:
    """What one forward call did."""

    site: LeakSite | None
    has_attention: bool  # some call reads or makes a table (N, N)


def find_leak(
    model: nn.Module,
    call: Callable[[Tensor], object],
    pair: tuple[Tensor, Tensor],
    *,
    size: int,
    kept: Sequence[int],
    tolerance: float,
) -> Trace:
    """Call the model on a pair of ids (B, T), and compare the two calls step by step.

    size: of the axis, of time or of the batch, along which the places `kept` must not move; no
        other axis of an activation may have it, see `plain_length`.
    tolerance: relative to the largest number of a tensor.
    """
    before = _Recorder(size)
    with _module_paths(model) as path:
        with torch.no_grad(), before:
            call(pair[0])
        after = _Comparer(before, kept, tolerance, path)
        with torch.no_grad(), after:
            call(pair[1])
    return Trace(after.site, before.has_attention)


class _Recorder(TorchFunctionMode):
    """Keep what every call of torch gives that has the axis once; twice it is a table (N, N)."""

    def __init__(self, N: int) -> None:
        super().__init__()
        self.N, self.has_attention = N, False
        self.outputs: list[tuple[str, list[Tensor]]] = []
        self.summaries: set[tuple[int, ...]] = set()  # shapes of results without the axis

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as it is and keep a copy of what it gives."""
        result = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if name != "__get__":
            told = _tensors(args[0] if name == "__setitem__" else result)
            tables = [t for t in told if _axes(t, self.N) >= 2]
            self.has_attention |= bool(tables) or name in KINDS["attention"]
            self.note(name, told, (args, kwargs or {}))
        return result

    def note(self, name: str, given: list[Tensor], arguments: object) -> None:
        """Keep a copy of what has the axis once, and the shape alone of what lacks it."""
        kept = [t.clone() if _axes(t, self.N) == 1 else t.new_empty(0) for t in given]
        self.outputs.append((name, kept))
        self.summaries |= {
            tuple(t.shape) for t in given if t.is_floating_point() and not _axes(t, self.N)
        }


class _Comparer(_Recorder):
    """Compare every call with the same call of an earlier run, up to the first that leaks."""

    def __init__(
        self, before: _Recorder, kept: Sequence[int], tolerance: float, path: Callable[[], str]
    ) -> None:
        super().__init__(before.N)
        self.before, self.kept, self.tolerance, self.path = before, list(kept), tolerance, path
        self.site: LeakSite | None = None
        self.softmax: Tensor | None = None  # the last table (N, N) that a softmax gave

    def note(self, name: str, given: list[Tensor], arguments: object) -> None:
        """Look for kept places that differ from the earlier run's."""
        super().note(name, given, arguments)
        number = len(self.outputs) - 1
        if self.site is not None or number >= len(self.before.outputs):
            return
        if "softmax" in name and given and _axes(given[0], self.N) >= 2:
            self.softmax = given[0]
        same_name, expected = self.before.outputs[number]
        if same_name != name or not any(
            self._leaks(a, b) for a, b in zip(expected, given, strict=False)
        ):
            return
        read = [t for t in tensors_in(arguments) if _axes(t, self.N) >= 2]
        kind = next((kind for kind, names in KINDS.items() if name in names), "other")
        if read and kind not in ("linear", "reshaped"):
            kind = "attention"
        elif kind == "other" and self._reads_a_summary(arguments):
            kind = "over_axis"
        weights = _fault_of_weights(self.softmax, read[-1], self.N) if read else ""
        self.site = LeakSite(kind, name, user_place(), self.path(), weights)

    def _leaks(self, a: Tensor, b: Tensor) -> bool:
        if a.shape != b.shape or _axes(a, self.N) != 1:
            return False
        axis = list(a.shape).index(self.N)
        a, b = a.movedim(axis, 0)[self.kept], b.movedim(axis, 0)[self.kept]
        if not (a.is_floating_point() or a.is_complex()):
            return not torch.equal(a, b)
        finite = a[a.isfinite()].abs()
        limit = self.tolerance * max(1.0, float(finite.max()) if finite.numel() else 0.0)
        still = (a == b) | ((a - b).abs() <= limit) | (a.isnan() & b.isnan())
        return not bool(still.all())

    def _reads_a_summary(self, arguments: object) -> bool:
        """Whether the call reads a tensor without the axis, made from all its places."""
        read = tensors_in(arguments)
        return any(not _axes(t, self.N) and tuple(t.shape) in self.summaries for t in read)


def _fault_of_weights(softmax: Tensor | None, weights: Tensor, T: int) -> str:
    """Read a softmax (..., T, T) and the weights that are used after it."""
    if softmax is None or softmax.shape[-2:] != (T, T) or weights.shape[-2:] != (T, T):
        return ""
    rows, columns = (softmax.sum(dim) - 1 for dim in (-1, -2))
    if bool((columns.abs() < 1e-4).all()) and not bool((rows.abs() < 1e-4).all()):
        return "queries"
    if not bool((rows.abs() < 1e-4).all()):
        over_heads = softmax.ndim == 4 and bool(((softmax.sum(1) - 1).abs() < 1e-4).all())
        return "heads" if over_heads else ""
    future = torch.ones(T, T, dtype=torch.bool, device=weights.device).triu(1)
    if bool((weights[..., future] == 0).all()) and bool((softmax[..., future] > 0).any()):
        return "late_mask"
    past = weights[..., ~future & ~torch.eye(T, dtype=torch.bool, device=weights.device)]
    faint = weights[..., future].median() < 0.2 * past.median()
    return "weak_fill" if bool(faint & (weights[..., future] > 0).all()) else ""


def _tensors(value: object) -> list[Tensor]:
    return [t for t in tensors_in(value) if t.layout == torch.strided and t.numel()]


def _axes(tensor: Tensor, N: int) -> int:
    return list(tensor.shape).count(N)


@contextmanager
def _module_paths(model: nn.Module) -> Iterator[Callable[[], str]]:
    """Follow which module is running; gives a function that tells its path."""
    running: list[str] = []

    def enter(path: str) -> Callable[..., None]:
        return lambda *_: running.append(path)

    def leave(*_: object) -> None:
        running.pop()

    handles = []
    try:
        for path, module in model.named_modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(enter(path)))
                handles.append(module.register_forward_hook(leave, always_call=True))
        yield lambda: running[-1] if running else ""
    finally:
        for handle in handles:
            handle.remove()
