"""Causal independence: what position t predicts may depend only on tokens 0 to t.

Why it matters
    A model that sees the token it has to predict reaches a wonderful loss and has learnt
    nothing: at generation time the future does not exist yet.

How it is measured
    One batched forward of copies of a row: in copy j token j is replaced, and every logit that
    moves at a position before j is a leak. This is the influence map (T, T): zero above the
    diagonal, non-zero on it. It is measured on a float64 copy with jittered weights, where a
    healthy model leaks exactly 0, and again with all weights times 10, which shows leaks that
    small initial weights hide. Up to 64 positions every pair is measured; in a longer block the
    replaced tokens lie at every scale, and the result says how many. A leak that appears only with
    the larger weights, and is exactly 0 without, is a warning: a finite mask such as -1e4. Rows of
    up to 64 tokens are also run in train mode, and any row with an attention mask of ones where
    the model takes one. Where something leaks, two calls are compared step by step: the first call
    of torch whose early positions move is named, and with the pattern of the map it tells the
    cause; masks are spoken of only where the model reads a table of weights (T, T).

What it cannot see
    A leak through the batch axis (rows reading each other) is for `batch_independence`. In a long
    block a leak between two positions of which neither was probed. Branches that run only when
    targets or a cache are given. With the larger weights, positions whose logits are NaN there.
    Whether a window is as wide as it was meant to be. Where a leak begins in a compiled model, or
    in one that computes outside torch.

Break it
    python -m exercises.break_causal_independence
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._attention import plain_length
from diagnostics._influence_map import influence_map
from diagnostics._leak_pattern import Leak, read_leak, site_name
from diagnostics._leak_site import Trace, find_leak
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import direct_probe, no_comparison, not_causal, one_token
from diagnostics._text import say

EVERY_PAIR_MAX = 64  # positions up to which the whole map is affordable
WORK_MAX = 2e10  # copies x T x parameters: about 2 s in float64 on one laptop core
COPIES_MIN = 4  # of which one is unchanged; a larger model is measured on a shorter row
LOGITS_MAX = 2**25  # numbers held at once: 256 MB in float64
SCALED_POSITIONS_MAX = 8  # replaced with the larger weights, where only weak masks are looked for
LEAK_FLOAT64 = 1e-9  # healthy: 0, a GRU 2e-16; the smallest real leak measured: 3e-6
LEAK_FLOAT32 = 1e-4  # only for models that cannot run in float64; relative to the logits
TRACED_LENGTH_MAX = 61  # tokens of the row in which every step is kept, to find where it leaks
LARGE_SCALE = 10.0  # on the weights: shows what small initial ones hide


def check_causal_independence(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that no position depends on a later token.

    tokens: (B, T) ids with T >= 2 to start from; None: random ones. Only the first row is used.
    vocab_size: V; None: read from the model.    parts: other fields of Pipeline, such as forward.
    `numbers["influence"]` holds the map in at most 64 x 64 cells.
    Raises ValueError when tokens have another shape.
    """
    return _check(direct_probe(model, tokens, vocab_size, parts, length_min=2), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge the influence map of random tokens over the whole block."""
    if not probe.pipeline.causal:
        return not_causal("causal_independence")
    return _check(probe, None)


def measure_influence(
    probe: Probe,
    model: nn.Module,
    row: Tensor,
    replaced: list[int],
    *,
    with_attention_mask: bool = False,
) -> tuple[Tensor, float]:
    """Return (T, J): how far the logits at position i move when token replaced[j] changes.

    row: (T,) token ids. The second value is the largest logit in size, to compare with.
    Raises NotRepeatableError when equal calls differ.
    """
    copies = row.repeat(len(replaced) + 1, 1)  # (J + 1, T), the last one unchanged
    for copy, position in enumerate(replaced):
        copies[copy, position] = (row[position] + 1 + copy) % probe.vocab_size
        if copies[copy, position] == row[position]:
            copies[copy, position] = (row[position] + 1) % probe.vocab_size
    moved: list[Tensor] = []
    unchanged: Tensor | None = None
    for logits in _logits(
        probe, model, copies, with_attention_mask
    ):  # (rows, T, W), the last rows first
        unchanged = logits[-1:].clone() if unchanged is None else unchanged
        # equal values have not moved, also where both are minus infinity (shut columns)
        change = torch.where(logits == unchanged, 0.0, (logits - unchanged).abs())
        moved.insert(0, change.amax(dim=2))
    assert unchanged is not None
    size = unchanged[unchanged.isfinite()].abs()
    influence = torch.cat(moved)[:-1].T  # (T, J)
    return influence, float(size.max()) if size.numel() else 0.0


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    probe.require_choice()
    parameters = sum(p.numel() for p in probe.pipeline.model.parameters())
    if tokens is None and probe.block_size == 1:
        return one_token("causal_independence.one_token", say("there is no future"))
    if tokens is not None:
        T = tokens.shape[1]
    else:
        affordable = int(WORK_MAX / (COPIES_MIN * max(1, parameters)))
        T = min(probe.block_size or probe.probe_length, max(affordable, probe.probe_length))
    row = tokens[0].to(probe.device) if tokens is not None else probe.tokens(1, T, "causal")[0]
    copies = max(COPIES_MIN, int(WORK_MAX / (T * max(1, parameters))))
    replaced = _positions_to_replace(T, copies - 1)
    results: list[CheckResult] = []
    for setting in _settings(probe, T):
        if setting.scale > 1.0 and probe.runs_in_float64 and T > EVERY_PAIR_MAX:
            replaced = _thinned(replaced, SCALED_POSITIONS_MAX)
        try:
            results.append(_measure_and_judge(probe, setting, row, replaced))
        except NotRepeatableError:
            if not results:
                return no_comparison("causal_independence")
        except Exception:  # any: not every model runs in every setting; eval mode has to
            if not results:
                raise
        if results[-1].failed:
            return _in_setting(results[-1], setting, results[0])
    return results[0]


@dataclass(frozen=True)
class Setting:
    """One way to run the model: what hides a leak in one of them shows in another."""

    scale: float = 1.0  # on the weights
    train: bool = False
    with_attention_mask: bool = False


class NotRepeatableError(Exception):
    """Two equal calls with equal random states differ, so that nothing can be compared."""


def _settings(probe: Probe, T: int) -> list[Setting]:
    settings = [Setting()]
    if probe.adapter.mask_name is not None:
        settings.append(Setting(with_attention_mask=True))
    if T <= EVERY_PAIR_MAX:
        settings.append(Setting(train=True))
    return [*settings, Setting(scale=LARGE_SCALE)]


def _measure_and_judge(
    probe: Probe, setting: Setting, row: Tensor, replaced: list[int]
) -> CheckResult:
    with probe.model(
        exact=True, jitter=JITTER_STD, scale=setting.scale, train=setting.train
    ) as model:
        influence, size = measure_influence(
            probe, model, row, replaced, with_attention_mask=setting.with_attention_mask
        )
        tolerance = LEAK_FLOAT64 if probe.runs_in_float64 else LEAK_FLOAT32
        limit = tolerance * max(1.0, size)
        future = torch.tensor([[i < j for j in replaced] for i in range(len(row))])
        # written so that a NaN counts as a leak
        leaks = future.to(influence.device) & ~(influence <= limit)
        if setting.scale > 1.0:  # an overflow that only these weights cause is no leak
            leaks &= ~influence.isnan()
        if not leaks.any():
            return _passed(influence, replaced, limit, setting.scale)
        leak = Leak(influence, leaks, torch.tensor(replaced, device=influence.device))
        trace = _trace(probe, model, setting, row, leak, tolerance)
    return _failed(leak, trace, limit, setting.scale)


def _trace(
    probe: Probe, model: nn.Module, setting: Setting, row: Tensor, leak: Leak, tolerance: float
) -> Trace | None:
    """Find the call in which the leak begins, on a row that is short enough to keep every step.

    Its length must be no other size in the model, or the axis of time could not be told apart.
    """

    def call(ids: Tensor) -> object:
        with probe.seeded("causal"):
            mask = torch.ones_like(ids) if setting.with_attention_mask else None
            return probe.adapter.logits(model, ids, mask)

    longest = min(len(row), TRACED_LENGTH_MAX)
    trace = None
    for T in dict.fromkeys((plain_length(model, longest), longest)):
        columns = leak.leaks[:T].sum(0) * (leak.changed < T)
        j = int(leak.changed[int(columns.argmax())])
        changed = row.clone()
        changed[j] = (row[j] + 1) % probe.vocab_size
        pair = row[None, :T], changed[None, :T]
        try:
            trace = find_leak(model, call, pair, size=T, kept=range(j), tolerance=tolerance)
        except Exception:  # any: compiled models refuse to be watched, others take one length
            continue
        if trace.site is not None:
            return trace
    return trace


def _in_setting(leak: CheckResult, setting: Setting, plain: CheckResult) -> CheckResult:
    """Say in which setting a leak appears that the plain one does not show."""
    if setting.with_attention_mask:
        masked = leak.reason == "causal_independence.no_mask"
        return replace(
            leak,
            reason="causal_independence.only_with_attention_mask",
            claim=say("{claim}, once an attention mask is passed", claim=leak.claim),
            causes=_REPLACED if masked else leak.causes,
            next_step=say("combine both masks: a key is read only if both allow it"),
        )
    if setting.train:
        return replace(
            leak,
            reason="causal_independence.only_in_train_mode",
            claim=say("{claim}, in train mode only", claim=leak.claim),
            next_step=say("compare what forward does in train mode: only dropout may differ"),
        )
    if setting.scale > 1.0 and plain.numbers["worst_leak"] == 0.0:
        return _weak_mask(leak)
    return leak


_REPLACED = (
    say("the padding mask takes the place of the causal mask"),
    say("the two masks are joined by or, where and is needed"),
)


def _weak_mask(leak: CheckResult) -> CheckResult:
    """Exactly nothing leaks at ordinary weights: exp(-1e4) is 0, until the scores reach 1e4."""
    return replace(
        leak,
        status=Status.WARN,
        reason="causal_independence.finite_mask",
        claim=say(
            "nothing leaks now, but with weights x{scale} the mask no longer hides the future",
            scale=int(leak.numbers["weight_scale"]),
        ),
        causes=(say("hidden scores are set to a finite number such as -1e4"),),
        next_step=say('fill hidden scores with float("-inf") or torch.finfo(dtype).min'),
    )


def _numbers(
    influence: Tensor,
    replaced: list[int],
    limit: float,
    scale: float,
    leaks: Tensor | None = None,
) -> dict[str, Any]:
    positions = torch.arange(len(influence), device=influence.device)
    future = positions[:, None] < torch.tensor(replaced, device=influence.device)[None, :]
    return {
        "judged_pairs": int(future.sum()),
        "worst_leak": float(influence[future].max()) if future.any() else 0.0,
        "weight_scale": scale,
        "limit": limit,
        "length": len(influence),
        "replaced": replaced,
        "influence": influence_map(influence, replaced, leaks),
    }


def _passed(influence: Tensor, replaced: list[int], limit: float, scale: float) -> CheckResult:
    numbers = _numbers(influence, replaced, limit, scale)
    return verdict(
        Status.PASS,
        "causal_independence.ok",
        say(
            "no prediction moves when a later token changes ({pairs:pair|pairs} of {T} positions "
            "and {tokens:replaced token|replaced tokens})",
            pairs=numbers["judged_pairs"],
            T=len(influence),
            tokens=len(replaced),
        ),
        measured=say("worst leak {worst}", worst=numbers["worst_leak"]),
        numbers={"leaking_pairs": 0, **numbers},
    )


def _failed(leak: Leak, trace: Trace | None, limit: float, scale: float) -> CheckResult:
    moved = leak.leaks & ~leak.influence.isnan()
    pairs = torch.nonzero(moved if moved.any() else leak.leaks)
    i, column = (int(index) for index in pairs[0])
    j = int(leak.changed[column])
    numbers = _numbers(leak.influence, leak.changed.tolist(), limit, scale, leak.leaks)
    reading = read_leak(leak, trace)
    site = None if trace is None else trace.site
    where = say(
        "{count} of {total:(position, future token) pair leaks|(position, future token) pairs "
        "leak}, reaching {reach:token|tokens} ahead; first is ({i}, {j})"
        if moved.any()
        else "{count} of {total:(position, future token) pair gives|(position, future token) pairs "
        "give} NaN; first is ({i}, {j})",
        count=len(pairs),
        total=numbers["judged_pairs"],
        reach=leak.reach,
        i=i,
        j=j,
    )
    if site is not None:
        where = say("{where}; it begins at {site}", where=where, site=site_name(site))
    return verdict(
        Status.FAIL,
        reading.reason,
        say(
            "position {i} changes its prediction when token {j}, in its future, changes"
            if moved.any()
            else "logits of position {i} are NaN, so that nothing tells whether token {j}, in its "
            "future, moves them",
            i=i,
            j=j,
        ),
        measured=say(
            "a logit moved by {first}; worst leak {worst}"
            if moved.any()
            else "a difference of {first} between two calls",
            first=float(leak.influence[i, column]),
            worst=numbers["worst_leak"],
        ),
        expected=say(
            "at most {limit}, because nothing that position {i} may read has changed",
            limit=limit,
            i=i,
        ),
        where=where,
        causes=reading.causes,
        next_step=reading.next_step,
        numbers={
            "leaking_pairs": int(leak.leaks.sum()),
            **numbers,
            "reach": leak.reach,
            "begins": None if site is None else dataclasses.asdict(site),
        },
    )


def _positions_to_replace(T: int, count_max: int) -> list[int]:
    """All positions of a short row; in a long one, neighbours of every power of two, and ends."""
    if T <= EVERY_PAIR_MAX:
        return _thinned(list(range(T)), count_max)
    marks = {0, 1, T - 2, T - 1, T // 3, T // 2, 2 * T // 3}
    step = 2
    while step < T:
        marks |= {step - 1, step, step + 1, T - step}
        step *= 2
    return _thinned(sorted(mark for mark in marks if 0 <= mark < T), count_max)


def _thinned(positions: list[int], count_max: int) -> list[int]:
    """Keep at most count_max positions, evenly, and always the last."""
    stride = -(-len(positions) // count_max)
    return sorted({*positions[::-1][::stride]})


def _logits(
    probe: Probe, model: nn.Module, copies: Tensor, with_attention_mask: bool
) -> Iterator[Tensor]:
    """Give the logits of the copies, some rows at a time: as many as fit in memory.

    One by one where rows of a batch influence one another. The global random state is the same in
    every call: dropout that is active in eval mode is for `modes` to report, not a leak.
    """

    @torch.no_grad()
    def call(rows: Tensor) -> Tensor:
        with probe.seeded("causal"):
            if with_attention_mask:
                return probe.adapter.logits(model, rows, torch.ones_like(rows)).detach()
            return probe.logits(model, rows)

    alone = call(copies[-1:])
    if not torch.allclose(alone, call(copies[-1:]), rtol=1e-4, atol=1e-6, equal_nan=True):
        raise NotRepeatableError
    size = max(1, min(len(copies), LOGITS_MAX // alone.numel()))
    together = call(copies[-size:])
    if not torch.allclose(together[-1:], alone, rtol=1e-4, atol=1e-6, equal_nan=True):
        size, together = 1, alone
    # last rows first: the unchanged copy is what all others are compared with
    yield together
    for end in range(len(copies) - size, 0, -size):
        rows = copies[max(0, end - size) : end]
        fill = copies[-(size - len(rows)) :] if len(rows) < size else rows[:0]
        yield call(torch.cat([rows, fill]))[: len(rows)]  # equal shapes give equal rounding
