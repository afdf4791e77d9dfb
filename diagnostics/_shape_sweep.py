"""The model called at every size, without targets and with them; nothing is judged here.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._adapter import next_tokens
from diagnostics._probe import Probe

BATCH_SIZES = (1, 2, 3)
LENGTHS = (1, 2, 7)  # and the block
CELLS_MAX = 4_000_000  # logits of one call; a larger block is tried with one row only
LONG = 128


@dataclass
class Trial:
    """One call of the sweep and what came back."""

    B: int
    T: int
    with_targets: bool
    raw: Any = None
    error: Exception | None = None
    logits: Tensor | None = None  # as it came
    loss: Any = None

    @property
    def name(self) -> str:
        """The call in words."""
        return f"B={self.B}, T={self.T}, {'with' if self.with_targets else 'without'} targets"


@dataclass
class Sweep:
    """All calls of one model."""

    V: int
    block: int | None
    trials: list[Trial] = field(default_factory=list)

    def of(self, *, with_targets: bool | None = None) -> list[Trial]:
        """Return the calls that came back, all or one kind."""
        return [
            t
            for t in self.trials
            if t.error is None and (with_targets is None or t.with_targets == with_targets)
        ]


def measure_sweep(probe: Probe, model: nn.Module) -> Sweep:
    """Call the model at every size, without targets and with them; nothing is judged yet."""
    V, block = probe.vocab_size, probe.block_size
    sweep = Sweep(V, block)
    longest = block or 32
    lengths = sorted({T if T != V else T + 1 for T in LENGTHS if longest > T} | {longest})
    for T in lengths:
        for B in BATCH_SIZES:
            if B > 2 and B * T * V > CELLS_MAX:
                continue
            if T > LONG and B != 2:
                continue  # one batch size is enough for a long block
            tokens = probe.tokens(B, T, "shapes")
            for with_targets in (False, True):
                sweep.trials.append(call(probe, model, tokens, with_targets))
    return sweep


def call(probe: Probe, model: nn.Module, tokens: Tensor, with_targets: bool) -> Trial:
    """Call the model once; what it raises is kept in the trial."""
    trial = Trial(tokens.shape[0], tokens.shape[1], with_targets)
    targets = next_tokens(tokens, probe.pipeline.labels).contiguous()
    forward = probe.pipeline.forward
    try:
        with torch.no_grad(), probe.seeded("shapes"):
            if forward is not None:
                trial.raw = forward(model, tokens.clone(), targets)
            elif with_targets:
                trial.raw = _with_targets(probe, model, tokens, targets)
            else:
                trial.raw = model(tokens.clone())
    except Exception as error:  # any: whatever the model raises is the finding
        trial.error = error
    trial.logits, trial.loss = _split(trial.raw)
    if forward is not None and not with_targets:
        trial.loss = None  # a forward of Pipeline is given targets in every call
    return trial


def _with_targets(probe: Probe, model: nn.Module, tokens: Tensor, targets: Tensor) -> Any:
    adapter = probe.adapter
    if adapter.target_name is not None:
        return model(tokens.clone(), **{adapter.target_name: targets})
    return model(tokens.clone(), targets) if adapter.target_position else model(tokens.clone())


def _split(raw: Any) -> tuple[Tensor | None, Any]:
    """Return (logits, loss) of a raw output as they came, whatever their shape."""
    if isinstance(raw, Tensor):
        return (raw, None) if raw.ndim else (None, raw)
    if isinstance(raw, dict) or hasattr(raw, "logits"):
        get = raw.get if isinstance(raw, dict) else lambda name: getattr(raw, name, None)
        return get("logits"), get("loss")
    if isinstance(raw, (tuple, list)):
        tensors = [part for part in raw if isinstance(part, Tensor)]
        logits = next((part for part in tensors if part.ndim >= 2), None)
        others = [part for part in raw if part is not logits and part is not None]
        loss = next((p for p in others if isinstance(p, (Tensor, float))), None)
        return logits, loss
    return None, None
