"""The histogram of ids: counts that fit on paper, and ids that are no ids."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

from diagnostics import Pipeline, Status, check_range, diagnose
from diagnostics._id_histogram import PIECE_LENGTH, measure_histogram
from tests.diagnostics.tiny import Bigram


def test_each_id_of_a_small_vocabulary_has_a_bin_of_its_own() -> None:
    """2 twice, 0 once, 1 and 3 never."""
    assert measure_histogram(torch.tensor([2, 0, 2]), 4) == {
        "vocab_size": 4,
        "bins": [[0, 0, 1], [1, 1, 0], [2, 2, 2], [3, 3, 0]],
        "unused": 2,
        "top": [[2, 2], [0, 1]],
    }


def test_ids_outside_the_vocabulary_have_bins_outside_it() -> None:
    """-100, -1 and -1 lie below; 4 and 2^40 above; none of them is unused or common."""
    found = measure_histogram(torch.tensor([-100, -1, 0, 4, -1, 2**40]), 4)
    assert found is not None
    assert found["bins"] == [
        [-100, -1, 3],
        [0, 0, 1],
        [1, 1, 0],
        [2, 2, 0],
        [3, 3, 0],
        [4, 2**40, 2],
    ]
    assert (found["unused"], found["top"]) == (3, [[0, 1]])


@pytest.mark.parametrize("V", [1, 126, 127, 252, 253, 50_257, 2**20])
def test_bins_cover_the_vocabulary_once(V: int) -> None:
    """At most 126 inside, so that with both outer ones 128 are never exceeded."""
    found = measure_histogram(torch.tensor([0, V - 1, V, -1]), V)
    assert found is not None
    bins = found["bins"]
    assert len(bins) <= 128
    assert bins[0] == [-1, -1, 1]
    assert bins[-1] == [V, V, 1]
    assert all(later[0] == earlier[1] + 1 for earlier, later in itertools.pairwise(bins))
    assert sum(count for _, _, count in bins) == 4


def test_ids_that_are_ignored_are_not_counted() -> None:
    found = measure_histogram(torch.tensor([[-100, 1], [1, -100]]), 2, ignore_index=-100)
    assert found is not None
    assert found["bins"] == [[0, 0, 0], [1, 1, 2]]


def test_the_ten_commonest_come_first_and_of_equals_the_smaller_id() -> None:
    ids = torch.tensor([*range(20), 19])
    found = measure_histogram(ids, 30)
    assert found is not None
    assert found["top"] == [[19, 2], *([i, 1] for i in range(9))]


def test_a_long_stream_is_counted_in_pieces() -> None:
    """The second piece holds one id more than the first."""
    ids = torch.zeros(PIECE_LENGTH + 1, dtype=torch.uint8)
    ids[-1] = 1
    found = measure_histogram(ids, 2)
    assert found is not None
    assert found["bins"] == [[0, 0, PIECE_LENGTH], [1, 1, 1]]


def test_a_vocabulary_that_no_tokenizer_has_is_not_counted() -> None:
    assert measure_histogram(torch.tensor([0]), 2**40) is None
    assert "histogram" not in check_range(torch.tensor([0]), 2**40).numbers


def test_the_check_gives_it_for_a_pass_a_warning_and_a_failure() -> None:
    good, bad = check_range(torch.tensor([0, 1]), 2), check_range(torch.tensor([0, 2]), 2)
    constant = check_range(torch.ones(64, dtype=torch.long), 2)
    small = check_range(torch.tensor([1, 2], dtype=torch.uint8), 300)
    assert [r.status for r in (good, bad, constant, small)] == [
        Status.PASS,
        Status.FAIL,
        Status.WARN,
        Status.FAIL,
    ]
    assert good.numbers["histogram"]["bins"] == [[0, 0, 1], [1, 1, 1]]
    assert bad.numbers["histogram"]["bins"] == [[0, 0, 1], [1, 1, 0], [2, 2, 1]]
    assert constant.numbers["histogram"]["top"] == [[1, 64]]
    assert small.numbers["histogram"]["unused"] == 298
    assert good.numbers["histogram"]["name"] == "ids"


def test_what_holds_no_whole_numbers_has_none() -> None:
    assert "histogram" not in check_range(torch.tensor([0.5]), 2).numbers
    assert "histogram" not in check_range(torch.tensor([], dtype=torch.long), 2).numbers


class _Words:
    """Ids 0 and 1 have a text; for others decode raises."""

    vocab_size = 4

    def encode(self, text: str) -> list[int]:
        return [0] * len(text)

    def decode(self, ids: list[int]) -> str:
        return "".join(["a", "b"][i] for i in ids)


def _numbers(**parts: Any) -> dict[str, Any]:
    pipeline = Pipeline(Bigram(4), vocab_size=4, **parts)
    return dict(diagnose(pipeline, only=["range"])["range"].numbers)


def test_a_pipeline_shows_the_ids_it_trains_on_with_their_text() -> None:
    histogram = _numbers(train_ids=torch.tensor([1, 1, 2]), tokenizer=_Words())["histogram"]
    assert histogram["name"] == "train_ids"
    assert histogram["top"] == [[1, 2], [2, 1]]
    assert histogram["pieces"] == {"1": "b"}


def test_a_pipeline_shows_the_ids_that_fail() -> None:
    numbers = _numbers(train_ids=torch.tensor([1, 1]), val_ids=torch.tensor([0, 9]))
    assert numbers["histogram"]["name"] == "val_ids"
    assert numbers["histogram"]["bins"][-1] == [9, 9, 1]


def test_one_bad_pad_id_is_shown_beside_what_the_model_trains_on() -> None:
    numbers = _numbers(train_ids=torch.tensor([1, 1]), pad_id=4)
    assert (numbers["name"], numbers["histogram"]["name"]) == ("pad_id", "train_ids")
