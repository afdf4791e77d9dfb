"""Does a part give the same twice after the same seeding? Two calls, compared bit for bit.

Shapes: B batch, T time, N ids of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagnostics._batch_draws import counting_data, draw_counting, draw_own
from diagnostics._guard import same_bytes
from diagnostics._probe import Batch, Probe, read_batch
from diagnostics.shift import locate

PAIRS_MIN = 20.0  # pairs of rows that would be equal by chance: none are with 2e-9


@dataclass(frozen=True)
class Disagreement:
    """part: the field of Pipeline.    first: what differs first.    count of total differ.

    in_pass: whether a loader's rows are those of a shuffled pass, each once and side by side.
    """

    part: str
    first: str
    count: int
    total: int
    in_pass: bool = False


def compare_models(probe: Probe) -> Disagreement | None:
    """Make two models after the same seeding and compare every weight."""
    if probe.pipeline.make_model is None:
        return None
    pair: list[dict[str, Tensor]] = []
    for _ in range(2):
        with probe.seeded("repeatable"):
            model = probe.pipeline.make_model()
        pair.append({name: p.detach() for name, p in model.named_parameters()})
    first, second = pair
    different = [n for n in first if n not in second or not same_bytes(first[n], second[n])]
    if not different:
        return None
    return Disagreement("make_model", f"weight {different[0]}", len(different), len(first))


def compare_batches(probe: Probe) -> Disagreement | None:
    """Draw two batches after the same seeding.

    A loader that reads on in order is left alone, and so is one that reads on through a shuffled
    pass, where a pass that starts after the same seeding is seen to have the same order.
    """
    part = "batch" if callable(probe.pipeline.batch) else "get_batch"
    try:
        first, second = _draw(probe), _draw(probe)
    except Exception:  # any: a loader that raises is for `batches` to report
        return None
    if first is None or second is None or same_bytes(first.inputs, second.inputs):
        return None
    if _goes_on(first.inputs, second.inputs, probe.pipeline.train_ids):
        return None
    try:
        in_pass = _goes_through_a_pass(probe)
        if in_pass and part == "get_batch" and _pass_follows_seed(probe, *first.inputs.shape):
            return None
    except Exception:  # any: a loader may end, or refuse other data; then nothing more is known
        in_pass = False
    return Disagreement(part, "the inputs", 1, 1, in_pass)


def _goes_through_a_pass(probe: Probe) -> bool:
    """Whether many rows lie side by side, none of them twice: drawn with replacement, some would.

    Of r rows out of n places, one would come twice but for a chance of exp(-r * r / 2n).
    """
    draws = draw_counting(probe) if probe.pipeline.get_batch is not None else None
    if draws is None:
        source = probe.pipeline.batch
        if not callable(source):
            return False
        draws = draw_own(probe, lambda: source("train"), probe.pipeline.train_ids)
    known = draws.known
    if len(known) < 2 or draws.stride < draws.T:
        return False
    places = draws.windows // draws.stride + 1
    return len(set(known)) == len(known) and len(known) ** 2 >= PAIRS_MIN * 2 * places


def _pass_follows_seed(probe: Probe, B: int, T: int) -> bool:
    """Whether a new pass, as data of another length asks for, is the same after equal seeding."""
    rows = []
    for extra in (0, B * T, 0):
        data, _ = counting_data(probe, 16 * B * T + extra + T)
        with probe.seeded("repeatable"):
            rows.append(probe.draw_batch(data).inputs)
    return same_bytes(rows[0], rows[2])


def _draw(probe: Probe) -> Batch | None:
    pipeline = probe.pipeline
    with probe.seeded("repeatable"):
        if callable(pipeline.batch):
            return read_batch(pipeline.batch("train"), "batch")
        if pipeline.get_batch is not None and pipeline.train_ids is not None:
            return probe.draw_batch(pipeline.train_ids)
    return None


def _goes_on(first: Tensor, second: Tensor, data: Tensor | None) -> bool:
    """Whether the second batch (B, T) starts in the data (N,) where the first one ended."""
    if data is None or first.ndim != 2 or second.ndim != 2 or first.numel() == 0:
        return False
    data = torch.as_tensor(data).to(first.device)
    ends = locate(data, first[-1]) + first.shape[1]
    starts = locate(data, second[0])
    gaps = starts[:, None] - ends[None, :]  # a window of T + 1 tokens leaves one out
    return bool(((gaps >= 0) & (gaps <= 1)).any())
