"""How far scores of equal distance lie apart, by hand and against a loop."""

from __future__ import annotations

import torch

from diagnostics._attention import lag_error


def test_scores_that_depend_on_the_distance_alone_do_not_lie_apart() -> None:
    """Entry (i, j) is i - j; what lies above the diagonal is not looked at."""
    i = torch.arange(5.0)
    scores = (i[:, None] - i[None, :]).expand(2, 3, 5, 5).clone()
    assert lag_error(scores) == 0.0
    scores[0, 0, 1, 3] = 100.0
    assert lag_error(scores) == 0.0


def test_one_score_that_stands_out() -> None:
    """Of the scores at distance 1, which are 1, one is 3: 2 apart, and the largest score is 4."""
    i = torch.arange(5.0)
    scores = i[:, None] - i[None, :]
    scores[3, 2] = 3.0
    assert lag_error(scores) == 2.0 / 4.0


def test_as_the_loop_over_diagonals_has_it() -> None:
    """The distance T - 1 has one score only, and nothing to be compared with."""
    scores = torch.randn(2, 4, 7, 7, generator=torch.Generator().manual_seed(0))
    apart = []
    for lag in range(6):
        diagonal = scores.diagonal(-lag, -2, -1)
        apart.append(float((diagonal.amax(-1) - diagonal.amin(-1)).max()))
    assert lag_error(scores) == max(apart) / float(scores.abs().max())
    assert lag_error(scores[..., :1, :1]) == 0.0
