"""Padding: a row predicts the same alone as beside longer rows, padded to their length.

Why it matters
    Padding is scaffolding: no real token may see it. Pads that are read, positions that count
    them, or a padding mask that takes the place of the causal one change every number of a
    short row, and only there.

How it is measured
    On a float64 copy with jittered weights and dropout silenced. Rows of different lengths, one
    of a single token, are run alone and then padded on the right and, with an attention mask, on
    the left; the logits of real tokens must stay. With the mask given, the pads' ids are replaced
    by others and later real tokens are replaced: nothing that a position may not read may move
    it. A mask of ones must change nothing. Every logit must be finite, the pads' too, because
    the gradient of a loss that leaves NaN out is NaN all the same.

What it cannot see
    Pads that are scored in the loss (see `loss`), or a batch that lacks its mask: only the model
    is looked at. Packed documents. A mask under another name than attention_mask. Without a mask
    a causal model cannot tell pads on the left from tokens: only the right is judged then.

Break it
    python -m exercises.break_padding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diagnostics._pipeline import Pipeline
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status
from diagnostics._structure import Bench, bench, bench_tokens, moved, no_comparison, other_tokens
from diagnostics._text import Text, say

LENGTH_MAX = 12  # tokens of the longest row


def check_padding(
    model: nn.Module,
    *,
    vocab_size: int | None = None,
    pad_id: int | None = None,
    **parts: object,
) -> CheckResult:
    """Check that padding changes nothing for real tokens.

    pad_id: the id that fills short rows; None: any, for a model that takes an attention_mask.
    vocab_size: V; None: read from the model.    parts: other fields of Pipeline, such as forward.
    Raises MissingPartError when there is neither a pad_id nor an attention_mask.
    """
    pipeline = Pipeline(model, vocab_size=vocab_size, pad_id=pad_id, **parts)  # type: ignore[arg-type]
    return run(Probe(pipeline))


def run(probe: Probe) -> CheckResult:
    """Judge rows of three lengths, in float64 and, where that breaks, in the model's own numbers.

    Masks are often filled with the smallest float32, to which float64 arithmetic does things that
    never happen in training.
    """
    result = _judge_rows(probe, exact=True)
    if result.reason == "padding.not_finite":
        return _judge_rows(probe, exact=False)
    return result


def _judge_rows(probe: Probe, *, exact: bool) -> CheckResult:
    masked = probe.adapter.mask_name is not None
    if probe.pipeline.pad_id is None and not masked:
        raise MissingPartError("pad_id", why="it does not say with what short rows are filled")
    T = min(probe.probe_length, LENGTH_MAX)
    with bench(probe, exact=exact) as model_bench:
        if not model_bench.repeats(bench_tokens(probe, 2, min(T, 4), "padding")):
            return no_comparison("padding")
        trial = _Trial.prepare(model_bench, T, masked)
        if trial.mask_type is None and probe.pipeline.pad_id is None:
            raise MissingPartError("pad_id", why="attention_mask does not take 0 and 1 of (B, T)")
        return _check(trial)


@dataclass(frozen=True)
class _Trial:
    """Rows of different lengths, and what the model says of each alone."""

    bench: Bench
    rows: tuple[Tensor, ...]  # each (1, n)
    alone: tuple[Tensor, ...]  # each (n, W)
    T: int
    pad: int
    mask_type: torch.dtype | None  # None: the model takes no mask
    limit: float

    @classmethod
    def prepare(cls, bench: Bench, T: int, masked: bool) -> _Trial:
        probe = bench.probe
        tokens = bench_tokens(probe, 1, T, "padding")
        rows = tuple(tokens[:, :n] for n in sorted({T, max(1, T // 2), 1}, reverse=True))
        alone = tuple(bench.call(row)[0] for row in rows)
        pad = probe.pipeline.pad_id or 0
        kind = _mask_type(bench, tokens) if masked else None
        return cls(bench, rows, alone, T, pad, kind, bench.limit(alone[0]))

    def padded(self, side: str, fill: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return ids and mask (B, T) with the rows on the other side; fill: ids for pads (B, T)."""
        ids = torch.full((len(self.rows), self.T), self.pad, device=self.rows[0].device)
        mask = torch.zeros_like(ids)
        for b, row in enumerate(self.rows):
            ids[b, self.span(b, side)] = row[0]
            mask[b, self.span(b, side)] = 1
        if fill is not None:
            ids = torch.where(mask == 1, ids, fill)
        return ids, mask

    def span(self, b: int, side: str) -> slice:
        """Return where row b lies when pads are on that side."""
        n = self.rows[b].shape[1]
        return slice(0, n) if side == "right" else slice(self.T - n, self.T)

    def call(self, ids: Tensor, mask: Tensor) -> Tensor:
        return self.bench.call(ids, None if self.mask_type is None else mask.to(self.mask_type))

    def worst(self, logits: Tensor, side: str) -> float:
        """Return the largest difference of a real token's logits from the row alone."""
        differences = [
            moved(alone, logits[b, self.span(b, side)]).max() for b, alone in enumerate(self.alone)
        ]
        return float(torch.stack(differences).max())

    def exceeds(self, difference: float) -> bool:
        return not difference <= self.limit  # NaN exceeds


def _check(trial: _Trial) -> CheckResult:
    """Ask one question after the other; the first answer that is no PASS is the verdict."""
    for answer in _answers(trial):
        if answer is not None:
            return answer
    sides = "right" if trial.mask_type is None else "right and left"
    lengths = ", ".join(str(row.shape[1]) for row in trial.rows)
    return _result(
        Status.PASS,
        "padding.ok",
        say(
            "rows of {lengths} tokens predict the same alone as padded on the {sides}",
            lengths=lengths,
            sides=sides,
        ),
        measured=say("worst difference at most {limit}", limit=trial.limit),
        numbers={"masked": trial.mask_type is not None, "limit": trial.limit},
    )


def _answers(trial: _Trial) -> Iterator[CheckResult | None]:
    ids, mask = trial.padded("right")
    right = trial.call(ids, mask)
    if trial.mask_type is not None:
        yield _judge_ones(trial)
    yield _judge_finite(right, mask, "right")
    if trial.mask_type is not None and trial.bench.probe.pipeline.causal:
        yield _judge_causal(trial, ids, mask, right)
    yield _judge_right(trial, right)
    if trial.mask_type is None:
        return
    ids, mask = trial.padded("left")
    left = trial.call(ids, mask)
    yield _judge_finite(left, mask, "left")
    for side in ("right", "left"):
        yield _judge_pads(trial, side)
    yield _judge_left(trial, left)


def _judge_ones(trial: _Trial) -> CheckResult | None:
    row = trial.rows[0]
    ones = torch.ones_like(row)
    given = trial.call(row, ones)
    difference = float(moved(trial.alone[0], given[0]).max())
    if not trial.exceeds(difference):
        return None
    if trial.bench.probe.pipeline.causal and not given.isnan().any():
        leak = _judge_causal(trial, row, ones, given)
        if leak is not None:
            return leak
    return _result(
        Status.FAIL,
        "padding.mask_of_ones",
        say("an attention_mask of ones, which hides nothing, changes the predictions"),
        measured=say("a logit differs by {worst} from the call without a mask", worst=difference),
        expected=say("at most {limit}", limit=trial.limit),
        causes=(
            say("the mask is read the other way round: 1 must keep a token, 0 hide it"),
            say("1 and 0 are added to the scores in place of 0 and -inf"),
        ),
        next_step=say("print the mask that reaches the softmax for attention_mask = ones"),
        numbers={"worst": difference, "limit": trial.limit},
    )


def _judge_finite(logits: Tensor, mask: Tensor, side: str) -> CheckResult | None:
    broken = logits.isnan().any(dim=2)  # (B, T)
    if not broken.any():
        return None
    real = broken & (mask == 1)
    b, t = (int(index) for index in torch.nonzero(real if real.any() else broken)[0])
    return _result(
        Status.FAIL,
        "padding.not_finite",
        say(
            "row {b}, padded on the {side}, gives NaN at position {t}, a {kind}",
            b=b,
            side=side,
            t=t,
            kind="real token" if real.any() else "pad",
        ),
        measured=say(
            "NaN at {real} real tokens and {pads} pads",
            real=int(real.sum()),
            pads=int((broken & (mask == 0)).sum()),
        ),
        expected=say("finite logits; NaN at pads alone makes every gradient NaN"),
        causes=(say("a row of scores is hidden whole, and the softmax of -inf only is 0 / 0"),),
        next_step=say("let a pad see itself, or fill with torch.finfo(dtype).min"),
        numbers={"real": int(real.sum()), "pads": int((broken & (mask == 0)).sum()), "side": side},
    )


def _judge_causal(trial: _Trial, ids: Tensor, mask: Tensor, before: Tensor) -> CheckResult | None:
    """Replace the real tokens from the middle of the longest row on, with the mask given."""
    j = trial.T // 2
    changed = ids.clone()
    changed[0, j:] = other_tokens(trial.bench.probe, ids)[0, j:]
    leak = moved(before[0, :j], trial.call(changed, mask)[0, :j])  # (j,)
    if bool((leak <= trial.limit).all()):
        return None
    return _result(
        Status.FAIL,
        "padding.causal_mask_lost",
        say("given an attention_mask, positions 0 to {last} read tokens after them", last=j - 1),
        measured=say("a logit moved by {worst}", worst=float(leak.max())),
        expected=say(
            "at most {limit}: only tokens from {j} on were replaced", limit=trial.limit, j=j
        ),
        causes=(
            say("the padding mask takes the place of the causal one: is_causal=mask is None"),
            say("the two masks are joined by or, where and is needed"),
        ),
        next_step=say("combine them: visible = causal & padding[:, None, None, :]"),
        numbers={"worst": float(leak.max()), "limit": trial.limit},
    )


def _judge_right(trial: _Trial, right: Tensor) -> CheckResult | None:
    difference = trial.worst(right, "right")
    if not trial.exceeds(difference):
        return None
    return _result(
        Status.FAIL,
        "padding.right",
        say("a row predicts otherwise when it is padded on the right"),
        measured=say("a real token's logit differs by {worst}", worst=difference),
        expected=say("at most {limit}: pads come after every real token", limit=trial.limit),
        causes=(
            say("the mask hides real tokens: it is shifted, inverted or of another row"),
            say("positions are counted from the padded end"),
            say("a mean, a norm or a length in forward counts pads"),
        ),
        next_step=say("compare model(row) with the same row and one pad more, layer by layer"),
        numbers={"worst": difference, "limit": trial.limit},
    )


def _judge_pads(trial: _Trial, side: str) -> CheckResult | None:
    ids, mask = trial.padded(side)
    other, _ = trial.padded(side, other_tokens(trial.bench.probe, ids))
    before, after = trial.call(ids, mask), trial.call(other, mask)
    difference = float(
        torch.stack(
            [
                moved(before[b, trial.span(b, side)], after[b, trial.span(b, side)]).max()
                for b in range(len(ids))
            ]
        ).max()
    )
    if not trial.exceeds(difference):
        return None
    if not trial.exceeds(float(moved(before, trial.bench.call(ids)).max())):
        return _mask_ignored(trial, difference)
    return _result(
        Status.FAIL,
        "padding.pads_read",
        say("real tokens read the pads on their {side}, although the mask hides them", side=side),
        measured=say("a logit moved by {worst} when the pads' ids changed", worst=difference),
        expected=say("at most {limit}: what is hidden cannot matter", limit=trial.limit),
        causes=(
            say("hidden scores get a number that is too small to hide them, such as 0 or -10"),
            say("only some of the layers are given the mask"),
        ),
        next_step=say("follow attention_mask through forward to the softmax"),
        numbers={"worst": difference, "limit": trial.limit, "side": side},
    )


def _mask_ignored(trial: _Trial, difference: float) -> CheckResult:
    """A causal model that is only ever padded on the right does well without a mask."""
    return _result(
        Status.WARN,
        "padding.mask_ignored",
        say("the model takes an attention_mask and makes no use of it: pads on the left are read"),
        measured=say("a logit moved by {worst} when the pads' ids changed", worst=difference),
        expected=say(
            "at most {limit}, unless rows are padded on the right only", limit=trial.limit
        ),
        causes=(say("attention_mask is not handed on to the layers"),),
        next_step=say("pad on the right, or follow attention_mask through forward to the softmax"),
        numbers={"worst": difference, "limit": trial.limit},
    )


def _judge_left(trial: _Trial, left: Tensor) -> CheckResult | None:
    """The pads are hidden, so what is left is that they are counted: a warning."""
    difference = trial.worst(left, "left")
    if not trial.exceeds(difference):
        return None
    return _result(
        Status.WARN,
        "padding.left_positions",
        say("a row predicts otherwise when it is padded on the left: pads are counted"),
        measured=say("a real token's logit differs by {worst}", worst=difference),
        expected=say(
            "at most {limit}, unless the caller gives positions or never pads on the left",
            limit=trial.limit,
        ),
        causes=(say("positions are column numbers: arange(T) in place of cumsum(mask) - 1"),),
        next_step=say("positions = (attention_mask.cumsum(1) - 1).clamp(min=0)"),
        numbers={"worst": difference, "limit": trial.limit},
    )


def _mask_type(bench: Bench, tokens: Tensor) -> torch.dtype | None:
    """Return the type of (B, T) mask that the model takes; None when it takes no such mask."""
    try:
        given = bench.probe.batch.attention_mask
    except (TypeError, ValueError, RuntimeError):  # a broken loader is for `batches` to report
        given = None
    rows = tokens.expand(2 if tokens.shape[1] != 2 else 3, -1)
    for kind in (torch.int64, torch.bool) if given is None else (given.dtype,):
        try:
            bench.call(rows, torch.ones_like(rows).to(kind))
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # of another type, or of shape (T, T)
        return kind
    return None


def _result(
    status: Status, reason: str, claim: str, *, causes: tuple[Text, ...] = (), **fields: object
) -> CheckResult:
    return CheckResult(
        check="padding",
        status=status,
        reason=reason,
        claim=claim,
        causes=causes,
        **fields,  # type: ignore[arg-type]
    )
