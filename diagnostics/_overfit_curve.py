"""Learning one batch by heart: the curve of an attempt, and what the batch allows at most.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._batch_floor import (
    Floor,
    last_tokens,
    measure_floor,
    nothing,
    position_only,
    whole_prefix,
)
from diagnostics._probe import Batch, Probe, ln

LEARNING_RATE = 3e-3  # measured on debug models: median 40 steps, worst 50; 2e-2 fails
LARGE_SIZE = 1e6  # parameters beyond which the rate falls with the root of the size (10M: 1e-3)
ROWS_MAX, TOKENS_MAX = 8, 32
WORK_MAX = 3e12  # multiplications of a whole attempt, about half a minute of one CPU core
LOOK_EVERY = 5  # steps between two looks: each look waits for the numbers
PATIENCE = 100  # steps without visible progress after which an attempt ends
PROGRESS_MIN = 0.005  # of the way from the first loss to the floor
WINDOWS = (1, 2, 3, 4, 6, 8, 12, 16)  # lengths k of the contexts that are tried as explanations
KNOWS_MAX = 0.6  # of the way from ln V to the floor: loss at full accuracy, healthy at most 0.4


@dataclass
class Curve:
    """One attempt. Lists are per look, losses in nats per token."""

    rate: float
    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)  # recomputed from the logits, eval mode
    accuracies: list[float] = field(default_factory=list)
    reported: list[float] = field(default_factory=list)  # the model's own loss, train mode
    not_finite_at: int | None = None  # the first step whose loss is not a number; 0: before any
    gave_up: bool = False  # nothing had moved for PATIENCE steps

    @property
    def rank(self) -> tuple[bool, float, float]:
        """Order of success among attempts."""
        return (self.not_finite_at is None, self.accuracies[-1], -self.losses[-1])

    @property
    def bound(self) -> float | None:
        """The value that the model's own loss takes again and again, whatever the honest one is."""
        pairs = list(zip(self.reported, self.losses, strict=True))[1:]
        again = [own for own, honest in pairs if abs(own - honest) > 1e-3]
        return next((own for own in again if again.count(own) >= 3), None)

    def still_falls(self, floor: float) -> bool:
        """Whether the second half still made visible progress when the steps were up."""
        if self.gave_up:
            return False
        half = self.losses[len(self.losses) // 2]
        return half - self.losses[-1] > 0.05 * max(half - floor, 1e-9)


@dataclass(frozen=True)
class Limits:
    """What the batch allows, and what models that read less of it could reach."""

    V: int
    count: int  # scored targets
    best: Floor
    unigram: Floor
    position: Floor
    windows: dict[int, Floor]


def crop(probe: Probe) -> Batch:
    """Return the columns with the most scored targets, and as many rows as are affordable."""
    batch = probe.batch
    size = sum(parameter.numel() for parameter in probe.pipeline.model.parameters())
    affordable = int(WORK_MAX / (6 * max(1, size) * probe.overfit_steps))
    rows = max(2, min(ROWS_MAX, affordable // min(batch.inputs.shape[1], TOKENS_MAX)))
    return batch.crop(rows, TOKENS_MAX, probe.pipeline.ignore_index)


def measure_limits(probe: Probe, batch: Batch) -> Limits:
    """Compute floors and ceilings of the batch (B, T) by counting."""
    ignore = probe.pipeline.ignore_index
    inputs, targets = batch.inputs, batch.targets
    if probe.pipeline.labels == "same":
        inputs, targets = inputs[:, :-1], targets[:, 1:]

    def floor(context: Any) -> Floor:
        return measure_floor(inputs, targets, context, ignore)

    return Limits(
        V=probe.vocab_size,
        count=int((targets != ignore).sum()),
        best=floor(whole_prefix),
        unigram=floor(nothing),
        position=floor(position_only),
        windows={k: floor(last_tokens(k)) for k in WINDOWS if k < inputs.shape[1]},
    )


def measure_curve(
    probe: Probe,
    batch: Batch,
    limits: Limits,
    rate: float,
    make_optimizer: Callable[[nn.Module], Optimizer] | None,
) -> Curve:
    """Train until everything learnable is learnt, nothing moves any more, or the steps are up."""
    curve = Curve(rate)
    with (
        probe.seeded("overfit"),
        torch.enable_grad(),
        probe.model(train=True, fresh=True) as model,
    ):
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = make_optimizer(model) if make_optimizer else adamw(parameters, rate)
        with without_dropout(model):
            _look(probe, model, batch, curve, 0, [])
            pending: list[Tensor] = []
            steps = 0 if curve.not_finite_at is not None else probe.overfit_steps
            for step in range(1, steps + 1):
                optimizer.zero_grad(set_to_none=True)
                loss = probe.loss(model, batch)[1]
                loss.backward()
                nn.utils.clip_grad_norm_(parameters, 1.0)
                optimizer.step()
                pending.append(loss.detach())
                if step % LOOK_EVERY == 0 or step == probe.overfit_steps:
                    _look(probe, model, batch, curve, step, pending)
                    pending = []
                    curve.gave_up = _has_stalled(curve, limits)
                    over = curve.gave_up or curve.not_finite_at is not None
                    if over or is_memorised(curve, limits):
                        break
    return curve


@contextmanager
def without_dropout(model: nn.Module) -> Iterator[None]:
    """Set every dropout probability that a module holds to 0, and put it back.

    Also the plain numbers that functional dropout reads, such as `self.dropout = 0.1`.
    """
    changed: list[tuple[nn.Module, str, Any]] = []
    for module in model.modules():
        for name, value in vars(module).items():
            is_rate = "drop" in name or (
                name == "p" and isinstance(module, nn.modules.dropout._DropoutNd)
            )
            if is_rate and isinstance(value, float):
                changed.append((module, name, value))
    try:
        for module, name, _ in changed:
            setattr(module, name, 0.0)
        yield
    finally:
        for module, name, value in changed:
            setattr(module, name, value)


def is_memorised(curve: Curve, limits: Limits) -> bool:
    """Everything learnable is right, and the loss knows it too."""
    if curve.not_finite_at is not None:
        return False
    start = max(ln(limits.V), limits.best.loss)
    loss_max = limits.best.loss + KNOWS_MAX * (start - limits.best.loss)
    enough = curve.accuracies[-1] >= limits.best.accuracy - 1e-9
    return enough and curve.losses[-1] <= loss_max


def _look(
    probe: Probe, model: nn.Module, batch: Batch, curve: Curve, step: int, pending: list[Tensor]
) -> None:
    """Add one point to the curve; the only place that waits for numbers."""
    model.eval()
    with torch.no_grad():
        logits = probe.adapter.logits(model, batch.inputs, batch.attention_mask)
        loss = probe.adapter.cross_entropy(logits, batch.targets)
        targets = batch.targets
        if probe.pipeline.labels == "same":
            logits, targets = logits[:, :-1], targets[:, 1:]
        scored = targets != probe.pipeline.ignore_index
        right = (logits.argmax(-1) == targets)[scored].double().mean()
    model.train()
    reported = torch.stack(
        [part.double().reshape(-1).mean() for part in pending] or [loss.double()]
    )
    curve.steps.append(step)
    curve.losses.append(float(loss))
    curve.accuracies.append(float(right))
    curve.reported.append(float(reported[-1]))
    broken = torch.nonzero(~torch.isfinite(reported)).flatten()
    if len(broken) and pending:
        found = step - len(pending) + 1 + int(broken[0])
        curve.not_finite_at = 0 if found == 1 else found  # the loss of step 1 comes before it
    elif not math.isfinite(curve.losses[-1]):
        curve.not_finite_at = step


def _has_stalled(curve: Curve, limits: Limits) -> bool:
    """Whether neither loss nor accuracy has moved visibly for PATIENCE steps."""
    before = [n for n, step in enumerate(curve.steps) if step <= curve.steps[-1] - PATIENCE]
    if not before:
        return False
    cut = before[-1] + 1
    gained = min(curve.losses[:cut]) - min(curve.losses[cut:])
    way = max(curve.losses[0], ln(limits.V)) - limits.best.loss
    more_right = max(curve.accuracies[cut:]) - max(curve.accuracies[:cut])
    return not (gained > PROGRESS_MIN * way or more_right > PROGRESS_MIN)


def adamw(parameters: list[nn.Parameter], rate: float) -> Optimizer:
    """Return AdamW without decay, fused where that exists."""
    fused = all(p.device.type in ("cpu", "cuda") and p.is_floating_point() for p in parameters)
    return torch.optim.AdamW(parameters, lr=rate, weight_decay=0.0, fused=fused)
