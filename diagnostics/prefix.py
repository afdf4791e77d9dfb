"""Prefix: the logits of a beginning are the beginning of the logits of the whole row.

Why it matters
    Training scores all positions of a full block at once; generation starts with a few tokens.
    Only if both give the same numbers is what was trained also what is used.

How it is measured
    On a float64 copy with jittered weights and dropout silenced. Rows of one block are run whole,
    then cut to 1, 2, 3, half a block, one token less than the block; each cut must give the
    first logits of the whole. Where and for which lengths they differ tells what is wrong; a
    factor that depends on the length, and later tokens that are read, are tried as explanations.

What it cannot see
    Lengths between those tried, unless the fault is one of a family. Blocks longer than 2048
    tokens are tried at 2048. Generation with a cache, which is another code path.

Break it
    python -m exercises.break_prefix
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diagnostics._position_tables import find_tables, map_rows
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import (
    SPARSE_SHARE,
    Bench,
    bench_tokens,
    direct_probe,
    moved,
    names_experts,
    not_causal,
    on_bench,
    one_token,
    other_tokens,
    parameter_count,
)
from diagnostics._text import Text, say

LENGTH_MAX = 2048
ROWS_MAX = 512  # of a position table, looked at only to explain a failure
LOGITS_MAX = 8_000_000  # numbers in one call, about 64 MB; beyond it one row has to do
WORK_MAX = 5e9  # rows x T x parameters: about a second; beyond it one row has to do


def check_prefix(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that cutting the end off a row leaves the logits before the cut as they were.

    tokens: (B, T) ids with T >= 2; None: random ones, a block long.    vocab_size: V; None: read
    from the model.    parts: other fields of Pipeline, such as forward.
    Raises ValueError for another shape.
    """
    return _check(direct_probe(model, tokens, vocab_size, parts, length_min=2), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge random tokens over the whole block."""
    return _check(probe, None)


def measure_prefixes(bench: Bench, tokens: Tensor) -> dict[int, Tensor]:
    """Return {k: (k,)}: how far each position's logits of tokens[:, :k] are from the whole's."""
    whole = bench.plain(tokens)  # (B, T, W)
    return {
        k: moved(whole[:, :k], bench.call(tokens[:, :k])).amax(dim=0)
        for k in _lengths(tokens.shape[1])
    }


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    if not probe.pipeline.causal:
        return not_causal("prefix")
    if tokens is None:
        T = min(probe.block_size or probe.probe_length, LENGTH_MAX)
        costly = 3 * T * parameter_count(probe) > WORK_MAX
        B = 1 if costly or 3 * T * probe.vocab_size > LOGITS_MAX else 3
        tokens = bench_tokens(probe, B, T, "prefix")
    if tokens.shape[1] < 2:
        return one_token("prefix.one_token_context", say("it has no prefix"))
    return on_bench(probe, "prefix", tokens, _judge)


def _judge(bench: Bench, tokens: Tensor, limit: float) -> CheckResult:
    T = tokens.shape[1]
    differences = measure_prefixes(bench, tokens)
    if all(bool((difference <= limit).all()) for difference in differences.values()):
        return _passed(differences, T)
    pattern = _Pattern(differences, T, limit)
    if names_experts(bench.model) and pattern.share < SPARSE_SHARE:
        return _failed(pattern, "prefix.capacity", _CAPACITY, Status.WARN)
    return _failed(pattern, *_likely_causes(bench, tokens, pattern), Status.FAIL)


@dataclass(frozen=True)
class _Pattern:
    """Which lengths differ, and at which positions."""

    differences: dict[int, Tensor]  # {k: (k,)}
    T: int
    limit: float

    def wrong(self, k: int) -> Tensor:
        """(k,): positions at which a prefix of k tokens differs; NaN counts."""
        return ~(self.differences[k] <= self.limit)

    @property
    def lengths(self) -> list[int]:
        """Lengths that differ anywhere."""
        return [k for k in self.differences if self.wrong(k).any()]

    @property
    def share(self) -> float:
        """Share of all compared positions that differ."""
        wrong = sum(int(self.wrong(k).sum()) for k in self.differences)
        return wrong / sum(self.differences)


def _passed(differences: dict[int, Tensor], T: int) -> CheckResult:
    worst = max(float(difference.max()) for difference in differences.values())
    lengths = list(differences)
    return verdict(
        Status.PASS,
        "prefix.ok",
        say(
            "cut to {lengths} of {T} tokens, a row keeps the logits it had",
            lengths=_listed(lengths),
            T=T,
        ),
        measured=say("worst difference {worst}", worst=worst),
        numbers={"lengths": lengths, "length": T, "worst": worst},
    )


def _failed(
    pattern: _Pattern, reason: str, causes: tuple[Text, ...], status: Status
) -> CheckResult:
    k = pattern.lengths[0]
    wrong = pattern.wrong(k)
    moved = wrong & ~pattern.differences[k].isnan()
    position = int(torch.nonzero(moved if moved.any() else wrong)[0])
    worst = max(float(difference.max()) for difference in pattern.differences.values())
    return verdict(
        status,
        reason,
        say(
            "cut to {k} of {T} tokens, the same row predicts otherwise at position {position}"
            if moved.any()
            else "logits at position {position} are NaN, so that nothing tells whether a row that "
            "is cut to {k} of {T} tokens predicts otherwise",
            k=k,
            T=pattern.T,
            position=position,
        ),
        measured=say(
            "a logit differs by {first}; worst {worst}"
            if moved.any()
            else "a difference of {first} between two calls",
            first=float(pattern.differences[k][position]),
            worst=worst,
        ),
        expected=say(
            "at most {limit}, because position {position} has read the same tokens",
            limit=pattern.limit,
            position=position,
        ),
        where=say(
            "{count} of {total:length differs|lengths differ}: {lengths}; with "
            "{k:token|tokens} {wrong} of {k:position differs|positions differ}",
            count=len(pattern.lengths),
            total=len(pattern.differences),
            lengths=_listed(pattern.lengths),
            k=k,
            wrong=int(wrong.sum()),
        ),
        causes=causes,
        next_step=_NEXT_STEPS.get(reason)
        or say(
            "print model(x)[:, :{k}] - model(x[:, :{k}]) after each layer, and look for the first "
            "that uses the length T",
            k=k,
        ),
        numbers={
            "lengths_wrong": pattern.lengths,
            "positions_wrong": {str(k): int(pattern.wrong(k).sum()) for k in pattern.differences},
            "worst": worst,
            "limit": pattern.limit,
            "length": pattern.T,
        },
    )


def _likely_causes(bench: Bench, tokens: Tensor, pattern: _Pattern) -> tuple[str, tuple[Text, ...]]:
    """Try explanations in turn, the one that explains most first."""
    if any(bool(difference.isnan().any()) for difference in pattern.differences.values()):
        return "prefix.not_finite", (say("some layer gives NaN or infinity: see forward_hooks"),)
    if _reads_later_tokens(bench, tokens, pattern):
        return "prefix.reads_ahead", _READS_AHEAD
    if pattern.lengths == [1]:
        return "prefix.one_token", _ONE_TOKEN
    factors = {k: _factor(bench, tokens, k) for k in pattern.lengths}
    if all(factor is not None for factor in factors.values()):
        k = pattern.lengths[0]
        return "prefix.scaled_by_length", (
            say(
                "all logits are multiplied by a number that depends on the length: the whole is "
                "{factor} times the prefix of {k}",
                factor=factors[k],
                k=k,
            ),
        )
    if all(
        torch.equal(torch.nonzero(pattern.wrong(k)).flatten().cpu(), torch.tensor([k - 1]))
        for k in pattern.lengths
    ):
        return "prefix.last_position", _LAST_POSITION
    if _reach_follows_length(bench, tokens, pattern.limit):
        return "prefix.heads_mixed", _HEADS_MIXED
    if _first_row_moves(bench, tokens, pattern.limit):
        return "prefix.positions_from_end", _FROM_END
    first = min(int(torch.nonzero(pattern.wrong(k))[0]) for k in pattern.lengths)
    if first > 0:
        return "prefix.beyond", (
            say(
                "from position {first} on, what is computed depends on the length of the row: a "
                "mask, table or chunk whose size follows T",
                first=first,
            ),
        )
    if len(pattern.lengths) < len(pattern.differences):
        return "prefix.some_lengths", (
            say(
                "other code runs at these lengths ({lengths}), such as a fused and a manual "
                "attention that do not agree",
                lengths=_listed(pattern.lengths),
            ),
        )
    return "prefix.length_matters", _LENGTH_MATTERS


def _reads_later_tokens(bench: Bench, tokens: Tensor, pattern: _Pattern) -> bool:
    """Whether logits before the cut move when the tokens after it change, at the same length."""
    k = pattern.lengths[-1]
    changed = tokens.clone()
    changed[:, k:] = other_tokens(bench.probe, tokens)[:, k:]
    leak = moved(bench.call(tokens)[:, :k], bench.call(changed)[:, :k])
    return not bool((leak <= pattern.limit).all())


def _factor(bench: Bench, tokens: Tensor, k: int) -> float | None:
    """Return the number by which the whole's logits are the prefix's, or None without one."""
    whole, cut = bench.call(tokens)[:, :k], bench.call(tokens[:, :k])
    factor = float((whole * cut).sum() / (cut * cut).sum())
    fits = moved(whole, factor * cut) <= bench.limit(whole)
    return factor if bool(fits.all()) else None


def _first_row_moves(bench: Bench, tokens: Tensor, limit: float) -> bool:
    """Whether position 0 reads another row of the position table when the row is longer."""
    for table in find_tables(bench.model):
        rows = list(range(min(table.rows, ROWS_MAX)))
        try:
            found = [
                map_rows(bench, table.path, tokens[:1, :k], rows, limit)[0].row_of(0)
                for k in (2, 3)
                if k <= tokens.shape[1]
            ]
        except RuntimeError:  # an expanded buffer cannot be written to row by row
            continue
        if None not in found and len(set(found)) > 1:
            return True
    return False


def _reach_follows_length(bench: Bench, tokens: Tensor, limit: float) -> bool:
    """Whether token 0 is read by the first T / H positions only, whatever T is."""
    T = tokens.shape[1]
    changed = tokens.clone()
    changed[:, 0] = other_tokens(bench.probe, tokens)[:, 0]

    def readers(k: int) -> int:
        arrives = moved(bench.call(tokens[:, :k]), bench.call(changed[:, :k])) > limit  # (B, k)
        return int(arrives.any(dim=0).sum())

    whole, half = readers(T), readers(T // 2)
    return half < whole < T and half < T // 2 and abs(whole - 2 * half) <= 2


def _lengths(T: int) -> list[int]:
    """The shortest, the middle, and the block but one: where masks and squeezes go wrong."""
    return sorted({k for k in (1, 2, 3, T // 2, T - 1) if 1 <= k < T})


def _listed(lengths: list[int]) -> str:
    return ", ".join(map(str, lengths))


_NEXT_STEPS = {
    "prefix.reads_ahead": say("mend what causal_independence reports, then run this check again"),
    "prefix.capacity": say("raise the capacity factor in evaluation until no token is dropped"),
    "prefix.positions_from_end": say("count from the first token: positions = torch.arange(T)"),
    "prefix.not_finite": say("run forward_hooks: it names the first module that gives NaN"),
    "prefix.heads_mixed": say("split by view(B, T, H, D).transpose(1, 2), and merge the same way"),
}
_READS_AHEAD = (
    say("a position reads tokens after it: causal_independence says which"),
    say("a norm, mean or softmax runs over the time axis"),
)
_CAPACITY = (say("experts of limited capacity drop other tokens in a longer row: a known design"),)
_ONE_TOKEN = (
    say("squeeze() without an axis, or a branch for T == 1, such as the one for a cache"),
    say("a mask is left out or is broadcast when there is one query only"),
    say("a spread over time, such as std(), has no meaning for one token"),
)
_LAST_POSITION = (
    say("the last position of whatever comes in is treated apart: x[:, -1] is changed or replaced"),
)
_HEADS_MIXED = (
    say(
        "heads are split by view(B, H, T, D) and merged by view again: nothing leaks, but each "
        "head reads its own stretch of T / H positions"
    ),
)
_FROM_END = (
    say(
        "positions are counted from the end, as in arange(block - T, block) or flip: the first "
        "token of a short prompt gets another position than in training"
    ),
)
_LENGTH_MATTERS = (say("scores, a residual or a norm are scaled by the length T of the row"),)
