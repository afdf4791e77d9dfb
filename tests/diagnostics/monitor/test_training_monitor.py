"""The monitor as a loop uses it: silent when all is well, once per problem, never in the way."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from diagnostics import TrainingMonitor
from diagnostics.monitor import Event
from diagnostics.monitor.training_monitor import read_rates
from tests.diagnostics.architectures import Llama
from tests.diagnostics.monitor.loops import V, batches, said, text, train
from tests.diagnostics.tiny import Bigram, TinyGPT


def zero_head() -> nn.Module:
    model = TinyGPT(V)
    nn.init.zeros_(model.head.weight)
    return model


@pytest.mark.parametrize(
    "make",
    [
        lambda: TinyGPT(V),
        lambda: TinyGPT(V, std=0.02, tied=True),
        lambda: TinyGPT(V, positions=False).bfloat16(),
        lambda: Bigram(V, std=0.0),
        zero_head,
    ],
    ids=["plain", "tied", "bfloat16", "zero table", "zero head"],
)
@pytest.mark.parametrize("rate", [3e-4, 3e-3])
@pytest.mark.parametrize("step_first", [False, True])
def test_healthy_runs_are_silent(
    make: Callable[[], nn.Module], rate: float, step_first: bool
) -> None:
    """Longer ones, in more designs, were measured by hand: see the module `losses`."""
    monitor = train(60, make(), rate=rate, step_first=step_first)
    assert said(monitor) == []
    assert monitor.notes == []
    assert "0 problems" in monitor.summary()


def test_watching_changes_nothing() -> None:
    """The same weights bit for bit, and the same random state, with and without a monitor."""

    def run(watched: bool) -> tuple[list[Tensor], Tensor]:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Embedding(V, 8), nn.Dropout(0.5), nn.ReLU(), nn.Linear(8, V))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        monitor = TrainingMonitor(model, optimizer, on_event=None) if watched else None
        data = batches(text())
        for _ in range(45):
            inputs, targets = next(data)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())
            loss.backward()
            if monitor is not None:
                monitor.step(loss, inputs=inputs, targets=targets)
            optimizer.step()
        return [p.detach() for p in model.parameters()], torch.get_rng_state()

    (plain, state), (seen, state_seen) = run(False), run(True)
    assert all(torch.equal(a, b) for a, b in zip(plain, seen, strict=True))
    assert torch.equal(state, state_seen)


def test_a_problem_is_handed_on_once_and_counted() -> None:
    heard: list[Event] = []
    with TrainingMonitor(on_event=heard.append) as monitor:
        for _ in range(4):
            monitor.step(math.nan)
    assert [event.reason for event in heard] == ["monitor.loss_not_finite", "monitor.summary"]
    assert heard[1].claim == "1 problem in all, monitor.loss_not_finite 4 times"
    assert (monitor.events[0].count, monitor.events[0].last_step) == (4, 4)


def test_the_sentence_has_step_value_expectation_and_cause() -> None:
    monitor = TrainingMonitor(on_event=None)
    monitor.step(math.inf)
    assert str(monitor.events[0]) == (
        "[monitor] step 1: the loss is inf; expected a finite number. The step could not be run\n"
        "    again: the monitor was given no model (monitor.loss_not_finite)"
    )


def test_every_line_fits_the_terminal() -> None:
    monitor = train(3, rate=0.1, before=lambda model, step: model.eval())
    lines = [line for event in monitor.events for line in str(event).splitlines()]
    assert len(lines) > 2
    assert max(map(len, [*lines, *monitor.summary().splitlines()])) <= 88


def test_numbers_are_enough() -> None:
    """A trainer that has its numbers as floats needs no tensor, and nothing is read."""
    monitor = TrainingMonitor(on_event=None, clip_norm=1.0, schedule=lambda index: 0.5)
    for step in range(1, 13):
        monitor.step(2.0, learning_rate=0.25, grad_norm=3.0, clipped=step % 2 == 0)
    assert said(monitor) == [("rate_off_schedule", 10)]
    assert monitor.clipped_share == 0.5
    assert monitor._values.reads == 0
    update = monitor.history[-1]
    assert (update.step, update.loss, update.grad_norm) == (12, 2.0, 3.0)
    assert (update.learning_rates, update.clipped) == ((0.25,), True)


def test_history_is_a_ring_and_steps_may_go_on_from_a_checkpoint() -> None:
    monitor = TrainingMonitor(keep_steps=3, on_event=None)
    for step in range(100, 110):
        monitor.step(1.0, step=step)
    assert [update.step for update in monitor.history] == [107, 108, 109]
    assert monitor.step_count == 109


def test_a_device_is_waited_for_once_in_every_so_many_updates(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The CPU plays a device whose numbers are queued."""
    model = TinyGPT(V)
    monitor = TrainingMonitor(model, every=10, on_event=None, look_inside=False)
    monkeypatch.setattr(monitor, "_is_remote", lambda: True)
    monkeypatch.setattr("diagnostics.monitor.training_monitor.NEAR", frozenset())
    for step in range(1, 41):
        monitor.step(torch.tensor(math.nan if step == 33 else 1.0), grad_norm=torch.tensor(1.0))
        if step == 35:
            assert monitor.events == []
            assert monitor.history[-1].loss is None
    assert monitor._values.reads == 6  # at 1, 5, 10, 20, 30 and 40
    assert [(e.reason, e.step) for e in monitor.events] == [("monitor.loss_not_finite", 33)]
    assert math.isnan(monitor.history[32].loss or 0.0)


def test_a_running_sum_that_is_added_to_is_read_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnostics.monitor.training_monitor.NEAR", frozenset())
    monitor = TrainingMonitor(on_event=None, every=100)
    monkeypatch.setattr(monitor, "_is_remote", lambda: True)
    total = torch.tensor(1.0)
    for _ in range(3):
        monitor.step(total)
        total += 1
    monitor.flush()
    assert [update.loss for update in monitor.history] == [1.0, 2.0, 3.0]


def test_gradient_accumulation_that_calls_once_per_micro_batch() -> None:
    """Four calls per update: most of them see no movement, which is no problem."""
    model = TinyGPT(V)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    monitor = TrainingMonitor(model, optimizer, on_event=None)
    data = batches(text())
    for call in range(130):
        inputs, targets = next(data)
        (model(inputs, targets)[1] / 4).backward()
        monitor.step(model(inputs, targets)[1], inputs=inputs, targets=targets)
        if call % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
    assert said(monitor) == []


def test_models_and_optimizers_may_come_with_the_step() -> None:
    model = Llama(V)
    optimizer = torch.optim.AdamW(model.parameters())
    monitor = TrainingMonitor(on_event=None)
    monitor.step(3.0, model, [optimizer])
    assert monitor.history[0].learning_rates == (1e-3,)
    assert "parameters and modes" not in monitor.summary()


def test_the_summary_says_what_was_not_watched() -> None:
    monitor = TrainingMonitor(on_event=None)
    monitor.step(3.0)
    assert monitor.summary() == (
        "1 update, 0 problems\n"
        "  not watched: parameters and modes, because there is no model\n"
        "  not watched: batches, units and attention: step() is not given inputs\n"
        "  not watched: the schedule, because none was declared"
    )


def test_what_cannot_be_a_loss_is_refused() -> None:
    with pytest.raises(ValueError, match=r"one element, got shape \(2,\)"):
        TrainingMonitor(on_event=None).step(torch.ones(2))
    with pytest.raises(ValueError, match="every must be >= 1"):
        TrainingMonitor(every=0)


def test_rates_on_another_device_are_not_waited_for() -> None:
    parameter = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.5)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    assert read_rates([optimizer]) == (0.25,)
    optimizer.param_groups[0]["lr"] = torch.tensor(0.25, device="meta")
    assert read_rates([optimizer]) == ()


def test_the_default_writes_to_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    TrainingMonitor().step(math.nan)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("[monitor] step 1: the loss is nan")


def test_a_gradient_that_breaks_while_the_loss_is_finite(tmp_path: Path) -> None:
    model = TinyGPT(V)
    norm = model.blocks[0].norm2  # type: ignore[union-attr]
    forward = copy.copy(norm.forward)  # type: ignore[union-attr]
    norm.forward = lambda x: forward(x) + (x - x).sqrt()  # type: ignore
    monitor = train(1, model, clip=None, folder=tmp_path)
    assert said(monitor) == [("gradient_not_finite", 1)]
    assert monitor.events[0].numbers["module"] == "blocks.0.norm2"
