"""Bugs inside the model: its modes, its numbers, its first weights, its gradients.

Shapes: B batch, T time, C channels.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._injection import (
    CannotInject,
    Change,
    Inject,
    Injection,
    called_modules,
    change_output,
    changed_loss,
    changed_model,
    changed_module,
    middle_module,
    token_embedding,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._text import say


def _in_inference_mode(probe: Probe, model: nn.Module) -> None:
    """Make the weights anew inside inference mode."""
    with torch.inference_mode():
        for module in model.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    module._parameters[name] = nn.Parameter(parameter.detach().clone())


def _one_in_float64(probe: Probe, model: nn.Module) -> None:
    middle_module(probe, model).double()


def _hook_forgotten(probe: Probe, model: nn.Module) -> None:
    change_output(middle_module(probe, model), lambda module, given, x: 2.0 * x)


def _inside(change: Change, *, visible: bool = True) -> Inject:
    """Change what a module in the middle of the model gives."""
    return changed_module(middle_module, change, visible=visible)


def _stacked(inject: Inject) -> Inject:
    """Inject into a stack of equal blocks only: elsewhere no size is known to be too large."""

    def inside(pipeline: Pipeline) -> Pipeline:
        stacks = [
            m for m in pipeline.model.modules() if isinstance(m, nn.ModuleList | nn.Sequential)
        ]
        if not any(len(m) > 1 and len({type(block) for block in m}) == 1 for m in stacks):
            raise CannotInject(say("the model has no stack of equal blocks"))
        return inject(pipeline)

    return inside


def _dropout_always(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    return functional.dropout(x, 0.1, training=True)


def _noise_always(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    return x + 0.01 * torch.randn_like(x)


def _doubled_in_train_mode(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    return 2.0 * x if module.training else x


def _seeds(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return x


def _moves_weights(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(0.999)
    return x


def _grad_left_off(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    if not module.training:
        torch.set_grad_enabled(False)
    return x


def _deaf_to_eval(probe: Probe, model: nn.Module) -> None:
    """The model overrides train() and forgets its children."""
    inside = middle_module(probe, model).train()
    inside.__class__ = type(
        type(inside).__name__, (type(inside),), {"train": lambda self, mode=True: self}
    )


def _one_nan(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    spoilt = x.clone()
    spoilt[..., -1, 0] = math.nan
    return spoilt


def _nan_weight(probe: Probe, model: nn.Module) -> None:
    parameter = next(p for p in _with_weights(probe, model).parameters())
    with torch.no_grad():
        parameter.view(-1)[0] = math.nan


def _with_weights(probe: Probe, model: nn.Module) -> nn.Module:
    """Return a module that holds weights."""
    try:
        module = middle_module(probe, model)
        if any(True for _ in module.parameters()):
            return module
    except CannotInject:
        pass
    return token_embedding(probe, model)


def _detached(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    return x.detach()


def _gradient_doubled(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    """The same numbers forward, twice the gradient backward."""
    return 2.0 * x - x.detach()


def _gradient_nan(module: nn.Module, given: Tensor, x: Tensor) -> Tensor:
    if x.requires_grad:
        x.register_hook(lambda gradient: gradient * math.nan)
    return x


def _all_frozen(probe: Probe, model: nn.Module) -> None:
    model.requires_grad_(False)


def _large_head(probe: Probe, model: nn.Module) -> None:
    """The layer that gives the logits starts thirty times too large."""
    head = called_modules(probe, model)[1][-1].module
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.mul_(30.0)


def _equal_weights(probe: Probe, model: nn.Module) -> None:
    """Every matrix starts as one constant: no two units can ever differ."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1 and parameter.is_floating_point():
                parameter.fill_(0.02)


INJECTIONS = (
    Injection(
        "environment.inference_weights",
        "the weights are made inside inference mode",
        changed_model(_in_inference_mode, visible=False),
    ),
    Injection(
        "environment.hook_changes_output",
        "a forgotten hook doubles what one module gives",
        changed_model(_hook_forgotten, fresh=False),
    ),
    Injection(
        "environment.mixed_dtypes",
        "one module is kept in float64",
        changed_model(_one_in_float64, visible=False),
    ),
    Injection("modes.eval_random", "dropout stays on in eval mode", _inside(_dropout_always)),
    Injection(
        "modes.noise",
        "noise is added in eval mode too",
        _inside(_noise_always),
        reasons=("modes.eval_random",),
    ),
    Injection(
        "modes.train_differs",
        "one module gives twice as much in train mode",
        _inside(_doubled_in_train_mode),
    ),
    Injection(
        "modes.eval_incomplete",
        "eval() does not reach one module",
        changed_model(_deaf_to_eval, visible=False),
    ),
    Injection(
        "modes.resets_random_state",
        "a forward call seeds torch",
        _inside(_seeds, visible=False),
    ),
    Injection(
        "modes.weights_changed",
        "a forward call moves weights a little",
        changed_module(_with_weights, _moves_weights, visible=False),
    ),
    Injection(
        "modes.grad_left_off",
        "a forward call in eval mode switches gradients off for good",
        _inside(_grad_left_off, visible=False),
    ),
    Injection("forward_hooks.non_finite", "one module gives a NaN", _inside(_one_nan)),
    Injection(
        "forward_hooks.explodes",
        "one module of a stack of blocks gives a million times as much",
        _stacked(_inside(lambda module, given, x: 1e6 * x)),
        reasons=("forward_hooks.explodes", "forward_hooks.norm_scale"),
    ),
    Injection(
        "forward_hooks.bad_weight",
        "one weight is NaN",
        changed_model(_nan_weight, visible=False),
    ),
    Injection(
        "initial_loss.too_high",
        "the layer that gives the logits starts thirty times too large",
        changed_model(_large_head),
        reasons=("initial_loss.too_high", "initial_loss.wrong_weights"),
    ),
    Injection(
        "initial_loss.patterned_weights",
        "every matrix starts as one constant",
        changed_model(_equal_weights),
        reasons=(
            "initial_loss.patterned_weights",
            "initial_loss.identical_layers",
            "initial_loss.not_trained",
        ),
    ),
    Injection(
        "gradients.missing",
        "one module's output is cut off from the graph",
        changed_module(_with_weights, _detached, visible=False),
        reasons=("gradients.missing", "gradients.zero"),
    ),
    Injection(
        "gradients.wrong_value",
        "one module passes twice its gradient back",
        _inside(_gradient_doubled, visible=False),
    ),
    Injection(
        "gradients.not_finite",
        "one module passes NaN back",
        _inside(_gradient_nan, visible=False),
    ),
    Injection(
        "gradients.all_frozen",
        "no parameter is trainable",
        changed_model(_all_frozen, visible=False),
    ),
    Injection(
        "gradients.no_graph",
        "the loss is cut off from the graph",
        changed_loss(lambda z, y, loss: loss.detach()),
        reasons=("gradients.no_graph",),
    ),
)
