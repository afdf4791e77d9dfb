"""One update of the weights: clear, forward, backward, clip, step.

The trainer and the checks call the same function, so that what was checked is what trains.

An update is made from micro-batches, of this process and, where the model is wrapped in torch's
`DistributedDataParallel`, of all the others. Each scored token has the same weight in it: a
micro-batch with few of them counts for little, one with none for nothing.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from minigpt.model import IGNORE_INDEX

Batch = tuple[Tensor, Tensor]
Precision = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True, kw_only=True)
class Update:
    """What one update measured. `made` is False when a number was not finite."""

    loss: float  # mean nats per scored token over all batches, before the update
    grad_norm: float  # global, before clipping
    clipped: bool
    made: bool
    stop: bool = False  # some process asked to stop after this update


def update_weights(
    model: nn.Module,
    optimizer: Optimizer,
    batches: Sequence[Batch],
    *,
    clip_norm: float = 0.0,
    precision: Precision = nullcontext,
    stop: bool = False,
) -> Update:
    """Make one update from all batches together; nothing non-finite ever reaches the weights.

    batches: (inputs, targets), (B, T) each; several ones are micro-batches of one update.
    clip_norm: the largest global gradient norm that goes in unscaled; 0 is off.
    precision: makes the context of each forward pass, such as autocast.
    stop: whether this process wants to end afterwards; it comes back as the wish of any process.
    With a `DistributedDataParallel` model every process must call it, with the same `clip_norm`;
    all of them return the same and make the same step.
    """
    optimizer.zero_grad(set_to_none=True)
    wrapper = _data_parallel(model)
    if wrapper is None:
        measured = _accumulate_gradients(model, batches, precision)[None]
    else:
        measured = _accumulate_over_processes(model, wrapper, batches, precision, stop)
    gradients = _gradients_of(optimizer)
    norms = torch._foreach_norm(gradients) if gradients else [torch.zeros(())]
    norm = torch.stack(norms).norm()[None]  # as torch's clip_grad_norm_ computes it
    # The only synchronisation of an update: all numbers travel together.
    *told, grad_norm = torch.cat([measured.to(norm.device), norm.to(measured.dtype)]).tolist()
    loss, scale = told[0], 1.0
    if wrapper is not None:
        loss, scale, stop = _read_totals(wrapper, *told)
        grad_norm *= scale
    finite = math.isfinite(loss) and math.isfinite(grad_norm)
    clipped = finite and 0 < clip_norm < grad_norm
    if clipped:
        scale *= clip_norm / grad_norm
    if finite:
        if scale != 1.0:
            torch._foreach_mul_(gradients, scale)
        optimizer.step()
    return Update(loss=loss, grad_norm=grad_norm, clipped=clipped, made=finite, stop=stop)


def first_bad_gradient(model: nn.Module) -> str | None:
    """Return the name of the first parameter whose gradient is not finite."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(parameter.grad.isfinite().all()):
            return name
    return None


def forward_precision(dtype: str, device: torch.device) -> Precision:
    """Return what makes the context of a forward pass in "float32" or "bfloat16"."""
    if dtype == "float32":
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def _data_parallel(model: nn.Module) -> DistributedDataParallel | None:
    """Return the wrapper that sends gradients, also inside what torch.compile made of it."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, DistributedDataParallel) else None


def _accumulate_gradients(
    model: nn.Module, batches: Sequence[Batch], precision: Precision
) -> Tensor:
    """Run forward and backward over all batches; return their mean loss.

    The mean is over tokens. Dividing each batch's loss by the number of batches would give a
    batch with few scored tokens the weight of a full one.
    """
    if len(batches) == 1:
        with precision():
            loss = model(*batches[0])[1]  # a name for the logits would keep them in memory
        loss.backward()
        return loss.detach().float()
    counts = _scored_counts(batches)
    if not sum(counts):
        return torch.tensor(math.nan)
    loss_mean = torch.zeros((), device=batches[0][1].device)
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if not count:  # the mean over no token is 0 / 0
            continue
        with precision():
            loss = model(inputs, targets)[1]
        share = loss.float() * (count / sum(counts))
        share.backward()
        loss_mean += share.detach()
    return loss_mean


def _accumulate_over_processes(
    model: nn.Module,
    wrapper: DistributedDataParallel,
    batches: Sequence[Batch],
    precision: Precision,
    stop: bool,
) -> Tensor:
    """Run forward and backward over this process's batches; return totals over all processes.

    The totals are (3,) float64: nats, scored tokens, wishes to stop. The gradients are left as the
    mean over processes of the gradient of each one's *sum* of nats, since how many tokens the
    others score is not known yet: it comes with the totals, and costs no message of its own.
    """
    nats = torch.zeros((), dtype=torch.float64, device=batches[0][1].device)
    counts = _scored_counts(batches)
    last = len(batches) - 1
    for index, ((inputs, targets), count) in enumerate(zip(batches, counts, strict=True)):
        if not count and index < last:
            continue
        # The wrapper sends gradients at the end of the backward pass, once they are complete.
        with nullcontext() if index == last else wrapper.no_sync():
            part = _sum_of_nats(model, inputs, targets, count, precision)
            part.backward()
        nats += part.detach()
    totals = torch.stack([nats, nats.new_tensor(sum(counts)), nats.new_tensor(stop)])
    dist.all_reduce(totals, group=wrapper.process_group)
    return totals


def _sum_of_nats(
    model: nn.Module, inputs: Tensor, targets: Tensor, count: int, precision: Precision
) -> Tensor:
    """Return the loss of a micro-batch times its number of scored tokens."""
    with precision():
        logits, loss = model(inputs, targets)
    # Without a scored token the others still wait for this process's part, which is zero.
    return loss.float() * count if count else logits.float().sum() * 0.0


def _read_totals(
    wrapper: DistributedDataParallel, nats: float, count: float, stops: float
) -> tuple[float, float, bool]:
    """Return mean loss, the factor from mean of sums to mean over tokens, and whether to stop."""
    if not count:
        return math.nan, math.nan, stops > 0
    return nats / count, dist.get_world_size(wrapper.process_group) / count, stops > 0


def _gradients_of(optimizer: Optimizer) -> list[Tensor]:
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad for parameter in parameters if parameter.grad is not None]


def _scored_counts(batches: Sequence[Batch]) -> list[int]:
    """Return how many targets of each batch are scored, with one synchronisation."""
    counts = torch.stack([(targets != IGNORE_INDEX).sum() for _, targets in batches]).tolist()
    return [int(count) for count in counts]
