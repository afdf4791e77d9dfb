"""Batch sampling against the stack of slices that most tutorials use, and a mapped file.

Run by hand: `python tests/benchmarks/bench_batches.py`. The second peer copies slices out of a
memory-mapped uint16 file.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import torch
from _timing import Comparison, compare, print_comparisons
from torch import Tensor

from minigpt.batches import get_batch

DATA_LENGTH = 1_000_000
GOAL = 0.10
SHAPES = {"debug": (8, 32), "cpu": (12, 64), "large": (64, 256)}


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print_comparisons(comparisons())


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare at three shapes, from a tensor and from a mapped file."""
    rounds = 31 if quick else 301
    data = torch.randint(65, (DATA_LENGTH,))
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ids.bin"
        data.numpy().astype(np.uint16).tofile(path)
        mapped = np.memmap(path, dtype=np.uint16, mode="r")
        for name, (B, T) in SHAPES.items():

            def ours(B: int = B, T: int = T) -> object:
                return get_batch(data, B, T)

            def slices(B: int = B, T: int = T) -> object:
                return stack_of_slices(data, B, T)

            def ours_mapped(B: int = B, T: int = T) -> object:
                return get_batch(mapped, B, T)

            def slices_mapped(B: int = B, T: int = T) -> object:
                return stack_of_mapped_slices(mapped, B, T)

            size = f"batch {name} {B} x {T}"
            rows += [
                compare(f"{size} / slices", ours, slices, rounds=rounds, repeats=10, goal=GOAL),
                compare(f"{size}, mapped / slices", ours_mapped, slices_mapped, rounds=rounds),
            ]
    return rows


def stack_of_slices(data: Tensor, B: int, T: int) -> tuple[Tensor, Tensor]:
    """Sample as most tutorials do."""
    starts = torch.randint(len(data) - T, (B,))
    inputs = torch.stack([data[start : start + T] for start in starts])
    targets = torch.stack([data[start + 1 : start + T + 1] for start in starts])
    return inputs, targets


def stack_of_mapped_slices(
    data: np.memmap[tuple[int], np.dtype[np.uint16]], B: int, T: int
) -> tuple[Tensor, Tensor]:
    """Sample slice by slice from a mapped file of small integers."""
    starts = torch.randint(len(data) - T, (B,)).tolist()
    inputs = [torch.from_numpy(data[start : start + T].astype(np.int64)) for start in starts]
    targets = [
        torch.from_numpy(data[start + 1 : start + T + 1].astype(np.int64)) for start in starts
    ]
    return torch.stack(inputs), torch.stack(targets)


if __name__ == "__main__":
    main()
