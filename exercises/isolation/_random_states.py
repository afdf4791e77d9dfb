"""The random states of a process, kept equal on both sides of a wire.

A seeded run over there draws what it would draw here, and leaves behind what it would leave here.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from exercises.isolation.wire import WireError

WORDS = 624  # of the Mersenne Twister's state
TORCH_BYTES = torch.default_generator.get_state().numel()


class RandomStates:
    """The states of this process, and those in which the other side is known to be."""

    def __init__(self) -> None:
        self._torch: Tensor | None = None
        self._numpy: Any = None
        self._python: Any = None

    def changes(self) -> dict[str, Any]:
        """Return the states that the other side does not have yet, and take them as known."""
        changed: dict[str, Any] = {}
        torch_state = torch.get_rng_state()
        if self._torch is None or not torch.equal(torch_state, self._torch):
            changed["torch"] = self._torch = torch_state
        numpy_state = _read_numpy()
        if numpy_state != self._numpy:
            self._numpy = numpy_state
            words = np.frombuffer(numpy_state[0], dtype=np.uint32).astype(np.int64)
            changed["numpy"] = (torch.from_numpy(words), *numpy_state[1:])
        python_state = random.getstate()
        if python_state != self._python:
            self._python = python_state
            changed["python"] = (torch.tensor(python_state[1]), python_state[2])
        return changed

    def apply(self, changed: Any) -> None:
        """Take over what the other side sent. Raises WireError for what is no state."""
        try:
            self._apply(changed)
        except (TypeError, ValueError, RuntimeError, KeyError, OverflowError) as error:
            raise WireError("a random state came that is none") from error

    def _apply(self, changed: dict[str, Any]) -> None:
        if "torch" in changed:
            state = _checked(changed["torch"], torch.uint8, TORCH_BYTES)
            torch.set_rng_state(state)
            self._torch = state
        if "numpy" in changed:
            words, place, has_gauss, gauss = changed["numpy"]
            _checked(words, torch.int64, WORDS)
            if type(place) is not int or not 0 <= place <= WORDS:  # it is an index, read unchecked
                raise ValueError("the place in the state is outside of it")
            keys = words.numpy().astype(np.uint32)
            np.random.set_state(("MT19937", keys, place, int(bool(has_gauss)), float(gauss)))
            self._numpy = _read_numpy()
        if "python" in changed:
            words, gauss = changed["python"]
            _checked(words, torch.int64, WORDS + 1)
            random.setstate((3, tuple(words.tolist()), None if gauss is None else float(gauss)))
            self._python = random.getstate()


def _read_numpy() -> tuple[bytes, int, int, float]:
    state: Any = np.random.get_state()
    return state[1].tobytes(), int(state[2]), int(state[3]), float(state[4])


def _checked(value: Any, dtype: torch.dtype, length: int) -> Tensor:
    if type(value) is not Tensor or value.dtype is not dtype or value.shape != (length,):
        raise ValueError("a state of another form")
    return value
