"""How a model attends, watched from outside: each call that mixes positions by weights (T, T).

Shapes: B batch, T time, C width of the stream, H heads, D head size.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from diagnostics._trace import module_at, tensors_in, user_place

FEED_FORWARD = re.compile(r"mlp|ffn|feed_?forward|(^|_)ff(n?)($|_)")
STILL = 1e-4  # relative; one step of the slowest rotation moves less, T steps of the first more
_FUSED = functional.scaled_dot_product_attention
_WHOLE = functional.multi_head_attention_forward
_PRODUCTS = ("matmul", "__matmul__", "__rmatmul__", "bmm", "einsum", "baddbmm")
_TIMES, _DIVIDED = ("mul", "__mul__", "__rmul__", "mul_"), ("div", "__truediv__", "true_divide")


@dataclass(frozen=True)
class AttentionCall:
    """One call that mixes positions.

    scale: the factor on query times key, or None where it could not be followed.
    D: the width of a query; 0 where it is not seen.    place: the user's line.
    shared: linear layers since the call before that treat every head's slice of a token alike.
    turning: whether queries, and keys, differ from one position to the next; empty: not seen.
    lag_error: how far scores of equal distance lie apart, relative to the largest score.
    """

    scale: float | None
    D: int
    place: str
    shared: int
    turning: tuple[bool, ...] = ()
    lag_error: float = 0.0


class AttentionWatch(TorchFunctionMode):
    """List the calls that mix positions, in a row of T tokens; `silent` of them give zeros.

    T must be no other size in the model: see `plain_length`.
    """

    def __init__(
        self, T: int, C: int = 0, silent: int | None = None, *, compare_places: bool = False
    ) -> None:
        super().__init__()
        self.T, self.C, self.silent = T, C, silent
        self.compare_places = compare_places  # fill in `turning` and `lag_error`
        self.calls: list[AttentionCall] = []
        self._scale, self._D, self._shared = 1.0, 0, 0
        self._turning: tuple[bool, ...] = ()
        self._lag_error = 0.0

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as it is, note what it is, and silence it when it is asked for."""
        kwargs = dict(kwargs or {})
        result = func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if name == "linear":
            self._note_linear(args)
        elif func is _FUSED and args[0].shape[-2] == self.T:  # over time, not over the heads
            default = args[0].shape[-1] ** -0.5
            self._D = int(args[0].shape[-1])
            if self.compare_places:
                self._turning = tuple(self._turns(part) for part in args[:2])
                self._lag_error = lag_error(_scores(args[0], args[1]))
            self._scale *= default if kwargs.get("scale") is None else float(kwargs["scale"])
            return self._end(result)
        elif func is _WHOLE:
            self._D = 0
            return self._end(result)
        elif name in _PRODUCTS:
            return self._product(result, args)
        elif name in _TIMES or name in _DIVIDED:
            self._note_factor(name, args)
        return result

    def _product(self, result: Any, args: Any) -> Any:
        operands = [t for t in tensors_in(args) if t.ndim > 1]
        if not isinstance(result, Tensor):
            return result
        if self._is_table(result):  # queries times keys
            sizes = [t.shape[-1] for t in operands if t.shape[-1] != self.T]
            self._D = int(sizes[0]) if sizes else 0
            if self.compare_places:
                self._turning = tuple(self._turns(part) for part in operands[:2])
                self._lag_error = lag_error(result)
        elif any(self._is_table(t) for t in operands) and self._times(result) == 1:
            return self._end(result)
        return result

    def _note_factor(self, name: str, args: Any) -> None:
        """Follow factors on scores (T, T) and on queries and keys (B, H, T, D)."""
        if len(args) != 2:
            return
        tensors = [t for t in args if isinstance(t, Tensor) and t.numel() > 1]
        number = next((_number(value) for value in args if _number(value) is not None), None)
        if len(tensors) != 1 or number is None or number == 0:
            return
        heads = tensors[0].ndim == 4 and self._times(tensors[0]) == 1
        if self._is_table(tensors[0]) or heads:
            self._scale *= 1 / number if name in _DIVIDED else number

    def _note_linear(self, args: Any) -> None:
        if len(args) < 2 or not all(isinstance(arg, Tensor) for arg in args[:2]):
            return
        given, weight = args[:2]
        D = weight.shape[-1]
        if given.ndim == 4 and weight.shape == (D, D) and 1 < D < given.shape[-2] * D == self.C:
            self._shared += 1

    def _end(self, result: Any) -> Any:
        """Close one call of attention, and return what it gives, or zeros."""
        number = len(self.calls)
        self.calls.append(
            AttentionCall(
                self._scale if self._D else None,
                self._D,
                user_place(),
                self._shared,
                self._turning,
                self._lag_error,
            )
        )
        self._scale, self._D, self._shared, self._turning = 1.0, 0, 0, ()
        self._lag_error = 0.0
        if number != self.silent:
            return result
        if isinstance(result, tuple):
            return tuple(None if part is None else torch.zeros_like(part) for part in result)
        return torch.zeros_like(result)

    def _turns(self, part: Tensor) -> bool:
        """Whether queries or keys differ along the axis of time, by more than rounding does."""
        if self._times(part) != 1:
            return True  # not known to be still
        places = part.movedim(list(part.shape).index(self.T), 0)
        return bool((places - places[:1]).abs().max() > STILL * places.abs().max())

    def _times(self, tensor: Tensor) -> int:
        return list(tensor.shape).count(self.T)

    def _is_table(self, tensor: Tensor) -> bool:
        return tensor.ndim >= 2 and tuple(tensor.shape[-2:]) == (self.T, self.T)


def plain_length(model: nn.Module, T: int) -> int:
    """Return the longest length up to T that no size of a weight is a multiple of.

    Then an axis of that size is the axis of time. T itself where there is none above 2.
    """
    sizes = {size for parameter in model.parameters() for size in parameter.shape}
    return next((n for n in range(T, 2, -1) if all(size % n for size in sizes)), T)


def lag_error(scores: Tensor) -> float:
    """Return how far scores (..., T, T) of equal distance i - j >= 0 lie apart at most."""
    T = scores.shape[-1]
    if T < 2:
        return 0.0
    i = torch.arange(T, device=scores.device)
    keys = (i[None, :] - i[: T - 1, None]).expand(*scores.shape[:-2], T - 1, T)  # (..., lag, i)
    by_lag = scores.mT.gather(-2, keys.clamp_min(0))  # score of query i and the key lag before it
    highest = by_lag.masked_fill(keys < 0, -torch.inf).amax(-1)
    lowest = by_lag.masked_fill(keys < 0, torch.inf).amin(-1)
    return float((highest - lowest).max()) / max(float(scores.abs().max()), 1e-30)


def _scores(queries: Tensor, keys: Tensor) -> Tensor:
    """Return queries times keys, (..., T, T); grouped keys serve as many heads as they must."""
    if queries.ndim > 2 and keys.shape[-3] < queries.shape[-3]:
        keys = keys.repeat_interleave(queries.shape[-3] // keys.shape[-3], -3)
    return queries @ keys.mT


def feed_forward_modules(model: nn.Module) -> list[str]:
    """Return the paths of feed-forward layers as their names tell them, without their parts."""
    found: list[str] = []
    for path, module in model.named_modules():
        words = f"{path.rpartition('.')[2]} {type(module).__name__}".lower()
        inside = any(path.startswith(f"{outer}.") for outer in found)
        other = isinstance(module, (nn.ModuleList, nn.ModuleDict)) or "norm" in words
        if path and not inside and not other and any(map(FEED_FORWARD.search, words.split())):
            found.append(path)
    return found


def feed_forward_outputs(model: nn.Module, C: int) -> list[str]:
    """Return the last linear layer of each feed-forward layer that writes C numbers a token."""
    found = []
    for path in feed_forward_modules(model):
        inner = module_at(model, path).named_modules()
        outputs = [
            f"{path}.{name}" if name else path
            for name, module in inner
            if isinstance(module, nn.Linear) and module.out_features == C
        ]
        found += outputs[-1:]
    return found


@contextmanager
def silenced(model: nn.Module, paths: list[str]) -> Iterator[None]:
    """Let the modules at these paths give zeros meanwhile."""

    def zeros(module: nn.Module, args: Any, output: Any) -> Any:
        if isinstance(output, Tensor):
            return torch.zeros_like(output)
        if isinstance(output, tuple):
            return tuple(torch.zeros_like(p) if isinstance(p, Tensor) else p for p in output)
        return output

    handles = [module_at(model, path).register_forward_hook(zeros) for path in paths]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def odd_scale(call: AttentionCall, C: int) -> str | None:
    """Return "C" or "H" where the factor is exactly that number's root, not the head size's.

    None also where it could be meant: 1 / D is muP's, 1 is T5's, and C = D * D makes both equal.
    """
    if call.scale is None or not 0 < call.D < C or C % call.D:
        return None
    H = C // call.D
    meant = (call.D**-0.5, 1 / call.D, 1.0)
    for name, size in (("C", C), ("H", H)):
        wrong = size**-0.5
        if any(math.isclose(wrong, right, rel_tol=1e-4) for right in meant):
            continue
        if math.isclose(call.scale, wrong, rel_tol=1e-5):
            return name
    return None


def _number(value: object) -> float | None:
    if isinstance(value, Tensor):
        fixed = value.numel() == 1 and value.is_floating_point() and not value.requires_grad
        return float(value) if fixed else None
    return float(value) if isinstance(value, (int, float)) else None
