"""Pieces of a text that an encoder cut at a maximum length, one by one, before they were joined.

The limit and the kind of piece are guessed from the first place at which ids and text part, and
believed only if cutting the whole text in this way gives what is stored.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from diagnostics._lost_text import first_difference
from diagnostics._stored_text import MARGIN, StoredText
from diagnostics._text import say
from diagnostics._text_readings import TextFault

KINDS = (("lines", "\n"), ("paragraphs", "\n\n"))
LOOKED_AT = 2**18  # characters that are cut again
CUT_MIN = 3  # pieces; one or two may be short for another reason
SLACK = 3  # tokens by which the limit may lie before the difference: what follows may begin alike


def find_cut_pieces(side: StoredText) -> TextFault | None:
    """Return the length at which lines or paragraphs of the text were cut, or None."""
    text = side.bare_text[:LOOKED_AT]
    if side.is_lossy or not side.stored:
        return None
    for kind, separator in KINDS:
        pieces = [piece + separator for piece in text.split(separator)]
        encoded = [side.encode(piece) for piece in pieces]
        for kept, end in _guesses(side, encoded, separator):
            limit = kept + len(side.encode(end))
            cut = [len(ids) - limit for ids in encoded if len(ids) > limit]
            if len(cut) >= CUT_MIN and _fits(side, encoded, kept, end):
                return _cut_at(kind, limit, cut, len(pieces))
    return None


def _guesses(
    side: StoredText, encoded: list[list[int]], separator: str
) -> Iterator[tuple[int, str]]:
    """Yield (tokens that are kept of a piece, what is put after them)."""
    place = first_difference(side.text, side.stored)
    for ids in encoded:
        told = _told(side, ids)
        if place < len(told):
            break
        place -= len(told)
    else:
        return
    kept = 0
    while kept < len(ids) and len(_told(side, ids[: kept + 1])) <= place:
        kept += 1
    for end in ("", separator):
        for tokens in range(kept, max(0, kept - SLACK - 1), -1):
            yield tokens, end


def _fits(side: StoredText, encoded: list[list[int]], kept: int, end: str) -> bool:
    """Whether what is stored is the text, with each piece cut to `kept` tokens and `end`."""
    limit = kept + len(side.encode(end))
    again = "".join(
        _told(side, ids) if len(ids) <= limit else _told(side, ids[:kept]) + side.fold(end)
        for ids in encoded
    )
    length = min(len(again), len(side.stored)) - MARGIN
    return length >= MARGIN and again[:length] == side.stored[:length]


def _told(side: StoredText, ids: list[int]) -> str:
    return side.fold(side.decode(np.array(ids, dtype=np.int64)))


def _cut_at(kind: str, limit: int, cut: list[int], pieces: int) -> TextFault:
    return TextFault(
        "text.pieces_cut",
        say(
            "hold at most {limit} tokens of each of the {kind} of train_text: {cut} of {pieces} "
            "are longer, and their last {lost} tokens are gone",
            limit=limit,
            kind=kind,
            cut=len(cut),
            pieces=pieces,
            lost=sum(cut),
        ),
        say(
            "{kind} are encoded one by one, and cut at a maximum length of {n}", kind=kind, n=limit
        ),
        numbers={"limit": limit, "cut": len(cut), "pieces": pieces, "lost": sum(cut)},
    )
