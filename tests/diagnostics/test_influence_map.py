"""The influence map in cells: what a picture shows, counted by hand."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline, Status, check_causal_independence, diagnose
from diagnostics._influence_map import influence_map
from tests.diagnostics.tiny import Bigram, TinyGPT, masked_mix


class _Lookup(nn.Module):
    """Logits at i are one-hot of the token at i + offset, clipped to the row."""

    def __init__(self, offset: int, V: int = 7) -> None:
        super().__init__()
        self.vocab_size, self.offset = V, offset
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, ids: Tensor) -> Tensor:
        places = (torch.arange(ids.shape[1]) + self.offset).clamp(0, ids.shape[1] - 1)
        return self.scale * functional.one_hot(ids[:, places], self.vocab_size)


def _map(model: nn.Module, T: int, **parts: Any) -> tuple[Status, dict[str, Any]]:
    row = torch.arange(T)[None] % 7
    result = check_causal_independence(model, row, vocab_size=7, **parts)
    return result.status, result.numbers["influence"]


def test_a_short_row_is_shown_pair_by_pair() -> None:
    """Four positions: a row reads, a column is replaced; numbers keep three digits."""
    influence = torch.tensor([[1.23456, 0, 0], [0.0004444, 2000.4, 0], [0, 1 / 3, 1e-12]])
    assert influence_map(influence, [0, 1, 2]) == {
        "length": 3,
        "step": 1,
        "rows": [[1.23, 0.0, 0.0], [0.000444, 2000.0, 0.0], [0.0, 0.333, 1e-12]],
    }


def test_tokens_that_were_not_replaced_are_null_and_no_number_is_lost() -> None:
    """NaN and infinity are written as words, as everywhere in our JSON."""
    influence = torch.tensor([[math.nan, 0.0], [math.inf, 1.0], [0.5, 2.0]])
    cells = influence_map(influence, [0, 2])
    assert cells["rows"] == [["nan", None, 0.0], ["inf", None, 1.0], [0.5, None, 2.0]]
    json.dumps(cells, allow_nan=False)


def test_a_long_row_is_shown_in_cells_that_hold_their_largest_change() -> None:
    """130 positions are 44 cells of 3; of (4, 3) = 5 and (5, 5) = 7 both lie in cell (1, 1)."""
    influence = torch.zeros(130, 130)
    influence[4, 3], influence[5, 5], influence[129, 0] = 5.0, 7.0, 2.0
    cells = influence_map(influence, list(range(130)))
    assert (cells["length"], cells["step"]) == (130, 3)
    assert len(cells["rows"]) == 44
    assert {len(row) for row in cells["rows"]} == {44}
    found = {(a, b): x for a, row in enumerate(cells["rows"]) for b, x in enumerate(row) if x}
    assert found == {(1, 1): 7.0, (43, 0): 2.0}
    assert cells["diagonal_leaks"] == []


def test_a_leak_inside_a_diagonal_cell_is_named_where_its_number_cannot_show_it() -> None:
    """Position 3 reads token 4: both lie in the second cell of 3, beside what may be read."""
    influence = torch.eye(130)
    influence[3, 4] = 1.0
    leaks = torch.zeros(130, 130, dtype=torch.bool)
    leaks[3, 4] = True
    assert influence_map(influence, list(range(130)), leaks)["diagonal_leaks"] == [1]


def test_a_nan_is_the_largest_of_its_cell() -> None:
    influence = torch.zeros(65, 65)
    influence[1, 0] = math.nan
    assert influence_map(influence, list(range(65)))["rows"][0][0] == "nan"


def test_the_map_stands_in_the_numbers_of_a_pass() -> None:
    """Every token moves its own position only; jitter leaves the scale near 1."""
    status, cells = _map(_Lookup(0), 4)
    assert status is Status.PASS
    moved = [[bool(x) for x in row] for row in cells["rows"]]
    assert moved == [[a == b for b in range(4)] for a in range(4)]


def test_the_map_stands_in_the_numbers_of_a_failure() -> None:
    """A model that peeks by one: rows 0 to 2 read the next token."""
    status, cells = _map(_Lookup(1), 4)
    assert status is Status.FAIL
    assert [[b for b, x in enumerate(row) if x] for row in cells["rows"]] == [[1], [2], [3], [3]]


def test_the_map_stands_in_the_numbers_of_a_warning_and_shows_the_leak() -> None:
    """A mask of -1e4 hides the future until the weights are ten times larger."""

    def mix(queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        return masked_mix(lambda i, j: j <= i, -1e4)(40 * queries, keys, values)

    torch.manual_seed(0)
    result = check_causal_independence(TinyGPT(C=32, mix=mix))
    assert result.status is Status.WARN
    cells, limit = result.numbers["influence"], result.numbers["limit"]
    future = [x for a, row in enumerate(cells["rows"]) for x in row[a + 1 :]]
    assert any(x == "inf" or (isinstance(x, float) and x > limit) for x in future)


def test_a_block_beyond_sixty_four_has_gaps_where_nothing_was_replaced() -> None:
    status, cells = _map(Bigram(7), 200)
    assert status is Status.PASS
    assert (cells["length"], cells["step"], len(cells["rows"])) == (200, 4, 50)
    assert any(x is None for x in cells["rows"][0])
    assert all(x is None or x == 0.0 for a, row in enumerate(cells["rows"]) for x in row[a + 1 :])


def test_a_model_that_is_declared_not_causal_is_not_measured() -> None:
    report = diagnose(Pipeline(_Lookup(1), causal=False), only=["causal_independence"])
    assert "influence" not in report["causal_independence"].numbers


@pytest.mark.parametrize("T", [2, 63, 64, 65, 128, 129, 1000])
def test_no_map_has_more_than_sixty_four_cells_a_side(T: int) -> None:
    cells = influence_map(torch.zeros(T, 1), [T - 1])
    assert len(cells["rows"]) <= 64
    assert cells["rows"][-1][-1] == 0.0
