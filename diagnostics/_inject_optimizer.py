"""Bugs in the optimizer, in accumulation and in the schedule.

Shapes: B batch, T time.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn

from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    replaced,
)
from diagnostics._optimizer_step import as_optimizers
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._step_trial import build_optimizers
from diagnostics._text import say

Pair = tuple[Tensor, Tensor]


def _optimizer(change: Callable[[nn.Module, Any], None]) -> Inject:
    """Change every optimizer that make_optimizer gives: change(model, optimizer)."""

    def make(pipeline: Pipeline) -> Callable[[nn.Module], Any]:
        build = pipeline.make_optimizer
        assert build is not None

        def make_optimizer(model: nn.Module) -> Any:
            made = build(model)
            for optimizer in as_optimizers(made):
                change(model, optimizer)
            return made

        return make_optimizer

    return replaced(make_optimizer=make)


def _groups(change: Callable[[dict[str, Any]], None]) -> Inject:
    def of_all(model: nn.Module, optimizer: Any) -> None:
        for group in optimizer.param_groups:
            change(group)

    return _optimizer(of_all)


def _scaled_rate(factor: float) -> Inject:
    """Scale the optimizer's own rate, which no schedule replaces."""

    def change(group: dict[str, Any]) -> None:
        group["lr"] = group["lr"] * factor

    def inject(pipeline: Pipeline) -> Pipeline:
        return dataclasses.replace(_groups(change)(pipeline), learning_rate=None)

    return inject


def _leave_out(model: nn.Module, optimizer: Any) -> None:
    largest = max(optimizer.param_groups, key=lambda group: len(group["params"]))
    del largest["params"][0]


def _listed_twice(model: nn.Module, optimizer: Any) -> None:
    group = optimizer.param_groups[0]
    group["params"].append(group["params"][0])


def _uphill(model: nn.Module, optimizer: Any) -> None:
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: negate(optimizer))


def negate(optimizer: Any) -> None:
    """Turn the sign of every gradient that an optimizer is about to use."""
    for parameter in parameters_of(optimizer):
        if parameter.grad is not None:
            parameter.grad.neg_()


def parameters_of(optimizer: Any) -> Iterator[nn.Parameter]:
    """Yield the parameters that an optimizer steps."""
    for group in optimizer.param_groups:
        yield from group["params"]


def _of_another_model(pipeline: Pipeline) -> Callable[[nn.Module], Any]:
    build = pipeline.make_optimizer
    assert build is not None
    return lambda model: build(copy.deepcopy(model))


def _with_decay(change: Callable[[float], float]) -> Inject:
    """Change the weight decay of the groups that have one: change(decay) -> decay."""

    def inject(pipeline: Pipeline) -> Pipeline:
        probe = Probe(pipeline)
        with probe.model(train=True) as model:
            optimizers = build_optimizers(probe, model)[1]
            if not any(g.get("weight_decay") for o in optimizers for g in o.param_groups):
                raise CannotInject(say("the optimizer has no weight decay"))
        return _groups(_change_decay)(pipeline)

    def _change_decay(group: dict[str, Any]) -> None:
        if group.get("weight_decay"):
            group["weight_decay"] = change(group["weight_decay"])

    return inject


def _micro_batches(choose: Callable[[list[Pair]], list[Pair]]) -> Inject:
    """Give the accumulating step some of its micro-batches only."""

    def make(pipeline: Pipeline) -> Callable[..., Any]:
        step = pipeline.accumulate
        assert step is not None
        return lambda model, optimizer, batches: step(model, optimizer, choose(list(batches)))

    return replaced(accumulate=make)


def _each_gradient(factor: Callable[[int], float]) -> Inject:
    """Multiply the gradient of each micro-batch as it is written: factor(how many there are)."""

    def make(pipeline: Pipeline) -> Callable[..., Any]:
        step = pipeline.accumulate
        assert step is not None

        def call(model: nn.Module, optimizer: Any, batches: list[Pair]) -> Any:
            by = factor(len(batches))
            handles = [
                parameter.register_hook(lambda gradient: gradient * by)
                for parameter in model.parameters()
                if parameter.requires_grad
            ]
            try:
                return step(model, optimizer, batches)
            finally:
                for handle in handles:
                    handle.remove()

        return call

    return replaced(accumulate=make)


Rate = Callable[[int], float]


def _schedule(change: Callable[[Rate, int], Rate]) -> Inject:
    """Change the schedule: change(rate, steps of the run) -> rate."""

    def make(pipeline: Pipeline) -> Rate:
        assert pipeline.learning_rate is not None
        assert pipeline.max_steps is not None
        return change(pipeline.learning_rate, pipeline.max_steps)

    return replaced(learning_rate=make)


def _warms_too_long(rate: Rate, steps: int) -> Rate:
    peak = max(rate(step) for step in range(steps))
    return lambda step: peak * min(1.0, (step + 1) / (2 * steps))


def _runs_below_zero(rate: Rate, steps: int) -> Rate:
    peak = max(rate(step) for step in range(steps))
    return lambda step: rate(step) - 0.5 * peak * step / steps


def _starts_again(rate: Rate, steps: int) -> Rate:
    """Run through the schedule in half the steps, and once more from its peak on."""
    peak_step = max(range(steps), key=rate)
    half = steps // 2
    return lambda step: rate(2 * step if step < half else peak_step + 2 * (step - half))


def _counts_calls(rate: Rate, steps: int) -> Rate:
    calls = [0]

    def counted(step: int) -> float:
        calls[0] += 1
        return rate(min(calls[0], steps))

    return counted


OPTIMIZER = ("make_optimizer",)


WINDOW = ("make_optimizer", "accumulate")


SCHEDULE = ("learning_rate", "max_steps")


INJECTIONS = (
    Injection(
        "optimizer.missing_parameters",
        "one parameter is left out of the optimizer",
        _optimizer(_leave_out),
        OPTIMIZER,
    ),
    Injection(
        "optimizer.repeated_parameters",
        "one parameter is listed twice",
        _optimizer(_listed_twice),
        OPTIMIZER,
    ),
    Injection("optimizer.does_not_move", "the learning rate is 0", _scaled_rate(0.0), OPTIMIZER),
    Injection(
        "optimizer.update_too_large",
        "the learning rate is 1000 times larger",
        _scaled_rate(1000.0),
        OPTIMIZER,
    ),
    Injection(
        "optimizer.uphill",
        "gradients are negated before the step",
        _optimizer(_uphill),
        OPTIMIZER,
    ),
    Injection(
        "optimizer.foreign_parameters",
        "the optimizer is made for a copy of the model",
        replaced(make_optimizer=_of_another_model),
        OPTIMIZER,
    ),
    Injection(
        "optimizer.decay_sign",
        "weight decay is negative",
        _with_decay(lambda decay: -10.0),
        OPTIMIZER,
    ),
    Injection(
        "optimizer.decay_too_strong",
        "weight decay is 200",
        _with_decay(lambda decay: 200.0),
        OPTIMIZER,
    ),
    Injection(
        "accumulation.only_last",
        "only the last micro-batch is used",
        _micro_batches(lambda batches: batches[-1:]),
        WINDOW,
    ),
    Injection(
        "accumulation.dropped",
        "the first micro-batch is left out",
        _micro_batches(lambda batches: batches[1:] or batches),
        WINDOW,
    ),
    Injection(
        "accumulation.not_divided",
        "gradients are added up and not divided",
        _each_gradient(float),
        WINDOW,
    ),
    Injection(
        "accumulation.divided_twice",
        "gradients are divided by the number of micro-batches once more",
        _each_gradient(lambda count: 1.0 / count),
        WINDOW,
    ),
    Injection(
        "schedule.not_finite",
        "the rate is NaN in the middle of the run",
        _schedule(lambda rate, steps: lambda s: math.nan if s == steps // 2 else rate(s)),
        SCHEDULE,
    ),
    Injection(
        "schedule.negative",
        "the rate falls below 0",
        _schedule(_runs_below_zero),
        SCHEDULE,
    ),
    Injection(
        "schedule.always_zero",
        "the rate is 0 at every step",
        _schedule(lambda rate, steps: lambda s: 0.0),
        SCHEDULE,
    ),
    Injection(
        "schedule.peak_never_reached",
        "the warm-up is twice as long as the run",
        _schedule(_warms_too_long),
        SCHEDULE,
    ),
    Injection(
        "schedule.not_repeatable",
        "the schedule counts its calls",
        _schedule(_counts_calls),
        SCHEDULE,
    ),
    Injection(
        "schedule.ends_at_zero_early",
        "the rate is 0 from the middle of the run on",
        _schedule(lambda rate, steps: lambda s: rate(s) if s < steps // 2 else 0.0),
        SCHEDULE,
    ),
    Injection(
        "schedule.restart",
        "the schedule starts again in the middle of the run",
        _schedule(_starts_again),
        SCHEDULE,
    ),
)
