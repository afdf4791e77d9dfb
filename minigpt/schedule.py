"""The learning rate of each step: a linear warm-up, then half a cosine down to a floor."""

from __future__ import annotations

import math


def learning_rate_at(
    step: int, *, peak: float, warmup_steps: int, max_steps: int, floor: float = 0.0
) -> float:
    """Return the learning rate for update number `step`, counted from 0.

    Warm-up: step s of the first warmup_steps gets peak * (s + 1) / warmup_steps, so the first
    update is not wasted on a rate of 0 and the last of the warm-up runs at the peak. Then the
    cosine of Loshchilov and Hutter 2017 (SGDR) goes from the peak to the floor, which the last
    update, max_steps - 1, reaches exactly; beyond it the rate stays at the floor.

    Raises ValueError for a negative step, a floor above the peak or a warm-up beyond max_steps.
    """
    if step < 0:
        raise ValueError(f"step must be >= 0, got {step}")
    if not 0 <= warmup_steps <= max_steps:
        raise ValueError(f"warmup_steps must be in 0..max_steps = {max_steps}, got {warmup_steps}")
    if not 0 <= floor <= peak:
        raise ValueError(f"floor must be in 0..peak = {peak:g}, got {floor:g}")
    if step < warmup_steps:
        return peak * (step + 1) / warmup_steps
    # Without a warm-up the cosine starts at step 0; with one, its last step is already the peak.
    first = max(warmup_steps - 1, 0)
    last = max_steps - 1
    if step >= last:
        return floor if last > first else peak
    progress = (step - first) / (last - first)
    return floor + 0.5 * (peak - floor) * (1.0 + math.cos(math.pi * progress))
