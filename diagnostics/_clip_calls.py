"""What torch's clip_grad_norm_ is given while a user's step runs, by whatever name it is called."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from torch.nn.utils import clip_grad_norm_


@dataclass(frozen=True)
class Clip:
    """One call. limit and size are norms; after_...: what had happened before, in the same step."""

    limit: float
    size: float
    given: int  # parameters
    with_gradient: int  # of them
    after_backward: bool
    after_step: bool

    @property
    def cuts(self) -> bool:
        """Whether gradients are made smaller."""
        return self.with_gradient > 0 and self.size > self.limit


@contextmanager
def clips_noted(so_far: Callable[[], tuple[bool, bool]]) -> Iterator[list[Clip]]:
    """Note every call of clip_grad_norm_ inside the block.

    so_far: whether backward() has written a gradient by now, and whether the optimizer has stepped.
    A profile function sees the call under any name; a replaced function would miss imported ones.
    """
    code = inspect.unwrap(clip_grad_norm_).__code__
    clips: list[Clip] = []
    previous = sys.getprofile()

    def note(frame: FrameType, event: Any, argument: Any) -> None:
        if previous is not None:  # whoever looked on before still does
            previous(frame, event, argument)
        if event == "return" and frame.f_code is code and argument is not None:
            known = frame.f_locals
            parameters, gradients = known.get("parameters"), known.get("grads")
            if isinstance(parameters, list) and isinstance(gradients, list):
                counts = len(parameters), len(gradients)
                clips.append(Clip(float(known["max_norm"]), float(argument), *counts, *so_far()))

    sys.setprofile(note)
    try:
        yield clips
    finally:
        sys.setprofile(previous)
