"""Many batches of one loader, read as the places in the data where their rows start.

Shapes: B batch, T time, N ids in the data, V vocabulary, K calls.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from diagnostics._probe import Batch, MissingPartError, Probe, read_batch
from diagnostics.shift import locate

# Verdicts about random draws are wrong for a healthy sampler with a probability below this.
FALSE_ALARM = 1e-9
ROWS_WANTED = 256  # with so many rows a tenth of the data is missed by chance in 2e-12
CALLS_MIN, CALLS_MAX = 8, 256
DATA_MIN, DATA_MAX = 4096, 4_000_000  # ids of the counting data; 32 MB at most


@dataclass
class Draws:
    """Consecutive batches of one loader.

    starts: per call, per row: where the row starts in the data; None where that is not known.
    N: ids in the data, 0 when unknown.
    """

    batches: list[Batch]
    starts: list[list[int | None]] = field(default_factory=list)
    N: int = 0
    T: int = 0
    offset: int = 0  # value of the first id of counting data
    kinds: float = math.inf  # rows of T ids that differ, which few tokens make few of

    @property
    def known(self) -> list[int]:
        """Every start that is known, in order."""
        return [start for row in self.starts for start in row if start is not None]

    @property
    def windows(self) -> int:
        """How many starts the data has, with room for the last target."""
        return max(0, self.N - self.T)

    @property
    def stride(self) -> int:
        """Greatest common divisor of the distances between starts: 1 for a random sampler."""
        known = self.known
        return math.gcd(*(start - known[0] for start in known[1:])) if len(known) > 1 else 0

    @property
    def advances(self) -> bool:
        """Whether starts move through the data with the calls, as sequential readers do."""
        pairs = [(call, s) for call, row in enumerate(self.starts) for s in row if s is not None]
        if len({call for call, _ in pairs}) < 3:
            return True  # too few calls to tell: nothing is claimed about coverage
        first = [row[0] for row in self.starts if row and row[0] is not None]
        steps = [b - a for a, b in itertools.pairwise(first) if b != a]
        if steps and max(steps.count(step) for step in set(steps)) > 0.8 * (len(first) - 1):
            return True  # the same step nearly every time
        points = torch.tensor(pairs, dtype=torch.float64).T  # (2, rows)
        return float(torch.corrcoef(points).nan_to_num()[0, 1]) > 0.5  # random: 0.06


def draw_counting(probe: Probe) -> Draws | None:
    """Draw batches from data in which every value is its own position; None: unreadable to it."""
    get_batch = probe.pipeline.get_batch
    assert get_batch is not None
    try:
        data, _ = counting_data(probe, max(DATA_MIN, 8 * (probe.block_size or 0)))
        with probe.seeded("batches size"):
            first = probe.draw_batch(data)
        with probe.seeded("batches size"):
            other = probe.draw_batch(data + 1)
        foreign = unit_steps(first.inputs) > 0.5  # it does read what it is given
        if not foreign and (torch.equal(first.inputs, other.inputs) or _is_own(probe, first)):
            return None  # bound to data of its own
        B, T = first.inputs.shape
        calls = calls_for(B)
        N = min(max(DATA_MIN, (calls + 8) * B * T + T), DATA_MAX)
        data, offset = counting_data(probe, N)
        with probe.seeded("batches"):
            batches = [probe.draw_batch(data) for _ in range(calls)]
    except Exception:  # any: a loader that cannot read foreign data is not at fault
        return None
    starts: list[list[int | None]] = [
        [int(start) - offset for start in batch.inputs[:, 0]] for batch in batches
    ]
    return Draws(batches, starts, N, T, offset)


def draw_short(probe: Probe, T: int, rows: int) -> tuple[Draws, list[Exception]]:
    """Draw from counting data of T + 3 ids, which has three starts; also return what was raised."""
    data, offset = counting_data(probe, T + 3)
    batches: list[Batch] = []
    errors: list[Exception] = []
    drawn = 0
    with probe.seeded("batches short"):
        for _ in range(max(rows, CALLS_MIN)):
            try:
                batch = probe.draw_batch(data)
            except Exception as error:  # any: which draws raise is the finding
                errors.append(error)
                continue
            batches.append(batch)
            drawn += batch.inputs.shape[0]
            if drawn >= rows:
                break
    starts: list[list[int | None]] = [
        [int(start) - offset for start in batch.inputs[:, 0]] for batch in batches
    ]
    return Draws(batches, starts, T + 3, T, offset), errors


def draw_own(probe: Probe, draw: Callable[[], object], data: Tensor | None) -> Draws:
    """Draw batches from the user's own data; rows are found in `data` where they occur once."""
    with probe.seeded("batches own"):
        first = read_batch(draw(), "batch")
        batches = [first, *(read_batch(draw(), "batch") for _ in range(_own_calls(first) - 1))]
    T = first.inputs.shape[1]
    kinds = _count_kinds(probe, data, T)
    if data is None:
        return Draws(batches, T=T, kinds=kinds)
    data = data.cpu()
    starts: list[list[int | None]] = []
    for batch in batches:
        found = [locate(data, row) for row in batch.inputs.cpu()]
        starts.append([int(f[0]) if f.numel() == 1 else None for f in found])
    return Draws(batches, starts, len(data), T, kinds=kinds)


def _count_kinds(probe: Probe, data: Tensor | None, T: int) -> float:
    """Return how many rows of T ids the tokens of the data, or all V, can make."""
    try:
        V = probe.vocab_size if data is None else len(data.unique())
    except MissingPartError:
        return math.inf
    return float(V) ** min(T, 64)  # 2 ** 64 rows are beyond any data


def counting_data(probe: Probe, N: int) -> tuple[Tensor, int]:
    """Return (N,) consecutive ids and the first of them: the highest ones below V if they fit.

    High ids are what a type that is too small wraps round.
    """
    try:
        offset = max(0, probe.vocab_size - N)
    except MissingPartError:
        offset = 0
    return torch.arange(offset, offset + N), offset


def calls_for(B: int) -> int:
    """Return how many calls give ROWS_WANTED rows, within bounds."""
    return min(max(-(-ROWS_WANTED // max(B, 1)), CALLS_MIN), CALLS_MAX)


def unit_steps(inputs: Tensor) -> float:
    """Return the share of neighbours in rows (B, T) that are one apart; 1 for windows."""
    steps = inputs[:, 1:] - inputs[:, :-1]
    return float((steps == 1).double().mean()) if steps.numel() else 1.0


def _own_calls(batch: Batch) -> int:
    return min(calls_for(batch.inputs.shape[0]), 32)  # a real loader may read from a disk


def _is_own(probe: Probe, batch: Batch) -> bool:
    """Whether the rows come from train_ids, whatever data was handed over."""
    ids, T = probe.pipeline.train_ids, batch.inputs.shape[1]
    if ids is None or T < 8:
        return False
    return all(locate(ids.cpu(), row).numel() > 0 for row in batch.inputs.cpu())
