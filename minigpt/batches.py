"""Random training batches: windows of T ids, and the same windows one place further on.

The target of a position is the id that follows it, so a row of targets is the window of
the data that starts one place after the window of its inputs. Both windows are read from the data
itself: nothing wraps around and the last target is a real one.

Shapes: N ids in the data, B batch, T time (the block size).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt.seed import mix_seed


def get_batch(
    data: Tensor | npt.NDArray[Any],
    batch_size: int,
    block_size: int,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return random (inputs, targets), both int64 of shape (B, T), contiguous, on `device`.

    `data` is a 1-D int64 tensor, or a 1-D NumPy array of whole numbers, memory-mapped or not.
    Row b starts at a random place s: inputs are `data[s : s+T]`, targets `data[s+1 : s+T+1]`.
    Every s in 0..N-T-1 is equally likely, so the last id of the data is a target too. The starts
    come from `generator` (a CPU one), or from torch's global generator.

    Raises `ValueError` for data of another shape or type, or shorter than T + 1 ids.
    """
    _require_ids(data)
    N = data.shape[0]
    if block_size >= N or batch_size < 1 or block_size < 1:
        raise _no_room(N, batch_size, block_size)
    starts = torch.randint(N - block_size, (batch_size,), generator=generator)  # (B,)
    if isinstance(data, Tensor):
        on_cpu = data.device.type == "cpu"
        if not on_cpu:
            starts = starts.to(data.device)
        # A view of all N - T + 1 windows: nothing is copied before index_select picks some.
        windows = data.unfold(0, block_size, 1)  # (N - T + 1, T)
        inputs, targets = windows.index_select(0, starts), windows.index_select(0, starts + 1)
        if on_cpu and device == "cpu":  # two calls less, where all of this takes six
            return inputs, targets
    else:
        inputs, targets = _take_from_array(data, starts, block_size)
    return inputs.to(device), targets.to(device)  # (B, T) each


def get_update_batch(
    data: Tensor | npt.NDArray[Any],
    batch_size: int,
    block_size: int,
    *,
    seed: int,
    step: int,
    part: int,
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    """Return batch number `part` of the update after `step` others, as `get_batch` does.

    It depends on these numbers alone, so a resumed run reads what it would have read. `part` counts
    over all processes: N of them with A parts each read what one reads with A * N parts.
    generator: a CPU one to draw with, whose state is overwritten; None makes one.
    """
    generator = generator or torch.Generator()
    generator.manual_seed(mix_seed(seed, step, part))
    return get_batch(data, batch_size, block_size, device, generator)


def _take_from_array(
    data: npt.NDArray[Any], starts: Tensor, block_size: int
) -> tuple[Tensor, Tensor]:
    """Read the windows out of a NumPy array, which may be read-only and of a smaller type.

    torch warns when it wraps read-only memory, as a mapped file is, and cannot index every type.
    """
    plain = np.asarray(data)  # the memmap class slows every operation down
    positions = starts.numpy()[:, None] + np.arange(block_size)  # (B, T)
    inputs, targets = plain.take(positions), plain.take(positions + 1)
    return torch.from_numpy(inputs.astype(np.int64)), torch.from_numpy(targets.astype(np.int64))


def _require_ids(data: Tensor | npt.NDArray[Any]) -> None:
    if isinstance(data, Tensor) and data.ndim == 1 and data.dtype == torch.int64:
        return  # first, because a small batch takes hardly longer than all these questions
    if not isinstance(data, (Tensor, np.ndarray)):
        raise ValueError(f"data must be a tensor or a NumPy array, got {type(data).__name__}")
    if data.ndim != 1:
        raise ValueError(f"data must have shape (N,), got {tuple(data.shape)}")
    if isinstance(data, Tensor) or not np.issubdtype(data.dtype, np.integer):
        raise ValueError(f"data must hold int64 ids, got {data.dtype}; convert it with data.long()")


def _no_room(length: int, batch_size: int, block_size: int) -> ValueError:
    if batch_size < 1 or block_size < 1:
        return ValueError(
            f"batch_size and block_size must be at least 1, got {batch_size} and {block_size}"
        )
    return ValueError(
        f"data must have at least block_size + 1 = {block_size + 1} ids, got {length}; "
        "use a longer text or a smaller block_size"
    )
