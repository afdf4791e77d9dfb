"""Fingerprint: this is the very tokenizer that the ids and the checkpoint were made with.

Why it matters
    Two tokenizers of equal size can give one id to different characters. Everything
    runs, every id is in range, the loss of a new run is fine, and a loaded model writes
    nonsense.

How it is measured
    The tokenizer encodes pieces of train_text, and the ids must be those of train_ids
    at the same place; where they are not, one-for-one exchanges, a constant distance
    and changed text are tried. The fingerprint (SHA-256 of the entries in id order, as
    compact JSON) is compared with the one in each file that carries one: a .safetensors
    header, a .pt dictionary, a card or a tokenizer in JSON. The tokenizer must not be
    larger than the embedding has rows; a larger embedding (padded to a multiple of 64)
    is fine. A list of characters whose order is that of a set fails: Python orders sets
    anew in each process.

What it cannot see
    Ids of another text, in another order or with a bad page: those are for `text`.
    A checkpoint without a fingerprint may belong to any tokenizer of its size: that is
    a warning. Without the table of entries (compiled subword tokenizers) only ids and
    text can be compared. Merge rules: two subword tokenizers with equal entries may
    still split text differently.

Break it
    python -m exercises.break_fingerprint
"""

from __future__ import annotations

import json
import os
import pickle
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from diagnostics._file_formats import safetensors_header
from diagnostics._lost_text import without_accents
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._stored_text import StoredText
from diagnostics._text import Text, say
from diagnostics._text_readings import find_text_fault
from diagnostics._tokenizer import TokenizerReader, fingerprint_of
from diagnostics.files import read_card
from diagnostics.range import explains_wrap, has_zero_places

SAMPLE_LENGTH = 4_000  # characters compared at each place
SEARCHED_LENGTH = 200_000  # ids in which a sample is looked for when it is not in its place
PIECE_LENGTH = 200  # ids that are looked for; text does not repeat itself for as long
AGREED_SHARE = 0.99  # of ids; the last subwords of a sample are cut otherwise
ALIGNED_SHARE = 0.5  # unrelated places of text agree in less than 0.1 of their characters
SCANNED_MAX = 20_000_000  # characters of train_text that are counted, about 1 s
KEY = "tokenizer_fingerprint"  # its name in every file
CHECKPOINT_SUFFIXES = (".safetensors", ".pt", ".pth")
PART_MIN = 3  # places for each id that was exchanged in a part: fewer agree by chance
FEW_CHARS = 5  # the order of fewer characters looks sorted, or unsorted, by chance


def check_fingerprint(
    tokenizer: Any,
    expected: str | None = None,
    *,
    text: str | None = None,
    ids: Tensor | None = None,
    files: Iterable[str | os.PathLike[str]] = (),
    embedding_rows: int | None = None,
) -> CheckResult:
    """Check that a tokenizer is the one that a checkpoint or stored ids were made with.

    tokenizer: anything with encode and decode, or the list of its entries in id order.
    expected: a fingerprint (64 hex digits) to compare with.    text, ids: raw text, and the (N,)
    ids that were made from it.    files: files that carry a fingerprint.
    embedding_rows: how many ids the model has a row for.
    Raises ValueError when there is nothing to compare with.
    """
    if isinstance(tokenizer, (list, tuple)):
        tokenizer = _ListedEntries(tokenizer)
    reader = TokenizerReader(tokenizer)
    result = _check(reader, expected, text, ids, [Path(path) for path in files], embedding_rows)
    if result is None:
        raise ValueError("nothing to compare with: give expected, files, or text and ids")
    return result


def run(probe: Probe) -> CheckResult:
    """Judge the pipeline's tokenizer against its ids, its files and its model."""
    pipeline = probe.pipeline
    if pipeline.tokenizer is None:
        raise MissingPartError("tokenizer", why="there is no tokenizer to ask")
    reader = TokenizerReader(pipeline.tokenizer)
    files = [Path(path) for path in pipeline.files]
    with probe.seeded("fingerprint"):
        result = _check(
            reader,
            None,
            pipeline.train_text,
            pipeline.train_ids,
            files,
            probe.usable_vocab_size,
        )
    if result is None:
        raise MissingPartError(
            "files", "train_text and train_ids", why="nothing says which tokenizer it should be"
        )
    return result


def measure_agreement(true: Sequence[int], stored: Sequence[int]) -> dict[str, Any]:
    """Return how two rows of ids (N,) relate: {"share", "first", "distance", "exchanged"}.

    share: of places that are equal.    first: the first that is not, or None.
    distance: the constant stored - true, or None.    exchanged: how many different ids are other
    ones, where each id always became the same other one and no two became one; else None.
    """
    pairs = list(zip(true, stored, strict=True))
    wrong = [place for place, (a, b) in enumerate(pairs) if a != b]
    distances = {b - a for a, b in pairs}
    mapping, one_to_one = _mapping(pairs)
    return {
        "share": 1 - len(wrong) / max(1, len(pairs)),
        "first": wrong[0] if wrong else None,
        "distance": distances.pop() if len(distances) == 1 else None,
        "exchanged": sum(a != b for a, b in mapping.items()) if one_to_one else None,
    }


def _mapping(pairs: Sequence[tuple[int, int]]) -> tuple[dict[int, int], bool]:
    """Return what each id became, and whether that was always the same and no two became one."""
    mapping = dict(pairs)
    consistent = all(mapping[a] == b for a, b in pairs)
    return mapping, consistent and len(set(mapping.values())) == len(mapping)


def stored_fingerprints(path: Path) -> list[str]:
    """Return the tokenizer fingerprints that a file carries; none when it cannot be read.

    Never runs code from the file, and reads no weights.
    """
    try:
        if path.suffix == ".safetensors":
            content: Any = safetensors_header(path).get("__metadata__", {})
        elif path.suffix in (".pt", ".pth"):
            content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        elif path.suffix == ".json":
            content = read_card(path)
            chars = content.get("chars")
            if isinstance(chars, list) and all(isinstance(char, str) for char in chars):
                return [fingerprint_of(chars)]
        else:
            return []
    except (OSError, ValueError, RuntimeError, EOFError, KeyError, pickle.UnpicklingError):
        return []  # damaged files are for `files`
    return list(dict.fromkeys(_search(content)))


def _search(content: Any, depth: int = 0) -> Iterable[str]:
    """Yield every value under KEY in nested mappings, and in JSON kept as text."""
    if isinstance(content, str) and content.startswith("{") and depth < 4:
        try:
            content = json.loads(content)
        except (ValueError, RecursionError):
            return
    if not isinstance(content, Mapping) or depth > 4:
        return
    for name, value in content.items():
        if name == KEY and isinstance(value, str):
            yield value
        elif isinstance(value, (Mapping, str)):
            yield from _search(value, depth + 1)


# ---- judging ---------------------------------------------------------------------------------


def _check(
    reader: TokenizerReader,
    expected: str | None,
    text: str | None,
    ids: Tensor | None,
    files: list[Path],
    rows: int | None,
) -> CheckResult | None:
    """Return the first fault, else a warning, else PASS; None when nothing was compared."""
    compared: list[str] = []
    warnings: list[CheckResult] = []
    steps = (
        _judge_recorded(reader, [("expected", expected)] if expected else [], compared),
        _judge_recorded(reader, _recorded_in(files), compared),
        _judge_ids(reader, text, ids, compared),
        _judge_size(reader, rows),
        _judge_order(reader, text),
        _judge_silent_files(reader, files),
    )
    for result in steps:
        if result is not None and result.failed:
            return result
        if result is not None:
            warnings.append(result)
    if warnings:
        return warnings[0]
    if not compared:
        return None
    known = reader.fingerprint
    return CheckResult(
        check="fingerprint",
        status=Status.PASS,
        reason="fingerprint.ok",
        claim=say(
            "the tokenizer ({size:entry|entries}{known}) is the one of {compared}",
            size=reader.size,
            known=f", fingerprint {known[:12]}..." if known else "",
            compared=" and ".join(compared),
        ),
        numbers={"fingerprint": known, "vocab_size": reader.size, "compared": compared},
    )


def _recorded_in(files: list[Path]) -> list[tuple[str, str]]:
    return [(path.name, found) for path in files for found in stored_fingerprints(path)]


def _judge_recorded(
    reader: TokenizerReader, recorded: list[tuple[str, str]], compared: list[str]
) -> CheckResult | None:
    if not recorded:
        return None
    own = getattr(reader.tokenizer, "fingerprint", None)
    known = {reader.fingerprint, own if isinstance(own, str) else None} - {None}
    if not known:
        return None
    for name, found in recorded:
        if found not in known:
            return _differs(reader, name, found)
        if name not in compared:
            compared.append(name)
    return None


def _differs(reader: TokenizerReader, name: str, found: str) -> CheckResult:
    return verdict(
        Status.FAIL,
        "fingerprint.differs",
        say(
            "{name} was made with another tokenizer: fingerprint {found}..., not {known}...",
            name=name,
            found=found[:12],
            known=(reader.fingerprint or "")[:12],
        ),
        measured=say("this tokenizer: {known}", known=reader.fingerprint),
        expected=say("{found}", found=found),
        where=say("{name}; this tokenizer has {size:entry|entries}", name=name, size=reader.size),
        causes=(
            say("the tokenizer was built again, from other text or in another order"),
            say("the tokenizer file of another run lies at the usual path"),
        ),
        next_step=say("use the tokenizer that {name} was made with, or train again", name=name),
        numbers={"fingerprint": reader.fingerprint, "recorded": found, "file": name},
    )


def _judge_ids(
    reader: TokenizerReader, text: str | None, ids: Tensor | None, compared: list[str]
) -> CheckResult | None:
    """Encode text and compare with the ids stored for it, at the same place."""
    if not text or ids is None or len(ids) == 0:
        return None
    count = total = 0
    for place in _places(reader, text, ids):
        sample = text[place : place + SAMPLE_LENGTH]
        try:
            true = reader.encode(sample)
        except Exception:  # any: text that it cannot encode is for `roundtrip`
            return None
        stored = [int(i) for i in torch.as_tensor(ids[place : place + len(true)]).tolist()]
        result = _compare(reader, sample, true, stored, ids, place)
        if result is not None:
            unread = result.reason == "fingerprint.ids_differ" and not result.causes
            return None if unread and _is_for_text(reader, text, ids) else result
        count += sum(a == b for a, b in zip(true, stored, strict=False))
        total += len(stored)
    if count > AGREED_SHARE * total:  # else they are for other checks, and no evidence here
        compared.append(f"train_ids ({count} of {total} ids agree)")
    return None


def _places(reader: TokenizerReader, text: str, ids: Tensor) -> list[int]:
    """Starts at which text and ids can be laid side by side: one id per character, or the head."""
    if len(ids) != len(text) or not reader.is_character_level:
        return [0]
    return sorted({0, len(text) // 2, max(0, len(text) - SAMPLE_LENGTH)})


def _compare(
    reader: TokenizerReader,
    sample: str,
    true: list[int],
    stored: list[int],
    ids: Tensor,
    place: int,
) -> CheckResult | None:
    true = true[: len(stored)]
    if not reader.is_character_level and len(sample) == SAMPLE_LENGTH:
        true, stored = true[:-8], stored[:-8]  # the cut may have changed the last subwords
    kept = [(a, b) for a, b in zip(true, stored, strict=True) if 0 <= b < (reader.size or 2**62)]
    if len(kept) < len(stored) / 2:
        return None  # ids out of range are for `range`
    agreement = measure_agreement([a for a, _ in kept], [b for _, b in kept])
    if agreement["first"] is None or _is_for_range(true, stored, ids):
        return None
    if agreement["share"] < ALIGNED_SHARE and _lies_elsewhere(true, ids):
        return None  # a start token, or ids of another part of the text
    reason, cause = _read_disagreement(reader, sample, stored, agreement)
    moved = [(a, b) for a, b in kept if a != b]
    exchange, one_to_one = _mapping(moved)
    if reason == "fingerprint.ids_differ" and one_to_one and len(moved) >= PART_MIN * len(exchange):
        cause = say("a part of the ids was made with the same entries in another order")
    first = next(i for i, (a, b) in enumerate(zip(true, stored, strict=True)) if a != b)
    return verdict(
        Status.FAIL,
        reason,
        say(
            "{told}: {share:%} of the ids of train_text differ",
            told=_TOLD.get(reason, say("train_ids were made with another tokenizer")),
            share=1 - agreement["share"],
        ),
        measured=say(
            "id {stored} at position {first}",
            stored=stored[first],
            first=place + first,
        ),
        expected=say("id {true}, as this tokenizer gives", true=true[first]),
        where=say(
            "{wrong} of {count} compared; first is position {first} of train_ids",
            wrong=round((1 - agreement["share"]) * len(kept)),
            count=len(kept),
            first=place + first,
        ),
        causes=() if cause is None else (cause,),
        next_step=say("use the tokenizer that was stored with the ids, or encode the text again"),
        numbers={**agreement, "compared": len(kept), "place": place + first},
    )


_TOLD = {
    "fingerprint.other_text": say("train_ids were made from another form of train_text"),
    "fingerprint.ids_differ": say("train_ids are not what this tokenizer makes of train_text"),
}


def _is_for_range(true: list[int], stored: list[int], ids: Tensor) -> bool:
    """Wrapped ids and ids read with the wrong type have a check of their own."""
    if has_zero_places(torch.as_tensor(ids[:4096]).flatten()) is not None:
        return True
    return explains_wrap(torch.tensor(true), torch.tensor(stored)) is not None


def _is_for_text(reader: TokenizerReader, text: str, ids: Tensor) -> bool:
    """Another text, another order and bad pages say nothing about the tokenizer."""
    try:
        fault = find_text_fault(StoredText(reader, ids, text))
    except Exception:  # any: ids that decode refuses
        return False
    return fault is None or fault.reason != "text.ids_differ"


def _lies_elsewhere(true: list[int], ids: Tensor) -> bool:
    """Whether a piece of the true ids stands at another place of the stored ones."""
    piece = torch.tensor(true[:PIECE_LENGTH])
    if piece.shape[0] < 8:
        return False
    near = torch.as_tensor(ids[:SEARCHED_LENGTH]).flatten().cpu().long()
    if near.shape[0] < piece.shape[0]:
        return False
    starts = torch.nonzero(near[: near.shape[0] - piece.shape[0] + 1] == piece[0]).flatten()
    for offset in range(1, piece.shape[0]):
        starts = starts[near[starts + offset] == piece[offset]]
    return bool((starts > 0).any())


def _read_disagreement(
    reader: TokenizerReader, sample: str, stored: list[int], agreement: dict[str, Any]
) -> tuple[str, Text | None]:
    """Name what the numbers fit; no cause where they fit nothing."""
    distance, exchanged = agreement["distance"], agreement["exchanged"]
    if distance is not None:
        more, count = ("before", distance) if distance > 0 else ("missing before", -distance)
        return "fingerprint.offset_ids", say(
            "{count:entry|entries} stood {more} the first one when the ids were made",
            count=count,
            more=more,
        )
    if exchanged is not None:
        return "fingerprint.order_differs", say(
            "the same entries in another order ({exchanged} of them moved), as set() gives them",
            exchanged=exchanged,
        )
    changes = {"text.lower()": str.lower, "without accents": without_accents, "strip()": str.strip}
    for name, change in changes.items():
        try:
            changed, true = reader.encode(change(sample)), reader.encode(sample)
        except Exception:  # any: the user's encode
            continue
        length = min(len(changed), len(stored), 500)
        if length and changed[:length] == stored[:length] != true[:length]:
            return "fingerprint.other_text", say(
                "the ids were made from a changed text: {name}", name=name
            )
    return "fingerprint.ids_differ", None


def _judge_size(reader: TokenizerReader, rows: int | None) -> CheckResult | None:
    if rows is None or reader.size is None or reader.size <= rows:
        return None
    return verdict(
        Status.FAIL,
        "fingerprint.model_too_small",
        say(
            "the tokenizer has {size:entry|entries}, and the model has rows for {rows}",
            size=reader.size,
            rows=rows,
        ),
        measured=say("{size:entry|entries}", size=reader.size),
        expected=say("at most {rows}", rows=rows),
        causes=(
            say("entries were added to the tokenizer, and the embedding was not made larger"),
            say("the model was configured for another tokenizer"),
        ),
        next_step=say("build the model with vocab_size={size}", size=reader.size),
        numbers={"vocab_size": reader.size, "embedding_rows": rows},
    )


def _judge_order(reader: TokenizerReader, text: str | None) -> CheckResult | None:
    """Find out whether the list of characters has an order that comes back in the next process."""
    chars = [c for c in reader.characters or [] if len(c) == 1]
    if len(chars) < FEW_CHARS or chars == sorted(chars) or not text:
        return None
    text = text[:SCANNED_MAX]
    numbers = {"sorted": False, "vocab_size": len(chars)}
    if chars == list(set(text)):
        return verdict(
            Status.FAIL,
            "fingerprint.order_from_set",
            say("the characters stand in the order of a set, which is another one in each process"),
            measured=say("chars == list(set(train_text))"),
            expected=say("an order that comes back, such as sorted(set(text))"),
            causes=(say("the vocabulary was built from set(text) without sorted()"),),
            next_step=say("build it with sorted(set(text)), and store it with the checkpoint"),
            numbers=numbers,
        )
    counts = Counter(text)
    by_count = [counts[c] for c in chars]
    if chars == [c for c in dict.fromkeys(text) if c in set(chars)]:
        return None  # the order of first appearance
    if by_count == sorted(by_count, reverse=True):
        return None  # the most frequent first
    return CheckResult(
        check="fingerprint",
        status=Status.WARN,
        reason="fingerprint.unknown_order",
        claim=say(
            "the {count} characters stand neither in code point order nor in one that the text "
            "gives",
            count=len(chars),
        ),
        measured=say("the first ones: {first}", first=", ".join(ascii(c) for c in chars[:6])),
        expected=say("an order that comes back when the vocabulary is built again"),
        causes=(say("the vocabulary was built from set(text) in another process"),),
        next_step=say("build it in two processes, and compare the two lists"),
        numbers=numbers,
    )


def _judge_silent_files(reader: TokenizerReader, files: list[Path]) -> CheckResult | None:
    """A checkpoint without a fingerprint may belong to any tokenizer of its size."""
    for path in files:
        is_checkpoint = path.suffix in CHECKPOINT_SUFFIXES and not path.stem.endswith("_ids")
        if is_checkpoint and path.is_file() and not stored_fingerprints(path):
            return CheckResult(
                check="fingerprint",
                status=Status.WARN,
                reason="fingerprint.missing",
                claim=say(
                    "{name} carries no tokenizer fingerprint: it may belong to any tokenizer of "
                    "its size",
                    name=path.name,
                ),
                measured=say("no {key} in {name}", key=KEY, name=path.name),
                expected=say("64 hex digits under that name"),
                next_step=say("store the fingerprint in every checkpoint, and compare on loading"),
                numbers={"file": path.name, "fingerprint": reader.fingerprint},
            )
    return None


class _ListedEntries:
    """A bare list of entries in the place of a tokenizer."""

    def __init__(self, entries: Sequence[str]) -> None:
        self.chars = list(entries)
        self.vocab_size = len(self.chars)

    def encode(self, text: str) -> list[int]:
        return [self.chars.index(char) for char in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(self.chars[i] for i in ids)
