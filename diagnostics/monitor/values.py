"""Numbers that lie on a device, read together: one wait for the device, then everyone is told."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Told = Callable[[list[float]], None]


@dataclass
class Values:
    """A queue of small tensors, each with who wants to know its numbers.

    `flush` is the only place at which the monitor waits for a device in an ordinary update.
    """

    waiting: list[tuple[Tensor, Told]] = field(default_factory=list)
    reads: int = 0  # how often a device was waited for

    def ask(self, tensors: Sequence[Tensor] | Tensor, told: Told) -> None:
        """Queue one tensor, or several that are stacked; `told` gets their numbers at a flush."""
        if not isinstance(tensors, Tensor):
            if not tensors:
                return told([])
            home = tensors[0].device
            tensors = torch.stack([t.detach().to(home, torch.float32) for t in tensors])
        if not tensors.is_meta:  # a model of shapes alone has no numbers to tell
            self.waiting.append((tensors.detach().reshape(-1).float(), told))
        return None

    def flush(self) -> None:
        """Read everything at once and tell it in the order in which it was asked for."""
        if not self.waiting:
            return
        waiting, self.waiting = self.waiting, []
        home = waiting[0][0].device
        numbers = torch.cat([tensor.to(home) for tensor, _ in waiting]).tolist()
        self.reads += 1
        start = 0
        for tensor, told in waiting:
            told(numbers[start : start + tensor.numel()])
            start += tensor.numel()
