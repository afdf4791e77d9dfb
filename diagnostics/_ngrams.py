"""Long runs of tokens: which of one row occur in another, how often, and where.

Shapes: N ids of the row that is searched, M ids of the row that is asked about, Q queries.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]

PIECE_LENGTH = 2**21  # ids hashed at a time, 16 MB
SEARCHED_MAX = 2**24  # ids of a row that are searched, about 3 s; evenly spaced pieces beyond
RUN_LENGTH_MIN = 8  # shorter ones occur everywhere by chance
HEAD_BITS = 22  # of a hash, by which most runs that nobody asked about are told
HEAD_SHIFT = np.uint64(64 - HEAD_BITS)
COPIES_MAX = 16  # of a run in train: rows are repeated that often, boilerplate more
RUNS_MAX = 4096  # taken from either row
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0xD6E8FEB86659FD93)


@dataclass(frozen=True)
class Overlap:
    """share: of runs of val that occur in train.    natural: of runs of train that occur twice.

    hits: how many runs of val occur in train; neighbours share all tokens but one.
    few: of runs of val that occur in train and at most 16 times there; boilerplate does more often.
    distances: from val to train, of the runs at either end and of most.
    length: tokens of a run.    distinct: different runs among those of train.
    together: share of neighbouring runs
    that stand at the same distance in both parts, so that long pieces are shared.
    """

    share: float
    hits: int
    natural: float
    length: int
    distinct: int
    together: float
    few: float
    distances: tuple[int, ...]
    searched: float


@dataclass(frozen=True)
class Found:
    """counts: how often each query occurs.    places: where first, -1 for nowhere. (Q,) both.

    share: of the searched row that was looked at.
    """

    counts: Ids
    places: Ids
    share: float


def measure_overlap(train: Ids, val: Ids, *, length: int) -> Overlap | None:
    """Return how many runs of val (M,) occur in train (N,); None when they are too short."""
    n = power_of_two(min(length, len(val) // 2, len(train) // 2))
    if n < RUN_LENGTH_MIN:
        return None
    starts, own_starts = (_spread(len(ids) - n + 1) for ids in (val, train))
    queries, own = runs_at(val, starts, n), runs_at(train, own_starts, n)
    found = find_runs(train, np.concatenate((queries, own)), n)
    counts, places = found.counts[: len(queries)], found.places[: len(queries)]
    hits = np.flatnonzero(counts > 0)
    distances = places[hits] - starts[hits]
    neighbours = np.diff(distances)[np.diff(hits) == 1]
    return Overlap(
        hits=len(hits),
        share=len(hits) / len(queries),
        natural=float((found.counts[len(queries) :] > 1).mean()),
        length=n,
        distinct=_count_distinct(hash_runs(train[:PIECE_LENGTH], n)),
        together=float((neighbours == 0).mean()) if len(neighbours) else 0.0,
        few=float(((counts > 0) & (counts <= COPIES_MAX)).mean()),
        distances=_likely_distances(distances),
        searched=found.share,
    )


def hash_runs(ids: Ids, n: int) -> Hashes:
    """Return the hashes of every run of n ids in (..., N): (..., N - n + 1).

    n must be a power of two. Two different runs agree with a probability of about 2**-64.
    """
    if n & n - 1:
        raise ValueError(f"n must be a power of two, got {n}")
    hashes = _mixed(ids.astype(np.uint64))
    width = 1
    while width < n:
        left, right = hashes[..., :-width], hashes[..., width:]
        hashes = _mixed(left * np.uint64(_FACTORS[0]) + right)
        width *= 2
    return hashes


def find_runs(ids: Ids, queries: Hashes, n: int) -> Found:
    """Look for every query among the runs of n ids of a row (N,), in pieces."""
    wanted, inverse = np.unique(queries, return_inverse=True)
    heads = np.zeros(1 << HEAD_BITS, dtype=np.bool_)
    heads[wanted >> HEAD_SHIFT] = True
    counts = np.zeros(len(wanted), dtype=np.int64)
    places = np.full(len(wanted), -1, dtype=np.int64)
    stride = max(PIECE_LENGTH, -(-len(ids) * PIECE_LENGTH // SEARCHED_MAX))
    looked_at = 0
    for start in range(0, len(ids) - n + 1, stride):
        piece = ids[start : start + PIECE_LENGTH + n - 1]
        if len(piece) < n:
            break
        hashes = hash_runs(piece, n)
        looked_at += len(hashes)
        near = np.flatnonzero(heads[hashes >> HEAD_SHIFT])  # spares the search for nearly all
        slot = np.searchsorted(wanted, hashes[near]).clip(max=len(wanted) - 1)
        equal = wanted[slot] == hashes[near]
        hit, slot = near[equal], slot[equal]
        counts += np.bincount(slot, minlength=len(wanted))
        first = np.full(len(wanted), -1, dtype=np.int64)
        first[slot[::-1]] = hit[::-1] + start  # the earliest is written last
        places = np.where(places < 0, first, places)
    share = looked_at / max(1, len(ids) - n + 1)
    return Found(counts[inverse], places[inverse], min(1.0, share))


def runs_at(ids: Ids, starts: Ids, n: int) -> Hashes:
    """Return the hash of the run of n ids at each start."""
    return hash_runs(ids[starts[:, None] + np.arange(n)], n)[:, 0]


def power_of_two(limit: int) -> int:
    """Return the largest power of two that is not above `limit`, 0 for none."""
    return 1 << limit.bit_length() - 1 if limit >= 1 else 0


def _spread(count: int) -> Ids:
    """Return at most RUNS_MAX places from 0 to count - 1, both ends included."""
    return np.unique(np.linspace(0, count - 1, min(count, RUNS_MAX)).astype(np.int64))


def _likely_distances(distances: Ids) -> tuple[int, ...]:
    if not len(distances):
        return ()
    values, counts = np.unique(distances, return_counts=True)
    likely = (values[counts.argmax()], distances[0], distances[-1])
    return tuple(dict.fromkeys(int(value) for value in likely))


def _count_distinct(hashes: Hashes) -> int:
    """Return how many different ones there are; np.unique takes ten times as long."""
    return int((np.diff(np.sort(hashes)) != 0).sum()) + 1


def _mixed(values: Hashes) -> Hashes:
    """Spread the bits of each value over all 64; whole-number overflow is meant."""
    mixed = values * np.uint64(_FACTORS[1]) + np.uint64(_FACTORS[2])
    mixed ^= mixed >> np.uint64(29)
    mixed *= np.uint64(_FACTORS[3])
    return mixed ^ (mixed >> np.uint64(32))
