"""Round trip: decode(encode(text)) is the text, character by character.

Why it matters
    What the tokenizer drops or changes, no model can learn and no checkpoint can bring
    back. A tokenizer that lowercases or skips characters makes the loss look better,
    because less is left to predict.

How it is measured
    Samples of train_text (head, middle, tail, and every distinct character in its
    surroundings), then probes made only of characters that the tokenizer knows: all of
    them, doubled, with spaces, tabs and line ends at the start, the end and in a row,
    and letters with combining marks. A character table is also read entry by entry:
    encode(chars[i]) is [i] and decode([i]) is chars[i]. Subwords that reach over a space
    must be ones that encode gives for their own text. A slice of train_ids is decoded
    and encoded again. What comes back is compared with what the usual faults would make
    of the text, and the one that fits is named. A tokenizer of characters or bytes that
    loses anything fails. One of subwords that loses what its vocabulary has no entry
    for (an uncased one lowercases) gets a warning: that is a design.

What it cannot see
    Whether this is the tokenizer that made the ids: that is for `fingerprint`. Texts
    that are not in the samples. Special tokens written out in a text. Whether pad,
    start and end tokens are put where the model expects them. Decoding piece by piece,
    as streaming does.

Break it
    python -m exercises.break_roundtrip
"""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from diagnostics._lost_text import Fault, around, first_difference, name_fault
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import say
from diagnostics._tokenizer import TokenizerReader, is_special

SAMPLE_LENGTH = 2_000  # characters; a BPE written in Python takes about 0.1 s for as many
LONG_LENGTH = 150_000  # characters; beyond 65,536, where pieces of a vectorised encode may meet
STORED_LENGTH = 1_000  # ids that are decoded and encoded again
DISTINCT_MAX = 2_000  # distinct characters looked at in their surroundings
SCANNED_MAX = 5_000_000  # characters scanned for distinct ones, about 0.1 s
UNKNOWN = "\U000f0000"  # a private-use character that stands in no text
ENTRIES_MAX = 4_000  # entries that are decoded one by one
CROSSING = re.compile(r"\S\s")  # the end of a word and what follows it
CROSSING_MIN, CROSSING_SHARE_MIN = 5, 0.05  # entries: a phrase or two may be added by hand
UNUSED_SHARE_MIN = 0.9  # of them; a tokenizer that means to cross spaces gives nearly all
SPACES = (" ", "\n", "\t", "\r\n", "\r", "\n\n")
DEFAULT_PROBES = (  # for tokenizers that do not list their characters
    "  Two  spaces, a Capital, a dot. ",
    "\nlines\n\n  and\ttabs\t",
    "one\r\ntwo\r\n",
    "caf\u00e9 cafe\u0301 na\u00efve",
    "beyond U+FFFF: \U0001f600!",
)

Samples = list[tuple[str, str]]  # (where it comes from, text)


def check_roundtrip(
    tokenizer: Any, text: str | None = None, ids: Tensor | None = None
) -> CheckResult:
    """Check that nothing is lost on the way from text to ids and back.

    tokenizer: anything with encode(text) and decode(ids).    text: a sample of real text.
    ids: (N,) stored ids that the tokenizer is said to have made.
    Raises TypeError for a tokenizer without encode or decode.
    """
    reader = TokenizerReader(tokenizer)
    samples = list(_samples(reader, text))
    warning: CheckResult | None = None
    for judge in _JUDGES:
        result = judge(reader, samples, ids)
        if result is not None and result.failed:
            return result
        warning = result if warning is None else warning
    if warning is not None:
        return warning
    total = sum(len(sample) for _, sample in samples)
    return CheckResult(
        check="roundtrip",
        status=Status.PASS,
        reason="roundtrip.ok",
        claim=say(
            "all {total} characters of {count:sample|samples} come back from the ids as they were",
            total=total,
            count=len(samples),
        ),
        numbers={"characters": total, "samples": len(samples), "vocab_size": reader.size},
    )


def run(probe: Probe) -> CheckResult:
    """Judge the pipeline's tokenizer on its own text and ids."""
    pipeline = probe.pipeline
    if pipeline.tokenizer is None:
        raise MissingPartError("tokenizer", why="there is no tokenizer to ask")
    with probe.seeded("roundtrip"):  # subword dropout draws random numbers
        return check_roundtrip(pipeline.tokenizer, pipeline.train_text, pipeline.train_ids)


def measure_roundtrip(tokenizer: Any, text: str) -> dict[str, Any]:
    """Return how a text comes back: {"ids", "back", "lossless", "first_difference"}.

    Raises what the tokenizer raises.
    """
    reader = tokenizer if isinstance(tokenizer, TokenizerReader) else TokenizerReader(tokenizer)
    ids = reader.encode(text)
    back = reader.decode(ids)
    lossless = isinstance(back, str) and back == text
    position = None if lossless or not isinstance(back, str) else first_difference(text, back)
    return {"ids": ids, "back": back, "lossless": lossless, "first_difference": position}


def _judge_table(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """A table that lists a character twice has an id that encode never gives."""
    entries = reader.characters
    if entries is None or len(set(entries)) == len(entries):
        return None
    seen: dict[str, int] = {}
    for index, entry in enumerate(entries):
        if entry in seen:
            break
        seen[entry] = index
    return verdict(
        Status.FAIL,
        "roundtrip.duplicate_characters",
        say(
            "the vocabulary lists {entry} twice, as id {first} and as id {second}",
            entry=ascii(entry),
            first=seen[entry],
            second=index,
        ),
        measured=say("{distinct} of {all} differ", distinct=len(set(entries)), all=len(entries)),
        expected=say("each character once"),
        causes=(say("the list was made from the text without set(), or two lists were joined"),),
        next_step=say("build the list with sorted(set(text))"),
    )


def _judge_texts(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    warning: CheckResult | None = None
    for name, sample in samples:
        try:
            encoded = reader.encode(sample)
        except Exception as error:  # any: the user's encode
            if name == "a probe" and reader.characters is None:
                continue  # it need not know the characters of our choosing
            return _encode_raised(name, sample, error, reader)
        try:
            back = reader.decode(encoded)
        except Exception as error:  # any: the user's decode
            return _decode_raised(name, encoded, error, reader)
        if not isinstance(back, str):
            return _not_text(back)
        if back != sample:
            fault = name_fault(sample, back, reader.characters)
            result = _lossy(reader, name, sample, back, fault)
            if result.failed:
                return result
            warning = result if warning is None else warning
    return warning


def _judge_entries(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """Read a character table entry by entry, in both directions."""
    entries = reader.characters or []
    for index, entry in enumerate(entries):
        if is_special(entry):
            continue
        try:
            encoded, decoded = reader.encode(entry), reader.decode([index])
        except Exception as error:  # any: the user's code
            return _encode_raised("the vocabulary", entry, error, reader)
        if decoded != entry:
            return verdict(
                Status.FAIL,
                "roundtrip.order_differs",
                say(
                    "id {index} decodes to {decoded}, where the vocabulary lists {entry}",
                    index=index,
                    decoded=ascii(decoded),
                    entry=ascii(entry),
                ),
                measured=say("encode({entry}) gives {ids}", entry=ascii(entry), ids=encoded[:5]),
                expected=say("the id {index} in both directions", index=index),
                causes=(say("encode and decode use two tables, built at different times"),),
                next_step=say("build both tables from one list of characters"),
            )
    return None


def _judge_repeated(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """Encode one sample twice: other ids mean a state, or dropout of merges."""
    for name, sample in samples:
        try:
            first, second = reader.encode(sample), reader.encode(sample)
        except Exception:  # any: `_judge_texts` has said so
            continue
        if first == second:
            return None
        result = verdict(
            Status.FAIL,
            "roundtrip.not_repeatable",
            say("encode gives other ids for the same text the second time"),
            measured=say("{first}, then {second}", first=first[:6], second=second[:6]),
            expected=say("the same ids"),
            where=say("{name}", name=name),
            causes=(say("merges are dropped at random (BPE dropout), or encode keeps a state"),),
            next_step=say("switch dropout of merges off for stored ids and for evaluation"),
        )
        return result if reader.is_character_level else _as_warning(result)
    return None


def _judge_stored(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """Decode stored ids and encode the text again; ids out of range are for `range`."""
    if ids is None or len(ids) == 0:
        return None
    stored = [int(i) for i in torch.as_tensor(ids[:STORED_LENGTH]).flatten().tolist()]
    entries = reader.characters or []
    if not all(0 <= i < (reader.size or 2**62) for i in stored):
        return None
    try:
        decoded = reader.decode(stored)
        again = reader.encode(decoded)
        decoded_again = reader.decode(again)
    except Exception:  # any: ids that are no text of this tokenizer are for `fingerprint`
        return None
    if any(stored.count(entries.index(m)) != decoded.count(m) for m in _markers(reader)):
        return None  # a mark that is spelled out is for `text`
    same = again == stored if reader.is_character_level else decoded_again == decoded
    if same:
        return None
    position = next(
        (i for i, (a, b) in enumerate(zip(stored, again, strict=False)) if a != b),
        min(len(stored), len(again)),
    )
    result = verdict(
        Status.FAIL,
        "roundtrip.stored_ids_differ",
        say(
            "the first {count} stored ids decode to a text whose ids are other ones",
            count=len(stored),
        ),
        measured=say(
            "at place {position}: stored {stored}, encoded again {again}",
            position=position,
            stored=stored[position : position + 4],
            again=again[position : position + 4],
        ),
        expected=say("encode(decode(ids)) == ids"),
        next_step=say("encode the text again with this tokenizer and store those ids"),
    )
    return result if reader.is_character_level else _as_warning(result)


def _judge_merges(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """Entries that reach over a space, and that encode never gives, were learnt in vain."""
    if reader.is_character_level or not reader.size:
        return None
    step = max(1, reader.size // ENTRIES_MAX)
    crossing: list[tuple[int, str]] = []
    for index in range(0, reader.size, step):
        try:
            entry = reader.decode([index])
        except Exception:  # any: a table may have gaps
            continue
        if isinstance(entry, str) and CROSSING.search(entry) and not is_special(entry):
            crossing.append((index, entry))
    if len(crossing) < max(CROSSING_MIN, CROSSING_SHARE_MIN * reader.size / step):
        return None
    try:
        unused = [(i, entry) for i, entry in crossing if i not in reader.encode(f"a{entry}a")]
        unused = [(i, entry) for i, entry in unused if i not in reader.encode(entry)]
    except Exception:  # any: the user's encode
        return None
    if len(unused) < UNUSED_SHARE_MIN * len(crossing):
        return None
    return verdict(
        Status.FAIL,
        "roundtrip.merges_unused",
        say(
            "{count} of {all} entries reach over a space, and encode never gives them",
            count=len(unused),
            all=len(range(0, reader.size, step)),
        ),
        measured=say(
            "such as {entries}", entries=", ".join(ascii(entry) for _, entry in unused[:4])
        ),
        expected=say("every entry that was learnt is the id of its own text"),
        causes=(say("merges were learnt on other pieces of text than those that encode makes"),),
        next_step=say("split the text with the same pattern in training and in encode"),
        numbers={"unused": len(unused), "crossing": len(crossing)},
    )


def _judge_extras(
    reader: TokenizerReader, samples: Samples, ids: Tensor | None
) -> CheckResult | None:
    """Tokens that are added to every text, and characters that are skipped without a word."""
    try:
        of_nothing = reader.encode("")
    except Exception:  # any: an empty text may be refused
        of_nothing = []
    if of_nothing:
        doubled = len(of_nothing) > 1 and of_nothing[0] == of_nothing[1]
        result = verdict(
            Status.FAIL,
            "roundtrip.doubled_start" if doubled else "roundtrip.tokens_added",
            say(
                "encode adds {count:token|tokens} to every text, {ids}, which decode leaves out",
                count=len(of_nothing),
                ids=of_nothing[:4],
            ),
            measured=say('encode("") gives {ids}', ids=of_nothing[:4]),
            expected=say("no id for an empty text"),
            causes=(say("start and end tokens are added by encode and by the code around it"),),
            next_step=say("add start and end tokens in one place, where the rows are built"),
        )
        return result if doubled else _as_warning(result)
    if reader.characters is None:
        return None
    known = next((c for c in reader.characters if len(c) == 1 and c.isalnum()), "")
    try:
        skipped = reader.encode(known + UNKNOWN + known) == reader.encode(known + known)
    except Exception:  # any: refusing is what a tokenizer should do
        return None
    if not skipped:
        return None
    return _as_warning(
        verdict(
            Status.FAIL,
            "roundtrip.unknown_skipped",
            say("a character that the tokenizer does not know is skipped without a word"),
            measured=say("U+F0000 between two others leaves no id"),
            expected=say("an error that names the character and its position"),
            next_step=say("raise KeyError in encode for a character that is not in the table"),
        )
    )


# ---- samples ---------------------------------------------------------------------------------


def _samples(reader: TokenizerReader, text: str | None) -> Iterator[tuple[str, str]]:
    """Yield (where it comes from, sample)."""
    for marker in _markers(reader) if text else ():
        text = text.replace(marker, "") if text else text  # half of one would be other characters
    if text:
        middle = max(0, len(text) // 2 - SAMPLE_LENGTH // 2)
        for start in sorted({0, middle, max(0, len(text) - SAMPLE_LENGTH)}):
            yield f"train_text from position {start}", text[start : start + SAMPLE_LENGTH]
        yield from _distinct_in_context(text)
        if len(text) > SAMPLE_LENGTH and reader.is_character_level:
            yield (
                "train_text from position 0",
                text[:LONG_LENGTH],
            )  # long texts may take another path
    for probe in _probes(reader, text):
        yield "a probe", probe


def _markers(reader: TokenizerReader) -> list[str]:
    """Special entries of a table of characters, such as <|end|>."""
    return [entry for entry in reader.characters or [] if is_special(entry)]


def _distinct_in_context(text: str) -> Iterator[tuple[str, str]]:
    missing = set(text[:SCANNED_MAX]) - set(text[:SAMPLE_LENGTH]) - set(text[-SAMPLE_LENGTH:])
    for char in sorted(missing)[:DISTINCT_MAX]:
        position = text.find(char)
        start = max(0, position - 8)
        yield f"train_text from position {start}", text[start : position + 9]


def _probes(reader: TokenizerReader, text: str | None) -> Iterator[str]:
    """Yield texts made only of characters that the tokenizer knows, as far as that is known."""
    if reader.characters is not None:
        alphabet = [c for c in reader.characters if len(c) == 1]
    else:
        yield from DEFAULT_PROBES
        alphabet = sorted(set(text[:SCANNED_MAX])) if text else []
    known = set(alphabet)
    for start in range(0, len(alphabet), SAMPLE_LENGTH // 2):
        some = alphabet[start : start + SAMPLE_LENGTH // 2]
        yield "".join(some)
        yield "".join(char * 2 for char in some)
    letters = [c for c in alphabet if not c.isspace() and not unicodedata.combining(c)][:2]
    if not letters:
        return
    a, b = letters[0], letters[-1]
    for space in SPACES:
        if set(space) <= known:
            yield space + a + space + space + b + space
    marks = [c for c in alphabet if unicodedata.combining(c)]
    bases = [c for c in alphabet if c.isalpha() and c.isascii()]
    if marks and bases:
        yield "".join(base + mark for base in bases for mark in marks[:8])


# ---- words -----------------------------------------------------------------------------------


def _lossy(reader: TokenizerReader, name: str, sample: str, back: str, fault: Fault) -> CheckResult:
    position = first_difference(sample, back)
    result = verdict(
        Status.FAIL,
        fault.reason,
        say("the tokenizer does not give the text back: {told}", told=fault.told),
        measured=say(
            "{sample} came back as {back}",
            sample=around(sample, position),
            back=around(back, position),
        ),
        expected=say("decode(encode(text)) == text"),
        where=say("{name}, character {position} of the sample", name=name, position=position),
        causes=() if fault.cause is None else (fault.cause,),
        next_step=say(
            "print(tokenizer.decode(tokenizer.encode({sample})))",
            sample=around(sample, position),
        ),
        numbers={"first_difference": position, "sample_length": len(sample)},
    )
    return _as_warning(result) if _is_design(reader, sample, back, fault) else result


def _is_design(reader: TokenizerReader, sample: str, back: str, fault: Fault) -> bool:
    """Subword tokenizers may normalise; not so when their vocabulary holds what got lost."""
    if reader.is_character_level or not fault.by_design:
        return False
    if fault.reason == "roundtrip.replaced_by_unknown":
        return True  # whole words may be unknown, whatever their letters
    lost = {char for char in set(sample) - set(back) if not char.isspace()}
    entries = [entry for entry in reader.entries or [] if not is_special(entry)]
    return not any(char in entry for char in lost for entry in entries)


def _encode_raised(
    name: str, sample: str, error: Exception, reader: TokenizerReader
) -> CheckResult:
    """Find the first character that encode refuses, where it is one."""
    position = next((i for i, char in enumerate(sample) if _refuses(reader, char)), None)
    if position is None:
        claim = say(
            "encode raises {kind} on {name}: {error}",
            kind=type(error).__name__,
            name=name,
            error=str(error)[:120],
        )
        return verdict(
            Status.FAIL, "roundtrip.encode_raised", claim, next_step=say("encode that text by hand")
        )
    char = sample[position]
    return verdict(
        Status.FAIL,
        "roundtrip.unknown_character",
        say(
            "the tokenizer has no id for {char} (U+{code}), which stands in {name}",
            char=ascii(char),
            code=f"{ord(char):04X}",
            name=name,
        ),
        measured=say("{kind} at {text}", kind=type(error).__name__, text=around(sample, position)),
        expected=say("an id for every character of the text it is used on"),
        where=say("character {position} of the sample", position=position),
        causes=(say("the vocabulary was built from another text, or from a part of this one"),),
        next_step=say("build the tokenizer from the whole text, or use the one it was built with"),
    )


def _refuses(reader: TokenizerReader, char: str) -> bool:
    try:
        reader.encode(char)
    except Exception:  # any: the user's encode
        return True
    return False


def _decode_raised(
    name: str, encoded: list[int], error: Exception, reader: TokenizerReader
) -> CheckResult:
    return verdict(
        Status.FAIL,
        "roundtrip.decode_raised",
        say(
            "decode raises {kind} on ids that encode gave: {error}",
            kind=type(error).__name__,
            error=str(error)[:120],
        ),
        measured=say(
            "ids from {low} to {high}, vocabulary of {size}",
            low=min(encoded, default=0),
            high=max(encoded, default=0),
            size=reader.size,
        ),
        expected=say("a text for every id that encode gives"),
        where=say("{name}", name=name),
        causes=(say("encode and decode count from different numbers, such as 0 and 1"),)
        if reader.size is not None and max(encoded, default=0) >= reader.size
        else (),
        next_step=say("compare the largest id of encode with the length of decode's table"),
    )


def _not_text(back: Any) -> CheckResult:
    return verdict(
        Status.FAIL,
        "roundtrip.not_text",
        say("decode gives {kind} instead of a text", kind=type(back).__name__),
        measured=say("{back}", back=repr(back)[:60]),
        expected=say("a str"),
        causes=(say('decode returns its pieces without "".join(...)'),)
        if isinstance(back, (list, tuple))
        else (),
        next_step=say('return "".join(pieces) from decode'),
    )


def _as_warning(result: CheckResult) -> CheckResult:
    return dataclasses.replace(result, status=Status.WARN)


_JUDGES = (
    _judge_table,
    _judge_texts,
    _judge_entries,
    _judge_repeated,
    _judge_stored,
    _judge_merges,
    _judge_extras,
)
