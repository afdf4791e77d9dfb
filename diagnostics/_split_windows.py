"""Windows that were cut with an overlap first, and shuffled into two parts after that.

Their pieces are too short for long runs, and both parts repeat them alike, so that the share of
runs tells nothing. Their places do: common runs begin at edges of windows, and stand at another
place of the window in the other part. Records of one width repeat their columns in the same place.

Shapes: N training ids, M validation ids, R runs.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from diagnostics._ngrams import RUN_LENGTH_MIN, Ids, find_runs, hash_runs
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

LOOKED_AT = 2**15  # ids of the validation part
COPIES_MAX = 4  # of a run in train; windows that are cut finer have long common runs
PERIODS = range(16, 1025)  # tokens; longer windows have long common runs, too
BEGINNINGS_MIN = 32  # of common runs, so that they agree by chance with less than 1e-6
RECORDS_MAX = 2 / 3  # in SHIFTS places of three rows: records of one width lie any rows apart
DEVIATIONS = 5  # above that, for as many stretches as there are
COVERED_MIN = 0.3  # of places; with half of the windows in either part, half of them
ALIGNED_MIN = 0.5  # of beginnings in two places of a period; prose measures 0.1 to 0.2
SHIFTED_MIN = 0.85  # of aligned ones; those that prose repeats by nature are the rest
SHIFTS = 2  # by which windows of one place differ in runs, with a stride of a third at least
WIDTH_MAX = 2048  # tokens of a window


@dataclass(frozen=True)
class Grid:
    """covered: share of places of val that lie in a run of `length` ids which train holds too.

    aligned: share of such stretches that begin in one of two places of `period`.
    shifted: share of the aligned ones that stand one of two shifts further in a window of train.
    stretches: how many aligned ones there are.
    """

    covered: float
    aligned: float
    shifted: float
    stretches: int
    period: int
    length: int

    @property
    def is_cut(self) -> bool:
        chance = math.sqrt(RECORDS_MAX * (1 - RECORDS_MAX) / max(1, self.stretches))
        return (
            self.covered >= COVERED_MIN
            and self.aligned >= ALIGNED_MIN
            and self.shifted >= max(SHIFTED_MIN, RECORDS_MAX + DEVIATIONS * chance)
        )


def judge_windows(train: Ids, val: Ids, lengths: tuple[int, ...]) -> CheckResult | None:
    """Look for stretches of val (M,) that begin at edges of windows and stand in train (N,)."""
    for length in lengths:
        grid = measure_grid(train, val, length)
        if grid is not None and grid.is_cut:
            return _windows_overlap(grid)
    return None


def measure_grid(train: Ids, val: Ids, length: int) -> Grid | None:
    """Return where the runs of `length` ids that both parts hold begin; None for too few."""
    val = val[:LOOKED_AT]
    if length < RUN_LENGTH_MIN or min(len(train), len(val)) < 2 * length:
        return None
    found = find_runs(train, hash_runs(val, length), length)
    common = (found.counts > 0) & (found.counts <= COPIES_MAX)  # (M - length + 1,)
    begins = np.flatnonzero(common & ~np.concatenate(([False], common[:-1])))  # (R,)
    if len(begins) < BEGINNINGS_MIN:
        return None
    tops = {p: np.sort(np.bincount(begins % p, minlength=p))[-2:].sum() for p in PERIODS}
    period = max(tops, key=lambda p: (tops[p], -p))
    places = np.argsort(np.bincount(begins % period, minlength=period))[-2:]
    aligned = begins[np.isin(begins % period, places)]
    distances = found.places[aligned] - aligned
    covered = np.convolve(common, np.ones(length)) > 0.5  # (M,)
    return Grid(
        covered=float(covered.mean()),
        aligned=len(aligned) / len(begins),
        shifted=max(_shifted(distances, w) for w in range(period, WIDTH_MAX + 1, period)),
        stretches=len(aligned),
        period=period,
        length=length,
    )


def _shifted(distances: Ids, width: int) -> float:
    """Return the share of distances (R,) that are, in windows of `width`, the commonest shifts."""
    counts = np.bincount(distances % width, minlength=width)
    return float(np.sort(counts[1:])[-SHIFTS:].sum() / len(distances))


def _windows_overlap(grid: Grid) -> CheckResult:
    return verdict(
        Status.FAIL,
        "split.windows_overlap",
        say(
            "{covered:%} of val_ids lie in runs of {n} tokens or more that train_ids hold too",
            covered=grid.covered,
            n=grid.length,
        ),
        measured=say(
            "{aligned:%} of these stretches begin in one or two places of every {period} tokens",
            aligned=grid.aligned,
            period=grid.period,
        ),
        expected=say("no common text, quotations and boilerplate aside, which begin anywhere"),
        causes=(
            say("windows that overlap were cut first, and shuffled into two parts after that"),
        ),
        next_step=say("split the text by documents or ranges first, and cut windows then"),
        numbers={
            "covered": grid.covered,
            "aligned": grid.aligned,
            "shifted": grid.shifted,
            "period": grid.period,
            "length": grid.length,
        },
    )
