"""How to call a model we did not write, and how to read what it returns.

Shapes: B batch, T time, V vocabulary, W width of the logits (W >= V when it is padded).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._pipeline import Pipeline

# Parameter names are read before positions are trusted: the second positional argument of many
# models is an attention mask, not the targets.
TARGET_NAMES = ("targets", "labels", "target", "label", "tgt_ids", "target_ids", "y")


class UnreadableOutputError(TypeError):
    """The model returned something in which no logits can be recognised."""


@dataclass(frozen=True)
class Output:
    """What one call returned. `layout` says how the logits lay before they became (B, T, W)."""

    logits: Tensor  # (B, T, W), or (B, 1, W) with layout "last"
    loss: Tensor | None  # as returned; a scalar when all is well
    layout: str  # "BTV", "BVT", "TBV", "flat" or "last"
    raw_shape: tuple[int, ...]


@dataclass(frozen=True)
class Adapter:
    """One way of calling; works on the model, on its copies, and on fresh ones."""

    forward: Callable[[nn.Module, Tensor, Tensor], Any] | None
    labels: str
    ignore_index: int
    vocab_size: int
    target_name: str | None = None  # None with target_position False: the model takes no targets
    target_position: bool = False  # the second positional argument, unnamed, holds the targets
    mask_name: str | None = None
    always_targets: bool = False  # without targets only the last position comes back
    has_loss: bool = True

    @classmethod
    def learn(cls, pipeline: Pipeline, model: nn.Module, tokens: Tensor, V: int) -> Adapter:
        """Find out how to call `model`, with (B, T) tokens where B, T and V all differ."""
        adapter = cls(pipeline.forward, pipeline.labels, pipeline.ignore_index, V)
        if adapter.forward is None:
            target_name, mask_name = _parameter_names(model)
            adapter = replace(adapter, target_name=target_name, mask_name=mask_name)
            adapter = _learn_targets(adapter, model, tokens)
        with torch.no_grad():
            with_targets = adapter.call(model, tokens, next_tokens(tokens, pipeline.labels))
        return replace(adapter, has_loss=with_targets.loss is not None)

    def call(
        self,
        model: nn.Module,
        inputs: Tensor,
        targets: Tensor | None = None,
        attention_mask: Tensor | None = None,
    ) -> Output:
        """Call once and read the result. Raises UnreadableOutputError, or what the model raises."""
        # contiguous copies: some models .view() their arguments, some write into them
        inputs = inputs.clone(memory_format=torch.contiguous_format)
        if targets is not None:
            targets = targets.clone(memory_format=torch.contiguous_format)
        if self.forward is not None:
            asked = next_tokens(inputs, self.labels) if targets is None else targets
            raw = self.forward(model, inputs, asked)
        else:
            named: dict[str, Any] = {}
            if attention_mask is not None and self.mask_name is not None:
                named[self.mask_name] = attention_mask
            if targets is not None and self.target_name is not None:
                named[self.target_name] = targets
            unnamed = (targets,) if targets is not None and self.target_position else ()
            raw = model(inputs, *unnamed, **named)
        return read_output(raw, inputs.shape[0], inputs.shape[1], self.vocab_size)

    def logits(self, model: nn.Module, inputs: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return logits (B, T, W) of every position, without asking for a loss where possible."""
        asked = next_tokens(inputs, self.labels) if self.always_targets else None
        return self.call(model, inputs, asked, mask).logits

    def loss(self, model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        """Return (logits, loss): the model's own loss, or cross-entropy where it has none."""
        output = self.call(model, inputs, targets)
        if output.loss is not None:
            return output.logits, output.loss
        return output.logits, self.cross_entropy(output.logits, targets)

    def cross_entropy(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss as the contract has it: mean nats over the scored next tokens."""
        if self.labels == "same":
            logits, targets = logits[:, :-1], targets[:, 1:]
        return functional.cross_entropy(
            logits.flatten(0, 1).float() if logits.dtype.itemsize < 4 else logits.flatten(0, 1),
            targets.flatten(),
            ignore_index=self.ignore_index,
        )


def find_logits(raw: Any) -> Tensor | None:
    """Return the logits in what a model returned, as they are; None where there are none."""
    return _find_logits_and_loss(raw)[0]


def next_tokens(tokens: Tensor, labels: str) -> Tensor:
    """Return targets (B, T) for tokens: themselves, or moved by one with the first one last."""
    return tokens.clone() if labels == "same" else tokens.roll(-1, dims=1)


def read_output(raw: Any, B: int, T: int, V: int) -> Output:
    """Recognise logits and loss in whatever a forward call returned."""
    logits, loss = _find_logits_and_loss(raw)
    if logits is None:
        raise UnreadableOutputError(
            f"no logits found in what the model returned ({_describe(raw)}); wanted (logits, loss),"
            f" logits, a dict or an object with .logits; pass forward=(model, inputs, targets) ->"
            f" (logits, loss)"
        )
    ordered, layout = _order_axes(logits, B, T, V)
    return Output(ordered, loss, layout, tuple(logits.shape))


def _learn_targets(adapter: Adapter, model: nn.Module, tokens: Tensor) -> Adapter:
    with torch.no_grad():
        try:
            raw_output = adapter.call(model, tokens)
        except TypeError:
            if adapter.target_name is None:
                raise
            return replace(adapter, always_targets=True)  # targets are not optional
        if raw_output.layout == "last" and adapter.target_name is not None:
            return replace(adapter, always_targets=True)
        if adapter.target_name is None and raw_output.loss is None:
            positional = replace(adapter, target_position=True)
            try:
                second = positional.call(model, tokens, next_tokens(tokens, adapter.labels))
            except Exception:  # any: a mask, a cache or nothing at all stands in second place
                return adapter
            if second.loss is not None:
                last_only = raw_output.layout == "last"
                return replace(positional, always_targets=last_only)
    return adapter


def _parameter_names(model: nn.Module) -> tuple[str | None, str | None]:
    """Return the names under which `forward` takes targets and an attention mask."""
    inner: Any = model
    for wrapper in ("_orig_mod", "module"):  # torch.compile, DataParallel
        inner = getattr(inner, wrapper, inner)
    names = _argument_names(inner.forward)
    target = next((name for name in TARGET_NAMES if name in names[1:]), None)
    mask = "attention_mask" if "attention_mask" in names else None
    return target, mask


def _argument_names(forward: Any) -> list[str]:
    """Return the names in order; a scripted module keeps them in its schema, after self."""
    if isinstance(forward, torch.ScriptMethod):
        return [argument.name for argument in forward.schema.arguments][1:]
    return list(inspect.signature(forward).parameters)


def _find_logits_and_loss(raw: Any) -> tuple[Tensor | None, Tensor | None]:
    if isinstance(raw, Tensor):
        return (raw, None) if raw.ndim >= 2 else (None, raw)
    if isinstance(raw, Mapping):
        return _tensor(raw.get("logits")), _tensor(raw.get("loss"))
    if hasattr(raw, "logits"):
        return _tensor(raw.logits), _tensor(getattr(raw, "loss", None))
    if isinstance(raw, (tuple, list)):
        tensors = [part for part in raw if isinstance(part, Tensor) and part.is_floating_point()]
        logits = next((part for part in tensors if part.ndim >= 2), None)
        loss = next((part for part in tensors if part.ndim <= 1), None)
        return logits, loss
    return None, None


def _order_axes(logits: Tensor, B: int, T: int, V: int) -> tuple[Tensor, str]:
    """Bring logits to (B, T, W); the likeliest reading first."""
    shape = tuple(logits.shape)
    if len(shape) == 3:
        if shape[:2] == (B, T) and shape[2] >= V:
            return logits, "BTV"
        if shape[0] == B and shape[2] == T and shape[1] >= V:
            return logits.transpose(1, 2), "BVT"
        if shape[:2] == (T, B) and shape[2] >= V:
            return logits.transpose(0, 1), "TBV"
        if shape[:2] == (B, 1):
            return logits, "last"
        if shape[:2] == (B, T):
            return logits, "BTV"  # narrower than the vocabulary: the shapes check says so
    if len(shape) == 2 and shape[0] == B * T:
        return logits.reshape(B, T, shape[1]), "flat"
    if len(shape) == 2 and shape[0] == B:
        return logits.unsqueeze(1), "last"
    raise UnreadableOutputError(
        f"logits must have shape (B, T, V) = ({B}, {T}, {V}), got {shape}; "
        f"pass forward=(model, inputs, targets) -> (logits (B, T, V), loss)"
    )


def _tensor(value: Any) -> Tensor | None:
    return value if isinstance(value, Tensor) else None


def _describe(raw: Any) -> str:
    if isinstance(raw, Tensor):
        return f"a tensor of shape {tuple(raw.shape)}"
    if isinstance(raw, Mapping):
        return f"a mapping with keys {sorted(map(str, raw))}"
    if isinstance(raw, (tuple, list)):
        parts = ", ".join(_describe(part) if isinstance(part, Tensor) else "?" for part in raw)
        return f"{type(raw).__name__} of {len(raw)}: {parts}"
    return type(raw).__name__
