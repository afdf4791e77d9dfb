"""Bugs in the training step.

The step of the pipeline stays; what it is given is changed: its batch, or methods of its model
and of its optimizer.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from torch import Tensor, nn

from diagnostics._inject_optimizer import Pair, negate, parameters_of
from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    independent_copy,
    patched,
    replaced,
)
from diagnostics._optimizer_step import as_optimizers
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._step_trial import build_optimizers, random_pair
from diagnostics._text import say

Patch = Callable[[nn.Module, list[Any]], AbstractContextManager[None]]  # (model, optimizers)


def _batch(change: Callable[[Tensor, Tensor], Pair]) -> Inject:
    """Give the step another batch than its caller means: change(inputs, targets) -> both."""
    return _given(lambda: change)


def _given(start: Callable[[], Callable[[Tensor, Tensor], Pair]]) -> Inject:
    """As `_batch`, for a change that remembers: `start` makes a new one for each pipeline."""

    def make(pipeline: Pipeline) -> Callable[..., Any]:
        step, change = pipeline.train_step, start()
        assert step is not None
        return lambda model, optimizer, x, y: step(model, optimizer, *change(x, y))

    return replaced(train_step=make)


def _one_late() -> Callable[[Tensor, Tensor], Pair]:
    kept: list[Pair] = []

    def change(inputs: Tensor, targets: Tensor) -> Pair:
        kept.append((inputs, targets))
        return kept[-2] if len(kept) > 1 else kept[-1]

    return change


def _first_again() -> Callable[[Tensor, Tensor], Pair]:
    kept: list[Pair] = []

    def change(inputs: Tensor, targets: Tensor) -> Pair:
        kept.append((inputs, targets))
        return kept[0]

    return change


def _copied(pipeline: Pipeline) -> Pipeline:
    if pipeline.labels == "same":
        raise CannotInject(say('inputs are the targets here (labels="same")'))
    return _batch(lambda x, y: (x, x.clone()))(pipeline)


def _around(patch: Patch) -> Inject:
    """Patch the model and the optimizers for as long as the user's step runs."""

    def make(pipeline: Pipeline) -> Callable[..., Any]:
        step = pipeline.train_step
        assert step is not None

        def call(model: nn.Module, made: Any, *batch: Any) -> Any:
            with patch(model, as_optimizers(made)):
                return step(model, made, *batch)

        return call

    return replaced(train_step=make)


def _every(change: Callable[[Any], dict[str, Any]]) -> Patch:
    """Patch methods of every optimizer: change(optimizer) -> {name: method}."""

    @contextmanager
    def patch(model: nn.Module, optimizers: list[Any]) -> Iterator[None]:
        with ExitStack() as stack:
            for optimizer in optimizers:
                stack.enter_context(patched(optimizer, **change(optimizer)))
            yield

    return patch


def _before_step(action: Callable[[Any], object]) -> Patch:
    """Do something to an optimizer right before it steps."""

    def change(optimizer: Any) -> dict[str, Any]:
        inner = optimizer.step

        def step(*args: Any, **kwargs: Any) -> Any:
            action(optimizer)
            return inner(*args, **kwargs)

        return {"step": step}

    return _every(change)


def _step_twice(optimizer: Any) -> dict[str, Any]:
    inner = optimizer.step

    def step(*args: Any, **kwargs: Any) -> Any:
        inner(*args, **kwargs)
        return inner(*args, **kwargs)

    return {"step": step}


@contextmanager
def _never_cleared(model: nn.Module, optimizers: list[Any]) -> Iterator[None]:
    with ExitStack() as stack:
        for owner in (model, *optimizers):
            stack.enter_context(patched(owner, zero_grad=lambda *args, **kwargs: None))
        yield


def _counted(inner: Callable[..., None], calls: list[str]) -> Callable[..., None]:
    def method(*args: Any, **kwargs: Any) -> None:
        calls.append("zero_grad")
        inner(*args, **kwargs)

    return method


def _not_cleared(pipeline: Pipeline) -> Pipeline:
    """Make zero_grad do nothing; a step that clears by other means is left alone."""
    probe = Probe(pipeline)
    calls: list[str] = []

    @contextmanager
    def counted(model: nn.Module, optimizers: list[Any]) -> Iterator[None]:
        with ExitStack() as stack:
            for owner in (model, *optimizers):
                stack.enter_context(patched(owner, zero_grad=_counted(owner.zero_grad, calls)))
            yield

    step = _around(counted)(pipeline).train_step
    assert step is not None
    with probe.model(train=True) as model, probe.seeded("self-test"):
        made, _ = build_optimizers(probe, model)
        step(model, made, *random_pair(probe, "self-test"))
    if not calls:
        raise CannotInject(say("the step clears gradients without calling zero_grad"))
    return _around(_never_cleared)(pipeline)


@contextmanager
def _stays_in_eval(model: nn.Module, optimizers: list[Any]) -> Iterator[None]:
    kind = type(model)
    modes = [(module, module.training) for module in model.modules()]
    with patched(model, train=lambda mode=True: kind.train(model, False)):
        model.train()
        yield
    for module, training in modes:
        module.training = training


EACH_NORM = 1e-5  # below every gradient's own, also after the step's own clipping


def _clip_each(optimizer: Any) -> None:
    for parameter in parameters_of(optimizer):
        nn.utils.clip_grad_norm_([parameter], EACH_NORM)


def _half_lost(optimizer: Any) -> None:
    parameters = list(parameters_of(optimizer))
    for parameter in parameters[: (len(parameters) + 1) // 2]:
        parameter.grad = None


def _copy_trained(pipeline: Pipeline) -> Callable[..., Any]:
    step = pipeline.train_step
    assert step is not None
    other = independent_copy(Probe(pipeline))
    return lambda model, optimizer, x, y: step(other, optimizer, x, y)


def _returned(change: Callable[[list[Any]], Any]) -> Inject:
    """Change what the step returns: change(all that it has returned so far)."""

    def make(pipeline: Pipeline) -> Callable[..., Any]:
        step, kept = pipeline.train_step, []
        assert step is not None

        def call(*args: Any) -> Any:
            kept.append(step(*args))
            return change(kept)

        return call

    return replaced(train_step=make)


STEP = ("make_optimizer", "train_step")


INJECTIONS = (
    Injection("training_step.not_cleared", "zero_grad() does nothing", _not_cleared, STEP),
    Injection(
        "training_step.cleared_gradient",
        "gradients are cleared right before the step",
        _around(_before_step(lambda optimizer: optimizer.zero_grad())),
        STEP,
    ),
    Injection(
        "training_step.steps_twice",
        "each step is made twice",
        _around(_every(_step_twice)),
        STEP,
    ),
    Injection(
        "training_step.eval_mode",
        "the step trains in eval mode",
        _around(_stays_in_eval),
        STEP,
    ),
    Injection(
        "training_step.other_model",
        "the step runs a copy of the model",
        replaced(train_step=_copy_trained),
        STEP,
    ),
    Injection(
        "training_step.uphill",
        "gradients are negated before the step",
        _around(_before_step(negate)),
        STEP,
    ),
    Injection(
        "training_step.clip_tiny",
        "gradients are cut to a norm of 0.001",
        _around(
            _before_step(lambda o: nn.utils.clip_grad_norm_(list(parameters_of(o)), 1e-3)),
        ),
        STEP,
    ),
    Injection(
        "training_step.clip_per_parameter",
        "each parameter's gradient is cut on its own",
        _around(_before_step(_clip_each)),
        STEP,
    ),
    Injection(
        "training_step.partial_gradient",
        "half of the gradients are lost before the step",
        _around(_before_step(_half_lost)),
        STEP,
    ),
    Injection(
        "training_step.same_batch",
        "every step trains on the first batch again",
        _given(_first_again),
        STEP,
    ),
    Injection(
        "training_step.last_batch",
        "every step trains on the batch of the step before",
        _given(_one_late),
        STEP,
    ),
    Injection(
        "training_step.copies",
        "the step is given its inputs as targets",
        _copied,
        STEP,
    ),
    Injection(
        "training_step.part_of_batch",
        "the step learns from the first half of the rows",
        _batch(lambda x, y: (x[: (len(x) + 1) // 2], y[: (len(y) + 1) // 2])),
        STEP,
    ),
    Injection(
        "training_step.stale_loss",
        "the loss of the step before is returned",
        _returned(lambda kept: kept[-2] if len(kept) > 1 else kept[-1]),
        STEP,
    ),
    Injection("training_step.no_loss", "no loss is returned", _returned(lambda kept: None), STEP),
)
