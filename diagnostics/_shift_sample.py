"""A few rows of a batch to be read by a person, cut where there is something to see.

Shapes: B batch, T time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnostics._pieces import pieces_of

ROWS_MAX = 2
LENGTH_MAX = 32  # tokens of a row; the debug block
BEFORE = 8  # tokens shown before the place that matters, where the row is cut


def read_sample(
    inputs: Tensor,
    targets: Tensor,
    *,
    source: str,
    place: tuple[int, int] = (0, 0),
    tokenizer: Any = None,
    ignore_index: int = -100,
) -> dict[str, Any]:
    """Return rows of inputs and targets (B, T) as plain values, the row and column of place in it.

    source: where they come from, "batch", "get_batch", "counting" (data in which every id is its
    own position, which no tokenizer may decode) or "given".
    rows, first_column: which rows, and which column is the first shown.
    pieces: the text of each id, where there is a tokenizer, without ignore_index.
    """
    B, T = inputs.shape
    row, column = place
    rows = [row, *(other for other in range(B) if other != row)][:ROWS_MAX]
    first = 0 if column < LENGTH_MAX else max(0, min(column - BEFORE, T - LENGTH_MAX))
    window = slice(first, first + LENGTH_MAX)
    sample: dict[str, Any] = {
        "source": source,
        "rows": rows,
        "first_column": first,
        "inputs": _plain_rows(inputs, rows, window),
        "targets": _plain_rows(targets, rows, window),
    }
    if tokenizer is not None and source != "counting":
        ids = [i for part in ("inputs", "targets") for ids in sample[part] for i in ids]
        whole = (i for i in ids if isinstance(i, int) and i != ignore_index)
        sample["pieces"] = pieces_of(tokenizer, whole)
    return sample


def place_to_show(
    inputs: Tensor, targets: Tensor, *, wanted: int | None, ignore_index: int
) -> tuple[int, int]:
    """Return (row, column) of the first scored target that is not the input `wanted` later.

    Without one, or with wanted None: of the first scored target, as a masked prompt shows nothing;
    (0, 0) where nothing is scored.
    """
    scored = targets != ignore_index  # (B, T)
    found = scored
    if wanted is not None:
        last = inputs.shape[1] - wanted
        wrong = (targets[:, :last] != inputs[:, wanted:]) & scored[:, :last]
        found = wrong if wrong.any() else scored
    if not found.any():
        return 0, 0
    row, column = torch.nonzero(found)[0].tolist()
    return int(row), int(column)


def _plain_rows(ids: Tensor, rows: list[int], window: slice) -> list[list[Any]]:
    return [ids[row, window].tolist() for row in rows]
