"""Bugs between processes: in what a rank reads, how it begins, and what it steps with.

They are put around the parts and act on the ranks of the workers; one process alone, in which
there is no group, is left as it is.

Shapes: B batch, T time.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from diagnostics._inject_optimizer import parameters_of
from diagnostics._inject_step import _around, _before_step
from diagnostics._injection import Inject, Injection, patched, replaced
from diagnostics._optimizer_step import as_optimizers
from diagnostics._pipeline import Pipeline

FEW = 12  # batches of a rank whose share ends early


def _batches(change: Callable[[Callable[..., Any], int, int], Iterable[Any]]) -> Inject:
    """Change the batches of every rank: change(rank_batches, rank, processes) -> its batches."""

    def make(pipeline: Pipeline) -> Callable[[int, int], Iterable[Any]]:
        part = pipeline.rank_batches
        assert part is not None
        return lambda rank, processes: change(part, rank, processes)

    return replaced(rank_batches=make)


def _one_more(part: Callable[..., Any], rank: int, processes: int) -> Iterable[Any]:
    return itertools.islice(itertools.cycle(part(rank, processes)), FEW + (rank == 0))


def _moved_apart(pipeline: Pipeline) -> Callable[[nn.Module], nn.Module]:
    replicate = pipeline.replicate
    assert replicate is not None

    def replicate_and_move(model: nn.Module) -> nn.Module:
        wrapped = replicate(model)
        _move(wrapped.parameters())
        return wrapped

    return replicate_and_move


def _move(parameters: Iterable[Tensor]) -> None:
    """Add to every parameter what depends on the rank, and is 0 on rank 0."""
    rank = dist.get_rank() if dist.is_initialized() else 0
    with torch.no_grad():
        for parameter in parameters:
            parameter.add_(rank * 2.0**-6)


def _alone(pipeline: Pipeline) -> Callable[..., Any]:
    """Go around a wrapper, and keep a loop of the user's own from sending gradients."""
    step = pipeline.train_step
    assert step is not None

    def call(model: nn.Module, *arguments: Any) -> Any:
        with patched(dist, all_reduce=lambda *_, **__: None):
            return step(getattr(model, "module", model), *arguments)

    return call


def _multiply(optimizer: Any) -> None:
    """Multiply all gradients by the number of processes."""
    size = dist.get_world_size() if dist.is_initialized() else 1
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad.mul_(size)


def _moved_by_steps(pipeline: Pipeline) -> Callable[[nn.Module], Any]:
    build = pipeline.make_optimizer
    assert build is not None

    def make_optimizer(model: nn.Module) -> Any:
        made = build(model)
        for optimizer in as_optimizers(made):
            optimizer.register_step_post_hook(lambda o, args, kwargs: _move(parameters_of(o)))
        return made

    return make_optimizer


STEP = ("replicate", "make_optimizer", "train_step")

INJECTIONS = (
    Injection(
        "distributed.same_samples",
        "every rank is given the rows of rank 0",
        _batches(lambda part, rank, processes: part(0, processes)),
        ("rank_batches",),
    ),
    Injection(
        "distributed.uneven",
        "rank 0 has one batch more than the others",
        _batches(_one_more),
        ("rank_batches",),
    ),
    Injection(
        "distributed.weights",
        "every rank begins with weights of its own",
        replaced(replicate=_moved_apart),
        ("replicate",),
        reasons=("distributed.weights", "distributed.no_broadcast"),
    ),
    Injection(
        "distributed.local_gradient",
        "each rank steps with its own gradient",
        replaced(train_step=_alone),
        STEP,
    ),
    Injection(
        "distributed.gradient_scale",
        "gradients are added up over the ranks and not divided",
        _around(_before_step(_multiply)),
        STEP,
    ),
    Injection(
        "distributed.drift",
        "the weights of every rank but the first are moved after each step",
        replaced(make_optimizer=_moved_by_steps),
        STEP,
    ),
)
