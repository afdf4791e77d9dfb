"""Bugs in saving and loading, and in going on with a run."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    replaced,
)
from diagnostics._optimizer_step import as_optimizers
from diagnostics._pipeline import Pipeline
from diagnostics._text import say


def _state_loaded(change: Callable[[Pipeline, Any, Any, Any], tuple[Any, Any, Any]]) -> Inject:
    """Change what load_state gives: change(pipeline, model, optimizer, step) -> the three."""

    def make(pipeline: Pipeline) -> Callable[[Path], tuple[Any, Any, Any]]:
        load = pipeline.load_state
        assert load is not None
        return lambda path: change(pipeline, *load(path))

    return replaced(load_state=make)


def _new_optimizer(pipeline: Pipeline, model: Any, made: Any, step: Any) -> tuple[Any, Any, Any]:
    assert pipeline.make_optimizer is not None
    fresh = pipeline.make_optimizer(model)
    for old, new in zip(as_optimizers(made), as_optimizers(fresh), strict=True):
        for was, now in zip(old.param_groups, new.param_groups, strict=True):
            now["lr"] = was["lr"]
    return model, fresh, step


def _optimizer_elsewhere(
    pipeline: Pipeline, model: Any, made: Any, step: Any
) -> tuple[Any, Any, Any]:
    assert pipeline.make_optimizer is not None
    return model, pipeline.make_optimizer(copy.deepcopy(model)), step


def _state_rounded(pipeline: Pipeline, model: Any, made: Any, step: Any) -> tuple[Any, Any, Any]:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    return model, made, step


def _state_saved(change: Callable[[Any], object]) -> Inject:
    """Do something to the live model when its state is saved."""

    def make(pipeline: Pipeline) -> Callable[..., None]:
        save = pipeline.save_state
        assert save is not None

        def save_state(model: Any, optimizer: Any, step: int, path: Path) -> None:
            save(model, optimizer, step, path)
            change(model)

        return save_state

    return replaced(save_state=make)


def _from_the_start(pipeline: Pipeline) -> Pipeline:
    batches = pipeline.batches_from
    assert batches is not None
    return dataclasses.replace(pipeline, batches_from=lambda step: batches(0))


STATE = ("make_optimizer", "train_step", "save_state", "load_state")


def _loaded(change: Callable[[nn.Module], Any]) -> Inject:
    """Change the model that load gives, in place."""

    def make(pipeline: Pipeline) -> Callable[[Path], nn.Module]:
        load = pipeline.load
        assert load is not None

        def changed(path: Path) -> nn.Module:
            model = load(path)
            with torch.no_grad():
                change(model)
            return model

        return changed

    return replaced(load=make)


def _one_lost(model: nn.Module) -> None:
    """The largest tensor keeps the values that a fresh model has."""
    largest = max(model.parameters(), key=lambda parameter: parameter.numel())
    noise = torch.randn(largest.shape, generator=torch.Generator().manual_seed(0))
    largest.copy_(0.02 * noise)


def _rounded(model: nn.Module) -> None:
    for parameter in model.parameters():
        if parameter.is_floating_point():
            parameter.copy_(parameter.half())


def _all_fresh(model: nn.Module) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))


def _buffers_lost(pipeline: Pipeline) -> Pipeline:
    if not any(buffer.is_floating_point() for buffer in pipeline.model.buffers()):
        raise CannotInject(say("the model has no buffer of floating point numbers"))

    def lose(model: nn.Module) -> None:
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.zero_()

    return _loaded(lose)(pipeline)


def _swapped(pipeline: Pipeline) -> Pipeline:
    names = _two_alike(pipeline.model)

    def swap(model: nn.Module) -> None:
        parameters = dict(model.named_parameters())
        a, b = (parameters[name] for name in names)
        kept = a.clone()
        a.copy_(b)
        b.copy_(kept)

    return _loaded(swap)(pipeline)


def _two_alike(model: nn.Module) -> tuple[str, str]:
    """Return the names of two matrices of one shape with different values."""
    seen: dict[torch.Size, tuple[str, Tensor]] = {}
    for name, parameter in model.named_parameters():
        if parameter.ndim < 2:
            continue
        other = seen.setdefault(parameter.shape, (name, parameter))
        if other[0] != name and not torch.equal(other[1], parameter):
            return other[0], name
    raise CannotInject(say("no two matrices of the model have the same shape"))


def _untied(pipeline: Pipeline) -> Pipeline:
    shared = [id(p) for _, p in pipeline.model.named_parameters(remove_duplicate=False)]
    if len(shared) == len(set(shared)):
        raise CannotInject(say("the model ties no weights"))

    def untie(model: nn.Module) -> None:
        seen: set[int] = set()
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None and id(parameter) in seen:
                    module._parameters[name] = nn.Parameter(parameter.detach().clone())
                seen.add(id(parameter))

    return _loaded(untie)(pipeline)


def _by_reference(pipeline: Pipeline) -> Pipeline:
    """What is loaded is written when it is loaded: the file holds references until then."""
    save, load = pipeline.save, pipeline.load
    assert save is not None
    assert load is not None
    live: list[tuple[nn.Module, Path]] = []

    def saved(model: nn.Module, path: Path) -> None:
        save(model, path)
        live.append((model, path))

    def loaded(path: Path) -> nn.Module:
        model = load(path)
        with torch.no_grad():
            source = live[-1][0].state_dict()
            for name, tensor in model.state_dict().items():
                tensor.copy_(source[name])
        return model

    return dataclasses.replace(pipeline, save=saved, load=loaded)


def _saver_rounds(pipeline: Pipeline) -> Pipeline:
    """The saver converts the live model to half precision and back."""
    save = pipeline.save
    assert save is not None

    def saved(model: nn.Module, path: Path) -> None:
        with torch.no_grad():
            _rounded(model)
        save(model, path)

    return dataclasses.replace(pipeline, save=saved)


CHECKPOINT = ("save", "load")


INJECTIONS = (
    Injection(
        "checkpoint.partly_loaded", "one tensor is not loaded", _loaded(_one_lost), CHECKPOINT
    ),
    Injection("checkpoint.nothing_loaded", "no tensor is loaded", _loaded(_all_fresh), CHECKPOINT),
    Injection(
        "checkpoint.precision_lost",
        "weights are rounded to half precision",
        _loaded(_rounded),
        CHECKPOINT,
    ),
    Injection(
        "checkpoint.dtype_changed",
        "the model comes back in half precision",
        _loaded(lambda model: model.half()),
        CHECKPOINT,
        ("checkpoint.dtype_changed", "checkpoint.precision_lost"),
    ),
    Injection("checkpoint.buffers_differ", "buffers come back as zeros", _buffers_lost, CHECKPOINT),
    Injection(
        "checkpoint.mixed_up", "two matrices of one shape are exchanged", _swapped, CHECKPOINT
    ),
    Injection("checkpoint.tie_broken", "tied weights come back as two", _untied, CHECKPOINT),
    Injection(
        "checkpoint.saved_by_reference",
        "later training changes what was saved",
        _by_reference,
        CHECKPOINT,
    ),
    Injection(
        "checkpoint.saver_changes_model",
        "the live model is rounded to half precision when it is saved",
        _saver_rounds,
        CHECKPOINT,
    ),
    Injection(
        "checkpoint.trainable_changed",
        "the model comes back frozen",
        _loaded(lambda model: model.requires_grad_(False)),
        CHECKPOINT,
    ),
    Injection(
        "resume.optimizer_state_lost",
        "the optimizer is made anew on loading",
        _state_loaded(_new_optimizer),
        STATE,
    ),
    Injection(
        "resume.optimizer_elsewhere",
        "the loaded optimizer steps a copy of the loaded model",
        _state_loaded(_optimizer_elsewhere),
        STATE,
    ),
    Injection(
        "resume.weights",
        "weights are rounded to half precision",
        _state_loaded(_state_rounded),
        STATE,
    ),
    Injection(
        "resume.step_lost",
        "the run goes on from step 0",
        _state_loaded(lambda pipeline, model, made, step: (model, made, 0)),
        STATE,
        ("resume.step",),
    ),
    Injection(
        "resume.step_off_by_one",
        "the run goes on one step too late",
        _state_loaded(lambda pipeline, model, made, step: (model, made, step + 1)),
        STATE,
        ("resume.step",),
    ),
    Injection(
        "resume.save_changes",
        "saving leaves the live model in eval mode",
        _state_saved(lambda model: model.eval()),
        STATE,
    ),
    Injection(
        "resume.data_replayed",
        "a resumed run reads its batches from the start again",
        _from_the_start,
        (*STATE, "batches_from"),
    ),
)
