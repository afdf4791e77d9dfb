"""Does a part give the same twice after the same seeding? Two calls, compared bit for bit.

Shapes: B batch, T time, N ids of the data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagnostics._guard import same_bytes
from diagnostics._probe import Batch, Probe, read_batch
from diagnostics.shift import locate


@dataclass(frozen=True)
class Disagreement:
    """part: the field of Pipeline.    first: what differs first.    count of total differ."""

    part: str
    first: str
    count: int
    total: int


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
    """Draw two batches after the same seeding; a loader that reads on in order is left alone."""
    part = "batch" if callable(probe.pipeline.batch) else "get_batch"
    try:
        first, second = _draw(probe), _draw(probe)
    except Exception:  # any: a loader that raises is for `batches` to report
        return None
    if first is None or second is None or same_bytes(first.inputs, second.inputs):
        return None
    if _goes_on(first.inputs, second.inputs, probe.pipeline.train_ids):
        return None
    return Disagreement(part, "the inputs", 1, 1)


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
