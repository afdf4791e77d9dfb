"""A long series in few points, in which every peak and every valley stays.

A run of a million updates must not make a page of a million numbers, and a spike of one update is
what a person looks for. So nothing is averaged: of each stretch of steps the smallest and the
largest value are kept as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

Point = tuple[int, float]  # step, value

POINTS_MAX = 400  # more than a chart of 800 pixels can show


def thin(points: Sequence[Point], limit: int = POINTS_MAX) -> list[Point]:
    """Return at most `limit` of the points, in their order; all of them where they are few.

    The first and the last stay, and of each of equally wide stretches of steps the smallest and
    the largest value, and one that is not finite. Thinning the result again keeps that promise.
    limit: 5 or more.
    """
    if len(points) <= limit:
        return list(points)
    begin, width = points[0][0], points[-1][0] - points[0][0]
    broken = any(not math.isfinite(value) for _, value in points)
    count = (limit - 2) // (3 if broken else 2)
    stretches: dict[int, list[int]] = {}
    for index, (step, _) in enumerate(points):
        number = int((step - begin) * count / width) if width else 0
        stretches.setdefault(min(max(number, 0), count - 1), []).append(index)
    kept = {0, len(points) - 1}
    for indices in stretches.values():
        kept.update(_extremes(points, indices))
    return [points[index] for index in sorted(kept)]


def _extremes(points: Sequence[Point], indices: Sequence[int]) -> set[int]:
    finite = [index for index in indices if math.isfinite(points[index][1])]
    kept = {index for index in indices if index not in finite}
    kept = {min(kept)} if kept else set()
    if finite:
        kept |= {min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])}
    return kept


def spread(steps: Sequence[int], count: int) -> list[int]:
    """Return the positions of at most `count` steps that lie as evenly as there are any."""
    if len(steps) <= count:
        return list(range(len(steps)))
    low, high = steps[0], steps[-1]
    wanted = [low + (high - low) * (place + 0.5) / count for place in range(count)]
    return sorted({min(range(len(steps)), key=lambda i: abs(steps[i] - w)) for w in wanted})
