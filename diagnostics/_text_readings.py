"""What became of a text on its way into stored ids: the usual faults, tried until one fits.

A fault is named only when it turns the whole of one into the other, or when pieces that were cut
out of one are found, or not found, in the other.
"""

from __future__ import annotations

import itertools
import unicodedata
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from diagnostics._lost_text import around, first_difference, without_accents
from diagnostics._stored_text import HEAD_LENGTH, MARGIN, Ids, StoredText
from diagnostics._text import Text, say

PIECE_LENGTH = 48  # characters; prose does not repeat itself for as long
SHORT_PIECE_LENGTH = 12  # characters of two or three words: they survive the shuffling of lines
PARTS = 8  # of a text, each of which has places that differ, where they lie all over it
ENDS_SHARE = 0.02  # of a text that is only looked at in pieces, which one of them may miss
SEARCHED_MAX = 2**26  # characters of text in which pieces are looked for
COUNTED_MAX = 2**22  # ids that are counted one by one; above are no ids of any vocabulary
ALIKE_MAX = 0.25  # distance of two counts of tokens: texts of one language and tokenizer, 0.05


@dataclass(frozen=True)
class TextFault:
    """reason: such as "text.reversed".    told: the fault, to follow "train_ids ...".

    warn: whether a healthy preparation can look like this.    place: the first character of
    train_text, or the first id, where the two part; None where the whole is at fault.
    """

    reason: str
    told: Text
    cause: Text | None = None
    warn: bool = False
    place: int | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)


def find_text_fault(side: StoredText) -> TextFault | None:
    """Return how stored ids and text differ, or None when the ids say what the text says."""
    stored = side.stored
    text = side.text if side.is_whole else side.text[: len(stored)]
    if side.is_whole and stored == text:
        return None
    for read in _READINGS:
        found = read(side, stored, text)
        if found is not None:
            return None if found is FITS else found
    return None


FITS = TextFault("text.ok", say("are train_text"))


# ---- readings, in the order in which they are tried ------------------------------------------


def _as_far_as_it_can(side: StoredText, stored: str, text: str) -> TextFault | None:
    """A tokenizer that gives parts up is compared with what it makes of the text itself."""
    if not side.is_lossy:
        return None
    again = side.fold(side.decode(np.array(side.true_head, dtype=np.int64)))
    length = min(len(again), len(stored)) - MARGIN
    return FITS if length >= MARGIN and again[:length] == stored[:length] else None


def _other_spaces(side: StoredText, stored: str, text: str) -> TextFault | None:
    """Only white space differs, in ids that stand for single characters."""
    if not side.is_whole or "".join(stored.split()) != "".join(text.split()):
        return None
    place = first_difference(text, stored)
    return TextFault(
        "text.spaces_differ",
        say(
            "hold other white space than train_text: {stored} instead of {text}",
            stored=around(stored, place),
            text=around(text, place),
        ),
        say("line ends or runs of spaces were changed before the text was encoded"),
        warn=True,
        place=place,
    )


def _part_of_text(side: StoredText, stored: str, text: str) -> TextFault | None:
    """One of the two is a part of the other, from its first character to its last."""
    if not side.is_whole or not stored:
        return None
    before = text.find(stored)
    if before >= 0:
        return _part(before, len(text) - before - len(stored), len(text))
    times = len(stored) // max(1, len(text))
    if times > 1 and stored == text * times:
        return TextFault(
            "text.repeated",
            say("hold train_text {times} times, one after the other", times=times),
            say("the ids of several passes were stored as one row"),
            warn=True,
            numbers={"times": times},
        )
    # a text that is given as a sample of what the ids say is no fault of theirs
    return FITS if text and text in stored else None


def _changed(side: StoredText, stored: str, text: str) -> TextFault | None:
    """The text was changed as a whole before it was encoded."""
    head = text[:HEAD_LENGTH]
    for name, change in CHANGES.items():
        changed = change(head)
        length = min(len(changed) - MARGIN, len(stored))
        unlike = changed[:length] != head[:length]
        if length >= MARGIN and changed[:length] == stored[:length] and unlike:
            return TextFault(
                "text.changed",
                say("hold another form of train_text: {name}", name=name),
                say("the text was changed before it was encoded: {name}", name=name),
                place=first_difference(head, stored),
                numbers={"change": name},
            )
    lost = sorted(set(text) - set(stored))
    if lost and "".join(char for char in text if char not in set(lost)) == stored:
        return TextFault(
            "text.characters_lost",
            say(
                "hold nothing of {count:character|characters}: {lost}",
                count=len(lost),
                lost=", ".join(ascii(char) for char in lost[:6]),
            ),
            say("characters that the tokenizer or the encoding lacks were skipped"),
            place=first_difference(text, stored),
            numbers={"lost": len(lost)},
        )
    return None


def _changed_places(side: StoredText, stored: str, text: str) -> TextFault | None:
    """As long as the text, and other characters in single places all over it."""
    if not side.is_whole or len(stored) != len(text):
        return None
    came, wanted = _codes(stored), _codes(text)
    places = np.flatnonzero(came != wanted)
    numbers = {"places": len(places), "share": len(places) / len(text)}
    sources, images = np.unique(wanted[places]), np.unique(came[places])
    if len(images) == 1 and np.isin(wanted, sources).sum() == len(places):
        return TextFault(
            "text.characters_lost",
            say(
                "hold {image} in {count:place|places} where train_text has {lost}",
                image=ascii(chr(images[0])),
                count=len(places),
                lost=", ".join(ascii(chr(code)) for code in sources[:6]),
            ),
            say("one token stands for all characters that the tokenizer does not know"),
            place=int(places[0]),
            numbers=numbers,
        )
    per_part = np.histogram(places, bins=PARTS, range=(0, len(text)))[0] * PARTS / len(text)
    if not 0 < per_part.min() <= per_part.max() <= 0.5:
        return None  # a stretch, or everything
    return TextFault(
        "text.part_differs",
        say(
            "differ from train_text in {share:%} of the places, all over it", share=numbers["share"]
        ),
        place=int(places[0]),
        numbers=numbers,
    )


def _moved_ids(side: StoredText, stored: str, text: str) -> TextFault | None:
    """The ids are the right ones, and stand backwards, twice, or with gaps."""
    true = np.array(side.true_head)
    n = len(true)
    if n < MARGIN:
        return None
    head, tail = side.plain_ids[:n], side.plain_ids[-n:][::-1]
    if np.array_equal(tail, true) and not np.array_equal(head, true):
        return TextFault(
            "text.reversed",
            say("hold train_text from its end to its beginning"),
            say("the row was flipped: [::-1] or flip()"),
        )
    for step in (2, 3, 4):
        for start in range(step):
            kept = true[start::step]
            if len(kept) >= MARGIN and np.array_equal(side.plain_ids[: len(kept)], kept):
                return TextFault(
                    "text.tokens_lost",
                    say("hold one token in {step} of train_text", step=step),
                    say(
                        "a slice with a step of {step}, or a file read with another width",
                        step=step,
                    ),
                    place=start,
                    numbers={"step": step},
                )
        if np.array_equal(
            side.plain_ids[: n // step * step], true.repeat(step)[: n // step * step]
        ):
            return TextFault(
                "text.tokens_doubled",
                say("hold each token of train_text {step} times in a row", step=step),
                say("repeat_interleave where repeat was meant, or a row written twice"),
                numbers={"step": step},
            )
    return None


def _found_in_pieces(side: StoredText, stored: str, text: str) -> TextFault | None:
    """Pieces of what is stored stand in the text, in their order, in another one, or not."""
    places = _places_in_text(side, PIECE_LENGTH)
    if not places:
        return None
    found = [place for place in places if place >= 0]
    share = len(found) / len(places)
    numbers = {"pieces_found": share}
    ordered = sum(b >= a for a, b in itertools.pairwise(found))
    if share >= 0.5 and len(found) > 1 and ordered < 0.9 * (len(found) - 1):
        return _reordered(numbers)
    if share == 1.0 and not side.is_whole:
        before, after = found[0], len(side.text) - found[-1] - PIECE_LENGTH
        apart = max(before, after) > ENDS_SHARE * len(side.text) and len(side.text) <= SEARCHED_MAX
        return _part(before, after, len(side.text)) if apart else FITS
    if share >= 0.5:
        return FITS if side.is_lossy else _hole(side, stored, text, share)
    if side.is_whole and not _same_counts(stored, text):
        return None if share < 0.1 else _hole(side, stored, text, share)
    short = _places_in_text(side, SHORT_PIECE_LENGTH)
    if sum(place >= 0 for place in short) >= 0.5 * len(short):
        return _reordered(numbers)
    if not side.is_whole:
        return None
    return TextFault(
        "text.scrambled",
        say("hold the tokens of train_text, all of them, in no order that the text has"),
        say("ids were shuffled one by one; documents or windows are what may be shuffled"),
        numbers=numbers,
    )


def _other_text(side: StoredText, stored: str, text: str) -> TextFault | None:
    """Nothing of one stands in the other: which of the two, text or tokenizer, is another one?"""
    true = np.array(side.true_head)
    alike = measure_distance(true, side.plain_ids[: 4 * len(true)])
    if alike <= ALIKE_MAX:
        return TextFault(
            "text.other_text",
            say("say something else than train_text, with the same tokens as often"),
            say("the text was replaced after it was encoded, or belongs to another split"),
            numbers={"distance": alike},
        )
    return TextFault(
        "text.ids_differ",
        say("do not say what train_text says"),
        place=first_difference(text, stored),
        numbers={"distance": alike},
    )


# ---- helpers ---------------------------------------------------------------------------------


def measure_distance(a: Ids, b: Ids) -> float:
    """Return half the sum of the differences of two relative counts of ids: 0 alike, 1 apart."""
    if not len(a) or not len(b):
        return 1.0
    size = min(int(max(a.max(), b.max())), COUNTED_MAX) + 1
    p, q = (np.bincount(np.minimum(ids, size - 1), minlength=size) / len(ids) for ids in (a, b))
    return float(np.abs(p - q).sum() / 2)


def _part(before: int, after: int, total: int) -> TextFault:
    return TextFault(
        "text.tail_missing" if after >= before else "text.head_missing",
        say(
            "hold {share:%} of train_text; {before:character|characters} before it and {after} "
            "after it are in no id",
            share=(total - before - after) / total,
            before=before,
            after=after,
        ),
        place=total - after if after >= before else 0,
        numbers={"missing_before": before, "missing_after": after, "text_characters": total},
    )


def _hole(side: StoredText, stored: str, text: str, share: float) -> TextFault:
    """Name the first stretch in which ids and text part, and what stands there."""
    start = first_difference(text, stored)
    end = 0
    shorter = min(len(text), len(stored)) - start
    if side.is_whole:
        end = min(first_difference(text[::-1], stored[::-1]), shorter)
    lost, came = len(text) - start - end, stored[start : len(stored) - end]
    numbers = {"pieces_found": share, "text_characters": lost, "stored_characters": len(came)}
    if side.is_whole and not came:
        return TextFault(
            "text.piece_missing",
            say("lack {count:character|characters} of train_text, from {a}", count=lost, a=start),
            say("a piece was dropped, or added to the text after it was encoded"),
            place=start,
            numbers=numbers,
        )
    if side.is_whole and len(came) >= MARGIN and len(set(came)) == 1:
        cause = say("a piece of the row was never written, and holds its first value")
    elif share < 1.0:
        cause = say("the text was changed after it was encoded, or a piece of the row is bad")
    else:
        cause = say("the text was changed after it was encoded")
    return TextFault(
        "text.part_differs",
        say(
            "part from train_text at character {a}: {came} instead of {text}",
            a=start,
            came=around(stored, start),
            text=around(text, start),
        ),
        cause,
        place=start,
        numbers=numbers,
    )


def _reordered(numbers: Mapping[str, Any]) -> TextFault:
    return TextFault(
        "text.reordered",
        say("hold the pieces of train_text in another order"),
        say("lines or documents were shuffled before they were encoded"),
        warn=True,
        numbers=numbers,
    )


def _places_in_text(side: StoredText, length: int) -> list[int]:
    """Where each piece stands in the text, -1 for nowhere; the search goes on from the last."""
    text = side.text[:SEARCHED_MAX]
    places: list[int] = []
    last = 0
    for piece in side.pieces(length):
        if len(piece) < length:
            continue
        place = text.find(piece, last)
        place = text.find(piece) if place < 0 else place
        places.append(place)
        last = place if place >= 0 else last
    return places


def _codes(text: str) -> Ids:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32).astype(
        np.int64
    )


def _same_counts(stored: str, text: str) -> bool:
    a, b = Counter(stored), Counter(text)
    apart = sum(abs(a[char] - b[char]) for char in a.keys() | b.keys())
    return apart <= 0.01 * len(text)


CHANGES: dict[str, Callable[[str], str]] = {
    "text.lower()": str.lower,
    "text.upper()": str.upper,
    "without accents": without_accents,
    **{
        f"Unicode {form}": lambda text, form=form: unicodedata.normalize(form, text)  # type: ignore[misc]
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    },
    "UTF-8 read as latin-1": lambda t: t.encode("utf-8", "replace").decode("latin-1"),
    "UTF-8 read as cp1252": lambda t: t.encode("utf-8", "replace").decode("cp1252", "replace"),
    'errors="ignore"': lambda text: text.encode("ascii", "ignore").decode(),
    'errors="replace"': lambda text: text.encode("ascii", "replace").decode(),
}

_READINGS = (
    _as_far_as_it_can,
    _other_spaces,
    _part_of_text,
    _changed,
    _changed_places,
    _moved_ids,
    _found_in_pieces,
    _other_text,
)
