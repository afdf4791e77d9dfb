"""How often each id occurs, in few enough numbers for a report and a picture.

Shapes: N ids, V entries of the vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

PIECE_LENGTH = 2**22  # ids counted at a time; a mapped file must not be copied whole
BINS_MAX = 126  # inside the vocabulary; two more hold the ids below and above it
TOP_COUNT = 10
VOCAB_MAX = 2**24  # a count for each id costs 128 MB there; no vocabulary comes near


def measure_histogram(
    ids: Tensor, vocab_size: int, *, ignore_index: int | None = None
) -> dict[str, Any] | None:
    """Return vocab_size, bins, unused and top of whole-numbered ids of any shape.

    bins: [first_id, last_id, count] in rising order, equally wide inside 0 to V - 1, the last one
    cut off at V - 1; ids below 0 and from V on, where there are any, in a bin of their own.
    unused: how many of the V ids never occur.    top: [id, count] of the ten commonest of them.
    None for a vocabulary of more than 16 million, which is not counted.
    """
    if vocab_size > VOCAB_MAX:
        return None
    counts = torch.zeros(vocab_size, dtype=torch.long)
    below: list[list[int]] = []  # [smallest, largest, count] of each piece that has such ids
    above: list[list[int]] = []
    flat = ids.flatten()
    for start in range(0, flat.shape[0], PIECE_LENGTH):
        piece = flat[start : start + PIECE_LENGTH].cpu().long()
        if ignore_index is not None:
            piece = piece[piece != ignore_index]
        low, high = map(int, piece.aminmax()) if piece.numel() else (0, 0)
        if low < 0 or high >= vocab_size:
            for outside, found in ((piece < 0, below), (piece >= vocab_size, above)):
                if outside.any():
                    ids_out = piece[outside]
                    found.append([int(ids_out.min()), int(ids_out.max()), ids_out.numel()])
            piece = piece[(piece >= 0) & (piece < vocab_size)]
        counts += torch.bincount(piece, minlength=vocab_size)
    ordered, order = counts.sort(descending=True, stable=True)  # of equals the smaller id first
    top = zip(order[:TOP_COUNT].tolist(), ordered[:TOP_COUNT].tolist(), strict=True)
    return {
        "vocab_size": vocab_size,
        "bins": [*_joined(below), *_bins(counts), *_joined(above)],
        "unused": int((counts == 0).sum()),
        "top": [[token_id, count] for token_id, count in top if count],
    }


def _bins(counts: Tensor) -> list[list[int]]:
    V = counts.shape[0]
    width = -(-V // BINS_MAX)
    return [
        [first, min(first + width, V) - 1, int(counts[first : first + width].sum())]
        for first in range(0, V, width)
    ]


def _joined(found: list[list[int]]) -> list[list[int]]:
    if not found:
        return []
    lows, highs, counts = zip(*found, strict=True)
    return [[min(lows), max(highs), sum(counts)]]
