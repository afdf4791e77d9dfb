"""Comparing two ways side by side: interleaved runs, and the median of their paired ratios.

The machine's speed drifts from second to second, so every run of ours is divided by the run of
the peer just before it. The ratios can be trusted; the times are only for orientation.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

FIGURE_WIDTH = 36  # with it the table has 88 columns; a longer name gets a line of its own


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What was measured for one figure: medians in seconds and the paired ratios ours / peer.

    goal: the largest ratio that was aimed at; None where the row is for orientation.
    """

    figure: str
    ours_seconds: float
    peer_seconds: float
    ratio_median: float
    ratio_low: float  # first quartile
    ratio_high: float  # third quartile
    goal: float | None = None

    @property
    def verdict(self) -> str:
        """One of "met", "not met" and "-" for a row without a goal."""
        if self.goal is None:
            return "-"
        return "met" if self.ratio_median <= self.goal else "not met"


def compare(
    figure: str,
    ours: Callable[[], object],
    peer: Callable[[], object],
    *,
    rounds: int = 31,
    repeats: int = 1,
    goal: float | None = None,
) -> Comparison:
    """Run peer and ours in turns, `rounds` (at least 2) times after one warm-up of each.

    repeats: how often ours runs in a round, about as often as it is faster. On a busy machine a
    short run is either interrupted or not, a long one always in part: only equals can be compared.
    """
    peer(), ours()
    ours_seconds, peer_seconds = [], []
    for _ in range(rounds):
        peer_seconds.append(_seconds(peer))
        ours_seconds.append(_seconds(ours, repeats))
    ratios = [mine / other for mine, other in zip(ours_seconds, peer_seconds, strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Comparison(
        figure=figure,
        ours_seconds=statistics.median(ours_seconds),
        peer_seconds=statistics.median(peer_seconds),
        ratio_median=middle,
        ratio_low=low,
        ratio_high=high,
        goal=goal,
    )


def print_comparisons(comparisons: list[Comparison]) -> None:
    """Print one row per figure, and on what kind of machine they were measured."""
    print(f"{'figure: ours / peer':{FIGURE_WIDTH}}  ours ms   peer ms  ratio  quartiles    goal")
    for row in comparisons:
        figure = row.figure
        if len(figure) > FIGURE_WIDTH:
            print(figure)
            figure = ""
        goal = "" if row.goal is None else f"{row.goal:.2f} {row.verdict}"
        print(
            f"{figure:{FIGURE_WIDTH}} {_milliseconds(row.ours_seconds)} "
            f"{_milliseconds(row.peer_seconds)}  {_ratio(row.ratio_median)}  "
            f"{_ratio(row.ratio_low)}-{_ratio(row.ratio_high)} {goal}".rstrip()
        )
    print(", ".join(f"{name} {value}" for name, value in describe_machine().items()))


def describe_machine() -> dict[str, str]:
    """Return what the times, and a little the ratios, depend on."""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else "unknown"
    return {
        "torch threads": str(torch.get_num_threads()),
        "load": f"{load} on {os.cpu_count()} cores",
        "chip": _chip(),
        "torch": str(torch.__version__),
    }


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:8.3f}" if seconds < 1 else f"{seconds * 1e3:8.0f}"


def _ratio(ratio: float) -> str:
    return f"{ratio:5.3f}" if ratio < 10 else f"{ratio:5.1f}"


def _chip() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _seconds(run: Callable[[], object], repeats: int = 1) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        run()
    return (time.perf_counter() - start) / repeats
