"""Text: the ids decode to readable text, and to the text that they are said to come from.

Why it matters
    Nobody reads ids. A row that was flipped, thinned out, zeroed in the middle or made
    from last week's text is in range, has the right type, and trains without an error:
    the model learns what the ids say, whatever the file was called.

How it is measured
    train_ids are decoded, and the result is compared with train_text from its first
    character to its last; of more than a million subwords, the head and 64 pieces. For
    a tokenizer of subwords, and where special ids stand between documents, white space
    does not count, because texts are encoded piece by piece. Where the two differ, the
    usual faults are tried until one fits: another form of the text, gaps, repeats,
    reversal, another order, a part that is missing or was changed since, lines or
    paragraphs that were cut at a maximum length, ids that wrapped. Markers of documents
    that stand in train_text must be ids in train_ids, a start token stands once at each
    start, and the id at which the model is configured to stop must occur if others mark
    documents.
    Without train_text only the decoded ids speak: neighbours that tell nothing about
    each other, and one id for pages, are no text.

What it cannot see
    Whether the text is worth learning: the first words are shown, for you to read.
    Without train_text: another tokenizer of the same characters, another text, a bad
    page among good ones. White space that a tokenizer of subwords changed. In rows that
    are looked at in pieces, a fault between two of them; for a tokenizer that lowercases
    or has an unknown token, a fault after the first 4000 characters. Documents that
    train_text itself does not mark.

Break it
    python -m exercises.break_text
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from diagnostics._markers import find_lost_marker, find_other_terminator, find_start_fault
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._stored_text import FULL_MAX, HEAD_LENGTH, StoredText
from diagnostics._text import Text, say
from diagnostics._text_cuts import find_cut_pieces
from diagnostics._text_form import find_form_fault
from diagnostics._text_readings import TextFault, find_text_fault, measure_distance
from diagnostics._tokenizer import TokenizerReader
from diagnostics.fingerprint import measure_agreement
from diagnostics.range import explains_wrap

SHOWN_LENGTH = 40  # characters of the decoded ids that every verdict shows
LOST_SHARE_MAX = 0.01  # of a text: an end that fills no whole row of a file or a batch is cut off
SPLIT_SHARE_MIN = 0.9  # of ids that encode gives again; pieces encoded one by one reach 0.97


def check_text(
    tokenizer: Any,
    ids: Tensor,
    text: str | None = None,
    *,
    val_ids: Tensor | None = None,
    stop_ids: Collection[int] = (),
    name: str = "train_ids",
) -> CheckResult:
    """Check that ids (N,) decode to `text`, or to something that can be a text when it is None.

    tokenizer: anything with encode(text) and decode(ids).    name: what to call the ids.
    val_ids: (M,) ids of validation, which tell a text that was split from one that was cut short.
    stop_ids: ids at which the model is configured to stop.
    Raises TypeError for a tokenizer without encode or decode, ValueError for an empty row.
    """
    ids = torch.as_tensor(ids)
    if ids.numel() == 0:
        raise ValueError("ids must hold at least one id, got none")
    side = StoredText(TokenizerReader(tokenizer), ids, text or "")
    try:
        if side.ids.min() < 0:
            raise IndexError(f"{side.ids.min()} is no id")  # a table would count from its end
        decoded = side.decode(side.plain_ids[: 4 * SHOWN_LENGTH])
        side.decode(side.plain_ids[:FULL_MAX])
    except Exception as error:  # any: the user's decode
        return _undecodable(side, error, name)
    fault = _find_fault(side, val_ids) if text else find_form_fault(side)
    if fault is None or fault.warn:
        start = find_start_fault(side)
        if start is not None and (fault is None or not start.warn):
            fault = start
    fault = find_other_terminator(side, stop_ids) if fault is None else fault
    if fault is not None:
        return _result_of(side, fault, decoded, name)
    return verdict(
        Status.PASS,
        "text.ok",
        say("{name} say what train_text says", name=name)
        if text
        else say("{name} decode to something that can be a text", name=name),
        measured=_shown(decoded),
        numbers={"ids": len(side.ids), "compared_from_end_to_end": bool(text and side.is_whole)},
    )


def run(probe: Probe) -> CheckResult:
    """Judge train_ids, with train_text where it is given."""
    pipeline = probe.pipeline
    if pipeline.tokenizer is None or pipeline.train_ids is None or not len(pipeline.train_ids):
        missing = "tokenizer" if pipeline.tokenizer is None else "train_ids"
        raise MissingPartError(missing, why="ids are decoded to be read")
    with probe.seeded("text"):
        return check_text(
            pipeline.tokenizer,
            pipeline.train_ids,
            pipeline.train_text,
            val_ids=pipeline.val_ids,
            stop_ids=_stop_ids(pipeline.model),
        )


def _stop_ids(model: nn.Module) -> list[int]:
    """Read the end-of-text ids of the configuration, under the name that Hugging Face gives it."""
    for holder in (
        getattr(model, "generation_config", None),
        getattr(model, "config", None),
        model,
    ):
        value = getattr(holder, "eos_token_id", None)
        values = value if isinstance(value, (list, tuple)) else [value]
        ids = [i for i in values if isinstance(i, int) and i >= 0]
        if ids:
            return ids
    return []


def _find_fault(side: StoredText, val_ids: Tensor | None) -> TextFault | None:
    fault = find_text_fault(side)
    if fault is None:
        return find_lost_marker(side) or _other_split(side)
    if fault.reason in ("text.piece_missing", "text.part_differs"):
        return find_lost_marker(side) or find_cut_pieces(side) or fault
    if fault.reason in ("text.tail_missing", "text.head_missing"):
        return _judge_end(side, fault, val_ids)
    if fault.reason in ("text.ids_differ", "text.other_text", "text.scrambled"):
        return _other_ids(side) or find_cut_pieces(side) or fault
    return fault


def _judge_end(side: StoredText, fault: TextFault, val_ids: Tensor | None) -> TextFault | None:
    """A text that was split has the rest in val_ids; one that was cut short has it nowhere."""
    lost = fault.numbers["missing_before"] + fault.numbers["missing_after"]
    if lost <= LOST_SHARE_MAX * fault.numbers["text_characters"]:
        return find_lost_marker(side)
    has_val = val_ids is not None and len(val_ids) > 0
    cause = say("writing the ids stopped early, or a limit on their number was left in the code")
    if has_val:
        other = StoredText(side.reader, val_ids[: 4 * HEAD_LENGTH], "")  # type: ignore[index]
        said = side.fold(other.decode(other.plain_ids))[: HEAD_LENGTH // 8]
        if said and said in side.text:
            return find_lost_marker(side)  # train_text is the text before it was split
    return TextFault(
        fault.reason,
        fault.told,
        cause,
        warn=not has_val,  # the rest may be a validation part that was not given
        place=fault.place,
        numbers=fault.numbers,
    )


def _other_split(side: StoredText) -> TextFault | None:
    """The same text in other subwords: the model would never meet the ids that a prompt gets."""
    if side.reader.is_character_level or side.is_lossy:
        return None
    true = np.array(side.true_head)
    stored = side.plain_ids[: len(true)]
    if len(true) < 64 or len(stored) < len(true):
        return None
    if side.true_head != StoredText(side.reader, side.ids, side.raw_text).true_head:
        return None  # merges are dropped at random: `roundtrip` says so
    share = 1 - measure_distance(true, stored)
    if share >= SPLIT_SHARE_MIN:
        return None
    return TextFault(
        "text.split_differs",
        say(
            "say what train_text says in other subwords: encode gives {share:%} of them",
            share=share,
        ),
        say("the text was encoded word by word, or with other merges"),
        warn=True,
        numbers={"share": share},
    )


def _other_ids(side: StoredText) -> TextFault | None:
    """The ids stand in the right places and are other ones: wrapped, moved or exchanged."""
    true = torch.tensor(side.true_head)
    stored = torch.from_numpy(side.ids[: len(true)])  # special ones too: a wrapped id may be one
    true = true[: len(stored)]
    modulus = explains_wrap(true, stored)
    if modulus is not None:
        return TextFault(
            "text.wrapped",
            say("are the ids of train_text modulo {modulus}", modulus=modulus),
            say("the ids were stored in {bits} bits", bits=8 if modulus == 256 else 16),
            numbers={"modulus": modulus},
        )
    agreement = measure_agreement(true.tolist(), stored.tolist())
    if agreement["distance"] is None and agreement["exchanged"] is None:
        return None
    return TextFault(
        "text.other_tokenizer",
        say("are the ids that another tokenizer gives for train_text"),
        say("each id is {distance} away from the true one", distance=agreement["distance"])
        if agreement["distance"] is not None
        else say("the same entries stood in another order when the ids were made"),
        numbers=agreement,
    )


# ---- words -----------------------------------------------------------------------------------


def _result_of(side: StoredText, fault: TextFault, decoded: str, name: str) -> CheckResult:
    return verdict(
        Status.WARN if fault.warn else Status.FAIL,
        fault.reason,
        say("{name} {told}", name=name, told=fault.told),
        measured=_shown(decoded),
        expected=_expected(side, fault),
        where="" if fault.place is None else say("from character {place} on", place=fault.place),
        causes=() if fault.cause is None else (fault.cause,),
        next_step=_next_step(fault, name),
        numbers={**fault.numbers, "ids": len(side.ids)},
    )


def _expected(side: StoredText, fault: TextFault) -> Text:
    if not side.raw_text:
        return say("words that a person can read")
    if fault.place is not None:
        return say("train_text, from its first character to its last")
    return say("train_text, which begins {text}", text=ascii(side.raw_text[:SHOWN_LENGTH]))


def _next_step(fault: TextFault, name: str) -> Text:
    if fault.reason in ("text.noise", "text.no_words", "text.one_token", "text.scrambled"):
        return say("print(tokenizer.decode({name}[:500])), and read it", name=name)
    if fault.reason in ("text.terminator_missing", "text.marker_spelled"):
        return say("append the id of the marker after each document, and encode again")
    if fault.reason in ("text.doubled_start", "text.start_missing"):
        return say("add the start token in one place, where documents are encoded")
    if fault.reason == "text.pieces_cut":
        return say("encode without a maximum length (truncation=False), and store those ids")
    if fault.reason == "text.other_terminator":
        return say("print(model.config.eos_token_id, tokenizer.eos_token_id)")
    return say("encode train_text again with this tokenizer, and store those ids")


def _shown(decoded: str) -> Text:
    return say("the ids begin {decoded}", decoded=ascii(decoded[:SHOWN_LENGTH]))


def _undecodable(side: StoredText, error: Exception, name: str) -> CheckResult:
    return verdict(
        Status.FAIL,
        "text.undecodable",
        say("{name} cannot be decoded: {kind}", name=name, kind=type(error).__name__),
        measured=say(
            "ids from {low} to {high}; {error}",
            low=int(side.ids.min()),
            high=int(side.ids.max()),
            error=str(error)[:120],
        ),
        expected=say("a text for every id that is stored"),
        next_step=say("print(tokenizer.decode({name}[:20]))", name=name),
    )
