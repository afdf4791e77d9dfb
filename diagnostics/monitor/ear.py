"""Listening to one forward pass: which units are active, and how attention is spread.

Shapes: B batch, H heads, T queries, S keys, C units, R rows of all tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

LENGTH_MAX = 1024  # longer attention is not computed a second time
SILENT = 1e-3  # of GELU and SiLU, which are never exactly 0: gelu(-4) = -1.3e-4
_KINDS = {"relu": 0.0, "relu_": 0.0, "gelu": SILENT, "silu": SILENT}
_FUSED = functional.scaled_dot_product_attention


class Ear(TorchFunctionMode):
    """Notes activations and attention weights by the module they are computed in."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.units: dict[str, list[tuple[Tensor, int]]] = {}
        self.entropies: dict[str, Tensor] = {}  # (H,) shares of the largest entropy
        self._stack: list[str] = []
        self._inside = False

    @contextmanager
    def listening(self, model: nn.Module) -> Iterator[None]:
        """Follow which module is running; the hooks are gone afterwards."""
        handles = []
        for path, module in model.named_modules():
            if isinstance(module, torch.jit.ScriptModule):
                continue
            handles.append(module.register_forward_pre_hook(self._enter(path)))
            handles.append(module.register_forward_hook(self._leave))
        try:
            with self:
                yield
        finally:
            for handle in handles:
                handle.remove()

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the function as it is, and note what it gave where it is one of the watched ones."""
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if self._inside:
            return result
        self._inside = True
        try:
            name = getattr(func, "__name__", "")
            if name in _KINDS and isinstance(result, Tensor) and result.ndim > 1:
                self._note_units(result, _KINDS[name])
            elif name == "softmax" and isinstance(result, Tensor) and result.ndim >= 3:
                self._note_weights(result)
            elif func is _FUSED:
                weights = attention_weights(*args, **kwargs)
                if weights is not None:
                    self._note_weights(weights)
        finally:
            self._inside = False
        return result

    def _enter(self, path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            self._stack.append(path or "the model itself")

        return hook

    def _leave(self, module: nn.Module, args: Any, output: Any) -> None:
        self._stack.pop()

    @property
    def _place(self) -> str:
        return self._stack[-1] if self._stack else "the model itself"

    def _note_units(self, result: Tensor, limit: float) -> None:
        rows = result.detach().flatten(0, -2)  # (R, C)
        active = (rows.abs() > limit).any(0) if len(rows) else rows.new_zeros(rows.shape[1:]).bool()
        self.units.setdefault(self._place, []).append((active, len(rows)))

    def _note_weights(self, weights: Tensor) -> None:
        T, S = weights.shape[-2:]
        if T != S or T < 4:
            return  # a distribution over something else than earlier tokens
        heads = weights.detach().float().reshape(-1, *weights.shape[-3:])  # (B, H, T, S)
        entropy = -(heads * heads.clamp_min(1e-30).log()).sum(-1)  # (B, H, T)
        allowed = (heads > 0).sum(-1).clamp_min(2).float().log()
        self.entropies[self._place] = (entropy / allowed)[..., 3:].mean((0, 2))  # (H,)


def attention_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor | None:
    """Return (B, H, T, S) as `scaled_dot_product_attention` defines it; None where it is long."""
    T, S = query.shape[-2], key.shape[-2]
    if max(T, S) > LENGTH_MAX or query.ndim != 4:
        return None
    if key.shape[1] != query.shape[1]:
        key = key.repeat_interleave(query.shape[1] // key.shape[1], 1)
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scores = query.float() @ key.float().transpose(-2, -1) * factor
    if is_causal:
        allowed = torch.ones(T, S, dtype=torch.bool, device=query.device).tril()
        scores = scores.masked_fill(~allowed, -math.inf)
    elif attn_mask is not None and attn_mask.dtype == torch.bool:
        scores = scores.masked_fill(~attn_mask, -math.inf)
    elif attn_mask is not None:
        scores = scores + attn_mask
    return scores.softmax(-1)
