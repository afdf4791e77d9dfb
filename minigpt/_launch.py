"""How this process was started: alone, or by torchrun as one of several. Imports no torch."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Launch:
    """The place of this process among all (rank of size), and among those of its machine."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    local_size: int = 1

    def default_threads(self, environment: Mapping[str, str] = os.environ) -> int | None:
        """Return the CPU threads that are this process's share; None leaves torch's own choice.

        torchrun sets OMP_NUM_THREADS to 1 where nobody else did, so a 1 says nothing about what
        the user wants, and the cores are shared out; any other number is a user's word.
        """
        if self.size == 1 or environment.get("OMP_NUM_THREADS", "1") != "1":
            return None
        return max(1, available_cores() // self.local_size)


def read_launch(environment: Mapping[str, str] = os.environ) -> Launch:
    """Return the place that torchrun's variables give; without them, that of a process alone.

    Raises ValueError naming the variable that does not fit: half a set of them would otherwise
    train as many single runs, all of which write the same files.
    """
    size = _number(environment, "WORLD_SIZE", 1, low=1)
    if size == 1:
        return Launch()
    rank = _number(environment, "RANK", None, low=0, high=size - 1)
    local_size = _number(environment, "LOCAL_WORLD_SIZE", size, low=1, high=size)
    local_rank = _number(environment, "LOCAL_RANK", rank % local_size, low=0, high=local_size - 1)
    return Launch(rank=rank, size=size, local_rank=local_rank, local_size=local_size)


def available_cores() -> int:
    """Return the cores that this process may run on, which a container or taskset can limit."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _number(
    environment: Mapping[str, str], name: str, default: int | None, *, low: int, high: int = 2**31
) -> int:
    text = environment.get(name, "" if default is None else str(default))
    if not (text.isascii() and text.isdigit() and low <= int(text) <= high):
        wanted = f"a whole number in {low}..{high}" if high < 2**31 else f"a whole number >= {low}"
        raise ValueError(
            f"{name} must be {wanted}, got {text!r}; torchrun sets it, unset it to run alone"
        )
    return int(text)
