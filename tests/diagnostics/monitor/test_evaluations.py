"""Evaluations: the gap, and what they do to the model."""

from __future__ import annotations

import math
import random
from collections.abc import Callable

import pytest
import torch
from torch import nn

from diagnostics import TrainingMonitor
from diagnostics.monitor.evaluations import noise_of
from tests.diagnostics.monitor.loops import said


def judged(losses: list[tuple[float, float | None]]) -> list[str]:
    monitor = TrainingMonitor(on_event=None)
    for validation, training in losses:
        monitor.evaluation(validation, training)
    return [event.reason for event in monitor.events]


def test_overfitting_is_three_times_worse_while_training_goes_on() -> None:
    assert judged([(2.0, 1.9), (2.2, 1.5), (2.2, 1.4), (2.2, 1.3)]) == ["monitor.overfitting"]
    assert judged([(2.0, 1.9), (2.2, 1.5), (2.05, 1.4), (2.2, 1.3), (2.2, 1.2)]) == []
    assert judged([(2.0, 1.9), (2.2, 2.1), (2.2, 2.2), (2.2, 2.2)]) == []  # both rose


def test_validation_below_training_only_when_measured_alike() -> None:
    assert judged([(1.0, 1.5)] * 3) == ["monitor.validation_below_training"]
    assert judged([(1.0, 1.05)] * 3) == []
    assert judged([(1.0, None)] * 3) == []


def test_a_validation_loss_that_is_no_number() -> None:
    assert judged([(math.nan, None)]) == ["monitor.validation_not_finite"]


def make_model() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


def step_of(model: nn.Module) -> None:
    with torch.no_grad():
        model[0].weight.add_(1e-3)  # type: ignore[index,union-attr,operator]


def proper(model: nn.Module) -> None:
    model.eval()
    with torch.no_grad():
        model(torch.ones(3, 4))
    model.train()


def in_train_mode(model: nn.Module) -> None:
    model(torch.ones(3, 4))


@pytest.mark.parametrize(
    ("evaluate", "reasons"),
    [
        (proper, []),
        (step_of, ["evaluation_changes_weights"]),
        (in_train_mode, ["evaluation_changes_buffers", "evaluation_in_train_mode"]),
        (lambda model: model.eval(), ["evaluation_changes_modes"]),
    ],
)
def test_what_an_evaluation_changes(
    evaluate: Callable[[nn.Module], object], reasons: list[str]
) -> None:
    model = make_model()
    monitor = TrainingMonitor(model, on_event=None)
    with monitor.evaluating():
        evaluate(model)
    assert [reason for reason, _ in said(monitor)] == reasons
    assert all(len(m._forward_pre_hooks) == 0 for m in model.modules())


def test_drawing_is_a_note_and_seeding_a_problem() -> None:
    """The second evaluation leaves the state of the first: batches after it repeat."""
    monitor = TrainingMonitor(make_model(), on_event=None)
    for _ in range(2):
        random.random()
        with monitor.evaluating():
            torch.rand(3)
    assert monitor.events == []
    assert [note.reason for note in monitor.notes] == ["monitor.evaluation_draws"]
    for _ in range(2):
        torch.rand(1)
        with monitor.evaluating():
            torch.manual_seed(1)
    assert [(e.reason, e.numbers["sources"]) for e in monitor.events] == [
        ("monitor.evaluation_seeds", ["torch"])
    ]


def test_an_evaluation_that_raises_is_not_held_back() -> None:
    monitor = TrainingMonitor(make_model(), on_event=None)
    with pytest.raises(KeyError), monitor.evaluating():
        raise KeyError("loader")
    assert monitor.events == []


def test_a_model_is_needed() -> None:
    with pytest.raises(ValueError, match="needs a model"), TrainingMonitor().evaluating():
        pass


def test_a_lucky_best_is_no_overfitting() -> None:
    """Small evaluations that scatter by 0.2 about the same loss, and one that is lower."""
    noisy = [(2.4 + 0.2 * (-1) ** step, 2.0 - 0.01 * step) for step in range(8)]
    assert judged([*noisy, (1.9, 1.8), (2.5, 1.7), (2.3, 1.6), (2.5, 1.5), (2.3, 1.4)]) == []


def test_noise_is_what_a_line_leaves() -> None:
    """Residuals of a zigzag of +-1 about its neighbours are 2 each: 1.4826 * 2 / 1.2247."""
    assert noise_of([1.0 * step for step in range(10)]) == 0.0
    assert noise_of([(-1.0) ** step for step in range(10)]) == pytest.approx(2.4211, abs=1e-3)
    assert noise_of([1.0, 9.0, 2.0]) == 0.0


def test_an_evaluation_without_a_loss_is_told_plainly() -> None:
    with pytest.raises(ValueError, match="got NoneType"):
        TrainingMonitor(on_event=None).evaluation(None)  # type: ignore[arg-type]
