"""The rows that a report shows of a batch: which rows, which columns, which text."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from diagnostics import CheckResult, Pipeline, Status, check_shift, diagnose
from tests.diagnostics.tiny import Bigram

ROWS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9]])  # (3, 5)


class _Digits:
    """Id 7 is written "7"."""

    vocab_size = 10

    def encode(self, text: str) -> list[int]:
        return [int(character) for character in text]

    def decode(self, ids: list[int]) -> str:
        return "".join(map(str, ids))


def _shift(**parts: Any) -> CheckResult:
    return diagnose(Pipeline(Bigram(10), vocab_size=10, **parts), only=["shift"])["shift"]


def _cut(data: Tensor, moved: int = 1, T: int = 4) -> tuple[Tensor, Tensor]:
    starts = [0, 5, 10, 15]
    rows = torch.stack([data[s : s + T + moved] for s in starts])
    return rows[:, :T], rows[:, moved:]


def test_a_small_batch_is_shown_from_its_start() -> None:
    sample = check_shift(ROWS[:, :-1], ROWS[:, 1:]).numbers["sample"]
    assert sample == {
        "source": "given",
        "rows": [0, 1],
        "first_column": 0,
        "inputs": [[3, 1, 4, 1], [9, 2, 6, 5]],
        "targets": [[1, 4, 1, 5], [2, 6, 5, 3]],
    }


def test_a_tokenizer_gives_the_text_of_each_id_but_not_of_ignore_index() -> None:
    targets = ROWS[:, 1:].clone()
    targets[0, 0] = -100
    sample = check_shift(ROWS[:, :-1], targets, tokenizer=_Digits()).numbers["sample"]
    assert sample["targets"][0] == [-100, 4, 1, 5]
    assert sample["pieces"] == {str(i): str(i) for i in (1, 2, 3, 4, 5, 6, 9)}


def test_a_long_row_is_cut_to_thirty_two_tokens() -> None:
    rows = torch.arange(101)[None]
    sample = check_shift(rows[:, :-1], rows[:, 1:]).numbers["sample"]
    assert (len(sample["inputs"]), len(sample["inputs"][0])) == (1, 32)
    assert sample["targets"][0] == list(range(1, 33))


def test_the_first_wrong_place_is_shown_with_what_comes_before() -> None:
    """Row 1, column 60 of 100: columns 52 to 83 are shown, and row 1 comes first."""
    rows = torch.arange(303).view(3, 101)
    targets = rows[:, 1:].clone()
    targets[1, 60] = 7
    result = check_shift(rows[:, :-1], targets)
    sample = result.numbers["sample"]
    assert result.reason == "shift.some_wrong"
    assert (sample["rows"], sample["first_column"]) == ([1, 0], 52)
    assert sample["targets"][0][8] == 7


def test_a_wrong_last_target_is_shown_at_the_end_of_its_row() -> None:
    """Of 40 columns the last 32."""
    data = torch.arange(200)
    inputs = torch.stack([data[s : s + 40] for s in (0, 50, 100)])
    targets = inputs + 1
    targets[2, -1] = 100
    result = check_shift(inputs, targets, data=data)
    sample = result.numbers["sample"]
    assert result.reason == "shift.wrapped_last"
    assert (sample["rows"], sample["first_column"]) == ([2, 0], 8)
    assert (sample["inputs"][0][-1], sample["targets"][0][-1]) == (139, 100)


def test_a_masked_prompt_is_passed_over() -> None:
    """The first 50 targets are ignored: columns 42 to 73 are shown."""
    rows = torch.arange(101)[None]
    targets = rows[:, 1:].clone()
    targets[:, :50] = -100
    result = check_shift(rows[:, :-1], targets)
    assert result.status is Status.PASS
    assert result.numbers["sample"]["first_column"] == 42


def test_a_batch_that_scores_nothing_is_shown_too() -> None:
    result = check_shift(ROWS[:, :-1], ROWS[:, 1:] * 0 - 100)
    assert result.reason == "shift.nothing_scored"
    assert result.numbers["sample"]["targets"] == [[-100] * 4, [-100] * 4]


def test_a_column_that_is_ignored_is_shown() -> None:
    rows = torch.arange(4 * 101).view(4, 101)
    targets = rows[:, 1:].clone()
    targets[:, 70] = -100
    result = check_shift(rows[:, :-1], targets)
    sample = result.numbers["sample"]
    assert (result.reason, sample["first_column"]) == ("shift.column_ignored", 62)
    assert sample["targets"][0][8] == -100


def test_a_loader_that_is_judged_on_counting_data_is_shown_on_the_real_data() -> None:
    """Positions would decode to nonsense; the text is what a person can read."""
    data = torch.tensor([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2])
    result = _shift(train_ids=data, get_batch=_cut, tokenizer=_Digits())
    sample = result.numbers["sample"]
    assert (result.status, sample["source"]) == (Status.PASS, "get_batch")
    assert sample["inputs"] == [[3, 1, 4, 1], [9, 2, 6, 5]]
    assert sample["pieces"]["9"] == "9"
    broken = _shift(train_ids=data, get_batch=lambda d: _cut(d, moved=2), tokenizer=_Digits())
    assert broken.reason == "shift.too_far"
    assert broken.numbers["sample"]["targets"][0] == [4, 1, 5, 9]


def test_without_real_data_the_counting_data_are_shown_and_not_decoded() -> None:
    sample = _shift(get_batch=_cut, tokenizer=_Digits()).numbers["sample"]
    assert (sample["source"], sample["inputs"][0]) == ("counting", [0, 1, 2, 3])
    assert "pieces" not in sample


def test_the_batch_of_another_loader_is_not_shown_as_what_was_judged() -> None:
    other = (ROWS[:, :-1], ROWS[:, 1:])
    assert _shift(get_batch=_cut, batch=other).numbers["sample"]["source"] == "counting"
    assert _shift(batch=other).numbers["sample"]["source"] == "batch"
