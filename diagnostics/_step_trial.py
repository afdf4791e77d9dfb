"""Call a user's training step on a copy and record what the optimizer is about to use.

Gradients are dictionaries by parameter name; a parameter without a gradient is left out.
Shapes: B batch, T time, V vocabulary, W width of the logits.
"""

from __future__ import annotations

import contextlib
import gc
import math
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)

from diagnostics._clip_calls import Clip, clips_noted
from diagnostics._optimizer_step import as_optimizers, gradient_of, rate_of
from diagnostics._probe import Batch, MissingPartError, Probe

Gradient = dict[str, Tensor]
Pair = tuple[Tensor, Tensor]

ROWS = 4


@dataclass
class Call:
    """One call of the user's step.

    before: the weights that the forward pass saw.    left: gradients that the last call had left.
    used: what the optimizer was about to use, by name.    kept: the same tensors after the call.
    times: how often each parameter was stepped.    rates: of the groups, at the first step.
    """

    before: Gradient = field(default_factory=dict)
    left: Gradient = field(default_factory=dict)
    used: Gradient = field(default_factory=dict)
    kept: Gradient = field(default_factory=dict)
    times: dict[str, int] = field(default_factory=dict)
    rates: list[float] = field(default_factory=list)
    steppers: list[Any] = field(default_factory=list)  # the optimizers that stepped the model
    foreign_steps: int = 0  # steps of optimizers that hold none of the model's parameters
    closure: bool = False  # step(closure): the gradient comes into being inside the step
    maximize: bool = False
    forwards: int = 0  # with gradient
    eval_paths: list[str] = field(default_factory=list)  # modules run in eval mode, with gradient
    moved: bool = False
    backward_first: bool = False  # backward() wrote a gradient before the step
    backward_after: bool = False  # or after it
    wrote: bool = False  # backward() wrote something else than zeros
    autocast: bool = False  # the optimizer stepped inside an autocast region
    clips: list[Clip] = field(default_factory=list)
    returned: Any = None
    graphs: list[weakref.ref[_Alive]] = field(default_factory=list)  # of its forward calls

    def graph_is_alive(self) -> bool:
        """Whether something still holds the graph of a forward call, and all that hangs on it."""
        if any(graph() is not None for graph in self.graphs):
            gc.collect()  # a cycle of the user's own is garbage, not a list of losses
        return any(graph() is not None for graph in self.graphs)

    def so_far(self) -> tuple[bool, bool]:
        """Whether backward() has written a gradient in this call, and whether it has stepped."""
        return self.backward_first or self.backward_after, bool(self.times)

    @property
    def steps(self) -> int:
        """The largest number of times that one parameter was stepped."""
        return max(self.times.values(), default=0)

    @property
    def loss(self) -> float:
        """The returned loss as a number; NaN where there is none."""
        value = loss_in(self.returned)
        try:
            return math.nan if value is None else float(torch.as_tensor(value).detach())
        except (TypeError, ValueError, RuntimeError):
            return math.nan


class _Alive:
    """Held by a node of a graph, and by nothing else: it goes when the graph goes."""


def loss_in(returned: Any) -> Any:
    """Return the loss of (loss, ...), {"loss": ...}, an object with .loss, or the value itself."""
    if isinstance(returned, Mapping):
        return returned.get("loss")
    if isinstance(returned, (tuple, list)):
        return returned[0] if returned else None
    return getattr(returned, "loss", returned)


def keeps_graph(returned: Any) -> bool:
    """Whether the returned loss holds the graph, and with it all activations, in memory."""
    value = loss_in(returned)
    return isinstance(value, Tensor) and value.requires_grad


def build_optimizers(probe: Probe, model: nn.Module) -> tuple[Any, list[Optimizer]]:
    """Return what make_optimizer gives for a model, as it is and as a list."""
    if probe.pipeline.make_optimizer is None:
        raise MissingPartError("make_optimizer", why="there is no optimizer to step with")
    made = probe.pipeline.make_optimizer(model)
    return made, as_optimizers(made)


def call_recorded(model: nn.Module, optimizers: Sequence[Any], step: Callable[[], Any]) -> Call:
    """Call `step()` and record it. The hooks are removed again whatever happens."""
    parameters = dict(model.named_parameters())
    call = Call(
        before={n: p.detach().clone() for n, p in parameters.items()},
        left={n: _dense(p.grad).clone() for n, p in parameters.items() if p.grad is not None},
    )
    with (
        torch.enable_grad(),
        _watched(model, call),
        _recorded(model, optimizers, call) as held,
        clips_noted(call.so_far) as call.clips,
    ):
        call.returned = step()
    call.kept = {n: _dense(gradient) for n, gradient in held.items()}
    call.moved = any(not torch.equal(p.detach(), call.before[n]) for n, p in parameters.items())
    return call


@contextmanager
def _recorded(
    model: nn.Module, optimizers: Sequence[Any], call: Call
) -> Iterator[dict[str, Tensor]]:
    """Record every step of any optimizer; of nested ones only the outermost counts."""
    names = {id(p): n for n, p in model.named_parameters()}
    held: dict[str, Tensor] = {}
    depth = [0]

    def before(optimizer: Any, args: Any, kwargs: Any) -> None:
        depth[0] += 1
        if depth[0] == 1:
            _record(optimizer, names, call, held)
            call.closure |= any(callable(value) for value in (*args, *kwargs.values()))

    def after(optimizer: Any, args: Any, kwargs: Any) -> None:
        depth[0] -= 1

    handles = [register_optimizer_step_pre_hook(before), register_optimizer_step_post_hook(after)]
    wrapped = [each for each in optimizers if not isinstance(each, Optimizer)]
    for each in wrapped:  # not torch's: its step is wrapped instead
        each.step = _wrap(each, each.step, before, after)
    try:
        yield held
    finally:
        for handle in handles:
            handle.remove()
        for each in wrapped:
            del each.step


def _wrap(
    optimizer: Any,
    step: Callable[..., Any],
    before: Callable[..., None],
    after: Callable[..., None],
) -> Callable[..., Any]:
    def recorded_step(*args: Any, **kwargs: Any) -> Any:
        before(optimizer, args, kwargs)
        try:
            return step(*args, **kwargs)
        finally:
            after(optimizer, args, kwargs)

    return recorded_step


def _record(optimizer: Any, names: dict[int, str], call: Call, held: dict[str, Tensor]) -> None:
    own = [p for group in optimizer.param_groups for p in group["params"] if id(p) in names]
    if not own:
        call.foreign_steps += 1
        return
    call.steppers.append(optimizer)
    call.maximize |= all(bool(group.get("maximize")) for group in optimizer.param_groups)
    call.autocast |= torch.is_autocast_enabled(own[0].device.type)
    if not call.times:
        call.rates = [rate_of(group) or 0.0 for group in optimizer.param_groups]
    scale = getattr(optimizer, "grad_scale", None)  # a GradScaler leaves it to a fused optimizer
    for parameter in own:
        name = names[id(parameter)]
        call.times[name] = call.times.get(name, 0) + 1
        if parameter.grad is not None and name not in call.used:
            held[name] = parameter.grad
            gradient = _dense(parameter.grad).clone()
            call.used[name] = gradient if scale is None else gradient / scale.to(gradient)


@contextmanager
def _watched(model: nn.Module, call: Call) -> Iterator[None]:
    """Note the mode of each module while gradients are recorded, and when backward() writes."""

    def note(path: str) -> Callable[..., None]:
        def hook(module: nn.Module, args: Any) -> None:
            if torch.is_grad_enabled():
                call.forwards += path == ""
                if not module.training and path not in call.eval_paths:
                    call.eval_paths.append(path)

        return hook

    def mark(module: nn.Module, args: Any, output: Any) -> None:
        for node in _nodes(output):
            alive = _Alive()
            call.graphs.append(weakref.ref(alive))
            with contextlib.suppress(RuntimeError):  # a node that takes no hook
                node.register_hook(partial(_nothing, alive))

    def written(parameter: Tensor) -> None:
        call.backward_first |= not call.times
        call.backward_after |= bool(call.times)
        gradient = parameter.grad  # None: a hook of the user's has used and freed it
        call.wrote = call.wrote or gradient is None or bool(_dense(gradient).any())

    handles: list[Any] = [
        module.register_forward_pre_hook(note(path)) for path, module in model.named_modules()
    ]
    handles.append(model.register_forward_hook(mark))
    handles += [
        p.register_post_accumulate_grad_hook(written) for p in model.parameters() if p.requires_grad
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _nodes(output: Any) -> list[Any]:
    """Return the nodes that end the graphs of what a model gave."""
    if isinstance(output, Tensor):
        return [] if output.grad_fn is None else [output.grad_fn]
    if isinstance(output, Mapping):
        parts = list(output.values())
    else:
        known = isinstance(output, (tuple, list))
        parts = list(output if known else getattr(output, "__dict__", {}).values())
    return [node for part in parts if part is not output for node in _nodes(part)]


def _nothing(alive: _Alive, *gradients: Any) -> None:
    """Do nothing in backward(): it is there to hold `alive`."""


# ---- references ----------------------------------------------------------------------------


def reference(
    probe: Probe, model: nn.Module, pair: Pair, *, seed: str | None = "step"
) -> tuple[float, Gradient]:
    """Return loss and gradient of a batch as the model itself has them, leaving all as it was.

    seed: of what the model draws besides dropout; None: go on from the random state as it is.
    """
    seeded = contextlib.nullcontext() if seed is None else probe.seeded(seed)
    with kept_buffers(model), torch.enable_grad(), seeded:
        _, loss = probe.loss(model, Batch(*pair))
        return float(loss.detach().double().mean()), gradient_of(model, loss.mean())


def loss_now(probe: Probe, model: nn.Module, pair: Pair) -> float:
    """Return the loss of a batch at the weights as they are."""
    with kept_buffers(model), torch.no_grad(), probe.seeded("step"):
        return float(probe.loss(model, Batch(*pair))[1].double().mean())


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Put back what a forward call in train mode writes into buffers."""
    saved = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, value in saved:
                buffer.copy_(value)


def at_weights(model: nn.Module, weights: Gradient) -> None:
    """Write weights by name into the model, in place."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name])


def random_pair(probe: Probe, name: str, rows: int = ROWS) -> Pair:
    """Return random (B, T) ids with their targets as the pipeline labels them; never pad_id."""
    same = probe.pipeline.labels == "same"
    T = probe.probe_length
    ids = torch.randint(
        probe.usable_vocab_size, (rows, T + (not same)), generator=probe.generator(name)
    )
    ids = _without_pad(probe, ids).to(probe.device)
    return (ids, ids.clone()) if same else (ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def constant_pair(probe: Probe, rows: int = ROWS, number: int = 0) -> Pair:
    """Return a batch of one token with one target: its gradient is large, so clipping shows.

    number: batches of different numbers hold different tokens, while the vocabulary lasts.
    """
    V = probe.usable_vocab_size
    inputs = torch.full((rows, probe.probe_length), (V // 3 + number) % V)
    inputs = _without_pad(probe, inputs).to(probe.device)
    if probe.pipeline.labels == "same":
        return inputs, inputs.clone()
    targets = _without_pad(probe, torch.full_like(inputs, (V // 2 + number) % V))
    return inputs, targets.to(probe.device)


def _without_pad(probe: Probe, ids: Tensor) -> Tensor:
    unwanted = (ids == probe.pipeline.pad_id) | (ids == probe.pipeline.ignore_index)
    return torch.where(unwanted, (ids + 1) % probe.usable_vocab_size, ids)


# ---- arithmetic of gradients ----------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """A gradient as a sum of others. `misfit` is the size of the rest over the gradient's own."""

    factors: tuple[float, ...]
    misfit: float


def fit(gradient: Gradient, parts: Sequence[Gradient]) -> Fit:
    """Return the least-squares factors with which the parts make up a gradient."""
    flat = [{name: _flat(tensor) for name, tensor in part.items()} for part in parts]
    own = {name: _flat(tensor) for name, tensor in gradient.items()}
    G = torch.zeros(len(parts), len(parts), dtype=torch.float64)
    for row, a in enumerate(flat):
        for column in range(row + 1):
            G[row, column] = G[column, row] = dot(a, flat[column])
    wanted = torch.tensor([dot(own, part) for part in flat], dtype=torch.float64)
    if not (torch.isfinite(G).all() and torch.isfinite(wanted).all()):
        return Fit((math.nan,) * len(parts), math.nan)
    sizes = G.diagonal().sqrt().clamp_min(1e-300)  # parts of very different size are balanced
    balanced = G / sizes[:, None] / sizes[None, :]
    factors = torch.linalg.pinv(balanced, rtol=1e-9, hermitian=True) @ (wanted / sizes) / sizes
    values = tuple(float(factor) for factor in factors)
    return Fit(values, norm(_rest(gradient, parts, values)) / max(norm(gradient), 1e-300))


def dot(a: Gradient, b: Gradient) -> float:
    """Return the inner product over all parameters."""
    parts = [torch.dot(_flat(a[n]), _flat(b[n])) for n in a if n in b]
    return float(torch.stack(parts).double().sum()) if parts else 0.0


def _flat(tensor: Tensor) -> Tensor:
    flat = tensor if tensor.ndim == 1 else tensor.flatten()
    return flat if flat.dtype.itemsize >= 4 else flat.float()


def norm(gradient: Gradient) -> float:
    """Return the L2 norm over all parameters."""
    return math.sqrt(dot(gradient, gradient))


def cosine(a: Gradient, b: Gradient) -> float:
    """Return the cosine between two gradients; 0 where one is 0."""
    size = norm(a) * norm(b)
    return dot(a, b) / size if size > 0 else 0.0


def _rest(gradient: Gradient, parts: Sequence[Gradient], factors: Sequence[float]) -> Gradient:
    names = {n: t for part in (gradient, *parts) for n, t in part.items()}
    rest = {}
    for name, like in names.items():
        start = gradient[name] if name in gradient else torch.zeros_like(like)
        left = start.clone() if start.dtype.itemsize >= 4 else start.float()
        for part, factor in zip(parts, factors, strict=True):
            if name in part:
                left.sub_(part[name].to(left.dtype), alpha=factor)
        rest[name] = left
    return rest


def _dense(gradient: Tensor) -> Tensor:
    detached = gradient.detach()
    return detached.to_dense() if detached.layout != torch.strided else detached
