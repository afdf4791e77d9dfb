"""Hooks on a model: which there are, whose they are, and what they change.

Shapes: B batch, T time, W width of the logits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._probe import Batch, Probe

HOOK_TABLES = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
_LIBRARIES = ("torch", "transformers", "accelerate", "peft")  # their hooks are the design
ROWS, LENGTH = 2, 32  # of the batch that the hooks see
_TRIED_MAX = 32  # hooks that are tried one by one to find the one that acts


@dataclass(frozen=True)
class Hook:
    """One registered hook. (path, table, key) finds it again in a deep copy of the model."""

    path: str  # of the module
    table: str  # torch's name for the kind of hook
    key: int  # of its handle
    function: Any

    @property
    def place(self) -> tuple[str, str, int]:
        """Where it stands, the same in the model and in its copies."""
        return self.path, self.table, self.key

    @property
    def code(self) -> int:
        """Equal for hooks that run the same code, whatever they close over."""
        function = getattr(self.function, "__func__", self.function)
        return id(getattr(function, "__code__", type(function)))

    @property
    def name(self) -> str:
        """What to call it in a message."""
        own = type(self.function).__qualname__
        return str(getattr(self.function, "__qualname__", own)).replace(".<locals>", "")


@dataclass(frozen=True)
class Outcome:
    """What one pass gave: logits (B, T, W), and the gradient of each parameter by name."""

    logits: Tensor
    gradients: dict[str, Tensor | None]

    def changed_gradients(self, other: Outcome) -> list[str]:
        """Return the names of the gradients that are not the same, bit for bit."""
        return [n for n, g in self.gradients.items() if not same_or_none(g, other.gradients[n])]

    def same(self, other: Outcome) -> bool:
        """Whether logits and all gradients are the same, bit for bit."""
        return same_bytes(self.logits, other.logits) and not self.changed_gradients(other)


def measure_hooks(model: nn.Module) -> list[Hook]:
    """Return every hook on a model and its modules."""
    return [
        Hook(path, table, key, function)
        for path, module in model.named_modules()
        for table in HOOK_TABLES
        for key, function in getattr(module, table, {}).items()
    ]


def foreign_hooks(probe: Probe) -> list[Hook]:
    """Return the hooks that are not part of the design.

    Part of it are those of torch and known libraries, the model's own methods, and those that a
    fresh model carries too.
    """
    model = probe.pipeline.model
    found = [hook for hook in measure_hooks(model) if not _is_own(hook, model)]
    if not found or probe.pipeline.make_model is None:
        return found
    with probe.seeded("hooks"):
        fresh = probe.pipeline.make_model()
    born_with = {(hook.path, hook.table, hook.code) for hook in measure_hooks(fresh)}
    return [hook for hook in found if (hook.path, hook.table, hook.code) not in born_with]


def outcome(probe: Probe, left_out: Collection[tuple[str, str, int]] = ()) -> Outcome:
    """Run the batch forward and backward on a copy without the hooks at the given places."""
    with probe.model() as model, probe.seeded("hooks"):
        tables = [
            (path, name, table)
            for path, module in model.named_modules()
            for name in HOOK_TABLES
            if (table := getattr(module, name, None))
        ]
        saved = [(table, dict(table)) for _, _, table in tables]
        for path, name, table in tables:
            for key in [key for key in table if (path, name, key) in left_out]:
                del table[key]
        try:
            logits, loss = probe.loss(model, _small(probe.batch))
            if loss.requires_grad:
                loss.backward()
            return Outcome(
                logits.detach().clone(),
                {
                    n: None if p.grad is None else p.grad.clone()
                    for n, p in model.named_parameters()
                },
            )
        finally:
            for table, hooks in saved:  # the copy may be the original itself
                table.clear()
                table.update(hooks)


def _small(batch: Batch) -> Batch:
    """A hook acts on few tokens as on many: the first ones of two rows are enough."""
    mask = batch.attention_mask
    return dataclasses.replace(
        batch,
        inputs=batch.inputs[:ROWS, :LENGTH],
        targets=batch.targets[:ROWS, :LENGTH],
        attention_mask=None if mask is None else mask[:ROWS, :LENGTH],
    )


def find_culprit(probe: Probe, hooks: list[Hook], without: Outcome) -> Hook:
    """Return the first hook that makes a difference when it is the only one."""
    places = {hook.place for hook in hooks}
    for hook in hooks[:_TRIED_MAX]:
        if not outcome(probe, places - {hook.place}).same(without):
            return hook
    return hooks[0]


def same_or_none(a: Tensor | None, b: Tensor | None) -> bool:
    """Whether both are missing, or both the same bit for bit."""
    return a is b if a is None or b is None else same_bytes(a, b)


def _is_own(hook: Hook, model: nn.Module) -> bool:
    home = str(getattr(hook.function, "__module__", type(hook.function).__module__) or "")
    owner = getattr(hook.function, "__self__", None)
    return home.split(".")[0] in _LIBRARIES or any(owner is module for module in model.modules())
