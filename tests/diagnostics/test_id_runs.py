"""Runs of equal ids, counted by hand."""

from __future__ import annotations

import pytest
import torch

from diagnostics._id_runs import run_lengths, standing_in_text, stands_in_text

IDS = torch.tensor([7, 7, 7, 1, 7, 2, 2, 7, 7])


@pytest.mark.parametrize(("token", "lengths"), [(7, [3, 1, 2]), (2, [2]), (1, [1]), (5, [])])
def test_lengths_of_runs_in_order(token: int, lengths: list[int]) -> None:
    assert run_lengths(IDS, token).tolist() == lengths


def test_no_ids_have_no_runs() -> None:
    assert run_lengths(IDS[:0], 7).tolist() == []
    assert standing_in_text(IDS[:0], [7]) == []
    assert not stands_in_text(None, 7)


def test_what_stands_alone_often_is_text_and_what_fills_up_is_not() -> None:
    """Eight single 1s and eight pairs of 2s are text; seven 3s are too few; 0 fills up by fours."""
    text = torch.tensor([1, 2, 2] * 8 + [3, 1] * 7)
    padded = torch.cat([text, torch.tensor([0, 0, 0, 0, 9] * 8)])
    assert standing_in_text(padded, [0, 1, 2, 3, 9]) == [1, 2, 9]
    assert [token for token in (0, 1, 2, 3, 9) if stands_in_text(padded, token)] == [1, 2, 9]
