"""Whether an id stands in the data as words and signs do, or fills it up as padding does.

Shapes: N ids of the stored row, R runs.
"""

from __future__ import annotations

import torch
from torch import Tensor

SHORT = 2  # an empty line is two newlines in a row
SHORT_SHARE_MIN = 0.75  # of runs; rows padded by up to 8 give a quarter
RUNS_MIN = 8


def run_lengths(ids: Tensor, token: int) -> Tensor:
    """Return (R,): how many times in a row the token stands in ids (N,), run by run."""
    here = torch.nn.functional.pad((ids == token).long(), (1, 1))  # (N + 2,)
    edges = here.diff()
    return (edges == -1).nonzero()[:, 0] - (edges == 1).nonzero()[:, 0]


def stands_in_text(ids: Tensor | None, token: int) -> bool:
    """Whether the token stands among other ids, mostly alone, as no padding does.

    An end of text between documents does so as well.
    """
    if ids is None:
        return False
    lengths = run_lengths(torch.as_tensor(ids).flatten(), token)
    return len(lengths) >= RUNS_MIN and float((lengths <= SHORT).double().mean()) >= SHORT_SHARE_MIN


def runs_as_in_text(rows: Tensor, ids: Tensor | None, token: int) -> bool:
    """Whether no run of the token in rows (B, T) is longer than those of a text that holds it."""
    if ids is None or not stands_in_text(ids, token):
        return False
    longest = max((int(r.max()) for row in rows if len(r := run_lengths(row, token))), default=0)
    return longest <= int(run_lengths(torch.as_tensor(ids).flatten(), token).max())
