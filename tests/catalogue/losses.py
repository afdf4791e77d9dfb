"""Rows of the table: what the loss is divided by, and the form of the loss.

Shapes: B batch, T time, V vocabulary, K micro-batches.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from diagnostics import Pipeline
from exercises._lab import IGNORE_INDEX, Lab
from minigpt import MiniGPT
from tests.catalogue._builders import (
    Batches,
    accumulating,
    by_tokens,
    cross_entropy,
    of_class,
    scored_by,
)
from tests.catalogue._row import Caught, Row

# ---- the loss inside the model -----------------------------------------------------------------


def score_over_all_positions(logits: Tensor, targets: Tensor) -> Tensor:
    """Losses are zeroed where nothing is scored, and their mean is taken over all positions."""
    mask = (targets != IGNORE_INDEX).float()
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return (losses * mask).mean()


def score_summed(logits: Tensor, targets: Tensor) -> Tensor:
    """The default reduction was changed to "sum" for a metric, and stayed."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def score_log_of_softmax(logits: Tensor, targets: Tensor) -> Tensor:
    """Softmax by exp and sum, without subtracting the largest logit, then log."""
    exponentials = logits.exp()
    p = exponentials / exponentials.sum(-1, keepdim=True)
    kept = targets != IGNORE_INDEX
    return -p.gather(-1, targets.clamp_min(0)[..., None])[..., 0][kept].log().mean()


def score_log_softmax_by_hand(logits: Tensor, targets: Tensor) -> Tensor:
    """The same by hand, and stable."""
    kept = targets != IGNORE_INDEX
    return -logits.log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0][kept].mean()


def score_time_first(logits: Tensor, targets: Tensor) -> Tensor:
    """Logits are flattened (T, B), targets (B, T)."""
    V = logits.shape[-1]
    return functional.cross_entropy(logits.transpose(0, 1).reshape(-1, V), targets.reshape(-1))


def score_soft_targets(logits: Tensor, targets: Tensor, *, swapped: bool) -> Tensor:
    """A cross-entropy for soft targets, written by hand, whose two arguments change places."""
    kept = targets != IGNORE_INDEX
    truth = functional.one_hot(targets[kept], logits.shape[-1]).to(logits)

    def soft_cross_entropy(scores: Tensor, wanted: Tensor) -> Tensor:
        return -(wanted * scores.log_softmax(-1)).sum(-1).mean()

    if swapped:
        return soft_cross_entropy(truth, logits[kept].softmax(-1))
    return soft_cross_entropy(logits[kept], truth)


class ProbabilityGPT(MiniGPT):
    """Softmax is the last layer, and the loss is torch's cross_entropy."""

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: object
    ) -> tuple[Tensor, Tensor | None]:
        """Return probabilities (B, T, V) where logits belong."""
        probabilities = super().forward(token_ids, **options)[0].softmax(-1)  # type: ignore[arg-type]
        return probabilities, None if targets is None else cross_entropy(probabilities, targets)


class FlatteningGPT(MiniGPT):
    """The variable that holds the logits is overwritten by its flattened view."""

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: object
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) without targets, and (B * T, V) with them."""
        logits = super().forward(token_ids, **options)[0]  # type: ignore[arg-type]
        if targets is None:
            return logits, None
        logits = logits.view(-1, logits.shape[-1])
        return logits, functional.cross_entropy(logits, targets.view(-1))


# ---- micro-batches -----------------------------------------------------------------------------


def by_micro_batches(counts: list[int], number: int) -> float:
    """Each micro-batch has the same weight, whatever it holds."""
    return 1 / sum(count > 0 for count in counts)


def only_full_windows(lab: Lab, *, flush: bool) -> Pipeline:
    """Step when (i + 1) % K == 0; what is left at the end of the epoch waits, or is flushed."""
    K = 4

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        tokens = sum(int((targets != IGNORE_INDEX).sum()) for _, targets in batches)
        total = torch.zeros(())
        for i, (inputs, targets) in enumerate(batches):
            count = int((targets != IGNORE_INDEX).sum())
            if count:
                loss = model(inputs, targets)[1] * (count / tokens)
                loss.backward()
                total += loss.detach()
            if (i + 1) % K == 0 or (flush and i + 1 == len(batches)):
                optimizer.step()
                optimizer.zero_grad()
        return total

    return lab.pipeline(accumulate=accumulate)


def skipping_bad(lab: Lab, *, recount: bool) -> Pipeline:
    """A micro-batch whose loss is not finite is skipped; the divisor is still K."""

    def accumulate(model: nn.Module, optimizer: Optimizer, batches: Batches) -> Tensor:
        optimizer.zero_grad()
        losses = [model(inputs, targets)[1] for inputs, targets in batches]
        kept = [loss for loss in losses if torch.isfinite(loss)]
        divisor = len(kept) if recount else len(batches)
        total = torch.zeros(())
        for loss in kept:
            (loss / divisor).backward()
            total += loss.detach() / divisor
        optimizer.step()
        return total

    return lab.pipeline(accumulate=accumulate, pad_id=None)


ROWS: tuple[Row, ...] = (
    # loss-normalisation
    Caught(
        "mean-of-microbatch-means",
        "accumulation",
        "accumulation.mean_of_means",
        accumulating(by_micro_batches),
        healthy=accumulating(by_tokens),
    ),
    Caught(
        "accum-not-divided",
        "accumulation",
        "accumulation.not_divided",
        accumulating(lambda counts, number: by_tokens(counts, number) * len(counts)),
        healthy=accumulating(by_tokens),
    ),
    Caught(
        "last-partial-window",
        "accumulation",
        "accumulation.partial_window_dropped",
        partial(only_full_windows, flush=False),
        healthy=partial(only_full_windows, flush=True),
    ),
    Caught(
        "skipped-microbatch-miscount",
        "accumulation",
        "accumulation.skipped_counted",
        partial(skipping_bad, recount=False),
        healthy=partial(skipping_bad, recount=True),
    ),
    Caught(
        "denominator-counts-ignored",
        "loss",
        "loss.denominator_counts_ignored",
        scored_by(score_over_all_positions),
        healthy=scored_by(cross_entropy),
    ),
    Caught(
        "sum-reduction",
        "loss",
        "loss.summed",
        scored_by(score_summed),
        healthy=scored_by(cross_entropy),
    ),
    # loss-form
    Caught("double-softmax", "loss", "loss.double_softmax", of_class(ProbabilityGPT)),
    Caught(
        "log-of-softmax",
        "loss",
        "loss.not_finite",
        scored_by(score_log_of_softmax),
        healthy=scored_by(score_log_softmax_by_hand),
    ),
    Caught(
        "logits-flatten-transposed",
        "loss",
        "loss.flattened_in_another_order",
        scored_by(score_time_first),
        healthy=scored_by(cross_entropy),
    ),
    Caught(
        "logits-shape-depends-on-targets", "shapes", "shapes.flattened", of_class(FlatteningGPT)
    ),
    Caught(
        "ce-arguments-swapped",
        "loss",
        "loss.arguments_swapped",
        scored_by(partial(score_soft_targets, swapped=True)),
        healthy=scored_by(partial(score_soft_targets, swapped=False)),
    ),
)
