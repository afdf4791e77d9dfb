"""Train and eval mode."""

from __future__ import annotations

import torch
from torch import nn

from diagnostics.monitor.events import Speaker
from diagnostics.monitor.modes import ModeWatch, depends_on_mode
from tests.diagnostics.monitor.loops import V, said, train
from tests.diagnostics.tiny import TinyGPT


def test_training_in_eval_mode_speaks_at_the_second_update_and_counts() -> None:
    monitor = train(5, before=lambda model, step: model.eval())
    assert said(monitor) == [("eval_mode", 2)]
    assert (monitor.events[0].count, monitor.events[0].last_step) == (4, 5)
    assert monitor.events[0].cause == "nothing in it depends on the mode yet; dropout would be off"


def test_one_update_after_an_evaluation_is_forgiven() -> None:
    monitor = train(6, before=lambda model, step: model.train(step != 3))
    assert said(monitor) == []


def test_a_part_that_was_left_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    model[1].eval()
    speaker = Speaker(None)
    ModeWatch(speaker).look(1, model)
    assert [e.reason for e in speaker.events] == ["monitor.partly_eval_mode"]
    assert speaker.events[0].numbers["modules"] == ["1.1"]


def test_a_frozen_part_and_one_without_dropout_may_be_in_eval_mode() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1)))
    model[1].eval().requires_grad_(False)
    model[0].eval()
    speaker = Speaker(None)
    ModeWatch(speaker).look(1, model)
    assert speaker.events == []


def test_what_depends_on_the_mode() -> None:
    class Functional(nn.Module):
        def __init__(self, p: float) -> None:
            super().__init__()
            self.dropout = p

    assert depends_on_mode(nn.Dropout(0.1))
    assert depends_on_mode(nn.BatchNorm1d(3))
    assert depends_on_mode(Functional(0.2))
    assert depends_on_mode(nn.LSTM(2, 2, num_layers=2, dropout=0.1))
    assert not depends_on_mode(nn.Dropout(0.0))
    assert not depends_on_mode(Functional(0.0))
    assert not depends_on_mode(nn.LayerNorm(3, eps=0.5))
    assert not any(depends_on_mode(m) for m in TinyGPT(V).modules())
    assert torch.is_grad_enabled()
