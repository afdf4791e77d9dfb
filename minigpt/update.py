"""One update of the weights: clear, forward, backward, clip, step.

The trainer and the checks call the same function, so that what was checked is what trains.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from minigpt.model import IGNORE_INDEX


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update measured. `made` is False when a number was not finite."""

    loss: float  # mean nats per scored token over all batches, before the update
    grad_norm: float  # global, before clipping
    clipped: bool
    made: bool


def update_weights(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[tuple[Tensor, Tensor]],
    *,
    clip_norm: float = 0.0,
    precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Update:
    """Make one update from all batches together; nothing non-finite ever reaches the weights.

    batches: (inputs, targets), (B, T) each; several ones are micro-batches of one update.
    clip_norm: the largest global gradient norm that goes in unscaled; 0 is off.
    precision: makes the context of each forward pass, such as autocast.
    """
    optimizer.zero_grad(set_to_none=True)
    loss = _accumulate_gradients(model, batches, precision)
    gradients = [
        parameter.grad
        for group in optimizer.param_groups
        for parameter in group["params"]
        if parameter.grad is not None
    ]
    norms = torch._foreach_norm(gradients) if gradients else [torch.zeros(())]
    norm = torch.stack(norms).norm()  # as torch's clip_grad_norm_ computes it
    # The only synchronisation of an update: both numbers travel together.
    loss_value, grad_norm = torch.stack([loss.to(norm.device), norm.float()]).tolist()
    finite = math.isfinite(loss_value) and math.isfinite(grad_norm)
    clipped = finite and 0 < clip_norm < grad_norm
    if clipped:
        torch._foreach_mul_(gradients, clip_norm / grad_norm)
    if finite:
        optimizer.step()
    return Update(loss=loss_value, grad_norm=grad_norm, clipped=clipped, made=finite)


def _accumulate_gradients(
    model: nn.Module,
    batches: Sequence[tuple[Tensor, Tensor]],
    precision: Callable[[], AbstractContextManager[Any]],
) -> Tensor:
    """Run forward and backward over all batches; return their mean loss.

    The mean is over tokens. Dividing each batch's loss by the number of batches would give a
    batch with few scored tokens the weight of a full one.
    """
    if len(batches) == 1:
        with precision():
            _, loss = model(*batches[0])
        loss.backward()
        return loss.detach().float()
    counts = torch.stack([(targets != IGNORE_INDEX).sum() for _, targets in batches]).tolist()
    if not sum(counts):
        return torch.tensor(math.nan)
    loss_mean = torch.zeros((), device=batches[0][1].device)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if not count:  # the mean over no token is 0 / 0
            continue
        with precision():
            _, loss = model(inputs, targets)
        share = loss.float() * (count / sum(counts))
        share.backward()
        loss_mean += share.detach()
    return loss_mean
