"""Comparing two ways side by side: interleaved runs, and the median of their paired ratios.

The machine's speed drifts from second to second, so every run of ours is divided by the run of
the peer just before it. The ratios can be trusted; the times are only for orientation.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured for one figure: medians in seconds and the paired ratios ours / peer."""

    figure: str
    ours_seconds: float
    peer_seconds: float
    ratio_median: float
    ratio_low: float  # first quartile
    ratio_high: float  # third quartile


def compare(
    figure: str, ours: Callable[[], object], peer: Callable[[], object], *, rounds: int = 31
) -> Comparison:
    """Run peer and ours in turns, `rounds` times after one warm-up of each."""
    peer(), ours()
    ours_seconds, peer_seconds = [], []
    for _ in range(rounds):
        peer_seconds.append(_seconds(peer))
        ours_seconds.append(_seconds(ours))
    ratios = [mine / other for mine, other in zip(ours_seconds, peer_seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return Comparison(
        figure=figure,
        ours_seconds=statistics.median(ours_seconds),
        peer_seconds=statistics.median(peer_seconds),
        ratio_median=middle,
        ratio_low=low,
        ratio_high=high,
    )


def print_comparisons(comparisons: list[Comparison]) -> None:
    """Print one row per figure, and on what kind of machine they were measured."""
    width = max(len(comparison.figure) for comparison in comparisons)
    print(f"{'figure':{width}}  {'ours ms':>9}  {'peer ms':>9}  ratio  (quartiles)")
    for row in comparisons:
        print(
            f"{row.figure:{width}}  {row.ours_seconds * 1e3:9.4f}  {row.peer_seconds * 1e3:9.4f}  "
            f"{row.ratio_median:5.3f}  ({row.ratio_low:.3f} to {row.ratio_high:.3f})"
        )
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    print(f"threads {torch.get_num_threads()}, load {load} on {os.cpu_count()} cores")


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
