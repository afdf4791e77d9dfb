"""What the batches of one loader have in common over a whole pass: order, repeats, padding.

Shapes: B batch, T time, P batches of one pass.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Sequence

from diagnostics._batch_draws import Draws
from diagnostics._batch_form import fault
from diagnostics._probe import Batch
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

PASS_MAX = 256  # batches of a pass that is drawn twice to compare the orders
COMPARED_MIN = 4  # batches that must come again in their places
ASCENDING_SHARE = 0.8  # of the steps from batch to batch: a reader that goes through the data


def judge_padding(batches: Sequence[Batch], ignore_index: int) -> CheckResult | None:
    """Is there a target to learn in every batch?"""
    empty = [n for n, batch in enumerate(batches) if not (batch.targets != ignore_index).any()]
    if not empty:
        return None
    late = empty[0] > 0 and empty == list(range(empty[0], len(batches)))
    return fault(
        "batches.only_padding",
        say(
            "{count} of {all} batches hold no scored target: nothing is learnt from them",
            count=len(empty),
            all=len(batches),
        ),
        say("first is batch {first}", first=empty[0]),
        say("targets to learn in every batch"),
        causes=(say("from there on the loader finds nothing that fits, and goes on padding"),)
        if late
        else (),
        next_step=say("count scored targets per batch, and documents that wait in the buffer"),
        numbers={"empty": len(empty), "first": empty[0], "batches": len(batches)},
    )


def find_pass(draws: Draws, draw: Callable[[], Batch]) -> int | None:
    """Return P when the same batches come again in the same order after P; draws more to see it.

    More is drawn only from loaders whose rows stand side by side, as those of one pass do.
    """
    keys = [_key(batch) for batch in draws.batches]
    length = _period(keys)
    B = draws.batches[0].inputs.shape[0]
    if length is not None or draws.stride < draws.T or not draws.known:
        return length
    expected = -(-draws.windows // (draws.stride * B)) + 1
    if expected > PASS_MAX:
        return None
    try:
        while len(keys) < 2 * expected + COMPARED_MIN:
            keys.append(_key(draw()))
    except Exception:  # any: a loader may end with its pass
        return None
    return _period(keys)


def judge_order(draws: Draws, length: int) -> CheckResult | None:
    """A pass that is repeated as it was: a reader in order may, a shuffled one should not."""
    first = [row[0] for row in draws.starts[:length] if row and row[0] is not None]
    steps = [b > a for a, b in itertools.pairwise(first)]
    if not steps or sum(steps) >= ASCENDING_SHARE * len(steps):
        return None
    return verdict(
        Status.WARN,  # rows that were shuffled once, and are read in that order, look the same
        "batches.same_order",
        say("every pass over the data has the same shuffled order: {P} batches", P=length),
        measured=say("batch {P} is batch 0 again, and so on", P=length),
        expected=say("another order in each pass"),
        causes=(say("the sampler is seeded with the epoch, and is not told it (set_epoch)"),),
        next_step=say("call sampler.set_epoch(epoch) before each pass"),
        numbers={"batches_per_pass": length},
    )


def _period(keys: Sequence[Hashable]) -> int | None:
    for length in range(2, len(keys) - COMPARED_MIN + 1):
        if keys[length] == keys[0] and all(
            a == b for a, b in zip(keys, keys[length:], strict=False)
        ):
            return length
    return None


def _key(batch: Batch) -> Hashable:
    return tuple(batch.inputs.flatten().tolist())
