"""Whether ids can be a text at all, by their statistics alone: no text is needed beside them.

Shapes: N ids of the row.
"""

from __future__ import annotations

import numpy as np

from diagnostics._stored_text import Ids, StoredText
from diagnostics._text import say
from diagnostics._text_readings import TextFault

LOOKED_AT = 2**20  # ids from the middle of a long row
NEIGHBOURS_MIN = 20_000  # pairs; fewer give dependence by chance
CLASSES = 64  # the commonest ids have one each, the others share half of them
DISTINCT_MIN = 16  # neighbours of four letters, as in DNA, tell little about each other
DEPENDENCE_MIN = 0.01  # nats; characters and subwords of prose measure 0.1 to 1
FLAT_SHARE = 0.9  # of the highest entropy; characters of prose reach 0.8, subwords less
RUN_MIN = 1024  # equal ids in a row: lines of dashes and empty pages of a table are shorter
LETTERS_MIN = 20  # in a vocabulary of words
SPACE_SHARE_MIN = 0.02  # of characters; languages that write spaces have 0.13 to 0.2


def find_form_fault(side: StoredText) -> TextFault | None:
    """Return what speaks against a text, or None."""
    middle = max(0, len(side.ids) // 2 - LOOKED_AT // 2)
    ids = side.ids[middle : middle + LOOKED_AT]
    return _long_run(ids) or _independent(ids) or _no_words(side)


def measure_dependence(ids: Ids, *, seed: int = 0) -> float:
    """Return how much an id of (N,) tells about the next one, in nats; 0 for shuffled ids.

    Ids are put into 64 classes, and what shuffled ids seem to tell is taken away.
    """
    values, inverse, counts = np.unique(ids, return_inverse=True, return_counts=True)
    rank = np.argsort(np.argsort(-counts, kind="stable"))
    half = CLASSES // 2
    of_value = np.where(rank < half, rank, half + values % half)
    classes = of_value[inverse]
    shuffled = np.random.default_rng(seed).permutation(classes)
    return _mutual_information(classes) - _mutual_information(shuffled)


def measure_flatness(ids: Ids) -> float:
    """Return the entropy of single ids over the highest that so many different ones can have."""
    counts = np.unique(ids, return_counts=True)[1]
    p = counts / counts.sum()
    highest = np.log(len(counts))
    return float(-(p * np.log(p)).sum() / highest) if len(counts) > 1 else 0.0


def longest_run(ids: Ids) -> tuple[int, int]:
    """Return (length, start) of the longest run of equal ids."""
    edges = np.concatenate(([0], np.flatnonzero(np.diff(ids)) + 1, [len(ids)]))
    lengths = np.diff(edges)
    longest = int(lengths.argmax())
    return int(lengths[longest]), int(edges[longest])


def _long_run(ids: Ids) -> TextFault | None:
    length, start = longest_run(ids)
    if length < RUN_MIN:
        return None
    return TextFault(
        "text.one_token",
        say("hold the id {index} {length} times in a row", index=int(ids[start]), length=length),
        say("a piece of the row was never written, or is padding"),
        warn=True,
        numbers={"run": length, "id": int(ids[start])},
    )


def _independent(ids: Ids) -> TextFault | None:
    if len(ids) < NEIGHBOURS_MIN or len(np.unique(ids[:NEIGHBOURS_MIN])) < DISTINCT_MIN:
        return None
    dependence = measure_dependence(ids)
    if dependence >= DEPENDENCE_MIN:
        return None
    flatness = measure_flatness(ids)
    numbers = {"dependence": dependence, "flatness": flatness}
    if flatness >= FLAT_SHARE:
        return TextFault(
            "text.noise",
            say("are noise: an id says nothing about the next one, and all are about as common"),
            say("a file of another kind, or of ids of another width, was read as ids"),
            warn=True,  # tokens that were drawn at random on purpose look the same
            numbers=numbers,
        )
    return TextFault(
        "text.scrambled",
        say("hold tokens as common as in a text, and an id says nothing about the next one"),
        say("ids were shuffled one by one; documents or windows are what may be shuffled"),
        numbers=numbers,
    )


def _no_words(side: StoredText) -> TextFault | None:
    """A table of characters with letters and a space, in whose text hardly a space occurs."""
    characters = side.reader.characters
    if characters is None or " " not in characters or len(side.plain_ids) < NEIGHBOURS_MIN:
        return None
    if sum(char.isalpha() for char in characters) < LETTERS_MIN:
        return None
    told = side.decode(side.plain_ids[:NEIGHBOURS_MIN])
    spaces = sum(char.isspace() for char in told) / len(told)
    if spaces >= SPACE_SHARE_MIN:
        return None
    return TextFault(
        "text.no_words",
        say("decode to a text in which {share:%} of the characters are white space", share=spaces),
        say("the ids belong to a tokenizer with another order of characters"),
        warn=True,  # names and lists of codes have few spaces
        numbers={"spaces": spaces},
    )


def _mutual_information(classes: Ids) -> float:
    joint = np.bincount(classes[:-1] * CLASSES + classes[1:], minlength=CLASSES**2)
    p = joint.reshape(CLASSES, CLASSES) / joint.sum()
    independent = p.sum(1, keepdims=True) * p.sum(0, keepdims=True)
    seen = p > 0
    return float((p[seen] * np.log(p[seen] / independent[seen])).sum())
