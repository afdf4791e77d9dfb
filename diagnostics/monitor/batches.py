"""The batches: the same one again and again, or a short cycle of them.

On the CPU each batch is reduced to a hash; elsewhere a batch is compared with the one before it
from time to time, on the device, so that nothing waits for it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagnostics._text import say
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.values import Values

REPEATS = 3  # equal batches in a row; two may be drawn by chance from a small text
NUMBERS_MAX = 8192  # ids of a batch that are compared
CYCLE_MAX = 16  # batches in a cycle that is worth a note


@dataclass
class BatchWatch:
    """Compares the inputs of each update with those before."""

    speaker: Speaker
    values: Values
    seen: deque[int] = field(default_factory=lambda: deque(maxlen=3 * CYCLE_MAX))
    _equal: int = 1
    _previous: Tensor | None = None

    def see(self, step: int, inputs: Any, *, due: bool) -> None:
        """Look at the inputs of one update."""
        ids = first_tensor(inputs)
        if ids is None or ids.is_meta or ids.is_nested or ids.layout != torch.strided:
            return  # nothing that could be compared number by number
        if ids.numel() == 0:
            return
        if ids.device.type == "cpu":
            self._see_hash(step, hash_of(ids))
        elif due or self._previous is not None:
            self._see_device(step, ids)

    def _see_hash(self, step: int, key: int) -> None:
        self._count(step, bool(self.seen) and self.seen[-1] == key)
        self.seen.append(key)
        if step % CYCLE_MAX == 0 and self._equal == 1:
            self._note_cycle(step)

    def _see_device(self, step: int, ids: Tensor) -> None:
        now = ids.reshape(-1)[:NUMBERS_MAX]
        before, self._previous = self._previous, now
        if before is None or before.shape != now.shape:
            return
        self.values.ask([(before == now).all()], lambda told: self._told(step, bool(told[0])))

    def _told(self, step: int, equal: bool) -> None:
        self._count(step, equal)
        if not equal:
            self._previous = None  # until the next look

    def _count(self, step: int, equal: bool) -> None:
        self._equal = self._equal + 1 if equal else 1
        if self._equal >= REPEATS:
            self.speaker.speak(
                "same_batch",
                step,
                say("the last {n} updates were made from the same batch", n=self._equal),
                say("another batch each time"),
                cause=say(
                    "the loader is rebuilt or seeded anew for each update, or one batch is "
                    "learnt by heart on purpose"
                ),
                measured=float(self._equal),
            )

    def _note_cycle(self, step: int) -> None:
        keys = list(self.seen)
        for period in range(2, CYCLE_MAX + 1):
            if len(keys) >= 3 * period and keys[-3 * period : -period] == keys[-2 * period :]:
                self.speaker.speak(
                    "batches_cycle",
                    step,
                    say("the same {n} batches come round and round", n=period),
                    say("more of them, unless the data is that small"),
                    measured=float(period),
                    note=True,
                )
                return


def first_tensor(inputs: Any) -> Tensor | None:
    """Return the ids in a tensor, a tuple or list, or a dict such as {"input_ids": ...}."""
    if isinstance(inputs, Tensor):
        return inputs
    if isinstance(inputs, Mapping):
        preferred = inputs.get("input_ids")
        parts = [preferred, *inputs.values()]
    elif isinstance(inputs, (tuple, list)):
        parts = list(inputs)
    else:
        return None
    return next((part for part in parts if isinstance(part, Tensor)), None)


def hash_of(ids: Tensor) -> int:
    """Return a number that differs for other ids, or for another shape."""
    flat = ids.detach().reshape(-1)[:NUMBERS_MAX]
    if flat.dtype == torch.bfloat16:
        flat = flat.float()
    return hash((tuple(ids.shape), flat.numpy().tobytes()))
