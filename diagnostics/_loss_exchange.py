"""What exchanged targets tell of a loss that no formula fits: what it adds, what it leaves out.

Shapes: B batch, T time, N scored targets.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diagnostics._loss_cases import (
    IGNORED,
    LARGE,
    OWN,
    measure_case,
    measure_position_weights,
)
from diagnostics._loss_readings import Case, Reading, is_healthy
from diagnostics._probe import JITTER_STD, Batch, Probe
from diagnostics._text import say

EXCHANGED_MAX = 256  # targets, or runs of neighbours, that are exchanged one after the other


def read_by_other_targets(probe: Probe, cases: list[Case]) -> list[Reading]:
    """Same inputs, other targets: what is added stays, what ignores its targets stays whole."""
    ordinary = [case for case in cases if case.name not in (LARGE, IGNORED)]
    off = [case for case in ordinary if not case.fits(case.reference)]
    first = (off or cases)[0]  # where nothing is wrong, nothing can be seen of it
    others = _with_other_targets(probe, first)
    if all(other.fits(first.reported) for other in others):
        return [Reading("loss.ignores_targets")]
    if is_healthy([case for case in cases if case.name != IGNORED]):
        return [Reading("loss.ignored_counted")]
    if not off:
        large_and_finite = all(math.isfinite(case.reported) for case in cases)
        return [Reading("loss.differs_when_large")] if large_and_finite else []
    extra = first.reported - first.reference
    added = [other.reported - other.reference for other in others]
    if all(abs(extra - again) <= 2 * first.tolerance for again in added):
        return [Reading("loss.extra_term", extra)]
    found = _read_by_single_targets(probe, off, some_fit=len(off) < len(ordinary))
    weights = None if found else measure_position_weights(probe)
    if weights is not None and 0 < int((weights == 0).sum()) < weights.numel():
        return [Reading("loss.targets_dropped", float((weights == 0).double().mean()))]
    return found


def _with_other_targets(probe: Probe, case: Case) -> list[Case]:
    """Targets of other places, and other ids in every place; ignored ones stay ignored."""
    targets, V = case.targets, probe.vocab_size
    ignored = targets == case.ignore_index
    others = [targets.roll(rows, 0).roll(rows, 1) for rows in (1, 2)]
    others += [targets.where(ignored, (targets + V // step) % V) for step in (2, 3)]
    own = case.name == OWN
    exact = probe.batch_runs_in_float64 if own else True
    mask = probe.batch.attention_mask if own else None
    with probe.model(exact=exact, jitter=JITTER_STD) as model:
        return [
            measure_case(probe, model, "other targets", Batch(case.inputs, other, mask))
            for other in others
        ]


def _read_by_single_targets(probe: Probe, off: list[Case], *, some_fit: bool) -> list[Reading]:
    """Which targets does the loss not read, one by one?"""
    case = min(off, key=lambda each: each.targets.numel())
    unread = _measure_unread(probe, case)
    scored = len(case.scored[1])
    if unread is None or not 0 < int(unread.sum()) < scored:
        return []
    count, T = int(unread.sum()), unread.shape[1]
    rows = unread.any(1).nonzero()[:, 0].tolist()
    at_the_end = bool(unread[_scored(case)][-count:].all())
    ragged = some_fit or count % T != 0  # a slice of rows leaves whole rows out, of every batch
    place = say(
        "{count} of {scored} targets of {name}, the first in row {first}, the last in row {last}",
        count=count,
        scored=scored,
        name=case.name,
        first=rows[0],
        last=rows[-1],
    )
    reason = "loss.remainder_dropped" if at_the_end and ragged else "loss.targets_dropped"
    return [Reading(reason, count / scored, place)]


def _measure_unread(probe: Probe, case: Case) -> Tensor | None:
    """Return (B, T) bool: scored targets that leave the loss as it is, to the last bit.

    Each is exchanged for two other ids, and neighbours together where there are many. This needs
    no path from the logits to the loss, which a loss that makes its logits in chunks has not. None
    where 16 bits would hide one target among many, or where the loss does not repeat itself.
    """
    targets, scored = case.targets, _scored(case)
    places = scored.flatten().nonzero()[:, 0]  # (N,)
    own = case.name == OWN
    mask = probe.batch.attention_mask if own else None
    exact = probe.batch_runs_in_float64 if own else True
    unread = torch.zeros_like(scored)
    with probe.model(exact=exact, jitter=JITTER_STD) as model:

        def reported(marks: Tensor) -> float:
            return measure_case(probe, model, case.name, Batch(case.inputs, marks, mask)).reported

        before = reported(targets)
        if case.noise or not math.isfinite(before) or reported(targets) != before:
            return None
        for run in places.split(-(-len(places) // EXCHANGED_MAX)):
            unread.view(-1)[run] = all(
                reported(_exchanged(targets, run, other, probe.vocab_size)) == before
                for other in {1, max(1, probe.vocab_size // 2)}
            )
    return unread


def _exchanged(targets: Tensor, places: Tensor, other: int, vocab_size: int) -> Tensor:
    changed = targets.clone()
    changed.view(-1)[places] = (changed.view(-1)[places] + other) % vocab_size
    return changed


def _scored(case: Case) -> Tensor:
    scored = case.targets != case.ignore_index
    if case.labels == "same":
        scored[:, 0] = False  # nothing predicts it
    return scored
