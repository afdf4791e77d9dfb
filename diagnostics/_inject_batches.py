"""Bugs in batches: in how targets belong to inputs, and in what is drawn.

Shapes: N ids, B batch, T time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from diagnostics._injection import (
    CannotInject,
    Inject,
    Injection,
    rebuilt,
    replaced,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import read_batch
from diagnostics._text import say

Pair = tuple[Tensor, Tensor]


def _batches(change: Callable[[Tensor, Tensor], Pair]) -> Inject:
    """Change every batch that the pipeline's loader gives: change(inputs, targets) -> both."""

    def made(raw: Any) -> Any:
        batch = read_batch(raw, "batch")
        return rebuilt(raw, *change(batch.inputs, batch.targets))

    return _loaders(lambda load: lambda *args: made(load(*args)), made)


def _shifted(change: Callable[[Tensor, Tensor], Pair]) -> Inject:
    """As `_batches`, where targets are the next tokens; a model that shifts inside has others."""

    def inject(pipeline: Pipeline) -> Pipeline:
        if pipeline.labels == "same":
            raise CannotInject(say('the model shifts inside (labels="same")'))
        return _batches(change)(pipeline)

    return inject


def _shifted_already(pipeline: Pipeline) -> Pipeline:
    if pipeline.labels == "next":
        raise CannotInject(say('targets are meant to be shifted here (labels="next")'))
    return _batches(lambda x, y: (x[:, :-1], y[:, 1:]))(pipeline)


def _loaders(
    wrap: Callable[[Callable[..., Any]], Callable[..., Any]], once: Callable[[Any], Any]
) -> Inject:
    """Wrap get_batch, and a loader in `batch`; `once` changes a `batch` that is one batch."""

    def inject(pipeline: Pipeline) -> Pipeline:
        parts: dict[str, Any] = {}
        if pipeline.get_batch is not None:
            parts["get_batch"] = wrap(pipeline.get_batch)
        if callable(pipeline.batch):
            parts["batch"] = wrap(pipeline.batch)
        elif pipeline.batch is not None:
            parts["batch"] = once(pipeline.batch)
        if not parts:
            raise CannotInject(
                say("the pipeline brings no batches"), unlock=say("give Pipeline get_batch")
            )
        return dataclasses.replace(pipeline, **parts)

    return inject


def _first_again(load: Callable[..., Any]) -> Callable[..., Any]:
    first: dict[Any, Any] = {}  # by split, or by the length of the data

    def again(data: Any) -> Any:
        return first.setdefault(data if isinstance(data, str) else len(data), load(data))

    return again


def _sampler(wrap: Callable[[Callable[[Any], Any]], Callable[[Any], Any]]) -> Inject:
    """Wrap get_batch alone: the bug is about the data (N,) that it is given."""

    def make(pipeline: Pipeline) -> Callable[[Any], Any]:
        assert pipeline.get_batch is not None
        return wrap(pipeline.get_batch)

    return replaced(get_batch=make, batch=lambda pipeline: None)


def _split_ignored(pipeline: Pipeline) -> Pipeline:
    load = pipeline.batch
    if not callable(load):
        raise CannotInject(
            say("the pipeline has no loader that knows its splits"),
            unlock=say('give Pipeline batch=(split) -> a batch, for "train" and "val"'),
        )
    return dataclasses.replace(pipeline, batch=lambda split: load("train"))


def _columns_as_rows(x: Tensor, y: Tensor) -> Pair:
    B, T = x.shape
    return x.t().reshape(B, T), y.t().reshape(B, T)


def _unrelated(x: Tensor, y: Tensor) -> Pair:
    return x, y[torch.randperm(len(y))].roll(y.shape[1] // 2, 1)


INJECTIONS = (
    Injection(
        "shift.identical", "every target is its own input", _shifted(lambda x, y: (x, x.clone()))
    ),
    Injection(
        "shift.too_far",
        "every target is the token two ahead",
        _shifted(lambda x, y: (x[:, :-1], y[:, 1:])),
    ),
    Injection(
        "shift.backward",
        "every target is the token before its input",
        _shifted(lambda x, y: (x[:, 1:], x[:, :-1])),
    ),
    Injection(
        "shift.wrapped_last",
        "the last target of each row is its first input",
        _shifted(lambda x, y: (x, x.roll(-1, 1))),
    ),
    Injection(
        "shift.repeated_last",
        "the last target of each row is its last input",
        _shifted(lambda x, y: (x, torch.cat([x[:, 1:], x[:, -1:]], 1))),
    ),
    Injection(
        "shift.rows_mixed",
        "each row has the targets of the row before",
        _shifted(lambda x, y: (x, y.roll(1, 0))),
    ),
    Injection(
        "shift.unrelated", "targets are taken from other rows and places", _shifted(_unrelated)
    ),
    Injection(
        "shift.already_shifted",
        "targets are shifted in the batch and once more in the model",
        _shifted_already,
    ),
    Injection(
        "batches.always_the_same",
        "every call gives the first batch again",
        _loaders(_first_again, lambda batch: batch),
        ("get_batch",),
    ),
    Injection(
        "batches.part_of_data",
        "only the first half of the data is drawn from",
        _sampler(lambda load: lambda data: load(data[: max(len(data) // 2, 200)])),
        ("get_batch",),
    ),
    Injection(
        "batches.same_rows",
        "all rows of a batch are its first one",
        _batches(lambda x, y: (x[:1].repeat(len(x), 1), y[:1].repeat(len(y), 1))),
        ("get_batch",),
    ),
    Injection(
        "batches.not_contiguous",
        "time and rows are mixed up by a reshape",
        _batches(_columns_as_rows),
        ("get_batch",),
    ),
    Injection("batches.dtype", "inputs are floating point", _batches(lambda x, y: (x.float(), y))),
    Injection(
        "batches.shape",
        "targets are one row of B x T numbers",
        _batches(lambda x, y: (x, y.flatten())),
    ),
    Injection(
        "batches.val_reads_train",
        "batches for validation come from the training data",
        _split_ignored,
        ("batch",),
        ("batches.val_reads_train", "batches.split_ignored"),
    ),
)
