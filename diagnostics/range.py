"""Range: every token id is a whole number from 0 to V - 1, in data, batches and targets.

Why it matters
    An id of V or more is an index error on the CPU and an opaque device-side assert on
    a GPU. A negative one may count from the end of a table. And ids that were stored in
    a type too small wrap round: they are all in range, and mean other tokens.

How it is measured
    All of train_ids and val_ids, one batch (targets without ignore_index), the special
    ids, and what the tokenizer makes of train_text, against V: the vocabulary, or the
    rows of the token embedding where those are fewer, and what can be drawn from equal
    logits against the tokenizer's size. The first bad id is named with
    its position and the count. The type must be whole-numbered and hold V. Ids out of
    range are read again as other types (two ids in one, swapped bytes, a float's bits);
    ids in range are searched for the traces of such mistakes: a zero in every second
    place, or ids that equal the true ones modulo 256 or 65,536.

What it cannot see
    Ids in range that mean other tokens: that is for `fingerprint`. A wrapped id where
    neither text and tokenizer nor a crowded 0..255 give it away. Batches that were not
    drawn.

Break it
    python -m exercises.break_range
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from diagnostics._id_histogram import measure_histogram
from diagnostics._pieces import pieces_of
from diagnostics._probe import MissingPartError, Probe
from diagnostics._result import CheckResult, Status, verdict
from diagnostics._text import Text, say
from diagnostics._tokenizer import TokenizerReader

PIECE_LENGTH = 2**22  # ids looked at at a time; a mapped file must not be copied whole
PATTERN_LENGTH_MIN = 32  # fewer ids can have every second zero, or all be equal, by chance
SAMPLE_LENGTH = 10_000  # characters of train_text that are encoded
DISTINCT_MIN = 4  # a toy stream such as 1, 0, 1, 0 has fewer; text has more
WRAP_VOCAB_MIN = 1024  # below, 0..255 can be a byte vocabulary padded to a round size
WRAP_DISTINCT_MIN = 200  # of 256: byte-wide noise fills nearly all, real byte text less than half


def check_range(
    ids: Tensor, vocab_size: int, *, ignore_index: int | None = None, name: str = "ids"
) -> CheckResult:
    """Check that ids are whole numbers from 0 to vocab_size - 1.

    ids: (N,) or (B, T), a tensor, an array or a list.    name: what to call them in messages.
    ignore_index: a value that targets may hold besides, such as -100; None: no exception.
    `numbers["histogram"]` holds how often each id occurs, where the ids are whole numbers.
    Raises ValueError for another number of dimensions or a vocabulary below 1.
    """
    ids = torch.as_tensor(ids)
    if ids.ndim not in (1, 2):
        raise ValueError(f"ids must have shape (N,) or (B, T), got {tuple(ids.shape)}")
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    source = _Source(name, ids, ignore_index)
    return _with_histogram(_judge(source, vocab_size), source, vocab_size)


def _judge(source: _Source, vocab_size: int) -> CheckResult:
    ids, name = source.ids, source.name
    if ids.numel() == 0:
        return verdict(
            Status.FAIL,
            "range.empty",
            say("{name} holds no id at all", name=name),
            numbers={"count": 0, "name": name},
        )
    if not _holds_integers(ids):
        return _not_integer(ids, name)
    if torch.iinfo(ids.dtype).max < vocab_size - 1:
        return _small_type(ids, vocab_size, name)
    numbers = measure_range(ids, vocab_size, ignore_index=source.ignore_index)
    if numbers["bad_count"]:
        return _out_of_range(ids, vocab_size, numbers, name)
    traces = _traces(ids.flatten(), vocab_size, numbers, name)
    if traces is not None:
        return traces
    return CheckResult(
        check="range",
        status=Status.PASS,
        reason="range.ok",
        claim=say(
            "all {count} {name} lie between {low} and {high}, inside 0 to {last}",
            count=numbers["count"],
            name=name,
            low=numbers["min"],
            high=numbers["max"],
            last=vocab_size - 1,
        ),
        measured=say("{low} to {high}", low=numbers["min"], high=numbers["max"]),
        numbers=numbers,
    )


def run(probe: Probe) -> CheckResult:
    """Judge every row of ids that the pipeline has, in the order in which they are made."""
    sources: list[_Source] = []
    result = _judge_sources(probe, sources)
    name = result.numbers.get("name")
    own = next((source for source in sources if source.name == name and source.is_data), None)
    shown = own or (sources[0] if sources else None)  # else of what the model is trained on
    if shown is None:
        return result
    return _with_histogram(result, shown, probe.usable_vocab_size, probe.pipeline.tokenizer)


@dataclass(frozen=True)
class _Source:
    """A row of ids, or rows of them: what to call it and what it may hold besides 0 to V - 1."""

    name: str
    ids: Tensor  # (N,) or (B, T)
    ignore_index: int | None = None
    is_data: bool = True  # False: a few ids that the configuration names


def _judge_sources(probe: Probe, sources: list[_Source]) -> CheckResult:
    """Judge until something fails; `sources` is filled with what was looked at."""
    limit = probe.usable_vocab_size
    results: list[CheckResult] = []
    for source in _sources(probe):
        if source.ids.ndim not in (1, 2):
            continue  # another shape is for `batches`
        sources.append(source)
        result = _judge(source, limit)
        if result.failed:
            return _with_origin(result, probe, limit)
        results.append(result)
    wrapped = _wrapped_against_text(probe)
    if wrapped is not None:
        return wrapped
    if not results:
        raise MissingPartError("train_ids", "batch", "tokenizer", why="there are no ids to look at")
    warning = next((result for result in results if result.status is Status.WARN), None)
    if warning is not None:
        return warning
    padding = _samples_padding(probe)
    if padding is not None:
        return padding
    counts = {f"{r.numbers['name']}": r.numbers["count"] for r in results}
    return dataclasses.replace(
        results[0],
        claim=say(
            "all ids lie inside 0 to {last}: {counts}",
            last=limit - 1,
            counts=", ".join(f"{count:,} {name}" for name, count in counts.items()),
        ),
        numbers={**results[0].numbers, "counts": counts},
    )


def _with_histogram(
    result: CheckResult, source: _Source, vocab_size: int, tokenizer: Any = None
) -> CheckResult:
    """Add how often each id occurs in the source, where its ids are whole numbers."""
    ids = source.ids
    if ids.numel() == 0 or not _holds_integers(ids):
        return result
    histogram = measure_histogram(ids, vocab_size, ignore_index=source.ignore_index)
    if histogram is None:
        return result
    histogram["name"] = source.name
    if tokenizer is not None:
        histogram["pieces"] = pieces_of(tokenizer, (token_id for token_id, _ in histogram["top"]))
    return dataclasses.replace(result, numbers={**result.numbers, "histogram": histogram})


def _holds_integers(ids: Tensor) -> bool:
    return not (ids.dtype.is_floating_point or ids.dtype.is_complex or ids.dtype is torch.bool)


def measure_range(
    ids: Tensor, vocab_size: int, *, ignore_index: int | None = None
) -> dict[str, Any]:
    """Return count, min, max, bad_count, and first_position and first_id of the first bad id.

    ids: whole numbers of any shape; positions count through the flattened ids.
    min and max leave ignore_index out; both are None when nothing else is there.
    """
    flat = ids.flatten()
    low: int | None = None
    high: int | None = None
    bad_count, count = 0, 0
    first: int | None = None
    for start in range(0, flat.shape[0], PIECE_LENGTH):
        piece = flat[start : start + PIECE_LENGTH].long()
        judged = piece if ignore_index is None else piece[piece != ignore_index]
        count += judged.shape[0]
        if judged.shape[0] == 0:
            continue
        piece_low, piece_high = int(judged.min()), int(judged.max())
        low = piece_low if low is None else min(low, piece_low)
        high = piece_high if high is None else max(high, piece_high)
        if piece_low < 0 or piece_high >= vocab_size:
            bad = (piece < 0) | (piece >= vocab_size)
            if ignore_index is not None:
                bad &= piece != ignore_index
            bad_count += int(bad.sum())
            first = start + int(torch.nonzero(bad)[0]) if first is None else first
    return {
        "count": count,
        "min": low,
        "max": high,
        "bad_count": bad_count,
        "first_position": first,
        "first_id": None if first is None else int(flat[first]),
    }


def has_zero_places(ids: Tensor) -> int | None:
    """Return k when (N,) ids hold a token in every k-th place only, and zeros between them.

    That is what 32-bit (k = 2) or 64-bit (k = 4) ids look like when read as 16-bit ones.
    """
    if ids.shape[0] < PATTERN_LENGTH_MIN:
        return None
    sample = ids[: ids.shape[0] // 8 * 8][: 8 * 4096].long().reshape(-1, 8)
    for k in (8, 4, 2):  # the widest first: it looks like the narrower ones too
        for place in (0, k - 1):  # little-endian and big-endian
            kept = sample[:, place::k]
            others_are_zero = bool((sample.sum(dim=1) == kept.sum(dim=1)).all())
            if others_are_zero and kept.unique().shape[0] >= DISTINCT_MIN:
                return k
    return None


def explains_wrap(true: Tensor, stored: Tensor) -> int | None:
    """Return m when stored (N,) equals the true ids modulo m = 256 or 65,536, and differs."""
    if true.shape != stored.shape or torch.equal(true, stored):
        return None
    return next((m for m in (256, 65_536) if torch.equal(true % m, stored)), None)


# ---- what is judged --------------------------------------------------------------------------


def _sources(probe: Probe) -> Iterator[_Source]:
    pipeline = probe.pipeline
    if pipeline.train_ids is not None:
        yield _Source("train_ids", torch.as_tensor(pipeline.train_ids))
    if pipeline.val_ids is not None:
        yield _Source("val_ids", torch.as_tensor(pipeline.val_ids))
    try:
        batch = probe.raw_batch
    except MissingPartError:
        batch = None
    if batch is not None:
        yield _Source("batch inputs", batch.inputs)
        yield _Source("batch targets", batch.targets, pipeline.ignore_index)
    if pipeline.pad_id is not None and pipeline.pad_id != pipeline.ignore_index:
        yield _Source("pad_id", torch.tensor([pipeline.pad_id]), is_data=False)
    if pipeline.tokenizer is not None:
        reader = TokenizerReader(pipeline.tokenizer)
        if reader.special_ids:
            special = torch.tensor(list(reader.special_ids.values()))
            yield _Source("special ids", special, is_data=False)
        emitted = _emitted(reader, pipeline.train_text)
        if emitted:
            yield _Source("ids from the tokenizer", torch.tensor(emitted))


def _emitted(reader: TokenizerReader, text: str | None) -> list[int]:
    try:
        return reader.encode((text or "")[:SAMPLE_LENGTH])
    except Exception:  # any: a text that it cannot encode is for `roundtrip`
        return []


def _wrapped_against_text(probe: Probe) -> CheckResult | None:
    """Compare train_ids with what the tokenizer makes of train_text, modulo 256 and 65,536."""
    pipeline = probe.pipeline
    if pipeline.tokenizer is None or not pipeline.train_text or pipeline.train_ids is None:
        return None
    true = torch.tensor(_emitted(TokenizerReader(pipeline.tokenizer), pipeline.train_text))
    stored = torch.as_tensor(pipeline.train_ids[: len(true)]).cpu().long()
    true = true[: len(stored)]
    modulus = explains_wrap(true, stored)
    if modulus is None:
        return None
    return _wrapped(true, stored, modulus)


def _wrapped(true: Tensor, stored: Tensor, modulus: int) -> CheckResult:
    position = int(torch.nonzero(true != stored)[0])
    return verdict(
        Status.FAIL,
        "range.wrapped",
        say(
            "train_ids are the ids of train_text modulo {modulus}: larger ids became other tokens",
            modulus=modulus,
        ),
        measured=say(
            "id {stored} at position {position}, where the tokenizer gives {true}",
            stored=int(stored[position]),
            position=position,
            true=int(true[position]),
        ),
        expected=say("the same ids"),
        where=say(
            "{count} of the first {total:id|ids}; first is position {position}",
            count=int((true != stored).sum()),
            total=len(true),
            position=position,
        ),
        causes=(say("the ids were stored in {bits} bits", bits=8 if modulus == 256 else 16),),
        next_step=say("store them in a type that holds V - 1, and encode the text again"),
        numbers={"modulus": modulus, "first_position": position},
    )


def _samples_padding(probe: Probe) -> CheckResult | None:
    """Find out whether ids that the tokenizer has no entry for can be drawn."""
    pipeline, V = probe.pipeline, probe.vocab_size
    function = pipeline.next_token_probabilities
    size = None if pipeline.tokenizer is None else TokenizerReader(pipeline.tokenizer).size
    if function is None or size is None or size >= V:
        return None
    try:
        with probe.seeded("range"):
            given = function(torch.zeros(V), 1.0, None, None)
    except Exception:  # any: `sampling` judges how it wants to be called
        return None
    if not isinstance(given, Tensor) or given.shape != (V,):
        return None
    mass = float(given[size:].sum())
    if not mass > 0:
        return None
    return CheckResult(
        check="range",
        status=Status.WARN,  # such rows are hardly ever drawn once a model is trained
        reason="range.padding_sampled",
        claim=say(
            "ids from {size} to {last} can be drawn, and the tokenizer has no entry for them",
            size=size,
            last=V - 1,
        ),
        measured=say("{mass:%} of the probability of equal logits", mass=mass),
        expected=say("0, as these rows only fill the vocabulary up to a round size"),
        causes=(say("the logits of the rows beyond the tokenizer are not masked"),),
        next_step=say("logits[..., {size}:] = -inf before sampling", size=size),
        numbers={"mass": mass, "tokenizer_size": size, "vocab_size": V},
    )


# ---- verdicts --------------------------------------------------------------------------------


def _out_of_range(ids: Tensor, vocab_size: int, numbers: dict[str, Any], name: str) -> CheckResult:
    position, first = numbers["first_position"], numbers["first_id"]
    reason, causes = _read_bad_ids(ids.flatten(), vocab_size, numbers)
    place = (
        say("position {position}", position=position)
        if ids.ndim == 1
        else say(
            "row {row}, position {column}",
            row=position // ids.shape[1],
            column=position % ids.shape[1],
        )
    )
    return verdict(
        Status.FAIL,
        reason,
        say(
            "{name} hold the id {first} at {place}, outside 0 to {last}",
            name=name,
            first=first,
            place=place,
            last=vocab_size - 1,
        ),
        measured=say("ids from {low} to {high}", low=numbers["min"], high=numbers["max"]),
        expected=say("0 to {last}, for a vocabulary of {V}", last=vocab_size - 1, V=vocab_size),
        where=say(
            "{bad} of {count:id|ids}; first is {place}",
            bad=numbers["bad_count"],
            count=numbers["count"],
            place=place,
        ),
        causes=causes,
        next_step=_IGNORED
        if name == "batch targets" and reason == "range.negative"
        else _NEXT[reason],
        numbers={**numbers, "name": name, "vocab_size": vocab_size},
    )


def _read_bad_ids(flat: Tensor, V: int, numbers: dict[str, Any]) -> tuple[str, tuple[Text, ...]]:
    """Name the mistake that the bad ids fit; no cause where they fit none."""
    low, high = numbers["min"], numbers["max"]
    other_type = _read_as_other_type(flat[: 8 * 4096].long(), V)
    if other_type is not None:
        return "range.wrong_dtype", (other_type,)
    if low < 0:
        if high < 32_768 < V and low >= -32_768 and low + 65_536 < V:
            return "range.negative", (say("ids above 32,767 were stored as signed 16-bit numbers"),)
        return "range.negative", _NEGATIVE.get(low, ())
    if high > V:
        return "range.too_large", ()
    from_one = low == 1 and numbers["count"] >= PATTERN_LENGTH_MIN
    return "range.equals_vocab_size", (
        *((say("ids count from 1 to V instead of from 0 to V - 1"),) if from_one else ()),
        say("a special token was added, and the embedding was not made larger"),
    )


_NEXT = {
    "range.wrong_dtype": say("read the file with the type that it was written with"),
    "range.negative": say(
        "find where a negative number marks a place, and keep it out of these ids"
    ),
    "range.equals_vocab_size": say("print(tokenizer.vocab_size, model.config.vocab_size)"),
    "range.too_large": say("compare the tokenizer's size with the rows of the embedding"),
}
_IGNORED = say(
    "mark targets that are not scored as the loss does, with ignore_index=-100; or declare "
    "Pipeline(ignore_index=...) if it knows another mark"
)
_NEGATIVE = {
    -1: (say("-1 marks an unknown or a padded place"),),
    -100: (say("-100 marks places without a label; it belongs into targets only"),),
}


def _read_as_other_type(sample: Tensor, V: int) -> Text | None:
    """Read out-of-range ids as what they may have been before a wrong type was declared."""
    if sample.shape[0] < PATTERN_LENGTH_MIN:
        return None
    low, high = int(sample.min()), int(sample.max())
    if low < 0:
        return None
    for bits, kind in ((16, "16-bit"), (8, "8-bit")):
        if 2**bits >= V and 2**bits <= high:
            pieces = [sample >> shift & 2**bits - 1 for shift in range(0, 64, bits)]
            if all(bool((piece < V).all()) for piece in pieces):
                return say("several {kind} ids were read as one wider number", kind=kind)
    if high < 65_536 and V < 65_536:
        swapped = (sample & 255) << 8 | sample >> 8
        if bool((swapped < V).all()):
            return say("the two bytes of each id are swapped (big-endian against little-endian)")
    if high < 2**31:
        as_float = sample.to(torch.int32).view(torch.float32)
        if bool(((as_float == as_float.round()) & (as_float >= 0) & (as_float < V)).all()):
            return say("the ids were stored as 32-bit floats and read as whole numbers")
    return None


def _traces(flat: Tensor, V: int, numbers: dict[str, Any], name: str) -> CheckResult | None:
    """Look for mistakes that leave every id in range."""
    numbers["name"] = name
    k = has_zero_places(flat)
    if k is not None:
        return verdict(
            Status.FAIL,
            "range.wrong_dtype",
            say("{name} hold a token in one place of {k}, and zeros in the others", name=name, k=k),
            measured=say("{share:%} of the ids are 0", share=_share_of_zeros(flat)),
            expected=say("a token in every place"),
            causes=(say("the ids were written with {k} times the width they are read with", k=k),),
            next_step=say("read the file with the type that it was written with"),
            numbers={**numbers, "places": k},
        )
    if numbers["count"] >= PATTERN_LENGTH_MIN and numbers["min"] == numbers["max"] and V > 1:
        return _warning(
            "range.constant",
            say(
                "all {count} {name} are {id}", count=numbers["count"], name=name, id=numbers["min"]
            ),
            numbers,
            say("the ids were never filled in, or all of the text is unknown to the tokenizer"),
        )
    if V >= WRAP_VOCAB_MIN and numbers["max"] == 255:
        distinct = int(flat[:PIECE_LENGTH].long().unique().shape[0])
        if distinct >= WRAP_DISTINCT_MIN:
            return _warning(
                "range.wrapped",
                say("{name} fill 0 to 255 and stop there, in a vocabulary of {V}", name=name, V=V),
                {**numbers, "distinct": distinct},
                say("the ids were stored in 8 bits, and larger ones wrapped round"),
            )
    return None


def _share_of_zeros(flat: Tensor) -> float:
    return float((flat[:4096].long() == 0).float().mean())


def _with_origin(result: CheckResult, probe: Probe, limit: int) -> CheckResult:
    """Say that the embedding is what limits the ids, where it has fewer rows than V."""
    if limit >= probe.vocab_size:
        return result
    cause = say(
        "the embedding has {rows} rows for a vocabulary of {V}", rows=limit, V=probe.vocab_size
    )
    return dataclasses.replace(result, causes=(cause, *result.causes))


def _not_integer(ids: Tensor, name: str) -> CheckResult:
    flat = ids.flatten()[:PIECE_LENGTH]
    fractions = int((~(flat == flat.round())).sum()) if ids.is_floating_point() else 0
    return verdict(
        Status.FAIL,
        "range.not_integer",
        say(
            "{name} are {dtype}, not whole numbers",
            name=name,
            dtype=str(ids.dtype).removeprefix("torch."),
        ),
        measured=say("{dtype}, first value {first}", dtype=str(ids.dtype), first=flat[0].item()),
        expected=say("int64"),
        where=say("{count:value is|values are} no whole numbers", count=fractions)
        if fractions
        else "",
        causes=(say("the ids passed through a division, a mean or a float array"),)
        if fractions
        else (),
        next_step=say("ids.long(), where they are read"),
        numbers={"dtype": str(ids.dtype), "fractions": fractions, "name": name},
    )


def _small_type(ids: Tensor, vocab_size: int, name: str) -> CheckResult:
    largest = torch.iinfo(ids.dtype).max
    return verdict(
        Status.FAIL,
        "range.dtype_too_small",
        say(
            "{name} are {dtype}, which holds nothing above {largest}, for a vocabulary of {V}",
            name=name,
            dtype=str(ids.dtype).removeprefix("torch."),
            largest=largest,
            V=vocab_size,
        ),
        measured=say("{dtype}", dtype=str(ids.dtype)),
        expected=say("a type that holds {last}", last=vocab_size - 1),
        causes=(say("ids above {largest} wrapped round when they were stored", largest=largest),),
        next_step=say("encode the text again, and store the ids in a type that holds V - 1"),
        numbers={"dtype": str(ids.dtype), "vocab_size": vocab_size, "name": name},
    )


def _warning(reason: str, claim: Text, numbers: dict[str, Any], cause: Text) -> CheckResult:
    return CheckResult(
        check="range",
        status=Status.WARN,
        reason=reason,
        claim=claim,
        measured=say("{low} to {high}", low=numbers["min"], high=numbers["max"]),
        causes=(cause,),
        next_step=say("decode the first 200 ids, and read them"),
        numbers=numbers,
    )
