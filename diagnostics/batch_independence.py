"""Batch independence: the rows of a batch are strangers; none changes what another one predicts.

Why it matters
    A model whose rows read one another is judged by the company it keeps: its losses depend on
    the batch size, it answers otherwise when it is alone, and every later check that compares
    rows of one batch is misled.

How it is measured
    On a float64 copy with jittered weights and dropout silenced. Row b of a batch gets other
    tokens, and the logits of every other row must stay; that gives a map (B, B) of which row
    reads which. Then one token of one row changes, which shows where in the other rows it
    arrives; the first call of torch in which rows meet is named. Then the same row is asked in
    another slot and alone, and must answer the same. At last the map is measured in train mode:
    what moves there only is a warning.

What it cannot see
    Rows that influence one another through the loss alone, such as a balancing term. A batch
    larger than the five rows used here, where experts of limited capacity begin to drop tokens.

Break it
    python -m exercises.break_batch_independence
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from diagnostics._leak_pattern import site_name
from diagnostics._leak_site import LeakSite, find_leak
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._structure import (
    SPARSE_SHARE,
    Bench,
    bench,
    bench_tokens,
    direct_probe,
    moved,
    names_experts,
    on_bench,
    other_tokens,
)
from diagnostics._text import Text, say

ROWS = 5
LENGTH_MAX = 16  # tokens a row: enough to tell places apart, cheap for large models


def check_batch_independence(
    model: nn.Module,
    tokens: Tensor | None = None,
    *,
    vocab_size: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that no row of a batch changes the logits of another one.

    tokens: (B, T) ids with B >= 2; None: random ones.    vocab_size: V; None: read from the model.
    parts: other fields of Pipeline, such as forward.    Raises ValueError for another shape.
    """
    return _check(direct_probe(model, tokens, vocab_size, parts, rows_min=2), tokens)


def run(probe: Probe) -> CheckResult:
    """Judge five rows of random tokens."""
    return _check(probe, None)


def measure_rows(bench: Bench, tokens: Tensor) -> Tensor:
    """Return (B, B, T): how far the logits of row i (first axis) move when row b is replaced."""
    before = bench.plain(tokens)
    others = other_tokens(bench.probe, tokens)
    moves = []
    for b in range(len(tokens)):
        changed = tokens.clone()
        changed[b] = others[b]
        moves.append(moved(before, bench.call(changed)))  # (B, T)
    return torch.stack(moves, dim=1)


def measure_places(bench: Bench, tokens: Tensor) -> Tensor:
    """Return (B, T): how far the logits move when the middle token of the middle row changes."""
    b, t = len(tokens) // 2, tokens.shape[1] // 2
    changed = tokens.clone()
    changed[b, t] = other_tokens(bench.probe, tokens)[b, t]
    return moved(bench.plain(tokens), bench.call(changed))


def _check(probe: Probe, tokens: Tensor | None) -> CheckResult:
    probe.require_choice()
    if tokens is None:
        T = min(probe.probe_length, LENGTH_MAX)
        # B = T would let two axes trade places unseen
        tokens = bench_tokens(probe, ROWS if T != ROWS else ROWS + 1, T, "batch independence")
    result = on_bench(probe, "batch_independence", tokens, _judge)
    if result.status is not Status.PASS:
        return result
    warning = _judge_train(probe, tokens.to(probe.device))
    return result if warning is None else warning


def _judge(bench: Bench, tokens: Tensor, limit: float) -> CheckResult:
    """Change other rows, then the row's slot, then its company."""
    rows = measure_rows(bench, tokens)
    company = _Company(rows, measure_places(bench, tokens), limit)
    if company.leaks.any():
        return _judge_company(bench, tokens, company)
    for judge in (_judge_slots, _judge_alone):
        result = judge(bench, tokens, limit)
        if result is not None:
            return result
    return _passed(tokens, rows)


@dataclass(frozen=True)
class _Company:
    """What other rows did to each row."""

    rows: Tensor  # (B, B, T)
    places: Tensor  # (B, T)
    limit: float

    @property
    def leaks(self) -> Tensor:
        """(B, B, T): row i moved at t although only row b was replaced; NaN counts."""
        own = torch.eye(len(self.rows), dtype=torch.bool, device=self.rows.device)
        return ~(self.rows <= self.limit) & ~own[:, :, None]


def _passed(tokens: Tensor, rows: Tensor) -> CheckResult:
    B, T = tokens.shape
    other = ~torch.eye(B, dtype=torch.bool, device=rows.device)
    worst = float(rows[other].max())
    return verdict(
        Status.PASS,
        "batch_independence.ok",
        say(
            "no row moves when another one changes, nor in another slot, nor alone ({B} rows of "
            "{T})",
            B=B,
            T=T,
        ),
        measured=say("worst move {worst}", worst=worst),
        numbers={"rows": B, "length": T, "worst": worst},
    )


def _judge_company(bench: Bench, tokens: Tensor, company: _Company) -> CheckResult:
    leaks = company.leaks
    pairs = leaks.any(dim=2)  # (B, B)
    moved = leaks & ~company.rows.isnan()
    i, b = (int(index) for index in torch.nonzero(moved.any(dim=2) if moved.any() else pairs)[0])
    site = _site(bench, tokens, b)
    reason, status, causes = _likely_causes(bench.probe, company, site)
    where = say(
        "{count} of {total:pair|pairs} of rows; first is ({i}, {b})",
        count=int(pairs.sum()),
        total=pairs.numel() - len(pairs),
        i=i,
        b=b,
    )
    if site is not None:
        where = say("{where}; it begins at {site}", where=where, site=site_name(site))
    return verdict(
        status,
        reason,
        say(
            "row {i} of a batch predicts otherwise when only row {b} changes"
            if moved.any()
            else "logits of row {i} are NaN, so that nothing tells whether row {b} moves them",
            i=i,
            b=b,
        ),
        measured=say(
            "a logit of row {i} moved by {first}; worst {worst}"
            if moved.any()
            else "a difference of {first} between two calls",
            i=i,
            first=float(company.rows[i, b].max()),
            worst=float(company.rows[leaks].max()),
        ),
        expected=say(
            "at most {limit}: row {i} holds the same tokens as before", limit=company.limit, i=i
        ),
        where=where,
        causes=causes,
        next_step=_RAISE_CAPACITY
        if causes is _CAPACITY
        else say(
            "print the shape after each step of forward for B=2, T=3, and mark where axis 0 stops "
            "being the batch"
        ),
        numbers={
            "leaking_pairs": int(pairs.sum()),
            "worst": float(company.rows[leaks].max()),
            "limit": company.limit,
            "share": float(leaks.sum() / max(1, (pairs.numel() - len(pairs)) * leaks.shape[2])),
        },
    )


def _site(bench: Bench, tokens: Tensor, b: int) -> LeakSite | None:
    """Find the call in which a change of row b first reaches another row."""
    changed = tokens.clone()
    changed[b] = other_tokens(bench.probe, tokens)[b]
    others = [row for row in range(len(tokens)) if row != b]
    try:
        return find_leak(
            bench.model,
            bench.call,
            (tokens, changed),
            size=len(tokens),
            kept=others,
            tolerance=bench.tolerance,
        ).site
    except Exception:  # any: compiled models refuse to be watched, in their own way
        return None


def _likely_causes(
    probe: Probe, company: _Company, site: LeakSite | None
) -> tuple[str, Status, tuple[Text, ...]]:
    """Read where a change arrives in other rows: same place, everywhere, or here and there."""
    if bool(company.rows.isnan().any()):
        return (
            "batch_independence.not_finite",
            Status.FAIL,
            (say("some layer gives NaN: see forward_hooks"),),
        )
    arrives = company.places > company.limit  # (B, T)
    B, T = arrives.shape
    b, t = B // 2, T // 2
    others = torch.cat([arrives[:b], arrives[b + 1 :]])
    if bool(others[:, t].any()) and not others[:, :t].any():
        return "batch_independence.batch_axis", Status.FAIL, _read_batch_axis(site)
    if not arrives[:b].any() and bool(arrives[b + 1, 0]):
        return "batch_independence.end_to_end", Status.FAIL, _END_TO_END
    if bool(others.all()):
        return "batch_independence.statistics", Status.FAIL, _STATISTICS
    if (
        names_experts(probe.pipeline.model)
        and float(company.leaks.sum()) < SPARSE_SHARE * (B * B - B) * T
    ):
        return "batch_independence.capacity", Status.WARN, _CAPACITY
    return "batch_independence.rows_mixed", Status.FAIL, _ROWS_MIXED


def _read_batch_axis(site: LeakSite | None) -> tuple[Text, ...]:
    """Say what runs over the batch, as far as the call in which rows meet tells it."""
    if site is None or site.kind in ("reshaped", "other"):
        return _BATCH_AXIS
    mixes = site.kind in ("attention", "recurrence", "convolution")
    return _BATCH_AXIS[:1] if mixes else _BATCH_AXIS[1:]


def _judge_slots(bench: Bench, tokens: Tensor, limit: float) -> CheckResult | None:
    """The same rows in reverse order must give the same logits in reverse order."""
    difference = moved(bench.plain(tokens), bench.call(tokens.flip(0)).flip(0))  # (B, T)
    if bool((difference <= limit).all()):
        return None
    i = int(torch.nonzero(~(difference <= limit))[0, 0])
    return verdict(
        Status.FAIL,
        "batch_independence.slot",
        say(
            "row {i} predicts otherwise in slot {j} of the same batch than in slot {i}",
            i=i,
            j=len(tokens) - 1 - i,
        ),
        measured=say("a logit moved by {worst}", worst=float(difference.max())),
        expected=say("at most {limit}: only the order of the rows was reversed", limit=limit),
        causes=(
            say("positions or another table are indexed by the row: arange(B) in place of T"),
            say("one row, such as row 0, is read where every row should be: x[0] or x[:1]"),
        ),
        next_step=say("look for size(0), shape[0] or [0] in forward, where the time axis is meant"),
        numbers={"worst": float(difference.max()), "limit": limit},
    )


def _judge_alone(bench: Bench, tokens: Tensor, limit: float) -> CheckResult | None:
    """Each row by itself must answer as it does in the batch."""
    together = bench.plain(tokens)
    alone = torch.cat([bench.call(tokens[b : b + 1]) for b in range(len(tokens))])
    difference = moved(together, alone)  # (B, T)
    if bool((difference <= limit).all()):
        return None
    if names_experts(bench.probe.pipeline.model):
        return verdict(
            Status.WARN,
            "batch_independence.capacity",
            say("a row predicts otherwise alone than in a batch of {B}", B=len(tokens)),
            measured=say("a logit moved by {worst}", worst=float(difference.max())),
            expected=say("at most {limit}, where experts take every token", limit=limit),
            causes=_CAPACITY,
            next_step=_RAISE_CAPACITY,
            numbers={"worst": float(difference.max()), "limit": limit},
        )
    return verdict(
        Status.FAIL,
        "batch_independence.alone",
        say("a row predicts otherwise alone than in a batch of {B}", B=len(tokens)),
        measured=say("a logit moved by {worst}", worst=float(difference.max())),
        expected=say("at most {limit}: the row holds the same tokens", limit=limit),
        where=say(
            "{count} of {B} rows", count=int((~(difference <= limit)).any(1).sum()), B=len(tokens)
        ),
        causes=(
            say("squeeze() without an axis drops the batch axis when B is 1"),
            say("something is divided by the batch size, or a branch asks for B == 1"),
        ),
        next_step=say("compare model(x)[0] with model(x[:1])[0], layer by layer"),
        numbers={"worst": float(difference.max()), "limit": limit},
    )


def _judge_train(probe: Probe, tokens: Tensor) -> CheckResult | None:
    """Return a warning when rows influence one another in train mode only."""
    try:
        with bench(probe, train=True) as train_bench:
            if not train_bench.repeats(tokens):
                return None  # randomness that is not dropout: nothing can be told apart
            rows = measure_rows(train_bench, tokens)
            limit = train_bench.limit(train_bench.plain(tokens))
    except Exception:  # any: a model may refuse to be trained on without targets
        return None
    leaks = _Company(rows, rows[0], limit).leaks
    if not leaks.any():
        return None
    worst, model = float(rows[leaks].max()), probe.pipeline.model
    norms = any(isinstance(module, _BatchNorm) for module in model.modules())
    return verdict(
        Status.WARN,
        "batch_independence.train_only",
        say("in train mode a row predicts otherwise when another row changes; in eval it does not"),
        measured=say("a logit moved by {worst}", worst=worst),
        expected=say("at most {limit}, unless the batch is averaged on purpose", limit=limit),
        causes=((_BATCH_NORM,) if norms else ()) + (_CAPACITY if names_experts(model) else ()),
        next_step=say("use LayerNorm or RMSNorm, which need one position only")
        if norms
        else say("compare what forward does in train mode and in eval mode, along axis 0"),
        numbers={"worst": worst, "limit": limit},
    )


_BATCH_NORM = say("BatchNorm: in train mode it averages over rows and over later tokens too")
_RAISE_CAPACITY = say("raise the capacity factor in evaluation until no token is dropped")
_CAPACITY = (
    say("experts of limited capacity drop tokens when other rows fill them: a known design"),
)
_BATCH_AXIS = (
    say(
        "attention or recurrence runs over the batch axis: a module that wants (T, B, C) was given "
        "(B, T, C), as without batch_first=True"
    ),
    say("a softmax, a norm or a mean runs over dim=0; or rows are rolled or flipped along it"),
)
_END_TO_END = (
    say(
        "rows are laid end to end: attention or a recurrent state runs over B*T tokens, so that a "
        "row reads every row before it"
    ),
)
_STATISTICS = (
    say("a norm takes its mean and variance over the batch, in eval mode too"),
    say("one row or the mean over all rows is added to every row"),
)
_ROWS_MIXED = (
    say(
        "a view or reshape cuts across rows: (B, T, ...) is read as (T, B, ...), or flat tokens "
        "are put back in the other order"
    ),
)
