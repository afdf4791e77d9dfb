"""Which targets of the pipeline's own batch are marked as not scored, and whether that makes sense.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from diagnostics._probe import Batch, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say

END_NAMES = ("eos_token_id", "eos_id", "eot_token", "eot_id", "eod_id")
ROWS_WANTED = 256  # in which values are counted
ROWS_MIN = 4  # rows that show a pattern
UNLEARNT_NAMES = ("bos_token_id", "bos_id", "unk_token_id", "unk_id", "mask_token_id")
ENDS_MIN = 2  # ends that are never scored before it is said
VALUES_MIN, VALUES_LUCK_MAX = 5, 1e-6  # ignored places of one token, and their probability
LUCK_MAX = 1e-3  # chance below which equal tokens before every answer are a marker


def judge_marks(probe: Probe) -> Iterator[CheckResult]:
    """Yield what is odd about the marks of the batch, faults before warnings."""
    batch, ignore = probe.batch, probe.pipeline.ignore_index
    if batch.source == "synthetic" or batch.inputs.shape != batch.targets.shape:
        return
    stray = (batch.targets != ignore) & (batch.targets < 0)
    if bool(stray.any()):
        yield _stray(batch, stray, ignore)
        return
    if batch.inputs.shape[-1] < 2:
        return  # no token of such a row stands before another one
    many = _more_rows(probe, batch)
    yield from _judge_ends(probe, many)
    yield from _judge_values(probe, many)
    yield from _judge_answers(probe, batch)
    yield from _judge_last_tokens(probe, batch)


def _more_rows(probe: Probe, batch: Batch) -> Batch:
    """Return the batch with rows of further calls: in one batch a rare token stands too seldom."""
    pipeline = probe.pipeline
    if batch.attention_mask is not None or pipeline.get_batch is None or pipeline.train_ids is None:
        return batch
    rows = [batch]
    try:
        with probe.seeded("loss marks"):
            while sum(part.inputs.shape[0] for part in rows) < ROWS_WANTED:
                rows.append(probe.draw_batch(pipeline.train_ids))
        inputs, targets = (
            torch.cat([getattr(part, name).to(probe.device).long() for part in rows])
            for name in ("inputs", "targets")
        )
    except Exception:  # any: rows of other lengths, or a loader that ends
        return batch
    return Batch(inputs, targets, None, batch.source)


def _stray(batch: Batch, stray: Tensor, ignore: int) -> CheckResult:
    """A target that is neither a token nor ignore_index: data and loss mark ignored ones apart."""
    row, position = (int(i) for i in torch.nonzero(stray)[0])
    value = int(batch.targets[row, position])
    return verdict(
        Status.FAIL,
        "loss.unknown_mark",
        say(
            "{count:target of the batch is|targets of the batch are} {value}, which is no token "
            "and not the ignore_index {ignore}",
            count=int(stray.sum()),
            value=value,
            ignore=ignore,
        ),
        measured=say("target {value}", value=value),
        expected=say("a token id, or {ignore}", ignore=ignore),
        where=say("first is row {row}, position {position}", row=row, position=position),
        causes=(say("the loader and the loss mark ignored targets with different numbers"),),
        next_step=say(
            "use one mark in both; Pipeline(ignore_index={value}) if the loss knows this one",
            value=value,
        ),
        numbers={"stray": int(stray.sum())},
    )


def labels_of_tokens(batch: Batch, labels: str, ignore: int) -> tuple[Tensor, Tensor]:
    """Return tokens (B, S) and whether each is scored when it is predicted; the first never is."""
    scored = batch.targets != ignore
    if labels == "same":
        return batch.inputs[:, 1:], scored[:, 1:]
    return batch.inputs[:, 1:], scored[:, :-1]


# ---- ends ----------------------------------------------------------------------------------


def _judge_ends(probe: Probe, batch: Batch) -> Iterator[CheckResult]:
    """Is a token that ends a document ever scored, where the token before it is?"""
    pipeline = probe.pipeline
    tokens, scored = labels_of_tokens(batch, pipeline.labels, pipeline.ignore_index)
    attended = None if batch.attention_mask is None else batch.attention_mask[:, 1:] != 0
    known = [getattr(pipeline.tokenizer, name, None) for name in END_NAMES]
    ends = [end for end in known if isinstance(end, int) and not isinstance(end, bool)]
    if attended is not None and pipeline.pad_id is not None:
        ends.append(pipeline.pad_id)  # a pad that is attended to is no padding
    for end in dict.fromkeys(ends):
        here = tokens == end  # (B, S)
        if attended is not None:
            here = here & attended
        elif end == pipeline.pad_id:
            here[:, 1:] &= tokens[:, 1:] != tokens[:, :-1]  # the first of a run may be an end
        here[:, 1:] &= scored[:, :-1]
        here[:, 0] = False
        count = int(here.sum())
        if count < ENDS_MIN or bool((here & scored).any()):
            continue
        sure = attended is not None or end != pipeline.pad_id
        yield _end_never_scored(end, end == pipeline.pad_id, here, sure=sure)


def _end_never_scored(end: int, is_pad: bool, here: Tensor, *, sure: bool) -> CheckResult:
    row, place = (int(i) for i in torch.nonzero(here)[0])
    count = int(here.sum())
    return verdict(
        Status.FAIL if sure else Status.WARN,  # a run of pads may follow a text without an end
        "loss.end_never_scored",
        say(
            "token {end}, which ends a text, is never scored, although the token before it is: "
            "the model is not taught to stop",
            end=end,
        ),
        measured=say("0 of {count} ends in the batch are scored", count=count),
        expected=say("{count} of {count}", count=count),
        where=say("first is row {row}, token {place}", row=row, place=place + 1),
        causes=(
            say("padding is masked by its value, and the pad id is also the end of a text"),
            say("the mask of the answer stops one token early"),
        )
        if is_pad
        else (say("the mask of the answer stops one token early"),),
        next_step=say("mask padding by length: labels[attention_mask == 0] = ignore_index")
        if is_pad
        else say("let the mask of each answer reach its end token {end}", end=end),
        numbers={"end": end, "ends": count},
    )


def _judge_values(probe: Probe, batch: Batch) -> Iterator[CheckResult]:
    """Is a token ignored wherever it stands, among tokens that are scored?"""
    pipeline = probe.pipeline
    tokens, scored = labels_of_tokens(batch, pipeline.labels, pipeline.ignore_index)
    lengths, before, after = _runs(tokens)
    flat, marks = tokens.flatten(), scored.flatten()
    among = (before >= 0) & (after >= 0) & marks[before] & marks[after]  # (B * S,)
    if not bool(among.any()):
        return
    V = int(tokens.max()) + 1
    stands = torch.bincount(flat[among], minlength=V)  # between two scored tokens
    kept = torch.bincount(flat[marks], minlength=V)
    ignored = torch.bincount(flat[among & ~marks], minlength=V)
    # marks that fall on it as on other tokens would hit every one of them with this probability
    rate = (ignored.sum() - ignored + 1) / (stands.sum() - stands + 2)
    luck = rate.double() ** stands
    odd = (stands >= VALUES_MIN) & (kept == 0) & (luck < VALUES_LUCK_MAX)
    known = [getattr(pipeline.tokenizer, name, None) for name in (*END_NAMES, *UNLEARNT_NAMES)]
    found = []
    for token in torch.nonzero(odd).flatten().tolist():
        here = among & (flat == token)
        filler = int(((lengths > 2) & here).sum()) > 0.5 * int(here.sum())
        settled = len(flat[before[here]].unique()) == 1  # a start after each end: nothing to learn
        if token not in (pipeline.pad_id, *known) and not filler and not settled:
            found.append(token)
    if found:
        yield verdict(
            Status.FAIL,
            "loss.token_never_scored",
            say(
                "token {token} is never scored, although it stands {count} times "
                "between tokens that are",
                token=found[0],
                count=int(stands[found[0]]),
            ),
            measured=say("0 of {count} are scored", count=int(stands[found[0]])),
            expected=say("{count}, unless it is padding", count=int(stands[found[0]])),
            where=say("{count:token|tokens}; first is {token}", count=len(found), token=found[0]),
            causes=(
                say("targets are masked by value, with a pad id that is a real token"),
                say("the mask for what follows this token was laid on the token itself"),
            ),
            next_step=say(
                "mask padding by length; if {token} is nothing but padding, declare pad_id={token}",
                token=found[0],
            ),
            numbers={"tokens": found},
        )


def _runs(tokens: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return, for each of tokens (B, S), how often it stands in a row, and what stands around that.

    Three flat tensors (B * S,): the length of the run, and the flat places of the tokens before and
    after it, -1 where the row ends.
    """
    B, S = tokens.shape
    places = torch.arange(S, device=tokens.device).expand(B, S)
    new = torch.ones_like(tokens, dtype=torch.bool)
    new[:, 1:] = tokens[:, 1:] != tokens[:, :-1]
    first = torch.where(new, places, 0).cummax(1).values
    ends = torch.ones_like(new)
    ends[:, :-1] = new[:, 1:]
    last = torch.where(ends, places, S).flip(1).cummin(1).values.flip(1)
    offset = S * torch.arange(B, device=tokens.device)[:, None]
    before = torch.where(first > 0, offset + first - 1, -1)
    after = torch.where(last < S - 1, offset + last + 1, -1)
    return (last - first + 1).flatten(), before.flatten(), after.flatten()


# ---- answers -------------------------------------------------------------------------------


def _judge_answers(probe: Probe, batch: Batch) -> Iterator[CheckResult]:
    """Where prompts are ignored: is every row scored, and from the first token of its answer?"""
    tokens, scored = labels_of_tokens(
        batch, probe.pipeline.labels, probe.pipeline.ignore_index
    )  # (B, S)
    empty = torch.nonzero(~scored.any(1)).flatten().tolist()
    if empty and len(empty) < len(scored):
        yield verdict(
            Status.WARN,
            "loss.rows_not_scored",
            say(
                "{count} of {total:row of the batch has|rows of the batch have} no scored target",
                count=len(empty),
                total=len(scored),
            ),
            measured=say("0 scored targets in these rows"),
            expected=say("at least 1, unless a row was cut before its answer"),
            where=say("first is row {row}", row=empty[0]),
            causes=(say("the marker that ends the prompt was not found in them"),),
            next_step=say("decode row {row}, and print its targets beside it", row=empty[0]),
            numbers={"rows": empty},
        )
    starts = scored.to(torch.uint8).argmax(1)  # first scored token of each row
    rows = torch.nonzero(scored.any(1) & (starts >= 2)).flatten()
    if len(rows) < max(ROWS_MIN, int(scored.any(1).sum())):
        return  # some row has no prompt: this is not how the batch is made
    before = tokens[rows, starts[rows] - 1]  # (R,): the last token that is not scored
    marker = tokens[rows, starts[rows] - 2]
    p = torch.unique(tokens, return_counts=True)[1].double() / tokens.numel()
    luck = float(p.square().sum()) ** (len(rows) - 1)
    if (
        bool((marker == marker[0]).all())
        and len(before.unique()) >= ROWS_MIN - 1
        and luck < LUCK_MAX
    ):
        yield _answer_starts_late(int(marker[0]), len(rows), len(before.unique()))


def _judge_last_tokens(probe: Probe, batch: Batch) -> Iterator[CheckResult]:
    """Where padding is known: is the last token that is read ever scored, as earlier ones are?"""
    pipeline = probe.pipeline
    tokens, scored = labels_of_tokens(batch, pipeline.labels, pipeline.ignore_index)
    if batch.attention_mask is not None:
        read = batch.attention_mask[:, 1:] != 0
    elif pipeline.pad_id is not None:
        read = tokens != pipeline.pad_id
    else:
        return
    places = torch.arange(1, tokens.shape[1] + 1, device=tokens.device)
    last = (read * places).amax(1) - 1  # (B,): the last token that is no padding
    rows = torch.nonzero((last >= 0) & scored.any(1)).flatten()
    ends = scored[rows, last[rows]]
    if len(rows) < ROWS_MIN or bool(ends.any()):
        return
    lost = (read & ~scored & (places - 1 > _last_scored(scored)[:, None]))[rows].sum(1)
    yield verdict(
        Status.WARN,
        "loss.last_tokens_not_scored",
        say(
            "in all {rows} rows the last tokens are read and not scored, and earlier ones are",
            rows=len(rows),
        ),
        measured=say("{few} to {many} tokens per row", few=int(lost.min()), many=int(lost.max())),
        expected=say("0, unless a template ends with something that is not to be learnt"),
        causes=(
            say("the mask is inverted: prompts are scored, and answers are ignored"),
            say("the mask of the answer stops before its end"),
        ),
        next_step=say("decode what is scored in one row: it must be the whole answer"),
        numbers={"rows": len(rows), "lost": lost.tolist()},
    )


def _last_scored(scored: Tensor) -> Tensor:
    """Return the place of the last scored token of each row (B,)."""
    places = torch.arange(scored.shape[1], device=scored.device)
    return (scored * places).amax(1)


def _answer_starts_late(marker: int, rows: int, kinds: int) -> CheckResult:
    return verdict(
        Status.WARN,
        "loss.answer_starts_late",
        say(
            "in all {rows} rows the first scored token is the second one after token {marker}: the "
            "one between is never scored, and it differs from row to row",
            rows=rows,
            marker=marker,
        ),
        measured=say("{kinds} kinds of tokens between", kinds=kinds),
        expected=say("none, if token {marker} ends the prompt", marker=marker),
        causes=(say("the mask starts one token late, at the length of the prompt plus one"),),
        next_step=say("decode what is scored in one row: it must be the whole answer"),
        numbers={"marker": marker, "rows": rows},
    )
