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
    the model takes one.

What it cannot see
    A leak through the batch axis (rows reading each other) is for `batch_independence`. In a long
    block a leak between two positions of which neither was probed. Branches that run only when
    targets or a cache are given. Whether a window is as wide as it was meant to be.

Break it
    python -m exercises.break_causal_independence
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from diagnostics._pipeline import Pipeline
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._text import Text, say

EVERY_PAIR_MAX = 64  # positions up to which the whole map is affordable
WORK_MAX = 2e10  # copies x T x parameters: about 2 s in float64 on one laptop core
COPIES_MIN = 4  # of which one is unchanged; a larger model is measured on a shorter row
LOGITS_MAX = 2**25  # numbers held at once: 256 MB in float64
SCALED_POSITIONS_MAX = 8  # replaced with the larger weights, where only weak masks are looked for
LEAK_FLOAT64 = 1e-9  # healthy: 0, a GRU 2e-16; the smallest real leak measured: 3e-6
LEAK_FLOAT32 = 1e-4  # only for models that cannot run in float64; relative to the logits
LARGE_SCALE = 10.0  # on the weights: shows what small initial ones hide
FULL_READ_RATIO = 0.3  # future to past, medians: 0.9 to 1.1 without a mask, at most 0.14 after it
FIRST_ROW_RATIO = 5.0  # measured with tril(diagonal=-1): 14 and more; without a mask: about 1


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
    Raises ValueError when tokens have another shape.
    """
    if tokens is not None and (tokens.ndim != 2 or tokens.shape[1] < 2):
        raise ValueError(f"tokens must have shape (B, T) with T >= 2, got {tuple(tokens.shape)}")
    pipeline = Pipeline(model, vocab_size=vocab_size, **parts)  # type: ignore[arg-type]
    return _check(Probe(pipeline), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge the influence map of random tokens over the whole block."""
    if not probe.pipeline.causal:
        return CheckResult(
            check="causal_independence",
            status=Status.SKIP,
            reason="causal_independence.not_causal",
            claim=say("not measured: the model is declared not causal (causal=False)"),
            next_step=say("leave causal=False out to have it checked"),
        )
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
    parameters = sum(p.numel() for p in probe.pipeline.model.parameters())
    if tokens is None and probe.block_size == 1:
        return _one_token()
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
                return _not_repeatable()
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
    limit = (LEAK_FLOAT64 if probe.runs_in_float64 else LEAK_FLOAT32) * max(1.0, size)
    return _judge(influence, replaced, limit, setting.scale)


def _in_setting(leak: CheckResult, setting: Setting, plain: CheckResult) -> CheckResult:
    """Say in which setting a leak appears that the plain one does not show."""
    if setting.with_attention_mask:
        return replace(
            leak,
            reason="causal_independence.only_with_attention_mask",
            claim=say("{claim}, once an attention mask is passed", claim=leak.claim),
            causes=(say("the padding mask takes the place of the causal mask"),),
            next_step=say("combine both masks: a key is read only if both allow it"),
        )
    if setting.train:
        return replace(
            leak,
            reason="causal_independence.only_in_train_mode",
            claim=say("{claim}, in train mode only", claim=leak.claim),
            next_step=say("compare the two branches on self.training: one of them has no mask"),
        )
    if setting.scale > 1.0 and plain.numbers["worst_leak"] == 0.0:
        return _weak_mask(leak)
    return leak


def _not_repeatable() -> CheckResult:
    return CheckResult(
        check="causal_independence",
        status=Status.SKIP,
        reason="causal_independence.not_repeatable",
        claim=say("not measured: two equal calls in eval mode give different logits"),
        next_step=say("mend what `modes` reports first"),
    )


def _one_token() -> CheckResult:
    return CheckResult(
        check="causal_independence",
        status=Status.SKIP,
        reason="causal_independence.one_token",
        claim=say("not measured: the context is one token long, so that there is no future"),
        next_step=say("nothing to do; a longer block_size would have it measured"),
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


def _judge(influence: Tensor, replaced: list[int], limit: float, scale: float) -> CheckResult:
    T = influence.shape[0]
    positions = torch.arange(T, device=influence.device)
    changed = torch.tensor(replaced, device=influence.device)
    future = positions[:, None] < changed[None, :]  # (T, J): token j lies after position i
    leaks = future & ~(influence <= limit)  # written so that a NaN counts as a leak
    numbers = {
        "leaking_pairs": int(leaks.sum()),
        "judged_pairs": int(future.sum()),
        "worst_leak": float(influence[future].max()) if future.any() else 0.0,
        "weight_scale": scale,
        "limit": limit,
        "length": T,
        "replaced": replaced,
    }
    coverage = say(
        "{pairs} pairs of {T} positions and {tokens} replaced tokens",
        pairs=int(future.sum()),
        T=T,
        tokens=len(replaced),
    )
    if not leaks.any():
        return CheckResult(
            check="causal_independence",
            status=Status.PASS,
            reason="causal_independence.ok",
            claim=say(
                "no prediction moves when a later token changes ({coverage})", coverage=coverage
            ),
            measured=say("worst leak {worst}", worst=numbers["worst_leak"]),
            numbers=numbers,
        )
    return _leak_result(influence, leaks, changed, limit, numbers)


def _leak_result(
    influence: Tensor, leaks: Tensor, changed: Tensor, limit: float, numbers: dict[str, object]
) -> CheckResult:
    pairs = torch.nonzero(leaks)
    i, column = (int(index) for index in pairs[0])
    j = int(changed[column])
    reach = int((changed[pairs[:, 1]] - pairs[:, 0]).max())
    reason, causes = _likely_causes(influence, leaks, changed, reach)
    return CheckResult(
        check="causal_independence",
        status=Status.FAIL,
        reason=reason,
        claim=say(
            "position {i} changes its prediction when token {j}, in its future, changes", i=i, j=j
        ),
        measured=say(
            "a logit moved by {first}; worst leak {worst}",
            first=float(influence[i, column]),
            worst=numbers["worst_leak"],
        ),
        expected=say(
            "at most {limit}, because nothing that position {i} may read has changed",
            limit=limit,
            i=i,
        ),
        where=say(
            "{count} of {total} (position, future token) pairs leak, reaching {reach:token|tokens} "
            "ahead; first is ({i}, {j})",
            count=numbers["leaking_pairs"],
            total=numbers["judged_pairs"],
            reach=reach,
            i=i,
            j=j,
        ),
        causes=causes,
        next_step=say(
            "print the attention mask for T=4: row i must allow columns 0 to i only; "
            "python -m diagnostics --explain causal_independence"
        ),
        numbers={**numbers, "reach": reach},
    )


def _likely_causes(
    influence: Tensor, leaks: Tensor, changed: Tensor, reach: int
) -> tuple[str, tuple[Text, ...]]:
    """Read the pattern of leaking pairs (T, J); the most telling one first."""
    T = leaks.shape[0]
    positions = torch.arange(T, device=leaks.device)
    ahead = changed[None, :] - positions[:, None]  # (T, J)
    future, past = ahead > 0, ahead < 0
    if bool(influence.isnan().any()):
        return "causal_independence.not_finite", _NOT_FINITE
    if bool(leaks[future].all()):
        return _read_full_leak(influence, future, past)
    if reach < T // 2 and bool(leaks[future & (ahead <= reach)].all()):
        return "causal_independence.mask_too_wide", (
            Text(_TOO_WIDE[0], {"reach": reach}),
            say(_TOO_WIDE[1]),
        )
    rows = leaks.any(dim=1)
    first = int(torch.nonzero(rows).min())
    if first == 0 and int(rows.sum()) == 1:
        return "causal_independence.first_row", _FIRST_ROW
    if first > 0 and bool(leaks[first:][future[first:]].all()):
        return (
            "causal_independence.mask_too_small",
            (say("the mask covers only the first {first} positions of the block", first=first),),
        )
    for size in range(2, T // 2 + 1):
        together = positions[:, None] // size == changed[None, :] // size
        if torch.equal(leaks, future & together):
            return (
                "causal_independence.chunked",
                (say("positions are mixed inside blocks of {size}, without a mask", size=size),),
            )
    if torch.equal(leaks, future & (changed[None, :] >= T - 1 - positions[:, None])):
        return "causal_independence.time_reversed", (
            say("the tokens are read from the end: a flip over time"),
        )
    furthest = (ahead * leaks).amax(dim=1)  # (T,) how far each position sees
    if int(furthest[1]) == 2 * int(furthest[0]) > 0:
        return "causal_independence.heads_mixed", _HEADS_MERGED
    if _is_split_by_view(furthest):
        return "causal_independence.heads_mixed", _HEADS_SPLIT
    return "causal_independence.leak", ()


def _is_split_by_view(furthest: Tensor) -> bool:
    """Whether position i sees up to ((H - 1) * T + i) // H, once per layer, for some H heads."""
    T = len(furthest)
    seen = [i + int(ahead) for i, ahead in enumerate(furthest.tolist())]
    if seen[0] == T - 1:
        return False  # everything fits
    for H in range(2, T):
        reached = list(range(T))
        for _layer in range(8):
            reached = [((H - 1) * T + i) // H for i in reached]
            if reached == seen:
                return True
    return False


def _read_full_leak(
    influence: Tensor, future: Tensor, past: Tensor
) -> tuple[str, tuple[Text, ...]]:
    """Every later token is read: as strongly as the past, or faintly, or in its place."""
    if bool((influence[past] == 0).all()):
        return "causal_independence.mask_inverted", _INVERTED
    first = influence[0][future[0]].median()
    others = influence[1:][future[1:]].median()
    usual = influence[past].median()
    if bool(first > FIRST_ROW_RATIO * others) and bool(first > 0.1 * usual):
        return "causal_independence.first_row", _FIRST_ROW
    # what is truly read moves a logit about as much from the future as from the past
    if bool(influence[future].median() > FULL_READ_RATIO * usual):
        return "causal_independence.no_mask", _NO_MASK
    return "causal_independence.normalised_over_future", _NORMALISED


_NO_MASK = (
    say("no causal mask is applied: every position reads the whole row"),
    say("the mask is added as 0 and 1, or fills hidden scores with 0, so it hides nothing"),
    say("a layer runs over time in both directions, or averages over the whole row"),
)
_NORMALISED = (
    say("the mask is applied after the softmax, whose sum still runs over later tokens"),
    say("softmax or a norm runs over the time axis of the queries"),
    say("hidden scores are filled with a small number such as -10, which lets a little through"),
)
_INVERTED = (
    say(
        "the mask has the opposite meaning: it keeps the future and hides the past (True keeps in "
        "scaled_dot_product_attention and drops in nn.MultiheadAttention)"
    ),
)
_FIRST_ROW = (
    say(
        "the mask hides a position from itself, as tril(diagonal=-1) does: position 0 then has "
        "nothing to read, and softmax spreads over all tokens"
    ),
)
_NOT_FINITE = (
    say("a row of the mask hides everything, so that its softmax is 0 / 0"),
    say("some layer gives NaN or infinity: see forward_hooks"),
)
_HEADS_MERGED = (
    say(
        "heads are merged by reshape without moving the time axis back: the reach doubles from "
        "position 0 to position 1, as in slices of a (H, T) table; a transpose(1, 2) is missing"
    ),
)
_HEADS_SPLIT = (
    say(
        "heads are split by view(B, H, T, D) in place of view(B, T, H, D).transpose(1, 2): the "
        "reach is that of rows cut across time and features"
    ),
)
_TOO_WIDE = (
    "the mask keeps a diagonal too many, as tril(diagonal=1) does: each layer adds its extra "
    "diagonals to the reach ({reach} here)",
    "a convolution is padded on both sides in place of the left only",
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
