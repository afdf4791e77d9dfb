"""What is measured on each rank: its weights at the start, and the gradients of its steps.

Every rank runs this at the same time. Gradients are compared on a fixed choice of elements, the
same on every rank, so that no model is too large to be sent around.

Shapes: B batch, T time.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics._optimizer_step import as_optimizers, set_usual_rate
from diagnostics._overfit_curve import without_dropout
from diagnostics._probe import MissingPartError, Probe
from diagnostics._step_trial import (
    Call,
    Gradient,
    Pair,
    at_weights,
    call_recorded,
    constant_pair,
    norm,
    random_pair,
    reference,
)
from diagnostics._step_windows import SHRINK, _ignores, shrunk_gradients

ELEMENTS_MAX = 65536  # of each parameter that are compared
MOVED = 0.05  # standard deviation of what is added to the weights of every rank but the first
ROWS = 2
WRAPPERS = ("module.", "_orig_mod.")


@dataclass(frozen=True)
class Start:
    """Checksums of the weights, by name, once `replicate` has been called on this rank.

    given: of the model as it was handed over.    moved: where the ranks began with other weights,
    in the parameters `trained`.    fresh: where each made a model of its own.
    """

    given: dict[str, int]
    moved: dict[str, int]
    trained: list[str]
    fresh: dict[str, int] | None


@dataclass(frozen=True)
class Plan:
    """One call of the user's step: what each rank is given.

    part: "train_step" or "accumulate".    shrunk: gradients are made too small for any clipping.
    unequal: ranks score different numbers of tokens, with gradients of different size.
    """

    part: str
    shrunk: bool = False
    unequal: bool = False


@dataclass(frozen=True)
class Packed:
    """A thinned gradient as one array: it travels many times faster than a tensor for each name."""

    sizes: dict[str, int]
    values: np.ndarray[Any, np.dtype[np.float32]]

    @classmethod
    def of(cls, gradient: Gradient) -> Packed:
        """Pack a gradient, of each tensor a fixed choice of elements."""
        thin = {}
        for name, value in gradient.items():
            flat = value.detach().flatten()
            thin[name] = flat[:: -(-flat.numel() // ELEMENTS_MAX) or 1].float().cpu()
        whole = torch.cat([*thin.values(), torch.zeros(0)])
        return cls({name: len(values) for name, values in thin.items()}, whole.numpy())

    def open(self) -> Gradient:
        """Return the tensors by name."""
        pieces = torch.from_numpy(self.values).split(list(self.sizes.values()))
        return dict(zip(self.sizes, pieces, strict=False))


@dataclass
class Step:
    """What one rank saw of one call.

    used: what the optimizer was about to use, of norm `size`.    before, after: the weights.
    parts: the gradient of each of its own micro-batches, summed over its scored tokens, which
    `counts` counts.    sizes: norms of the means of the parts.
    checksums: of the weights after the call.    buffers: checksums of what the first forward call
    of the step found.
    """

    plan: Plan
    used: Packed
    size: float
    steps: int
    closure: bool
    before: Packed
    after: Packed
    checksums: dict[str, int]
    buffers: dict[str, int]
    counts: list[int] = field(default_factory=list)
    parts: list[Packed] = field(default_factory=list)
    sizes: list[float] = field(default_factory=list)


def measure_start(probe: Probe, rank: int) -> Start:
    """Call `replicate` on a model whose weights differ from rank to rank, and on a fresh one."""
    given = checksums(probe.pipeline.model)
    with probe.model(train=True) as model:
        trained = _move(probe, model, rank)
        moved = checksums(_replicated(probe, model))
    make = probe.pipeline.make_model
    fresh = None
    if make is not None:
        with probe.seeded(f"rank {rank}"):
            model = make().to(probe.device)
            if model is not probe.pipeline.model:
                fresh = checksums(_replicated(probe, model))
    return Start(given, moved, trained, fresh)


def measure_steps(probe: Probe, rank: int, plans: list[Plan]) -> list[Step]:
    """Make the planned calls on this rank, one after the other on one replicated model."""
    pairs = [_pairs(probe, plan, rank, number) for number, plan in enumerate(plans)]
    steps: list[Step] = []
    calls: list[Call] = []
    with probe.model(train=True) as model, without_dropout(model):
        wrapped = _replicated(probe, model)
        names = [name for name, _ in model.named_parameters()]
        own = {id(parameter) for parameter in model.parameters()}
        same = own == {id(parameter) for parameter in wrapped.parameters()}
        _require_whole(wrapped, names)
        assert probe.pipeline.make_optimizer is not None
        # a loop may wrap before or after it builds the optimizer: the parameters are the same
        made = probe.pipeline.make_optimizer(model if same else wrapped)
        optimizers = as_optimizers(made)
        set_usual_rate(probe, optimizers)
        for number, plan in enumerate(plans):
            with probe.seeded(f"call {number}"), _buffers_seen(model) as buffers:
                call = _call(probe, wrapped, made, optimizers, plan, pairs[number])
            calls.append(call)
            steps.append(
                Step(
                    plan,
                    Packed.of(_bare(call.used)),
                    norm(call.used),
                    call.steps,
                    call.closure,
                    Packed.of(_bare(call.before)),
                    Packed.of(_bare(dict(wrapped.named_parameters()))),
                    checksums(wrapped),
                    dict(buffers),
                )
            )
    _add_parts(probe, steps, calls, pairs)
    return steps


def checksums(model: nn.Module) -> dict[str, int]:
    """Return a checksum of the bytes of each parameter, by name without the wrapper's prefix."""
    return {_bare_name(name): _checksum(p) for name, p in model.named_parameters()}


def _checksum(tensor: Tensor) -> int:
    whole = tensor.detach().cpu().contiguous().flatten()
    return zlib.crc32(whole.view(torch.uint8).numpy().tobytes()) if whole.numel() else 0


def _replicated(probe: Probe, model: nn.Module) -> nn.Module:
    assert probe.pipeline.replicate is not None
    wrapped = probe.pipeline.replicate(model)
    if not isinstance(wrapped, nn.Module):
        raise TypeError(f"replicate must return a torch.nn.Module, got {type(wrapped).__name__}")
    return wrapped


def _require_whole(wrapped: nn.Module, names: list[str]) -> None:
    """Raise MissingPartError for parameters in pieces, whose gradients cannot be compared."""
    found = [_bare_name(name) for name, _ in wrapped.named_parameters()]
    whole = all(hasattr(p, "placements") is False for p in wrapped.parameters())
    if sorted(found) != sorted(names) or not whole:
        raise MissingPartError(
            "replicate", why="what it returns holds parameters in pieces, or of other names"
        )


def _move(probe: Probe, model: nn.Module, rank: int) -> list[str]:
    """Change what is trained on every rank but the first; constants are equal by construction."""
    generator = probe.generator(f"rank {rank}")
    trained = {
        name: parameter
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and parameter.is_floating_point()
    }
    if rank:
        with torch.no_grad():
            for parameter in trained.values():
                noise = torch.randn(parameter.shape, generator=generator)
                parameter.add_(MOVED * noise.to(parameter))
    return list(trained)


# ---- calls ---------------------------------------------------------------------------------------


def _call(
    probe: Probe,
    wrapped: nn.Module,
    made: Any,
    optimizers: list[Any],
    plan: Plan,
    pairs: list[Pair],
) -> Call:
    given = [(inputs.clone(), targets.clone()) for inputs, targets in pairs]
    step: Callable[[], Any]
    if plan.part == "accumulate":
        accumulate = probe.pipeline.accumulate
        assert accumulate is not None
        step = lambda: accumulate(wrapped, made, given)  # noqa: E731
    else:
        train_step = probe.pipeline.train_step
        assert train_step is not None
        step = lambda: train_step(wrapped, made, *given[0])  # noqa: E731
    if not plan.shrunk:
        return call_recorded(wrapped, optimizers, step)
    with shrunk_gradients(wrapped):
        call = call_recorded(wrapped, optimizers, step)
    call.used = {name: gradient / SHRINK for name, gradient in call.used.items()}
    return call


def _pairs(probe: Probe, plan: Plan, rank: int, number: int) -> list[Pair]:
    """Return this rank's micro-batches: other tokens on every rank, the shapes alike."""
    count = 1
    if plan.part == "accumulate":
        count = min(4, max(2, probe.pipeline.micro_batches))
    if not plan.unequal:
        return [
            random_pair(probe, f"rank {rank} call {number} part {k}", ROWS) for k in range(count)
        ]
    if rank % 2 == 0:
        return [random_pair(probe, f"rank {rank} call {number}", ROWS)]
    inputs, targets = constant_pair(probe, ROWS, rank)
    if _ignores_targets(probe):
        targets = targets.clone()
        targets[:, max(2, targets.shape[1] // 2) :] = probe.pipeline.ignore_index
    return [(inputs, targets)]


def _ignores_targets(probe: Probe) -> bool:
    with probe.model(train=True) as model, without_dropout(model):
        return _ignores(probe, model)


def _add_parts(probe: Probe, steps: list[Step], calls: list[Call], pairs: list[list[Pair]]) -> None:
    """Compute what each micro-batch alone gives, on a copy that nothing was wrapped around."""
    with probe.model(train=True) as model, without_dropout(model):
        for number, (step, call) in enumerate(zip(steps, calls, strict=True)):
            at_weights(model, _bare(call.before))
            for inputs, targets in pairs[number]:
                shifted = targets[:, 1:] if probe.pipeline.labels == "same" else targets
                count = int((shifted != probe.pipeline.ignore_index).sum())
                _, gradient = reference(probe, model, (inputs, targets), seed=f"call {number}")
                step.counts.append(count)
                step.sizes.append(norm(gradient))
                step.parts.append(Packed.of({n: count * g for n, g in gradient.items()}))


@contextmanager
def _buffers_seen(model: nn.Module) -> Iterator[dict[str, int]]:
    """Note the buffers as the first forward call with gradient finds them.

    Before later ones, inside no_sync(), the wrapper does not bring them together either.
    """
    seen: dict[str, int] = {}

    def note(module: nn.Module, args: Any) -> None:
        if torch.is_grad_enabled() and not seen:
            seen.update({n: _checksum(b) for n, b in model.named_buffers()})

    handle = model.register_forward_pre_hook(note)
    try:
        yield seen
    finally:
        handle.remove()


# ---- names and sizes -----------------------------------------------------------------------------


def _bare(gradient: Mapping[str, Tensor]) -> Gradient:
    return {_bare_name(name): value for name, value in gradient.items()}


def _bare_name(name: str) -> str:
    while name.startswith(WRAPPERS):
        name = name.partition(".")[2]
    return name
