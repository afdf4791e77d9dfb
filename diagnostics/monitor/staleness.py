"""Whether the gradient of an update still holds that of the update before: no `zero_grad`.

One parameter is listened to during one backward pass. A hook on it is told the gradient that
arrives, before torch adds it to `.grad`. What then lies in `.grad` must be that, up to one factor
for clipping. Where it is that and the gradient from before, in any shares, it was not cleared.
Sums over several processes fit neither, and stay silent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._text import say
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.values import Values

NUMBERS_MIN, NUMBERS_MAX = 64, 65_536  # of a parameter worth listening to
TIMES = 2  # looks in a row
FITS = 0.02  # part of the gradient that the sum may leave unexplained; bfloat16 measured: 0.004
SHARE_MIN = 0.05  # of the old gradient in the new one
ALIKE = 0.9999  # cosine at which the gradient is what has arrived


@dataclass
class StalenessWatch:
    """Listens at `arm`, and compares at the next update in `compare`."""

    speaker: Speaker
    values: Values
    _parameter: nn.Parameter | None = None
    _before: Tensor | None = None
    _arrived: Tensor | None = None
    _weights: Tensor | None = None  # as they were: micro-batches between two updates do add up
    _handle: Any = None
    _times: int = 0

    def arm(self, holders: Sequence[nn.Parameter]) -> None:
        """Choose a parameter among those with a gradient, and listen to the next backward pass."""
        self.disarm()
        fit = (
            p
            for p in holders
            if NUMBERS_MIN <= p.numel() <= NUMBERS_MAX
            and p.grad is not None
            and p.grad.layout == torch.strided
        )
        parameter = next(fit, None)
        if parameter is None or parameter.grad is None:
            return
        self._parameter, self._arrived = parameter, None
        self._before = parameter.grad.detach().float().flatten().clone()
        self._weights = parameter.detach().flatten().clone()
        self._handle = parameter.register_hook(self._hear)

    def disarm(self) -> None:
        """Take the hook off."""
        if self._handle is not None:
            self._handle.remove()
        self._handle, self._parameter = None, None

    def compare(self, step: int) -> None:
        """Ask of what the gradient consists now, and take the hook off."""
        parameter, before, arrived = self._parameter, self._before, self._arrived
        self.disarm()
        if parameter is None or parameter.grad is None or before is None or arrived is None:
            return
        now = parameter.grad.detach().float().flatten()
        if now.shape != arrived.shape or self._weights is None:
            return
        moved = (parameter.detach().flatten() != self._weights).any()
        rows = torch.stack([now, arrived, before.to(now.device)])  # (3, numbers)
        told = torch.cat([(rows @ rows.T).flatten(), moved.float()[None]])
        self.values.ask(told, lambda numbers: self._judge(step, numbers[:9], numbers[9] > 0))

    def _hear(self, gradient: Tensor) -> None:
        part = gradient.detach().float().flatten()
        self._arrived = part.clone() if self._arrived is None else self._arrived + part

    def _judge(self, step: int, products: list[float], moved: bool) -> None:
        if not moved:
            return  # no update was made in between, so there was nothing to clear
        share = old_share(products)
        self._times = self._times + 1 if share is not None else 0
        if share is not None and self._times >= TIMES:
            self.speaker.speak(
                "gradient_not_cleared",
                step,
                say(
                    "{share:%} of the gradient is left over from the update before",
                    share=share,
                ),
                say("only what the last backward pass gave"),
                cause=say("zero_grad() is not called between updates"),
                measured=share,
            )


def old_share(products: list[float]) -> float | None:
    """Return how much of a gradient is the one before, from 0 to 1; None where it holds none.

    products: of (now, arrived, before) with each other, 9 numbers.
    """
    nn_, na, nb, _, aa, ab, _, _, bb = products
    if not (nn_ > 0 and aa > 0 and bb > 0):
        return None
    if na / (nn_ * aa) ** 0.5 >= ALIKE:
        return None
    determinant = aa * bb - ab * ab
    if not determinant > 1e-6 * aa * bb:
        return None  # both point the same way, so that shares cannot be told apart
    of_arrived = (na * bb - nb * ab) / determinant
    of_before = (nb * aa - na * ab) / determinant
    left = nn_ - of_arrived * na - of_before * nb  # squared size of what neither explains
    share = of_before * (bb / nn_) ** 0.5
    if not left <= FITS**2 * nn_ or not of_arrived > 0 or not share >= SHARE_MIN:
        return None
    return min(share, 1.0)
