"""Whether an id stands in the data as words and signs do, or fills it up as padding does.

Shapes: N ids of the stored row, R runs.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

SHORT = 2  # an empty line is two newlines in a row
SHORT_SHARE_MIN = 0.75  # of runs; rows padded by up to 8 give a quarter
RUNS_MIN = 8


def run_lengths(ids: Tensor, token: int) -> Tensor:
    """Return (R,): how many times in a row the token stands in ids (N,), run by run."""
    values, lengths = _all_runs(ids)
    return lengths[values == token]


def stands_in_text(ids: Tensor | None, token: int) -> bool:
    """Whether the token stands among other ids, mostly alone, as no padding does.

    An end of text between documents does so as well.
    """
    return ids is not None and bool(standing_in_text(torch.as_tensor(ids), [token]))


def standing_in_text(ids: Tensor, tokens: Iterable[int]) -> list[int]:
    """Return those of the tokens that stand in ids as text does; the ids are read once."""
    values, lengths = _all_runs(ids.flatten())
    return [token for token in tokens if _as_in_text(lengths[values == token])]


def _as_in_text(lengths: Tensor) -> bool:
    return len(lengths) >= RUNS_MIN and float((lengths <= SHORT).double().mean()) >= SHORT_SHARE_MIN


def _all_runs(ids: Tensor) -> tuple[Tensor, Tensor]:
    """Return values (R,) and lengths (R,) of all runs of equal ids (N,), in order."""
    found: tuple[Tensor, Tensor] = torch.unique_consecutive(ids, return_counts=True)
    return found


def runs_as_in_text(rows: Tensor, ids: Tensor | None, token: int) -> bool:
    """Whether no run of the token in rows (B, T) is longer than those of a text that holds it."""
    if ids is None or not stands_in_text(ids, token):
        return False
    longest = max((int(r.max()) for row in rows if len(r := run_lengths(row, token))), default=0)
    return longest <= int(run_lengths(torch.as_tensor(ids).flatten(), token).max())
