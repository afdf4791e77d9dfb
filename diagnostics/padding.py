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
    the gradient of a loss that leaves NaN out is NaN all the same. Where rows of the batch itself
    begin with pads and the call gets no mask, the left is judged without one.

What it cannot see
    Pads that are scored in the loss (see `loss`). Packed documents. A mask under another name than
    attention_mask. Without a mask a causal model cannot tell pads on the left from tokens: then the
    left is judged only if the batch is padded there. A prediction that is read at the last column
    of a row padded on the right: only logits are looked at, not who reads them.

Break it
    python -m exercises.break_padding
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._fault import Fault, found
from diagnostics._padding_faults import (
    CAUSAL_MASK_LOST,
    LEFT_POSITIONS,
    LEFT_WITHOUT_MASK,
    MASK_IGNORED,
    MASK_NOT_PASSED,
    MASK_OF_ONES,
    NOT_FINITE,
    PADS_READ,
    RIGHT,
)
from diagnostics._pipeline import Pipeline
from diagnostics._probe import Batch, MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
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
    if not masked and _pad_of(probe) is None:
        raise MissingPartError("pad_id", why="it does not say with what short rows are filled")
    T = min(probe.probe_length, LENGTH_MAX)
    with bench(probe, exact=exact) as model_bench:
        if not model_bench.repeats(bench_tokens(probe, 2, min(T, 4), "padding")):
            return no_comparison("padding")
        trial = _Trial.prepare(model_bench, T, masked)
        if trial.mask_type is None and _pad_of(probe) is None:
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
        pad = _pad_of(probe) or 0
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
    """Ask one question after the other; the first failure is the verdict, or the first warning."""
    warnings: list[CheckResult] = []
    for answer in _answers(trial):
        if answer is not None and answer.failed:
            return answer
        warnings += [] if answer is None else [answer]
    if warnings:
        return warnings[0]
    sides = "right" if trial.mask_type is None else "right and left"
    lengths = ", ".join(str(row.shape[1]) for row in trial.rows)
    return verdict(
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
    takes_mask = trial.mask_type is not None
    yield _judge_unmasked_left(replace(trial, mask_type=None), takes_mask=takes_mask)
    if not takes_mask:
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
    measured = say("a logit differs by {worst} from the call without a mask", worst=difference)
    return _differs(MASK_OF_ONES, trial, difference, measured)


def _judge_finite(logits: Tensor, mask: Tensor, side: str) -> CheckResult | None:
    broken = logits.isnan().any(dim=2)  # (B, T)
    if not broken.any():
        return None
    real = broken & (mask == 1)
    b, t = (int(index) for index in torch.nonzero(real if real.any() else broken)[0])
    counts = {"real": int(real.sum()), "pads": int((broken & (mask == 0)).sum())}
    return found(
        NOT_FINITE,
        say("NaN at {real:real token|real tokens} and {pads:pad|pads}", **counts),
        {**counts, "side": side},
        b=b,
        side=side,
        t=t,
        kind="real token" if real.any() else "pad",
    )


def _judge_causal(trial: _Trial, ids: Tensor, mask: Tensor, before: Tensor) -> CheckResult | None:
    """Replace the real tokens from the middle of the longest row on, with the mask given."""
    j = trial.T // 2
    changed = ids.clone()
    changed[0, j:] = other_tokens(trial.bench.probe, ids)[0, j:]
    leak = moved(before[0, :j], trial.call(changed, mask)[0, :j])  # (j,)
    if bool((leak <= trial.limit).all()):
        return None
    worst = float(leak.max())
    measured = say("a logit moved by {worst}", worst=worst)
    return _differs(CAUSAL_MASK_LOST, trial, worst, measured, last=j - 1, j=j)


def _judge_right(trial: _Trial, right: Tensor) -> CheckResult | None:
    difference = trial.worst(right, "right")
    if not trial.exceeds(difference):
        return None
    return _differs(RIGHT, trial, difference, _moved_real(difference))


def _judge_pads(trial: _Trial, side: str) -> CheckResult | None:
    ids, mask = trial.padded(side)
    other, _ = trial.padded(side, other_tokens(trial.bench.probe, ids))
    before, after = trial.call(ids, mask), trial.call(other, mask)
    spans = [(b, trial.span(b, side)) for b in range(len(ids))]
    differences = [moved(before[b, span], after[b, span]).max() for b, span in spans]
    difference = float(torch.stack(differences).max())
    if not trial.exceeds(difference):
        return None
    # a causal model that is only ever padded on the right does well without a mask
    ignored = not trial.exceeds(float(moved(before, trial.bench.call(ids)).max()))
    measured = say("a logit moved by {worst} when the pads' ids changed", worst=difference)
    return _differs(MASK_IGNORED if ignored else PADS_READ, trial, difference, measured, side=side)


def _judge_left(trial: _Trial, left: Tensor) -> CheckResult | None:
    """The pads are hidden, so what is left is that they are counted: a warning."""
    difference = trial.worst(left, "left")
    if not trial.exceeds(difference):
        return None
    return _differs(LEFT_POSITIONS, trial, difference, _moved_real(difference))


def _judge_unmasked_left(trial: _Trial, *, takes_mask: bool) -> CheckResult | None:
    """Where the user's own rows begin with pads, a call without a mask has to see through them."""
    batch = _batch_of(trial.bench.probe)
    if batch is None or (takes_mask and batch.attention_mask is not None):
        return None  # the mask goes with the batch
    rows = _rows_padded_on_the_left(batch, trial.bench.probe.pipeline.pad_id)
    if not rows:
        return None
    difference = trial.worst(trial.call(*trial.padded("left")), "left")
    if not trial.exceeds(difference):
        return None
    fault = LEFT_WITHOUT_MASK if batch.attention_mask is None else MASK_NOT_PASSED
    return _differs(
        fault, trial, difference, _moved_real(difference), rows=rows, B=len(batch.inputs)
    )


def _batch_of(probe: Probe) -> Batch | None:
    """Return the user's batch, if there is one that can be read."""
    try:
        return None if probe.batch.source == "synthetic" else probe.batch
    except (TypeError, ValueError, RuntimeError):  # a broken loader is for `batches` to report
        return None


def _pad_of(probe: Probe) -> int | None:
    """Return the id of pads: as told, or as it stands where the batch's own mask is 0."""
    batch = _batch_of(probe)
    if probe.pipeline.pad_id is not None or batch is None or batch.attention_mask is None:
        return probe.pipeline.pad_id
    if batch.attention_mask.shape != batch.inputs.shape:
        return None
    pads = batch.inputs[batch.attention_mask == 0]
    return int(pads[0]) if pads.numel() else None


def _rows_padded_on_the_left(batch: Batch, pad_id: int | None) -> int:
    """Count the rows that begin with two pads or more and then hold none."""
    if batch.attention_mask is not None and batch.attention_mask.shape == batch.inputs.shape:
        pads = batch.attention_mask == 0
    elif batch.attention_mask is None and pad_id is not None:
        pads = batch.inputs == pad_id
    else:
        return 0
    leading = pads.long().cumprod(1).sum(1)  # (B,)
    return int(((leading >= 2) & (leading == pads.sum(1)) & (leading < pads.shape[1])).sum())


def _moved_real(difference: float) -> Text:
    return say("a real token's logit differs by {worst} from the row alone", worst=difference)


def _differs(
    fault: Fault, trial: _Trial, worst: float, measured: Text, **facts: Any
) -> CheckResult:
    """Return the result of a fault that shows as a logit which should not have moved."""
    numbers = {"worst": worst, "limit": trial.limit}
    if "side" in facts:
        numbers["side"] = facts["side"]
    return found(fault, measured, numbers, limit=trial.limit, **facts)


def _mask_type(bench: Bench, tokens: Tensor) -> torch.dtype | None:
    """Return the type of (B, T) mask that the model takes; None when it takes no such mask."""
    batch = _batch_of(bench.probe)
    given = None if batch is None else batch.attention_mask
    rows = tokens.expand(2 if tokens.shape[1] != 2 else 3, -1)
    for kind in (torch.int64, torch.bool) if given is None else (given.dtype,):
        try:
            bench.call(rows, torch.ones_like(rows).to(kind))
        except (RuntimeError, TypeError, ValueError, IndexError):
            continue  # of another type, or of shape (T, T)
        return kind
    return None
