"""What a page of a run remembers, from a loop or from a log."""

import itertools
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from diagnostics.page import RunHistory
from diagnostics.page._run_history import few_events, few_samples, plain_events, read_log
from diagnostics.page._thinning import POINTS_MAX

ROWS = [
    {"step": 0, "train_loss": None, "validation_loss": 4.0, "training_loss": 4.0},
    {"step": 10, "train_loss": 3.0, "validation_loss": 3.25, "training_loss": 3.0, "clipped": True},
    {"step": 20, "train_loss": 2.5, "validation_loss": 3.5, "training_loss": 2.5, "clipped": False},
]


def write_log(folder: Path, text: str) -> Path:
    path = folder / "log.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def test_a_log_gives_the_numbers_of_its_rows(tmp_path: Path) -> None:
    path = write_log(tmp_path, "".join(json.dumps(row) + "\n" for row in ROWS))
    run = RunHistory.from_log(path, vocab_size=65)
    assert run.points("train_loss") == [(10, 3.0), (20, 2.5)]
    assert run.points("validation_loss") == [(0, 4.0), (10, 3.25), (20, 3.5)]
    assert run.gap() == [(0, 0.0), (10, 0.25), (20, 1.0)]
    assert (run.step, run.vocab_size, run.state.kind) == (20, 65, "unknown")
    assert run.clipped_share == 0.5
    assert run.best == (10, 3.25)


def test_the_evaluation_before_the_first_update_is_no_candidate_for_the_best() -> None:
    run = RunHistory()
    run.add(0, {"validation_loss": 1.0})
    assert run.best is None
    run.add(5, {"validation_loss": 2.0})
    assert run.best == (5, 2.0)


def test_what_is_no_row_is_left_out(tmp_path: Path) -> None:
    """A line cut short by a crash, one of another kind, and numbers that no JSON holds."""
    lines = [
        '{"step": 1, "train_loss": "nan", "note": "\u2028", "grad_norm": [1]}',
        "[1, 2]",
        '{"train_loss": 3.0}',
        '{"step": "inf", "train_loss": 3.0}',
        '{"step": 2, "train_lo',
    ]
    path = write_log(tmp_path, "\n".join(lines))
    assert [row["step"] for row in read_log(path)] == [1]
    run = RunHistory.from_log(path)
    assert list(run.series) == ["train_loss"]
    assert math.isnan(run.points("train_loss")[0][1])


def test_a_file_without_a_row_is_refused(tmp_path: Path) -> None:
    path = write_log(tmp_path, "hello\n")
    with pytest.raises(ValueError, match=r"no line of .*log\.jsonl is a JSON object"):
        RunHistory.from_log(path)
    with pytest.raises(FileNotFoundError):
        RunHistory.from_log(tmp_path / "none")


def test_memory_stays_bounded() -> None:
    run = RunHistory()
    for step in range(10_000):
        run.add(step, {"loss": float(step)})
        run.add_sample(step, "x" * 5_000)
    assert len(run.series["train_loss"]) < 2 * POINTS_MAX
    assert len(run.samples) <= 31
    assert {len(sample.text) for sample in run.samples} == {2_000}


def test_the_first_the_last_ten_and_some_between_are_kept() -> None:
    run = RunHistory()
    for step in range(1_000):
        run.add_sample(step, "text")
    steps = [sample.step for sample in few_samples(run.samples)]
    assert steps[0] == 0
    assert steps[-10:] == list(range(990, 1_000))
    between = steps[1:-10]
    assert 8 <= len(between) <= 10
    assert max(b - a for a, b in itertools.pairwise(between)) < 300


def test_other_names_of_the_same_number() -> None:
    run = RunHistory()
    run.add(1, {"loss": 2.0, "lr": 0.1, "val_loss": 3.0, "mine": 4, "nothing": None})
    assert list(run.series) == ["train_loss", "learning_rate", "validation_loss", "mine"]


def test_no_number_is_refused_by_name() -> None:
    with pytest.raises(TypeError, match="loss must be a number, got str"):
        RunHistory().add(1, {"loss": "low"})


@pytest.mark.parametrize(
    "value", [torch.ones(2), np.ones(3), 1j, [1.0], 10**400, torch.empty((), device="meta")]
)
def test_what_is_no_number_costs_itself_alone(value: Any) -> None:
    run = RunHistory()
    with pytest.raises(TypeError, match="mine must be a number, got"):
        run.add(1, {"mine": value, "loss": torch.tensor(2.0, requires_grad=True) * 1})
    assert run.series == {"train_loss": [(1, 2.0)]}


@pytest.mark.parametrize("step", [None, "x", math.nan, 10**400, torch.ones(2)])
def test_a_step_that_is_no_number_is_refused(step: Any) -> None:
    with pytest.raises(TypeError, match="step must be"):
        RunHistory().add(step, {"loss": 1.0})


def test_scalars_of_other_libraries_are_numbers() -> None:
    run = RunHistory()
    run.add(np.int64(1), {"loss": np.float32(2.5), "lr": np.array([0.5]), "clipped": np.True_})
    assert (run.points("train_loss"), run.points("learning_rate")) == ([(1, 2.5)], [(1, 0.5)])
    assert run.clipped_share == 1.0


def test_a_step_that_is_told_twice_has_its_later_number() -> None:
    """Two names for one number, too; a nan of a step is never hidden."""
    run = RunHistory()
    run.add(1, {"loss": 2.0, "train_loss": 3.0, "mine": math.nan})
    run.add(1, {"loss": 4.0, "mine": 1.0})
    assert run.points("train_loss") == [(1, 4.0)]
    assert math.isnan(run.points("mine")[0][1])
    assert run.gaps == []


def test_steps_that_go_back_stay_in_order_and_are_told() -> None:
    run = RunHistory()
    for step, loss in ((1, 4.0), (5, 3.0), (3, 2.0), (5, 1.0), (2, 0.5)):
        run.add(step, {"loss": loss})
    assert run.points("train_loss") == [(1, 4.0), (2, 0.5), (3, 2.0), (5, 1.0)]
    assert run.gaps == [
        "The count of steps went back, from 5 to 3: where a step is told twice, its later number "
        "is shown."
    ]


def test_names_without_end_are_cut_and_told() -> None:
    run = RunHistory()
    for step in range(100):
        run.add(step, {f"name {step} " + "x" * 1000: 1.0})
    run.add(100, {"loss": 1.0})  # a name with a place of its own is always taken
    assert len(run.series) == 65
    assert max(map(len, run.series)) == 80
    assert run.gaps == ["Only the first 64 names of numbers are kept."]


def test_of_very_many_messages_the_first_and_the_last_stay() -> None:
    run = RunHistory()
    for number in range(1000):
        run.add_event(f"{number} " + "x" * 5000)
    kept = few_events(run.events)
    numbers = [int(event.split()[0]) for event in kept]
    assert (numbers[:50], numbers[50:]) == ([*range(50)], [*range(950, 1000)])
    assert len(run.events) + run.events_left_out == 1000
    assert len(run.events[0]) == 2000


def test_messages_of_any_kind_become_plain() -> None:
    assert plain_events(["slow", {"claim": "x", "step": 3}]) == [
        {"claim": "slow"},
        {"claim": "x", "step": 3},
    ]
