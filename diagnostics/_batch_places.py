"""How many places of the data a sampler knows, told by how often it draws one of them again.

Counting data as long as train_ids is used: a sampler may be right on short data and coarse on long
ones, as one whose starts are floats of few bits is.

Shapes: B batch, T time, N ids in the data, R rows.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from diagnostics._batch_draws import DATA_MAX, FALSE_ALARM, Draws, counting_data
from diagnostics._batch_form import fault
from diagnostics._probe import Probe
from diagnostics._result import CheckResult
from diagnostics._text import Text, say

ROWS_WANTED, CALLS_MAX = 4096, 1024
ROWS_MIN = 64  # fewer say nothing about thousands of places
PASS_SHARE = 0.5  # of one pass in rows side by side: a reader in passes draws no place twice in it
KNOWN_MAX = 0.125  # of the places, told by repeats; weights that prefer some texts stay above
KINDS = ((torch.bfloat16, 8), (torch.float16, 11))  # bits of a number that such a float holds


def judge_places(probe: Probe, draws: Draws) -> CheckResult | None:
    """Compare repeats among starts in data of the real length with those of independent draws."""
    ids = probe.pipeline.train_ids
    N = min(0 if ids is None else len(ids), DATA_MAX)
    starts = _draw_starts(probe, draws, N)
    if starts is None:
        return None
    # places that windows side by side or of a fixed stride have
    step = math.gcd(*(starts - starts[0]).tolist()) or 1
    places = (N - draws.T) // step
    starts = starts[: int(PASS_SHARE * places)]
    R, distinct = len(starts), len(starts.unique())
    again = R - distinct
    if R < ROWS_MIN or not again:
        return None
    known = R * R / (2 * again)  # birthdays: R draws from `known` places repeat R**2 / 2 / known
    if known > KNOWN_MAX * places or _luck(again, R * R / (2 * places)) > FALSE_ALARM:
        return None
    return _few_places(starts, distinct, places, step)


def _draw_starts(probe: Probe, draws: Draws, N: int) -> Tensor | None:
    """Return starts (R,) in counting data of N ids; None where rows are not windows of it."""
    if draws.advances or N < 4 * draws.T:
        return None
    data, offset = counting_data(probe, N)
    B = draws.batches[0].inputs.shape[0]
    firsts: list[Tensor] = []
    try:
        with probe.seeded("batches places"):
            for _ in range(min(-(-ROWS_WANTED // B), CALLS_MAX)):
                inputs = probe.draw_batch(data).inputs
                if inputs.shape[1] > 1 and not bool((inputs[:, 1] == inputs[:, 0] + 1).all()):
                    return None  # markers, or ids of a small type
                firsts.append(inputs[:, 0].cpu().long() - offset)
    except Exception:  # any: what it cannot read is not its fault
        return None
    return torch.cat(firsts)


def _luck(count: int, mean: float) -> float:
    """Return a bound of the probability of `count` repeats where `mean` are expected (Chernoff)."""
    if count <= mean:
        return 1.0
    return math.exp(min(0.0, count - mean - count * math.log(count / mean)))


def _few_places(starts: Tensor, distinct: int, places: int, step: int) -> CheckResult:
    R = len(starts)
    expected = places * -math.expm1(R * math.log1p(-1 / places))
    return fault(
        "batches.few_starts",
        say(
            "in data as long as train_ids, {R} rows start at only {distinct} places",
            R=R,
            distinct=distinct,
        ),
        say("{distinct} different starts in {R} rows", distinct=distinct, R=R),
        say(
            "about {expected}, drawn from {places} places", expected=round(expected), places=places
        ),
        causes=_causes(starts, step),
        next_step=say("draw whole numbers: starts = torch.randint(len(data) - T, (B,))"),
        numbers={"distinct": distinct, "rows": R, "expected": expected, "places": places},
    )


def _causes(starts: Tensor, step: int) -> tuple[Text, ...]:
    """Name the type that holds each of the starts exactly, as it holds few whole numbers."""
    for kind, bits in KINDS:
        large = int(starts.max()) // step >= 4 * 2**bits  # smaller ones it holds anyway
        if large and bool((starts.to(kind).double() == starts.double()).all()):
            return (
                say(
                    "starts pass through {kind}, which tells no numbers apart beyond {bits} bits",
                    kind=str(kind).removeprefix("torch."),
                    bits=bits,
                ),
            )
    return (say("starts are made from random numbers of few bits, or from a short list"),)
