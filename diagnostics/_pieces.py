"""What single ids mean as text: for a picture or a table, in which a person reads the ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from diagnostics._tokenizer import TokenizerReader

PIECE_LENGTH_MAX = 40  # characters shown of one id; a special token can be a whole sentence


def pieces_of(tokenizer: Any, ids: Iterable[int]) -> dict[str, str]:
    """Return {"<id>": decoded text} for each of the ids, each decoded alone.

    An id for which decode raises or gives no str is left out, and so is a negative one, which a
    table would read from its end. Half a character of a byte-level vocabulary decodes to U+FFFD.
    tokenizer: None, or anything without encode and decode, gives no pieces.
    """
    try:
        reader = TokenizerReader(tokenizer)
    except TypeError:
        return {}
    pieces: dict[str, str] = {}
    for token_id in sorted({*ids}):
        if token_id < 0:
            continue
        try:
            piece = reader.decode([token_id])
        except Exception:  # any: the user's decode; `roundtrip` judges it
            continue
        if isinstance(piece, str):
            pieces[str(token_id)] = str(piece[:PIECE_LENGTH_MAX])
    return pieces
