"""What `context` says of attention that is there and yet not what it seems: all are warnings.

Shapes: B batch, T time, C width of the stream, H heads, D head size.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn

from diagnostics._attention import (
    AttentionCall,
    AttentionWatch,
    feed_forward_modules,
    feed_forward_outputs,
    odd_scale,
    plain_length,
    silenced,
)
from diagnostics._fault import Fault, found
from diagnostics._result import CheckResult, Status
from diagnostics._structure import Bench, moved, other_tokens
from diagnostics._text import say

SILENCED_MAX = 8  # calls of attention that are switched off, one at a time
LENGTH_MAX = 31
PROJECTIONS = 3  # queries, keys and values


def watch_attention(
    bench: Bench, tokens: Tensor, *, compare_places: bool = False
) -> list[AttentionCall]:
    """Return the calls that mix the positions of tokens (B, T), in the order of the forward pass.

    None are seen in a compiled model, or in one that refuses rows of another length.
    """
    T = plain_length(bench.model, min(tokens.shape[1], LENGTH_MAX))
    try:
        with AttentionWatch(T, width_of(bench.model), compare_places=compare_places) as watch:
            bench.call(tokens[:1, :T])
    except Exception:  # any: the model itself may raise
        return []
    return watch.calls


def repeated_row_calls(bench: Bench, token: int, T: int) -> list[AttentionCall]:
    """Return the calls for a row of one token repeated: there only positions differ."""
    row = torch.full((1, T), token, device=bench.probe.device)
    return watch_attention(bench, row, compare_places=True)


def width_of(model: nn.Module) -> int:
    """Return C, the width of the widest token embedding; 0 without one."""
    widths = [m.embedding_dim for m in model.modules() if isinstance(m, nn.Embedding)]
    return max(widths, default=0)


def judge_attention(
    bench: Bench, tokens: Tensor, limit: float, calls: list[AttentionCall]
) -> CheckResult | None:
    """Ask what a model that attends does with what it has read; None: nothing is odd.

    calls: those of tokens (B, T), as `watch_attention` gives them.
    """
    if not calls:
        return None
    row = tokens[:1, : plain_length(bench.model, min(tokens.shape[1], LENGTH_MAX))]
    answers = (
        lambda: _judge_residual(bench, row, limit, calls),
        lambda: _judge_bypass(bench, row, limit),
        lambda: _judge_scale(bench, calls),
        lambda: _judge_projection(calls),
    )
    return next((result for ask in answers if (result := ask()) is not None), None)


def _judge_residual(
    bench: Bench, row: Tensor, limit: float, calls: list[AttentionCall]
) -> CheckResult | None:
    """With one layer switched off, the newest token must still reach its prediction."""
    if len(calls) < 2:
        return None  # a single layer may be the whole model
    numbers = {"call": 0, "calls": len(calls), "limit": limit}
    for number in _spread(len(calls)):
        if not _move_of_last(bench, row, newest=True, silent=number) > limit:
            layer = say("attention {number} of {total}", number=number + 1, total=len(calls))
            numbers["call"] = number + 1
            return found(_NO_RESIDUAL, _DEAD, numbers, layer=layer, limit=limit)
    outputs = feed_forward_outputs(bench.model, width_of(bench.model))
    for path in (outputs[number] for number in _spread(len(outputs))):
        with silenced(bench.model, [path]):
            move = _move_of_last(bench, row, newest=True)
        if not move > limit:
            return found(_NO_RESIDUAL, _DEAD, numbers, names=[path], layer=path, limit=limit)
    return None


def _spread(count: int) -> range:
    """Return at most SILENCED_MAX numbers below count, evenly."""
    return range(0, count, max(1, -(-count // SILENCED_MAX)))


def _judge_bypass(bench: Bench, row: Tensor, limit: float) -> CheckResult | None:
    """With all feed-forward layers switched off, what attention reads must still arrive."""
    paths = feed_forward_modules(bench.model)
    if not paths or not _move_of_last(bench, row, newest=False) > limit:
        return None
    with silenced(bench.model, paths):
        own = _move_of_last(bench, row, newest=True)
        earlier = _move_of_last(bench, row, newest=False)
        attends = bool(watch_attention(bench, row))
    if not attends or earlier > limit or not own > limit:
        return None  # all passes through them, or attention is part of them
    return found(
        _BYPASSED,
        say(
            "without them the last logits move by {own} when the last token changes, and by "
            "{earlier} when all earlier ones do",
            own=own,
            earlier=earlier,
        ),
        {"own": own, "earlier": earlier, "limit": limit},
        names=paths,
        limit=limit,
    )


def _judge_scale(bench: Bench, calls: list[AttentionCall]) -> CheckResult | None:
    C = width_of(bench.model)
    for call in calls:
        name = odd_scale(call, C)
        if name is None or call.scale is None:
            continue
        size = C if name == "C" else C // call.D
        return found(
            _SCALE,
            say("the factor is {scale}, 1 / sqrt({size})", scale=call.scale, size=size),
            {"scale": call.scale, "head_size": call.D, "width": C},
            what="the width of the model" if name == "C" else "the number of heads",
            size=size,
            D=call.D,
            place=call.place,
        )
    return None


def _judge_projection(calls: list[AttentionCall]) -> CheckResult | None:
    call = next((call for call in calls if call.shared >= PROJECTIONS), None)
    if call is None:
        return None
    return found(
        _SHARED,
        say("{count} linear layers before {place} do so", count=call.shared, place=call.place),
        {"layers": call.shared, "head_size": call.D},
        D=call.D,
    )


def _move_of_last(bench: Bench, row: Tensor, *, newest: bool, silent: int | None = None) -> float:
    """Return how far the last logits move when the last token, or every other one, changes.

    silent: number of the call of attention that gives zeros.
    """
    changed = other_tokens(bench.probe, row)
    kept = slice(0, -1) if newest else slice(-1, None)
    changed[:, kept] = row[:, kept]
    # in two calls: rows of a batch may influence one another
    last = []
    for tokens in (row, changed):
        with nullcontext() if silent is None else AttentionWatch(row.shape[1], silent=silent):
            last.append(bench.call(tokens)[:, -1:])
    return float(torch.nan_to_num(moved(*last), nan=torch.inf).max())


_DEAD = say("without it the last logits stay as they are when the last token changes")
_NO_RESIDUAL = Fault(
    "context.no_residual",
    "without what {layer} gives, the newest token does not reach its prediction: no residual path "
    "goes round it",
    "a move of more than {limit}, unless the model is meant to have no residual path",
    "keep the stream and add to it: x = x + layer(norm(x))",
    (
        "the stream is overwritten before the sum: x = f(x), then x + x",
        "the branch's output is returned without the sum",
    ),
    Status.WARN,
)
_BYPASSED = Fault(
    "context.attention_bypassed",
    "what attention reads reaches the predictions through the feed-forward layers only, not "
    "through the stream itself",
    "a move of more than {limit}, as attention adds to the stream as well",
    "add both in turn: x = x + attention(...), then x = x + feed_forward(norm(x))",
    ("the second sum starts from the block's input, in place of the stream after attention",),
    Status.WARN,
)
_SCALE = Fault(
    "context.score_scale",
    "attention scores are divided by the root of {what}, {size}, where one head is {D} wide",
    "1 / sqrt({D}), or a scale of the design's own",
    "divide by the root of the last size of the queries: q.shape[-1] ** 0.5, at {place}",
    ("the scale is taken from another size than the head's",),
    Status.WARN,
)
_SHARED = Fault(
    "context.shared_projection",
    "one projection of {D} x {D} serves all heads: each reads its own slice of a token only",
    "queries, keys and values that each head makes from the whole token",
    "project the whole token first, nn.Linear(C, C), and split into heads afterwards",
    ("tokens are split into heads before they are projected",),
    Status.WARN,
)
