"""Shift: every right answer fits on paper, because the data are 0, 1, 2, ..."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import CheckResult, Pipeline, Status, check_shift, diagnose
from diagnostics._probe import Probe
from diagnostics._suite import _run_check
from diagnostics.shift import locate, measure_agreement

ROWS = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3], [5, 8, 9, 7, 9]])  # (3, 5)
INPUTS, TARGETS = ROWS[:, :-1], ROWS[:, 1:]


def _model() -> nn.Module:
    return nn.Embedding(10, 10)


def _run(**parts: Any) -> CheckResult:
    return _run_check("shift", Probe(Pipeline(_model(), vocab_size=10, **parts)))


def test_agreement_counts_equal_places_at_each_distance() -> None:
    """[3, 1, 4, 1] with itself moved by 2: 4 != 3, and 1 == 1, so that half agree."""
    row = torch.tensor([[3, 1, 4, 1]])
    shares = measure_agreement(row, row)
    assert shares == {-3: 0.0, -2: 0.5, -1: 0.0, 0: 1.0, 1: 0.0, 2: 0.5, 3: 0.0}


def test_locate_finds_every_start() -> None:
    """[1, 2] lies at 0 and 3 of [1, 2, 3, 1, 2]."""
    assert locate(torch.tensor([1, 2, 3, 1, 2]), torch.tensor([1, 2])).tolist() == [0, 3]
    assert locate(torch.tensor([1, 2]), torch.tensor([1, 2, 3])).tolist() == []


def test_right_shift_passes_and_counts_its_targets() -> None:
    """Three rows of four targets are twelve."""
    result = check_shift(INPUTS, TARGETS)
    assert result.status is Status.PASS
    assert result.reason == "shift.ok"
    assert result.claim == "all 12 targets are the token after their input"


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (INPUTS, "shift.identical"),
        (torch.cat([ROWS[:, 2:], ROWS[:, :1]], 1), "shift.too_far"),
        (torch.cat([ROWS[:, :1], INPUTS[:, :-1]], 1), "shift.backward"),
        (INPUTS.roll(-1, 1), "shift.wrapped_last"),
        (torch.cat([INPUTS[:, 1:], INPUTS[:, -1:]], 1), "shift.repeated_last"),
        (TARGETS.roll(1, 0), "shift.rows_mixed"),
        (TARGETS * 0 + 7, "shift.unrelated"),
    ],
)
def test_each_wrong_pairing_has_its_name(targets: Tensor, reason: str) -> None:
    """Every usual mistake is told apart from the others."""
    result = check_shift(INPUTS, targets)
    assert result.status is Status.FAIL
    assert result.reason == reason
    assert result.next_step


def test_one_wrong_target_is_found_with_its_place() -> None:
    """A single changed target in row 1, position 2 of twelve."""
    targets = TARGETS.clone()
    targets[1, 2] = 0
    result = check_shift(INPUTS, targets)
    assert result.reason == "shift.some_wrong"
    assert result.where == "1 of 9 places; first is row 1, position 2"


def test_last_column_is_judged_by_the_data() -> None:
    """0..9 cut at 2: the row 2, 3, 4 is followed by 5, and a last target of 8 is wrong."""
    data = torch.arange(10)
    inputs = torch.tensor([[2, 3, 4]])
    right, wrong = torch.tensor([[3, 4, 5]]), torch.tensor([[3, 4, 8]])
    assert check_shift(inputs, right, data=data).reason == "shift.ok"
    assert check_shift(inputs, wrong, data=data).reason == "shift.wrong_last"
    assert check_shift(inputs, wrong).reason == "shift.ok"  # nothing to judge it by


def test_few_symbols_do_not_make_a_wrapped_row_by_chance() -> None:
    """Three binary rows whose next token happens to equal their first one are not a mistake."""
    ids = torch.tensor([[0, 1, 1, 0], [1, 1, 0, 1], [0, 0, 1, 0]])
    assert check_shift(ids[:, :-1], ids[:, 1:]).reason == "shift.ok"


def test_only_the_last_column_scored_does_not_crash() -> None:
    """Classification-like targets: all but the last are ignored."""
    targets = TARGETS.clone()
    targets[:, :-1] = -100
    assert check_shift(INPUTS, targets).reason == "shift.ok"


def test_masked_prompt_and_masked_ends_pass() -> None:
    """Ignored targets are not judged, wherever they lie."""
    targets = TARGETS.clone()
    targets[:, :2] = -100
    targets[0, -1] = -100
    assert check_shift(INPUTS, targets).reason == "shift.ok"


def test_nothing_scored_fails() -> None:
    """A batch from which nothing is learnt is not a pass."""
    result = check_shift(INPUTS, torch.full_like(TARGETS, -100))
    assert (result.status, result.reason) == (Status.FAIL, "shift.nothing_scored")


def test_column_lost_between_two_pieces_warns() -> None:
    """Two halves of eight, each shifted on its own: the target at 3 is ignored in every row."""
    rows = torch.arange(36).view(4, 9)
    targets = rows[:, 1:].clone()
    targets[:, 3] = -100
    result = check_shift(rows[:, :-1], targets)
    assert (result.status, result.reason) == (Status.WARN, "shift.column_ignored")
    assert result.numbers["column"] == 3


def test_same_labels_want_the_inputs_themselves() -> None:
    """With labels="same" equality is right, and a shifted batch is shifted twice."""
    assert check_shift(INPUTS, INPUTS, labels="same").status is Status.PASS
    assert check_shift(INPUTS, TARGETS, labels="same").reason == "shift.already_shifted"


@pytest.mark.parametrize(
    ("inputs", "targets"), [(INPUTS, TARGETS[:, :-1]), (INPUTS[0], TARGETS[0]), (ROWS[:, :1],) * 2]
)
def test_wrong_shapes_are_refused(inputs: Tensor, targets: Tensor) -> None:
    """Two equal (B, T) with T >= 2 are wanted."""
    with pytest.raises(ValueError, match="must both have shape"):
        check_shift(inputs, targets)


def _sampler(offset: int) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a get_batch whose targets start `offset` after the inputs."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(data) - 10, (4, 1))
        places = starts + torch.arange(6)
        return data[places], data[places + offset]

    return get_batch


@pytest.mark.parametrize(
    ("offset", "reason"), [(1, "shift.ok"), (0, "shift.identical"), (2, "shift.too_far")]
)
def test_run_counts_in_data_of_its_own(offset: int, reason: str) -> None:
    """Even on text that repeats itself the counting data tell the distance."""
    constant = torch.zeros(100, dtype=torch.int64)
    assert _run(get_batch=_sampler(offset), train_ids=constant).reason == reason


def test_loader_bound_to_its_own_data_is_judged_there() -> None:
    """A loader that ignores the data it is given is not at fault; its own rows are located."""
    own = torch.randint(10, (300,), generator=torch.Generator().manual_seed(0))
    bound = _sampler(1)
    result = _run(get_batch=lambda data: bound(own), train_ids=own)
    assert result.reason == "shift.ok"


def test_without_any_batch_the_check_is_skipped() -> None:
    """SKIP names what would unlock it."""
    result = diagnose(Pipeline(_model(), vocab_size=10), only=["shift"])["shift"]
    assert result.status is Status.SKIP
    assert "get_batch" in result.next_step


def test_batch_is_left_alone() -> None:
    """The check reads and writes nothing."""
    inputs, targets = INPUTS.clone(), TARGETS.clone()
    check_shift(inputs, targets)
    assert torch.equal(inputs, INPUTS)
    assert torch.equal(targets, TARGETS)


def test_rows_of_one_token_are_not_measured() -> None:
    """Nothing follows inside the row, and no crash is the check's answer to that."""
    model = nn.Embedding(5, 5)
    one = torch.zeros(4, 1, dtype=torch.long)
    report = diagnose(Pipeline(model, batch=(one, one), block_size=1), only=["shift"])
    assert report["shift"].reason == "shift.missing_part"


def _right_padded(pad: int) -> tuple[Tensor, Tensor]:
    """Three rows of 5, 3 and 2 tokens: inputs and targets are cut first, and padded then."""
    inputs = torch.full((3, 5), pad)
    targets = torch.full((3, 5), -100)
    for row, ids in enumerate([[3, 1, 4, 1, 5, 9], [2, 6, 5, 3], [5, 8, 9]]):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        targets[row, : len(ids) - 1] = torch.tensor(ids[1:])
    return inputs, targets


@pytest.mark.parametrize("pad", [0, 7])
def test_the_last_target_before_padding_is_no_input(pad: int) -> None:
    """The end of a document is a target and never an input; what follows it is padding."""
    assert check_shift(*_right_padded(pad)).status is Status.PASS


def test_padding_hides_no_shift() -> None:
    """Two ahead is two ahead, whatever fills the rows up."""
    inputs, targets = _right_padded(0)
    wrong = torch.where(targets == -100, -100, inputs)
    assert check_shift(inputs, wrong).reason == "shift.identical"
