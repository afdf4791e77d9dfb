"""Split: the validation part is long enough, and it is text that is never trained on.

Why it matters
    Validation promises that the model has not seen the text. When it has, the validation
    loss is a second training loss: it goes on falling, and every choice that is based on
    it (when to stop, which checkpoint is best) is wrong in the flattering direction.

How it is measured
    Both parts must hold ids, and the validation part at least one window of the block.
    Up to 4096 runs of 32 tokens (16 for subwords) are taken from all over it and looked
    for among all runs of the training part. How often runs of the training part occur
    twice in it says how much of this is natural, as boilerplate is. Where the same
    distance separates every pair, the two ranges are laid over each other and compared
    id by id. The tokens of both parts are counted, since a part that was encoded
    otherwise has other counts. Windows that overlap and were shuffled into both parts
    share shorter runs: these begin at edges of windows, and prose begins anywhere.
    Where the training stream is given (batches_from, or batch as a function), its rows
    are looked for in the validation part, also as they come after a restart. Where only
    a loader knows the parts, rows of both are laid over each other: windows of one place
    agree from edge to edge.

What it cannot see
    Paraphrase, translations and near copies with a change in every 32 tokens. Windows
    that overlap by less than 16 tokens (8 for subwords), or start at random. Documents
    shorter than a run. Leaks of less than a twentieth of the validation part, or of one
    phrase, where the ranges do not touch. Of training parts with more than 16 million ids,
    evenly spaced pieces are searched. A split that is drawn anew where only one drawing is
    at hand. Whether validation text is like the text that the model is meant for.

Break it
    python -m exercises.break_split
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagnostics._ngrams import Ids, Overlap, measure_overlap
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._split_rows import judge_loader, judge_stream
from diagnostics._split_windows import judge_windows
from diagnostics._text import Text, say
from diagnostics._text_readings import measure_distance

RUN_LENGTH = 32  # tokens; six words of characters, which prose hardly repeats
SUBWORD_RUN_LENGTH = 16  # ten words or more
SUBWORD_VOCAB_MIN = 1024  # tables of characters of an alphabet are smaller
SOME_MIN = 0.01  # share of runs from which pieces that are as long as a run are looked at
LEAK_MIN = 0.25  # share of runs, beyond twice the natural one, that no boilerplate explains
DOUBT_MIN = 0.05  # the guide, Shakespeare and WikiText-2 measure below 0.01
COPY_MIN = 0.75  # share of runs that no text repeats by nature, whatever its templates
FEW_MIN = 0.5  # share of runs that occur, and not often; corpora with near copies stay below
DISTINCT_MIN = 2000  # different runs; a toy text that says one sentence again and again has fewer
APART_MIN = 0.3  # distance of the counts of tokens; parts of one corpus measure 0.02 to 0.1
COUNTED_MIN = 1000  # ids; fewer have odd counts by chance


def check_split(
    train_ids: Tensor, val_ids: Tensor, *, block_size: int | None = None, vocab_size: int = 0
) -> CheckResult:
    """Check that val_ids (M,) hold windows of block_size, and no text of train_ids (N,).

    block_size: None: the length is not judged.    vocab_size: 0: characters.
    Raises ValueError for another number of dimensions.
    """
    train, val = (_to_array(ids) for ids in (train_ids, val_ids))
    wrong = _judge_sizes(len(train), len(val), block_size)
    if wrong is not None:
        return wrong
    found = measure_overlap(train, val, length=_run_length(vocab_size))
    wrong = _judge_overlap(train, val, found, block_size)
    return _judge_rest(train, val, found) if wrong is None else wrong


def run(probe: Probe) -> CheckResult:
    """Judge the two parts, and the stream of training rows against the validation part."""
    pipeline = probe.pipeline
    train_ids, val_ids = pipeline.train_ids, pipeline.val_ids
    if train_ids is None or val_ids is None:
        return judge_loader(probe)
    train, val = _to_array(train_ids.flatten()), _to_array(val_ids.flatten())
    too_short = _judge_sizes(len(train), len(val), probe.block_size)
    if too_short is not None:
        return too_short if not _draws_shorter_rows(probe, val_ids) else _warning(too_short)
    found = measure_overlap(train, val, length=_run_length(probe.vocab_size))
    result = _judge_overlap(train, val, found, probe.block_size)
    if result is not None and result.failed:
        return result
    stream = judge_stream(probe, train, val)
    if stream is not None:
        return stream
    return _judge_rest(train, val, found) if result is None else result


# ---- the two parts ---------------------------------------------------------------------------


def _judge_sizes(N: int, M: int, block: int | None) -> CheckResult | None:
    for name, count in (("train_ids", N), ("val_ids", M)):
        if count == 0:
            return verdict(
                Status.FAIL,
                "split.empty",
                say("{name} hold no id, so there is nothing to measure on", name=name)
                if name == "val_ids"
                else say("{name} hold no id, so there is nothing to train on", name=name),
                measured=say("{N} ids for training, {M} for validation", N=N, M=M),
                expected=say("at least one window in each"),
                causes=(say("the fraction was rounded down to 0, or the slice is empty"),),
                next_step=say("print len(train_ids) and len(val_ids) right after the split"),
                numbers={"train": N, "val": M},
            )
        if block is not None and count < block + 1:
            return verdict(
                Status.FAIL,
                "split.too_short",
                say(
                    "{name} hold {count:id|ids}, and one window of the block takes {needed}",
                    name=name,
                    count=count,
                    needed=block + 1,
                ),
                measured=say("{N} ids for training, {M} for validation", N=N, M=M),
                expected=say("at least {needed}: T inputs and one more target", needed=block + 1),
                causes=(say("the text is short, or the fraction for this part is small"),),
                next_step=say("give this part at least a few windows, or shorten the block"),
                numbers={"train": N, "val": M, "needed": block + 1},
            )
    return None


def _judge_overlap(
    train: Ids, val: Ids, found: Overlap | None, block: int | None
) -> CheckResult | None:
    if len(train) == len(val) and np.array_equal(train, val):
        return _overlap_verdict(
            "split.identical",
            say("val_ids are train_ids: validation measures what was trained on"),
            say("all {count} ids are equal", count=len(val)),
            say("both parts were read from the same file or variable"),
        )
    if found is None:
        return None
    if found.share >= COPY_MIN <= found.natural and found.distinct < DISTINCT_MIN:
        return _repetitive(found)
    in_range = _judge_range(train, val, found, block)
    shared = _judge_share(found) if in_range is None else in_range
    if shared is not None and shared.failed:
        return shared
    windows = judge_windows(train, val, _window_lengths(found))
    return shared if windows is None else windows


def _judge_range(train: Ids, val: Ids, found: Overlap, block: int | None) -> CheckResult | None:
    """Lay the two ranges over each other at the distances of equal runs."""
    for distance in found.distances:
        a, b = max(0, -distance), min(len(val), len(train) - distance)
        # validation may begin one block early, so that its first window has a context
        long_enough = b - a > max(2 * found.length, block or 0)
        if long_enough and np.array_equal(val[a:b], train[a + distance : b + distance]):
            return _same_range(train, val, a, b - a, distance)
    return None


def _same_range(train: Ids, val: Ids, a: int, count: int, distance: int) -> CheckResult:
    if count == len(val):
        reason = "split.inside_train"
        claim = say("val_ids are a piece of train_ids, from its first id to its last")
    elif count == len(train):
        reason = "split.inside_val"
        claim = say("train_ids are a piece of val_ids, from its first id to its last")
    else:
        reason = "split.ranges_overlap"
        claim = say(
            "{share:%} of val_ids are the same range of text as {where} of train_ids",
            share=count / len(val),
            where="the end" if distance > 0 else "the beginning",
        )
    return _overlap_verdict(
        reason,
        claim,
        say(
            "{count:id|ids} in a row: val_ids from {a}, train_ids from {b}",
            count=count,
            a=a,
            b=a + distance,
        ),
        say("the two slices of the text do not end and begin at the same place"),
        {"count": count, "val_start": a, "train_start": a + distance},
    )


def _judge_share(found: Overlap) -> CheckResult | None:
    if found.share < COPY_MIN and found.hits < found.length:
        return None  # one phrase, "after 50 steps and", is a large share of a short part
    numbers, measured = _numbers(found), _measured(found)
    claim = say(
        "{share:%} of the validation text stands in the training text too", share=found.share
    )
    beyond = found.share - 2 * found.natural
    if found.share >= LEAK_MIN and beyond >= DOUBT_MIN:
        cause = (
            say("documents stand in both parts: drawn from two orders, or twice in the source")
            if found.together >= 0.5
            else say("windows that overlap, or rows of it, were shuffled into both parts")
        )
        return _overlap_verdict("split.overlap", claim, measured, cause, numbers)
    if found.share >= COPY_MIN or found.few >= FEW_MIN:
        return _overlap_verdict(
            "split.overlap",
            claim,
            measured,
            say("rows were repeated, and then split: each has a copy on the other side"),
            numbers,
        )
    if found.share >= DOUBT_MIN and beyond >= DOUBT_MIN / 2:
        return _warning(
            _overlap_verdict(
                "split.some_overlap",
                claim,
                measured,
                say("quotations and boilerplate, or some documents that stand in both parts"),
                numbers,
            )
        )
    return None


def _repetitive(found: Overlap) -> CheckResult:
    return verdict(
        Status.WARN,  # a text made for a test says one thing again and again
        "split.repetitive",
        say(
            "the whole text consists of {count} different runs of {n} tokens, again and again",
            count=found.distinct,
            n=found.length,
        ),
        measured=_measured(found),
        expected=say("new text in the validation part"),
        causes=(say("a toy text, of which no part is new"),),
        next_step=say("measure on a text that does not repeat itself"),
        numbers=_numbers(found),
    )


def _measured(found: Overlap) -> Text:
    return say(
        "{share:%} of runs of {n} tokens of val_ids; {natural:%} of those of train_ids occur twice",
        share=found.share,
        n=found.length,
        natural=found.natural,
    )


def _numbers(found: Overlap) -> dict[str, Any]:
    return {
        "share": found.share,
        "natural": found.natural,
        "few": found.few,
        "length": found.length,
        "distinct": found.distinct,
    }


def _judge_counts(train: Ids, val: Ids) -> CheckResult | None:
    """Compare how common each token is in both parts, and in parts of the training part."""
    m = min(len(val), len(train) // 4)
    if m < COUNTED_MIN or min(int(train.min()), int(val.min())) < 0:
        return None
    apart = measure_distance(train, val[: 2**20])
    places = np.linspace(0, len(train) - m, 4).astype(int).tolist()
    natural = max(measure_distance(train, train[p : p + min(m, 2**20)]) for p in places)
    if apart < APART_MIN or apart < 2 * natural:
        return None
    return verdict(
        Status.WARN,  # text of another kind, as in a test of transfer, looks the same
        "split.other_counts",
        say(
            "val_ids hold other tokens than train_ids: {apart:%} of them would change", apart=apart
        ),
        measured=say("distance {apart} of the counts of tokens", apart=apart),
        expected=say("about {natural}, as between parts of train_ids", natural=natural),
        causes=(
            say("the part was encoded with another tokenizer, or changed before (lower case)"),
            say("the validation text is of another kind, or in another language"),
        ),
        next_step=say("decode 200 ids of both parts, and read them"),
        numbers={"apart": apart, "natural": natural},
    )


def _judge_rest(train: Ids, val: Ids, found: Overlap | None) -> CheckResult:
    counts = _judge_counts(train, val)
    if counts is not None:
        return counts
    if found is None:
        return verdict(
            Status.PASS,
            "split.ok",
            say("both parts hold ids; they are too short to look for common runs of tokens"),
            measured=say("{N} ids for training, {M} for validation", N=len(train), M=len(val)),
        )
    return verdict(
        Status.PASS,
        "split.ok",
        say(
            "{share:%} of the validation text (runs of {n} tokens) stand in the training text",
            share=found.share,
            n=found.length,
        ),
        measured=say("{N} ids for training, {M} for validation", N=len(train), M=len(val)),
        expected=say(
            "near {natural:%}, the share of runs that the training text repeats",
            natural=found.natural,
        ),
        where=""
        if found.searched >= 1
        else say("{share:%} of train_ids were searched", share=found.searched),
        numbers=_numbers(found),
    )


# ---- small helpers ---------------------------------------------------------------------------


def _draws_shorter_rows(probe: Probe, val_ids: Tensor) -> bool:
    """Whether get_batch makes do with a part that is shorter than the block."""
    if probe.pipeline.get_batch is None or len(val_ids) < 2:
        return False
    try:
        with probe.seeded("split"):
            return probe.draw_batch(val_ids).inputs.shape[-1] < len(val_ids)
    except Exception:  # any: it does not
        return False


def _to_array(ids: Any) -> Ids:
    tensor = torch.as_tensor(ids)
    if tensor.ndim != 1:
        raise ValueError(f"ids must have shape (N,), got {tuple(tensor.shape)}")
    return tensor.cpu().long().numpy()


def _window_lengths(found: Overlap) -> tuple[int, ...]:
    """Return lengths of runs for windows that overlap by less than it takes to be met often."""
    whole = (found.length,) if found.share >= SOME_MIN else ()
    return (*whole, found.length // 2)


def _run_length(vocab_size: int) -> int:
    return SUBWORD_RUN_LENGTH if vocab_size >= SUBWORD_VOCAB_MIN else RUN_LENGTH


def _overlap_verdict(
    reason: str, claim: Text, measured: Text, cause: Text, numbers: dict[str, Any] | None = None
) -> CheckResult:
    return verdict(
        Status.FAIL,
        reason,
        claim,
        measured=measured,
        expected=say("no common text, quotations and boilerplate aside"),
        causes=(cause,),
        next_step=_NEXT.get(
            reason,
            say("split the source once, by documents or ranges, before anything is repeated"),
        ),
        numbers=numbers,
    )


_NEXT = {
    "split.identical": say("print the two paths, and read the validation part from its own"),
    **dict.fromkeys(
        ("split.inside_train", "split.inside_val", "split.ranges_overlap"),
        say("use one number for both slices: train = ids[:n], val = ids[n:]"),
    ),
}


def _warning(result: CheckResult) -> CheckResult:
    return dataclasses.replace(result, status=Status.WARN)
