"""Bugs in what a prediction reads: other rows, later tokens, pads, or too little.

Shapes: B batch, T time, C channels, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._injection import (
    CannotInject,
    Change,
    Inject,
    Injection,
    called_modules,
    caller,
    change_output,
    changed_model,
    changed_module,
    token_embedding,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Probe
from diagnostics._text import say


def _embedded(change: Change, *, visible: bool = True) -> Inject:
    """Change the vectors (B, T, C) of the token ids (B, T): change(module, ids, x) -> x."""
    return changed_module(token_embedding, change, visible=visible)


def _next_token(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x + 0.5 * _later(x, 1)


def _later(x: Tensor, distance: int) -> Tensor:
    """Move (B, T, C) back in time: position t holds what came `distance` later, the end zeros."""
    return functional.pad(x[:, distance:], (0, 0, 0, min(distance, x.shape[1])))


def _mean_of_row(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x - x.mean(1, keepdim=True)


def _leak_far_in(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    """Read the next token from the middle of the row on."""
    late = torch.arange(x.shape[1], device=x.device) >= x.shape[1] // 2
    return x + 0.5 * _later(x, 1) * late[:, None]


def _last_token_everywhere(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x + 0.1 * x[:, -1:]


def _leak_in_train_mode(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return _next_token(module, ids, x) if module.training else x


def _roll_rows(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x + 0.5 * x.roll(1, 0)


def _mean_of_batch(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x - x.mean(0, keepdim=True)


def _scaled_by_length(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return x * (4.0 / ids.shape[1])


def _one_token_doubled(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return 2.0 * x if ids.shape[1] == 1 else x


def _moved_by_one(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    return functional.pad(x[:, :-1], (0, 0, 1, 0))


def _first_half_hidden(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
    """Every token of the first quarter of the row is read as the same one."""
    hidden = torch.arange(x.shape[1], device=x.device) < x.shape[1] // 4
    return torch.where(hidden[:, None], torch.zeros_like(x), x)


def _pads_counted(probe: Probe, model: nn.Module) -> None:
    """Divide by the share of tokens that are no pads: with none it is 1."""
    pad = probe.pipeline.pad_id
    assert pad is not None

    def change(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        share = (ids != pad).to(x).mean(1).clamp_min(1.0 / ids.shape[1])
        return x / share[:, None, None]

    change_output(token_embedding(probe, model), change)


def _pads_as_nan(probe: Probe, model: nn.Module) -> None:
    pad = probe.pipeline.pad_id
    assert pad is not None

    def change(module: nn.Module, ids: Tensor, x: Tensor) -> Tensor:
        return torch.where((ids == pad)[..., None], math.nan, x)

    change_output(token_embedding(probe, model), change)


def _lookup(change: Callable[[Tensor], Tensor]) -> Inject:
    """Change the places (T,) at which a table of positions is read."""

    def edit(probe: Probe, model: nn.Module) -> None:
        module = _position_embedding(probe, model)
        module.register_forward_pre_hook(lambda _, given: (change(given[0]), *given[1:]))

    return changed_model(edit)


def _position_embedding(probe: Probe, model: nn.Module) -> nn.Module:
    for call in called_modules(probe, model)[1]:
        if isinstance(call.module, nn.Embedding) and call.given is not None and _counts(call.given):
            return call.module
    raise CannotInject(say("no embedding of the model is called with positions"))


def _counts(ids: Tensor) -> bool:
    """Whether ids are places in a row: each one more than the last."""
    return ids.shape[-1] > 1 and bool((ids.diff(dim=-1) == 1).all())


def _one_by_one(pipeline: Pipeline) -> Pipeline:
    """Call the model on rows of one token each."""
    call = caller(pipeline)

    def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        logits, loss = call(model, inputs.reshape(-1, 1), targets.reshape(-1, 1))
        return logits.reshape(*inputs.shape, -1), loss

    return dataclasses.replace(pipeline, forward=forward)


INJECTIONS = (
    Injection(
        "batch_independence.rows_mixed",
        "half of each row's vectors are added to the next row's",
        _embedded(_roll_rows),
        reasons=("batch_independence.rows_mixed", "batch_independence.batch_axis"),
    ),
    Injection(
        "batch_independence.statistics",
        "the mean over the batch is subtracted",
        _embedded(_mean_of_batch),
        reasons=("batch_independence.statistics", "batch_independence.batch_axis"),
    ),
    Injection(
        "causal_independence.mask_too_wide",
        "each position reads the next token too",
        _embedded(_next_token),
        reasons=("causal_independence.mask_too_wide", "causal_independence.shifted_back"),
    ),
    Injection(
        "causal_independence.normalised_over_future",
        "the mean over the whole row is subtracted",
        _embedded(_mean_of_row),
        reasons=("causal_independence.normalised_over_future", "causal_independence.leak"),
    ),
    Injection(
        "causal_independence.late_leak",
        "the next token is read in the second half of the row only",
        _embedded(_leak_far_in),
        reasons=("causal_independence.leak", "causal_independence.mask_too_small"),
    ),
    Injection(
        "causal_independence.last_token",
        "every position reads the last token of the row",
        _embedded(_last_token_everywhere),
        reasons=("causal_independence.leak", "causal_independence.normalised_over_future"),
    ),
    Injection(
        "causal_independence.only_in_train_mode",
        "the next token is read in train mode only",
        _embedded(_leak_in_train_mode),
    ),
    Injection(
        "prefix.scaled_by_length",
        "vectors are divided by the length of the row",
        _embedded(_scaled_by_length),
        reasons=("prefix.scaled_by_length", "prefix.length_matters"),
    ),
    Injection(
        "prefix.one_token",
        "a row of one token is treated otherwise",
        _embedded(_one_token_doubled),
    ),
    Injection(
        "positions.constant",
        "every position reads the first row of the table of positions",
        _lookup(lambda places: places - places + places.min()),
    ),
    Injection(
        "positions.shared_rows",
        "two neighbours read the same row of the table of positions",
        _lookup(lambda places: places.min() + (places - places.min()) // 2),
    ),
    Injection(
        "context.self_hidden",
        "each position reads the tokens before it, not its own",
        _embedded(_moved_by_one),
    ),
    Injection(
        "context.unread_tokens",
        "the first quarter of each row is not read",
        _embedded(_first_half_hidden),
        reasons=("context.unread_tokens", "context.self_hidden"),
    ),
    Injection(
        "context.unused",
        "each token is read alone",
        _one_by_one,
        reasons=("context.unused", "context.bigram"),
    ),
    Injection(
        "padding.right",
        "vectors are divided by the share of tokens that are no pads",
        changed_model(_pads_counted),
        ("pad_id",),
    ),
    Injection(
        "padding.not_finite",
        "pads are read as NaN",
        changed_model(_pads_as_nan),
        ("pad_id",),
    ),
    Injection(
        "honesty.sees_the_future",
        "each position reads the next token too",
        _embedded(_next_token),
    ),
)
