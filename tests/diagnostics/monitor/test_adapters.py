"""Callbacks: what the trainers call, in their order, with stand-ins for the trainers."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import TrainingMonitor
from diagnostics.monitor import lightning_callback, transformers_callback


class Model(nn.Module):
    """Gives a loss as transformers models do."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(1.0))

    def forward(self, input_ids: Tensor, **kwargs: Any) -> SimpleNamespace:
        return SimpleNamespace(loss=self.weight * input_ids.float().mean())


@pytest.fixture
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    transformers = ModuleType("transformers")
    transformers.TrainerCallback = type("TrainerCallback", (), {})  # type: ignore[attr-defined]
    lightning = ModuleType("lightning.pytorch")
    lightning.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "transformers", transformers)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", lightning)


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['transformers', 'lightning', "
        "'pytorch_lightning'])); from diagnostics.monitor import lightning_callback, "
        "transformers_callback"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.usefixtures("_stand_ins")
@pytest.mark.parametrize(("items", "loss"), [(None, 3.0), (2, 6.0)])
def test_transformers_micro_batches_are_one_update(items: int | None, loss: float) -> None:
    """Means of 2 and 4 are averaged; with a token count the model gives shares, to be summed."""
    model, monitor = Model(), TrainingMonitor(on_event=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    callback = transformers_callback(monitor)
    state = SimpleNamespace(global_step=7)
    callback.on_train_begin(None, state, None, model=model)
    for number in (2, 4):
        kwargs = {} if items is None else {"num_items_in_batch": items}
        model(input_ids=torch.tensor([[number]]), **kwargs).loss.backward()
    wrapper = SimpleNamespace(optimizer=optimizer)
    callback.on_pre_optimizer_step(None, state, None, model=model, optimizer=wrapper)
    model.eval()
    model(input_ids=torch.tensor([[9]]))  # an evaluation is not an update
    callback.on_evaluate(None, state, None, metrics={"eval_loss": 1.5})
    callback.on_train_end(None, state, None)
    (update,) = monitor.history
    assert (update.step, update.loss, update.grad_norm) == (8, loss, 6.0)
    assert update.learning_rates == (0.5,)
    assert monitor._evaluations.losses == [(8, 1.5, None)]
    assert len(model._forward_hooks) == 0


@pytest.mark.usefixtures("_stand_ins")
def test_lightning_hooks_in_their_order() -> None:
    """Two micro-batches; Lightning divides each loss by 2 before backward."""
    model, monitor = Model(), TrainingMonitor(on_event=None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    callback = lightning_callback(monitor)
    trainer = SimpleNamespace(
        global_step=0, sanity_checking=False, callback_metrics={"val_loss": torch.tensor(1.5)}
    )
    callback.on_train_start(trainer, model)
    for index, number in enumerate((2, 4)):
        batch = (torch.tensor([[number]]), torch.tensor([[0]]))
        callback.on_train_batch_start(trainer, model, batch, index)
        loss = model(batch[0]).loss / 2
        callback.on_before_backward(trainer, model, loss)
        loss.backward()
    callback.on_before_optimizer_step(trainer, model, optimizer)
    callback.on_validation_start(trainer, model)
    with torch.no_grad():
        model.weight.add_(1.0)
    callback.on_validation_end(trainer, model)
    callback.on_train_end(trainer, model)
    (update,) = monitor.history
    assert (update.step, update.loss, update.grad_norm) == (1, 3.0, 3.0)
    assert [event.reason for event in monitor.events] == ["monitor.evaluation_changes_weights"]
    assert monitor._evaluations.losses == [(1, 1.5, None)]


@pytest.mark.usefixtures("_stand_ins")
def test_lightnings_sanity_check_is_no_evaluation() -> None:
    callback = lightning_callback(TrainingMonitor(on_event=None))
    trainer = SimpleNamespace(sanity_checking=True, callback_metrics={"val_loss": 1.0})
    callback.on_validation_start(trainer, Model())
    callback.on_validation_end(trainer, Model())
    assert callback.evaluation is None
