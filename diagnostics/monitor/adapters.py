"""Callbacks for two popular trainers; neither is imported before a callback is asked for.

    Trainer(..., callbacks=[transformers_callback(monitor)])            # transformers
    Trainer(..., callbacks=[lightning_callback(monitor)])               # lightning

Both call `monitor.step` after backward and before the optimizer, so that a NaN is found while the
weights that made it are still there. Micro-batches of one update are counted as one.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from diagnostics.monitor.training_monitor import TrainingMonitor


def transformers_callback(monitor: TrainingMonitor) -> Any:
    """Return a `transformers.TrainerCallback` that feeds the monitor.

    The trainer does not show losses and batches to callbacks, so a forward hook on the model notes
    them; it is taken off at the end of training. The norm is computed by the monitor and is the one
    after clipping. What `compute_loss` adds outside of the model (label smoothing) is not seen.
    Raises ImportError where transformers is not installed.
    """
    base: Any = importlib.import_module("transformers").TrainerCallback

    class MonitorCallback(base):
        """Hears of each update from the trainer, and of each forward pass from a hook."""

        def __init__(self) -> None:
            self.calls = _Calls()
            self.handle: Any = None

        def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            model = kwargs["model"]
            monitor.step_count = state.global_step  # a resumed run goes on counting
            self.handle = model.register_forward_hook(self.calls.note, with_kwargs=True)

        def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss = self.calls.take()
            if loss is None:
                return
            optimizer = kwargs.get("optimizer")
            monitor.step(
                loss,
                kwargs["model"],
                getattr(optimizer, "optimizer", optimizer),  # accelerate wraps it
                inputs=self.calls.inputs,
            )

        def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            loss = (kwargs.get("metrics") or {}).get("eval_loss")
            if loss is not None:
                monitor.evaluation(loss)

        def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.handle is not None:
                self.handle.remove()
            monitor.close()

    return MonitorCallback()


def lightning_callback(monitor: TrainingMonitor) -> Any:
    """Return a `lightning.pytorch.Callback` that feeds the monitor.

    The norm is computed by the monitor and is the one before clipping, which Lightning does later.
    A replay calls the module on the batch (`module(inputs)` for a batch of inputs and targets), so
    a `forward` that differs from `training_step` belongs into `TrainingMonitor(forward=...)`.
    Raises ImportError where neither lightning nor pytorch_lightning is installed.
    """
    base: Any = _lightning().Callback

    class MonitorCallback(base):
        """Collects losses and batches, and reports each update before the optimizer steps."""

        def __init__(self) -> None:
            self.losses: list[Tensor] = []
            self.batch: Any = None
            self.evaluation: Any = None

        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            monitor.step_count = trainer.global_step

        def on_train_batch_start(
            self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
        ) -> None:
            self.batch = batch

        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            self.losses.append(loss.detach())

        def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            if not self.losses:
                return
            # Lightning has divided each by the number of micro-batches already
            loss = self.losses[0] if len(self.losses) == 1 else sum(self.losses[1:], self.losses[0])
            self.losses.clear()
            inputs, targets = _parts(self.batch)
            monitor.step(
                loss,
                pl_module,
                getattr(optimizer, "optimizer", optimizer),
                inputs=inputs,
                targets=targets,
            )

        def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
            if not trainer.sanity_checking:
                self.evaluation = monitor.evaluating(pl_module)
                self.evaluation.__enter__()

        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            if self.evaluation is not None:
                self.evaluation.__exit__(None, None, None)
                self.evaluation = None
                loss = trainer.callback_metrics.get("val_loss")
                if loss is not None:
                    monitor.evaluation(float(loss))

        def on_train_end(self, trainer: Any, pl_module: Any) -> None:
            monitor.close()

    return MonitorCallback()


class _Calls:
    """The loss and the batch of each forward pass in train mode since the last update."""

    def __init__(self) -> None:
        self.losses: list[Tensor] = []
        self.inputs: Any = None
        self.summed = False

    def note(self, module: Any, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Be a forward hook."""
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if not module.training or not isinstance(loss, Tensor):
            return
        # with the count of all tokens the model gives its share, otherwise a mean of its own
        self.summed = kwargs.get("num_items_in_batch") is not None
        self.losses.append(loss.detach())
        self.inputs = kwargs or args

    def take(self) -> Tensor | None:
        """Return the loss of the update, and forget it."""
        if not self.losses:
            return None
        total = sum(self.losses[1:], self.losses[0])
        loss = total if self.summed else total / len(self.losses)
        self.losses.clear()
        return loss


def _parts(batch: Any) -> tuple[Any, Any]:
    """Split a batch into inputs and targets where it is a pair."""
    if isinstance(batch, (tuple, list)) and len(batch) == 2:
        return batch[0], batch[1]
    return batch, None


def _lightning() -> Any:
    try:
        return importlib.import_module("lightning.pytorch")
    except ImportError:
        return importlib.import_module("pytorch_lightning")
