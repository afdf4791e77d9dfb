"""Read the loss that a step returns: is it the loss of the batch that it was given?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from diagnostics import _step_words as words
from diagnostics._result import CheckResult
from diagnostics._step_trial import Call
from diagnostics._text import say

SAME = 1e-4  # relative; float32 on one machine: below 1e-6
ROUGH = 0.02  # a loss computed under autocast, or on a noisy model


def judge_loss(
    tell: Callable[..., CheckResult],
    calls: list[Call],
    wanted: list[float],
    after: list[float],
    counts: list[int],
    exact: bool,
    noise: float,
) -> Iterator[CheckResult]:
    """Compare the returned losses with those of the batches before and after each step.

    exact: the gradients are those of the model's own loss, so that its value is known too.
    """
    told = [call.loss for call in calls]
    if all(math.isnan(loss) for loss in told):
        yield tell(words.NO_LOSS, say("returned {kind}", kind=type(calls[0].returned).__name__))
        return
    rows = list(zip(told, wanted, strict=True))
    if all(_near(a, b) for a, b in rows):
        return
    measured = say(
        "returned {told}; wanted {wanted}",
        told=", ".join(f"{loss:.4f}" for loss in told[:3]),
        wanted=", ".join(f"{loss:.4f}" for loss in wanted[:3]),
    )
    if all(_near(a, b) for a, b in zip(told, after, strict=True)):
        yield tell(words.LOSS_AFTER, measured)
    elif len(told) > 2 and all(_near(a, b) for a, b in zip(told[1:], wanted, strict=False)):
        yield tell(words.LOSS_BEFORE, measured)
    elif _is_smoothed(told, wanted):
        yield tell(words.LOSS_SMOOTHED, measured)
    elif (factor := _factor(told, wanted)) is not None or _is_sum(told, wanted, counts):
        yield tell(words.LOSS_SCALED, measured, factor=factor or told[0] / wanted[0])
    elif exact and noise < ROUGH and not all(_near(a, b, ROUGH) for a, b in rows):
        worst = max(rows, key=lambda row: abs(row[0] - row[1]))
        yield tell(words.LOSS_OTHER, measured, returned=worst[0], wanted=worst[1])


def _near(a: float, b: float, relative: float = SAME) -> bool:
    return abs(a - b) <= relative * max(1.0, abs(b))


def _factor(told: list[float], wanted: list[float]) -> float | None:
    """Return the one factor between returned and wanted losses, unless it is near 1."""
    factors = [a / b for a, b in zip(told, wanted, strict=True) if b]
    if not factors or not all(map(math.isfinite, factors)):
        return None
    middle = sum(factors) / len(factors)
    same = all(_near(factor / middle, 1.0) for factor in factors) if middle else False
    return middle if same and abs(middle - 1) > ROUGH else None


def _is_sum(told: list[float], wanted: list[float], counts: list[int]) -> bool:
    return all(_near(a, b * n) for a, b, n in zip(told, wanted, counts, strict=True))


def _is_smoothed(told: list[float], wanted: list[float]) -> bool:
    """Whether each value is a mixture of the one returned before and the new loss."""
    shares = []
    for number in range(1, len(told)):
        way = told[number - 1] - wanted[number]
        if abs(way) < 1e-3:
            return False
        shares.append((told[number] - wanted[number]) / way)
    constant = len(shares) > 1 and max(shares) - min(shares) < 0.01 and 0.01 < shares[0] < 1.001
    mean = all(abs(share - n / (n + 1)) < 0.01 for n, share in enumerate(shares, 1))
    return constant or (len(shares) > 1 and mean)
