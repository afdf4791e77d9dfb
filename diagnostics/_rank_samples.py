"""What each rank is given to learn from: its first batches as digests, counts and decoded text.

Shapes: B batch, T time.
"""

from __future__ import annotations

import hashlib
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Sized
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from diagnostics._probe import Probe, read_batch
from diagnostics._text import printable

KEPT = 24  # batches of each rank that are compared row by row
COUNTED_MAX = 128  # batches that are counted, to see whether the ranks have equally many
SHOWN = 24  # characters, or half as many ids, of a rank's first row


@dataclass(frozen=True)
class Samples:
    """What one rank drew.

    rows: digests of the rows of each batch.    shapes: (B, T) of the inputs, batch by batch.
    scored: targets of each batch that count in the loss.    length: batches until the end; None:
    no end was seen.    first: the first row, decoded.    elsewhere: the first rows under a random
    state that differs from rank to rank.    runs_on: share of rows that go on where the row
    before ends, as in data that are read in order.
    """

    rows: list[list[str]]
    shapes: list[tuple[int, ...]]
    scored: list[int]
    length: int | None
    first: str
    elsewhere: list[str] = field(default_factory=list)
    runs_on: float = 0.0


def draw_samples(probe: Probe, rank: int, size: int) -> Samples:
    """Draw from rank_batches as this rank does, from a random state that all ranks share.

    Processes that nobody seeds start torch from one and the same state, so that only what
    rank_batches itself does with the rank can tell them apart.
    """
    part = probe.pipeline.rank_batches
    assert part is not None
    with probe.seeded("rank batches"):
        given = part(rank, size)
        length = _length(given)
        batches = iter(_checked(given))
        kept = [read_batch(raw, "rank_batches") for raw in itertools.islice(batches, KEPT)]
        if length is None:
            more = sum(1 for _ in itertools.islice(batches, COUNTED_MAX - len(kept)))
            length = len(kept) + more if len(kept) + more < COUNTED_MAX else None
    if not kept:
        raise ValueError(f"rank_batches({rank}, {size}) gave no batch")
    with probe.seeded(f"rank batches {rank}"):
        again = next(iter(_checked(part(rank, size))), None)
    return Samples(
        [_digests(batch.inputs) for batch in kept],
        [tuple(batch.inputs.shape) for batch in kept],
        [_scored(probe, batch.targets) for batch in kept],
        length,
        _decoded(probe, kept[0].inputs),
        [] if again is None else _digests(read_batch(again, "rank_batches").inputs),
        _runs_on([(batch.inputs, batch.targets) for batch in kept]),
    )


def same_share(a: Samples, b: Samples) -> float:
    """Return the share of batches that hold the same rows on two ranks."""
    pairs = list(zip(a.rows, b.rows, strict=False))
    return sum(sorted(x) == sorted(y) for x, y in pairs) / max(1, len(pairs))


def overlap(a: Samples, b: Samples) -> tuple[int, int, int]:
    """Return how many rows of b stand in a as well, how many chance explains, and all of b.

    Random windows of a short text meet by chance: across two ranks about as often as one half
    of a rank's own draws meets the other half, in proportion to the number of pairs.
    """
    x, y = (list(itertools.chain.from_iterable(samples.rows)) for samples in (a, b))
    counts = Counter(x)
    shared = sum(row in counts for row in y)
    halves = [(rows[::2], rows[1::2]) for rows in (x, y)]
    met = sum(len([row for row in odd if row in set(even)]) for even, odd in halves)
    return shared, 2 * met, len(y)


def epoch_length(samples: Samples) -> int | None:
    """Return after how many batches all rows come again in the same order; None: they do not."""
    rows = samples.rows
    for period in range(2, len(rows) // 2 + 1):
        if all(a == b for a, b in zip(rows, rows[period:], strict=False)):
            return period
    return None


def _checked(given: Any) -> Iterable[Any]:
    if not isinstance(given, Iterable):
        raise TypeError(
            f"rank_batches must return an iterator of (inputs, targets), got {type(given).__name__}"
        )
    return given


def _length(given: Any) -> int | None:
    try:
        return len(given) if isinstance(given, Sized) else None
    except TypeError:  # a loader over an iterable has the method, and no length
        return None


def _digests(inputs: Tensor) -> list[str]:
    rows = inputs.detach().cpu().contiguous()
    return [hashlib.blake2b(row.numpy().tobytes(), digest_size=8).hexdigest() for row in rows]


def _scored(probe: Probe, targets: Tensor) -> int:
    if probe.pipeline.labels == "same":
        targets = targets[:, 1:]
    return int((targets != probe.pipeline.ignore_index).sum())


def _decoded(probe: Probe, inputs: Tensor) -> str:
    ids = inputs[0].detach().cpu().tolist()
    decode: Callable[[Any], Any] | None = getattr(probe.pipeline.tokenizer, "decode", None)
    if decode is not None:
        try:
            text = str(decode(ids[:SHOWN]))[:SHOWN]
            return f'"{printable(text)}"'
        except Exception:  # any: `roundtrip` judges the tokenizer
            decode = None
    return str(ids[: SHOWN // 4])


def _runs_on(batches: list[tuple[Tensor, Tensor]]) -> float:
    """Return how often a row begins with the last target of the row before.

    Where the model shifts inside, the targets are the inputs, and nothing can be told: 1.
    """
    if all(torch.equal(inputs, targets) for inputs, targets in batches):
        return 1.0
    rows = [
        (int(x[0]), int(y[-1]))
        for inputs, targets in batches
        for x, y in zip(inputs, targets, strict=False)
    ]
    pairs = list(itertools.pairwise(rows))
    return sum(last == first for (_, last), (first, _) in pairs) / max(1, len(pairs))
