"""Small training loops to be watched, and the text they learn from.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import TrainingMonitor
from tests.diagnostics.tiny import TinyGPT, cross_entropy

V, B, T = 19, 8, 12


def text(length: int = 4000, seed: int = 5) -> Tensor:
    """Return ids with structure to learn: each token is followed by one of three."""
    generator = torch.Generator().manual_seed(seed)
    choices = torch.randint(V, (V, 3), generator=generator)
    picks = torch.randint(3, (length,), generator=generator).tolist()
    ids = list(itertools.accumulate(picks, lambda t, pick: int(choices[t, pick]), initial=0))
    return torch.tensor(ids)


def batches(ids: Tensor, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield (inputs, targets), (B, T) each, for ever."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        starts = torch.randint(len(ids) - T - 1, (B, 1), generator=generator)
        yield ids[starts + torch.arange(T)], ids[starts + torch.arange(1, T + 1)]


def train(
    steps: int,
    model: nn.Module | None = None,
    *,
    optimizer: torch.optim.Optimizer | None = None,
    rate: float = 1e-3,
    clip: float | None = 1.0,
    before: Callable[[nn.Module, int], object] = lambda model, step: None,
    step_first: bool = False,
    update: bool = True,
    clear: bool = True,
    data: Iterator[tuple[Tensor, Tensor]] | None = None,
    **settings: Any,
) -> TrainingMonitor:
    """Train for some updates and return the monitor that watched, already closed.

    before: called with the model and the number of the coming update, to break something.
    step_first: call the monitor after optimizer.step() instead of before it.
    """
    model = TinyGPT(V) if model is None else model
    if optimizer is None:
        trainable = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(trainable, lr=rate)
    data = batches(text()) if data is None else data
    settings = {"on_event": None, "vocab_size": V, "clip_norm": clip} | settings
    with TrainingMonitor(model, optimizer, **settings) as monitor:
        for step in range(1, steps + 1):
            before(model, step)
            inputs, targets = next(data)
            if clear:
                optimizer.zero_grad()
            loss = cross_entropy(model(inputs)[0], targets)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(model.parameters(), clip) if clip else None
            if step_first and update:
                optimizer.step()
            monitor.step(loss, inputs=inputs, targets=targets, grad_norm=norm)
            if update and not step_first:
                optimizer.step()
    return monitor


def said(monitor: TrainingMonitor) -> list[tuple[str, int]]:
    """Return (reason, step) of every event, without the prefix."""
    return [(event.reason.removeprefix("monitor."), event.step) for event in monitor.events]
