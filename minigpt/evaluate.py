"""The honest loss of a model on ids: eval mode, no gradients, every token counted once.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from minigpt._training_state import evaluation_rows
from minigpt.model import MiniGPT

if TYPE_CHECKING:  # generation needs no torch.distributed
    from minigpt.parallel import Team


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Switch every submodule to eval mode and give each its own mode back, also after an error.

    `model.train()` at the end would be wrong for a model that came in eval mode, or in which
    some parts are frozen in eval mode on purpose.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


@torch.no_grad()
def evaluate(
    model: MiniGPT, ids: Tensor, *, batch_size: int | None = None, max_windows: int | None = None
) -> float:
    """Return the mean cross-entropy of `model` on `ids`, in nats per token.

    ids: (N,) int64, N >= 2, on any device. They are cut into windows of block_size that do not
    overlap, so all N - 1 next tokens are scored once, each with the same weight; the window at
    the end may be shorter. With `max_windows`, that many full windows, spread evenly over the
    ids, stand for all of them: the same ones in every call, so that two losses can be compared.
    batch_size: windows read at once; None takes `evaluation_rows`.
    Weights, modes, gradients and random states stay as they were.
    Raises ValueError when ids hold no pair of tokens.
    """
    if ids.ndim != 1 or len(ids) < 2:
        raise ValueError(f"ids must have shape (N,) with N >= 2, got {tuple(ids.shape)}")
    T = model.config.block_size
    batch_size = batch_size or evaluation_rows(T, model.config.vocab_size)
    device = next(model.parameters()).device
    loss_sum, token_count = 0.0, 0
    with evaluation_mode(model):
        for window in _windows(ids, T, batch_size, max_windows):  # (B, T + 1), or (1, <= T)
            window = window.to(device)
            _, loss = model(window[:, :-1], window[:, 1:])
            count = window[:, 1:].numel()
            loss_sum += float(loss) * count
            token_count += count
    return loss_sum / token_count


def evaluate_splits(
    model: MiniGPT, validation_ids: Tensor, train_ids: Tensor, *, max_windows: int, team: Team
) -> list[float]:
    """Return validation and training loss, measured in the same way so that they compare.

    max_windows: of each split; 0 reads the whole validation split and as much of the other.
    team: of several processes two measure one each, and every process must call.
    """
    losses = [0.0, 0.0]
    if team.is_first:
        losses[0] = evaluate(model, validation_ids, max_windows=max_windows or None)
    if team.rank == min(1, team.size - 1):
        as_many = max(1, window_count(validation_ids, model.config.block_size))
        losses[1] = evaluate(model, train_ids, max_windows=max_windows or as_many)
    return team.total(losses)


def window_count(ids: Tensor, block_size: int) -> int:
    """Return how many full windows of block_size inputs and their next tokens `ids` holds."""
    return (len(ids) - 1) // block_size


def _windows(
    ids: Tensor, block_size: int, batch_size: int, max_windows: int | None
) -> Iterator[Tensor]:
    """Yield batches of rows; row w holds inputs and targets of window w, one token of overlap."""
    count = window_count(ids, block_size)
    chosen = torch.arange(count, device=ids.device)
    if max_windows is not None and 0 < max_windows < count:
        chosen = torch.arange(max_windows, device=ids.device) * count // max_windows
    if count:
        rows = ids.unfold(0, block_size + 1, block_size)  # a view: nothing is copied yet
        for batch in chosen.split(batch_size):
            yield rows.index_select(0, batch)
    rest = ids[count * block_size :]
    if len(chosen) == count and len(rest) > 1:
        yield rest[None]
