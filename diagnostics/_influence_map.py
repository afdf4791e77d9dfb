"""The influence map made small enough for a report and a picture: at most 64 x 64 cells.

Shapes: T positions, J replaced tokens, k positions per side of a cell.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CELLS_MAX = 64  # per side: readable in a picture, and every pair of a debug block of its own
DIGITS = 3  # significant: more would only show in which order the sums were rounded


def influence_map(influence: Tensor, replaced: list[int], leaks: Tensor | None = None) -> Any:
    """Return {"length": T, "step": k, "rows": ...} of influence (T, J), as plain values.

    rows[a][b] is the largest change of a logit at positions a*k to a*k + k - 1 when one of the
    tokens b*k to b*k + k - 1 is replaced; None where none of them was, "nan" and "inf" as text.
    With k > 1 a cell on the diagonal holds pairs of both kinds, so that "diagonal_leaks" names
    those cells in which a pair of leaks (T, J) lies.
    """
    influence = influence.detach().cpu()
    T = influence.shape[0]
    k = -(-T // CELLS_MAX)
    side = -(-T // k)
    row_of_cell = torch.arange(T) // k  # (T,)
    columns: list[list[float | str] | None] = [None] * side
    for cell in range(side):
        picked = [j for j, position in enumerate(replaced) if position // k == cell]
        if picked:
            largest = influence[:, picked].amax(dim=1)  # (T,); a NaN wins
            columns[cell] = [
                _rounded(float(largest[row_of_cell == row].amax())) for row in range(side)
            ]
    rows = [[None if column is None else column[a] for column in columns] for a in range(side)]
    plain: dict[str, Any] = {"length": T, "step": k, "rows": rows}
    if k > 1:
        pairs = [] if leaks is None else torch.nonzero(leaks.cpu()).tolist()
        plain["diagonal_leaks"] = sorted({i // k for i, j in pairs if i // k == replaced[j] // k})
    return plain


def _rounded(number: float) -> float | str:
    rounded = float(f"{number:.{DIGITS}g}")
    return rounded if rounded - rounded == 0 else str(rounded)  # finite, or "nan", "inf"
