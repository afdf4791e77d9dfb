"""What an optimizer holds and what one step of it does, as numbers.

A parameter's motion is what its gradient does to it; its decay is what happens with a gradient of
zero. Both are measured on float64 copies with jittered weights where the model can run in them:
there nothing is lost to rounding, and no zero-initialised head hides the layers below it.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._probe import JITTER_STD, Batch, Probe

ROWS, LENGTH = 8, 32  # of the batch that the steps are taken on
TRIAL_STEPS = 5  # enough for a rate that is far too high to show, on one batch
SCHEDULE_LOOKS = 64  # places at which a schedule is read to find its peak

MakeOptimizer = Callable[[nn.Module], Any]


@dataclass(frozen=True)
class Coverage:
    """Whose parameters the optimizer holds. Names are the model's own."""

    trainable: int
    missing: list[str]  # trainable, in no group
    repeated: list[str]  # in more than one place
    frozen: list[str]  # held, although they want no gradient; harmless
    foreign: int  # of another model
    foreign_of_original: bool  # of the very model that was copied: the argument was ignored
    unregistered: list[str]  # shapes of tensors that the loss trains and the model does not list
    rates: list[float]  # learning rate per group, as training will use it
    classes: list[str]  # of the optimizers
    needs_closure: bool  # step() cannot be called without one, as LBFGS'
    empty_without_decay: list[int]  # numbers of groups that hold nothing, beside ones that decay


@dataclass(frozen=True)
class Move:
    """One parameter over one step; all tensors have its shape."""

    name: str
    weight: Tensor
    gradient: Tensor
    motion: Tensor  # caused by the gradient
    decay: Tensor  # what happens without one
    group: dict[str, Any]
    kind: str = ""  # class of its module and its name there, such as "LayerNorm.weight"
    start: float = 0.0  # median before any jitter
    is_dense: bool = True  # whether its gradient has a number for every element

    @property
    def is_bias(self) -> bool:
        """Whether the parameter is called a bias."""
        return self.kind.rpartition(".")[2] == "bias"


@dataclass(frozen=True)
class Trial:
    """A few steps on one batch, in the model's own dtype."""

    losses: list[float]  # before each step, and after the last
    ratios: list[float]  # size of the update over size of the weights, per step
    still: list[str]  # parameters with a gradient that no step moved
    still_at_zero: list[str]  # of them, those that are 0 everywhere, where no rounding hinders
    moved_share: float  # of the elements that had a gradient


def as_optimizers(made: Any) -> list[Optimizer]:
    """Return one optimizer, or a list of them (Muon beside AdamW), as a list.

    Raises TypeError when it has no param_groups.
    """
    optimizers = list(made) if isinstance(made, (list, tuple)) else [made]
    for optimizer in optimizers:
        if not hasattr(optimizer, "param_groups"):
            raise TypeError(
                f"make_optimizer must return a torch.optim.Optimizer or a list of them, "
                f"got {type(optimizer).__name__}"
            )
    return optimizers


def measure_coverage(probe: Probe, make_optimizer: MakeOptimizer) -> Coverage:
    """Compare, by identity, what the optimizer holds with what the loss and the model train."""
    with probe.seeded("optimizer"), probe.model(train=True) as model:
        optimizers = as_optimizers(make_optimizer(model))
        set_usual_rate(probe, optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        with torch.enable_grad():
            leaves = list(graph_leaves(probe.loss(model, _batch(probe))[1]))
        held = [p for group in groups for p in group["params"]]
        names = {id(p): name for name, p in model.named_parameters()}
        trainable = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
        held_ids = {id(p) for p in held}
        known = set(names) | {id(leaf) for leaf in leaves}
        foreign = held_ids - known
        return Coverage(
            trainable=len(trainable),
            missing=[name for key, name in trainable.items() if key not in held_ids],
            repeated=sorted({names[k] for k in _repeated(held) if k in names}),
            frozen=[names[k] for k in held_ids if k in names and k not in trainable],
            foreign=len(foreign),
            foreign_of_original=foreign <= {id(p) for p in probe.pipeline.model.parameters()},
            unregistered=[
                str(tuple(leaf.shape))
                for leaf in leaves
                if id(leaf) not in names and id(leaf) not in held_ids
            ],
            rates=[rate for group in groups if (rate := rate_of(group)) is not None],
            classes=[type(optimizer).__name__ for optimizer in optimizers],
            needs_closure=any(map(_needs_closure, optimizers)),
            empty_without_decay=_empty_without_decay(groups),
        )


def graph_leaves(loss: Tensor) -> Iterator[Tensor]:
    """Return every tensor that backward would write a gradient into."""
    stack: list[Any] = [loss.grad_fn]
    seen: set[Any] = set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # only the nodes that end the graph have one
        if isinstance(variable, Tensor):
            yield variable
        stack.extend(following for following, _ in node.next_functions)


def measure_moves(probe: Probe, make_optimizer: MakeOptimizer) -> list[Move]:
    """Return what the first step does to each trainable parameter that has a gradient."""
    with_gradient = _first_step(probe, make_optimizer)
    again = _first_step(probe, make_optimizer, without=[move.name for move in with_gradient])
    without = {move.name: move for move in again}
    moves = []
    for move in with_gradient:
        decay = without[move.name].motion
        # where the decay is not a setting of the group it cannot be switched off, only subtracted
        motion = move.motion if "weight_decay" in move.group else move.motion - decay
        group = without[move.name].group
        moves.append(replace(move, motion=motion, decay=decay, group=group))
    return moves


def measure_trial(probe: Probe, make_optimizer: MakeOptimizer) -> Trial:
    """Take a few steps on one batch as a loop would: backward, clip to norm 1, step."""
    losses: list[Tensor] = []
    ratios: list[float] = []
    with probe.seeded("optimizer trial"), probe.model(train=True, fresh=True) as model:
        optimizers = as_optimizers(make_optimizer(model))
        set_usual_rate(probe, optimizers)
        parameters = dict(model.named_parameters())
        start = {name: p.detach().clone() for name, p in parameters.items()}
        touched = {name: torch.zeros_like(p, dtype=torch.bool) for name, p in parameters.items()}
        for _ in range(TRIAL_STEPS):
            losses.append(backward(probe, model))
            before = [p.detach().clone() for p in parameters.values()]
            for name, parameter in parameters.items():
                if parameter.grad is not None:
                    touched[name] |= _dense(parameter.grad) != 0
            with _warmed_up(optimizers, len(losses)):
                for optimizer in optimizers:
                    optimizer.step()
            ratios.append(_norm(_difference(parameters.values(), before)) / _norm(before))
        with torch.no_grad():
            losses.append(probe.loss(model, _batch(probe))[1].detach())
        moved = {n: (p.detach() != start[n]) & touched[n] for n, p in parameters.items()}
        counts = {n: int(mask.sum()) for n, mask in moved.items()}
        wanted = {n: int(mask.sum()) for n, mask in touched.items()}
        still = [name for name in parameters if wanted[name] and not counts[name]]
    return Trial(
        losses=[float(loss.double().mean()) for loss in losses],
        ratios=ratios,
        still=still,
        still_at_zero=[name for name in still if not start[name].any()],
        moved_share=sum(counts.values()) / max(1, sum(wanted.values())),
    )


@contextmanager
def _warmed_up(optimizers: list[Any], step: int) -> Iterator[None]:
    """Lend RMSprop the rate with which its updates have the size that they keep later.

    It divides by the root of an average that begins at 0 and is not corrected: its first step is
    rate / root(1 - alpha), ten rates as torch has it, by its own definition and for some steps.
    """
    lent: list[tuple[dict[str, Any], Any]] = []
    for optimizer in optimizers:
        if "rmsprop" not in type(optimizer).__name__.lower():
            continue
        for group in optimizer.param_groups:
            alpha = next((group[name] for name in ("alpha", "rho", "beta") if name in group), None)
            if isinstance(alpha, float) and 0 < alpha < 1 and "lr" in group:
                lent.append((group, group["lr"]))
                group["lr"] = group["lr"] * math.sqrt(1 - alpha**step)
    yield
    for group, rate in lent:
        group["lr"] = rate


def set_usual_rate(probe: Probe, optimizers: list[Optimizer]) -> None:
    """Bring an optimizer that waits for its schedule to the rate that training will use.

    A loop that writes each step's rate may build the optimizer with any placeholder, and a
    warm-up scheduler inside make_optimizer starts at 0.
    """
    schedule = probe.pipeline.learning_rate
    peak = None if schedule is None else schedule_peak(schedule, probe.pipeline.max_steps)
    built = max((rate_of(group) or 0.0 for o in optimizers for group in o.param_groups), default=0)
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            rate = rate_of(group)
            if rate is None:
                continue
            if peak is not None:
                group["lr"] = peak * (rate / built if built > 0 else 1.0)
            elif rate == 0 and group.get("initial_lr"):
                group["lr"] = group["initial_lr"]


def schedule_peak(schedule: Callable[[int], float], max_steps: int | None) -> float:
    """Return the highest rate of a schedule, read at places spread over the run."""
    last = (max_steps or 1000) - 1
    places = {round(last * n / (SCHEDULE_LOOKS - 1)) for n in range(SCHEDULE_LOOKS)}
    return max(float(schedule(step)) for step in sorted(places))


def rate_of(group: dict[str, Any]) -> float | None:
    """Return a group's learning rate; None where the optimizer finds its own."""
    rate = group.get("lr")
    return None if rate is None else float(rate)


def _first_step(
    probe: Probe, make_optimizer: MakeOptimizer, *, without: list[str] | None = None
) -> list[Move]:
    """Take one step with the decay switched off.

    without: names of the parameters that have a gradient; take the step with zeros in its place,
    and with the decay.
    """
    with (
        probe.seeded("optimizer"),
        probe.model(train=True, exact=probe.batch_runs_in_float64, jitter=JITTER_STD) as model,
    ):
        optimizers = as_optimizers(make_optimizer(model))
        set_usual_rate(probe, optimizers)
        groups = [group for o in optimizers for group in o.param_groups]
        group_of = {id(p): group for group in groups for p in group["params"]}
        settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
        if without is None:
            backward(probe, model)
            moving = {n: p for n, p in model.named_parameters() if p.grad is not None}
            for group in groups:
                if "weight_decay" in group:
                    group["weight_decay"] = 0.0
        else:
            moving = {n: p for n, p in model.named_parameters() if n in without}
            for parameter in moving.values():
                parameter.grad = torch.zeros_like(parameter)
        dense = {n for n, p in moving.items() if p.grad.layout == torch.strided}  # type: ignore[union-attr]
        gradients = {n: _dense(p.grad).clone() for n, p in moving.items()}
        before = {n: p.detach().clone() for n, p in moving.items()}
        for optimizer in optimizers:
            optimizer.step()
        settings_of = {id(group): kept for group, kept in zip(groups, settings, strict=True)}
        kinds = _kinds(model)
        starts = dict(probe.pipeline.model.named_parameters())
        return [
            Move(
                name,
                before[name],
                gradients[name],
                (parameter.detach() - before[name]).clone(),
                torch.zeros_like(before[name]),
                settings_of.get(id(group_of.get(id(parameter))), {}),
                kinds[name],
                float(starts[name].detach().float().median()) if name in starts else 0.0,
                name in dense,
            )
            for name, parameter in moving.items()
        ]


def _kinds(model: nn.Module) -> dict[str, str]:
    """Return, by name, the class of a parameter's module and its name in it."""
    modules = dict(model.named_modules())
    places = {name: name.rpartition(".")[::2] for name, _ in model.named_parameters()}
    return {n: f"{type(modules[path]).__name__}.{leaf}" for n, (path, leaf) in places.items()}


def _needs_closure(optimizer: Any) -> bool:
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    return closure is not None and closure.default is inspect.Parameter.empty


def _empty_without_decay(groups: list[dict[str, Any]]) -> list[int]:
    decays = [group.get("weight_decay") or 0.0 for group in groups]
    empty = [n for n, group in enumerate(groups) if not group["params"] and not decays[n]]
    return empty if any(decays) else []


def backward(probe: Probe, model: nn.Module) -> Tensor:
    """Write the gradient of one batch, clipped to norm 1; return the loss."""
    with torch.enable_grad():
        loss = probe.loss(model, _batch(probe))[1]
        found = gradient_of(model, loss, dense=False)  # hooks may step in backward() itself
    for name, parameter in model.named_parameters():
        parameter.grad = found[name].clone() if name in found else None
    dense = [p for p in model.parameters() if p.grad is None or p.grad.layout == torch.strided]
    nn.utils.clip_grad_norm_(dense, 1.0)  # as most loops do; Adam hardly notices
    return loss.detach()


def gradient_of(model: nn.Module, loss: Tensor, *, dense: bool = True) -> dict[str, Tensor]:
    """Return the gradient of a loss without touching `.grad` or the hooks that write it."""
    parameters = {n: p for n, p in model.named_parameters() if p.requires_grad}
    if not loss.requires_grad or not parameters:
        return {}
    try:
        found: tuple[Tensor | None, ...] = torch.autograd.grad(
            loss, list(parameters.values()), allow_unused=True, retain_graph=True
        )
    except RuntimeError:  # reentrant checkpointing allows backward() only
        found = _gradient_by_backward(parameters, loss)
    kept = {n: g for n, g in zip(parameters, found, strict=True) if g is not None}
    return {n: _dense(g) for n, g in kept.items()} if dense else kept


def _gradient_by_backward(
    parameters: dict[str, nn.Parameter], loss: Tensor
) -> tuple[Tensor | None, ...]:
    saved = {n: p.grad for n, p in parameters.items()}
    for parameter in parameters.values():
        parameter.grad = None
    try:
        loss.backward(retain_graph=True)
        return tuple(p.grad for p in parameters.values())
    finally:
        for name, parameter in parameters.items():
            parameter.grad = saved[name]


def _batch(probe: Probe) -> Batch:
    return probe.batch.crop(ROWS, LENGTH, probe.pipeline.ignore_index)


def _dense(gradient: Tensor | None) -> Tensor:
    assert gradient is not None
    return gradient.detach().to_dense() if gradient.layout != torch.strided else gradient.detach()


def _difference(parameters: Iterable[Tensor], before: list[Tensor]) -> list[Tensor]:
    return [p.detach() - b for p, b in zip(parameters, before, strict=True)]


def _norm(tensors: Iterable[Tensor]) -> float:
    norms = [torch.linalg.vector_norm(t.float()) for t in tensors]
    return float(torch.linalg.vector_norm(torch.stack(norms))) if norms else math.nan


def _repeated(held: list[Tensor]) -> set[int]:
    seen: set[int] = set()
    return {id(p) for p in held if id(p) in seen or seen.add(id(p))}  # type: ignore[func-returns-value]
