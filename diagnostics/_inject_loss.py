"""Bugs in what a forward call returns: the shape of its logits, and its loss.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch import Tensor
from torch.nn import functional

from diagnostics._injection import (
    Inject,
    Injection,
    changed_loss,
    changed_output,
)
from diagnostics._pipeline import Pipeline


def _squeezed(logits: Tensor, loss: Tensor, inputs: Tensor) -> tuple[Tensor, Tensor]:
    return logits.squeeze(0).squeeze(0), loss


def _cross_entropy(
    change: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]], *, reduction: str = "mean"
) -> Inject:
    """Recompute the loss from changed logits (B, T, V) and targets (B, T)."""

    def inject(pipeline: Pipeline) -> Pipeline:
        def formula(logits: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
            scored, wanted = change(logits, targets)
            return functional.cross_entropy(
                scored.reshape(-1, scored.shape[-1]),
                wanted.reshape(-1),
                ignore_index=pipeline.ignore_index,
                reduction=reduction,
            )

        return changed_loss(formula)(pipeline)

    return inject


def _probabilities_returned(pipeline: Pipeline) -> Pipeline:
    rescored = _cross_entropy(lambda z, y: (z, y))
    return rescored(changed_output(lambda z, loss, x: (z.softmax(-1), loss))(pipeline))


def _ignored_scored(pipeline: Pipeline) -> Pipeline:
    """Score a target that is to be ignored as token 0."""
    ignored = pipeline.ignore_index

    def formula(logits: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
        return functional.cross_entropy(
            logits.flatten(0, 1), targets.where(targets != ignored, 0).flatten()
        )

    return changed_loss(formula)(pipeline)


def _exponential(logits: Tensor, targets: Tensor, loss: Tensor) -> Tensor:
    return loss.exp()


INJECTIONS = (
    Injection(
        "shapes.too_narrow",
        "the logits lack the last token of the vocabulary",
        changed_output(lambda z, loss, x: (z[..., :-1], loss)),
    ),
    Injection(
        "shapes.transposed",
        "the logits come as (B, V, T)",
        changed_output(lambda z, loss, x: (z.transpose(1, 2), loss)),
    ),
    Injection(
        "shapes.time_first",
        "the logits come as (T, B, V)",
        changed_output(lambda z, loss, x: (z.transpose(0, 1), loss)),
    ),
    Injection(
        "shapes.flattened",
        "the logits come as (B x T, V)",
        changed_output(lambda z, loss, x: (z.flatten(0, 1), loss)),
    ),
    Injection("shapes.squeezed", "axes of size 1 are squeezed away", changed_output(_squeezed)),
    Injection(
        "shapes.last_only",
        "only the last position comes back",
        changed_output(lambda z, loss, x: (z[:, -1:], loss)),
    ),
    Injection(
        "shapes.probabilities",
        "probabilities come back in place of logits",
        changed_output(lambda z, loss, x: (z.softmax(-1), loss)),
    ),
    Injection(
        "shapes.loss_not_scalar",
        "the loss comes back once per row",
        changed_output(lambda z, loss, x: (z, loss.expand(len(x))), with_loss=True),
    ),
    Injection(
        "loss.multiplied",
        "the loss is doubled",
        changed_loss(lambda z, y, loss: 2.0 * loss),
    ),
    Injection(
        "loss.divided",
        "the loss is divided by 4, as for accumulation",
        changed_loss(lambda z, y, loss: loss / 4.0),
    ),
    Injection(
        "loss.summed",
        "the loss is a sum over tokens",
        _cross_entropy(lambda z, y: (z, y), reduction="sum"),
    ),
    Injection(
        "loss.last_position_only",
        "only the last position is scored",
        _cross_entropy(lambda z, y: (z[:, -1:], y[:, -1:])),
    ),
    Injection(
        "loss.shifted_twice",
        "targets are shifted once more inside the loss",
        _cross_entropy(lambda z, y: (z[:, :-1], y[:, 1:])),
    ),
    Injection(
        "loss.double_softmax",
        "softmax is applied before cross-entropy",
        _cross_entropy(lambda z, y: (z.softmax(-1), y)),
    ),
    Injection(
        "loss.flattened_in_another_order",
        "logits and targets are flattened in different orders",
        _cross_entropy(lambda z, y: (z.transpose(0, 1), y)),
    ),
    Injection(
        "loss.base_two",
        "the loss is in bits",
        changed_loss(lambda z, y, loss: loss / math.log(2.0)),
    ),
    Injection("loss.perplexity", "the loss is a perplexity", changed_loss(_exponential)),
    Injection(
        "loss.sign_flipped",
        "the loss has the wrong sign",
        changed_loss(lambda z, y, loss: -loss),
    ),
    Injection(
        "loss.detached",
        "the loss is cut off from the graph",
        changed_loss(lambda z, y, loss: loss.detach()),
    ),
    Injection(
        "loss.ignored_counted",
        "targets that are to be ignored are scored as token 0",
        _ignored_scored,
    ),
    Injection(
        "overfit.loss_stays_high",
        "the model returns probabilities, of which the loss takes the softmax again",
        _probabilities_returned,
    ),
    Injection(
        "overfit.loss_is_bounded",
        "the loss is clamped at 2 nats from below",
        changed_loss(lambda z, y, loss: loss.clamp_min(2.0)),
    ),
    Injection(
        "overfit.other_target",
        "each position is scored on the token that it has just read",
        _cross_entropy(lambda z, y: (z[:, 1:], y[:, :-1])),
    ),
    Injection(
        "overfit.no_gradient",
        "the loss is cut off from the graph",
        changed_loss(lambda z, y, loss: loss.detach()),
    ),
)
