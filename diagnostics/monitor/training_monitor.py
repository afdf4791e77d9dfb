"""The monitor itself: takes what one update of any loop has, and hands it to the watches.

Where to call `step`: once per update, after backward, and before the next `zero_grad`. Before or
after `optimizer.step()` are both right: movement is measured from one call to the next, and the
gradients are there in both places. Called before, a NaN is found while the weights that made it are
still there; called after, they are gone when the loop did not skip the update, and the monitor says
so. After `zero_grad` there are no gradients, and nothing about them can be seen.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._text import Text, say
from diagnostics.monitor.activations import ActivationWatch
from diagnostics.monitor.batches import BatchWatch
from diagnostics.monitor.calls import Forward
from diagnostics.monitor.evaluations import EvaluationWatch
from diagnostics.monitor.events import Event, EventHandler, Speaker, to_stderr
from diagnostics.monitor.gradients import GradientWatch
from diagnostics.monitor.inquest import Inquest
from diagnostics.monitor.losses import LossWatch
from diagnostics.monitor.modes import ModeWatch
from diagnostics.monitor.parameters import ParameterWatch
from diagnostics.monitor.rates import RateWatch, Schedule
from diagnostics.monitor.staleness import StalenessWatch
from diagnostics.monitor.summary import closing, summarise
from diagnostics.monitor.update import Update, global_norm, one_number, read_rates
from diagnostics.monitor.values import Values

if TYPE_CHECKING:
    from diagnostics.page import RunPage

NEAR = frozenset({"cpu"})  # devices whose numbers are there without waiting
EARLY = frozenset({1, 5, 10})  # looks before the first regular one: some faults show at once
LOOKS_INSIDE = 5  # every so many looks one into the forward pass, which costs a third of an update


class TrainingMonitor:
    """Watches a training loop; speaks once per problem, never raises for what it finds.

    model, optimizer: may also be given to `step`; several optimizers as a list.
    vocab_size: V, for the plateau at ln V; None: read from `model.config`.
    unigram_entropy: nats; see `diagnostics.monitor.unigram_entropy`.
    schedule: (updates made before, 0 for the first) -> declared learning rate.
    clip_norm: the limit that the loop clips the global gradient norm to.
    keep_steps: updates in `history` and in a post-mortem.
    every: updates from one look at the parameters to the next. On a GPU also the most updates
        between which it is waited for: what is spoken there comes up to `every` updates late.
    on_event: called with each new `Event`, whose str() is the sentence; `print` will do. None: the
        events are only collected. The default writes to standard error. What it raises ends the
        training: so it can stop a run.
    folder: where post-mortems go; None: they are kept in `postmortem` and not written.
    forward: (model, inputs, targets) -> what the model returns, where the model is not called as
        `model(inputs, targets)`, `model(inputs)` or `model(**inputs)`.
    precision: makes the context of the forward pass, such as autocast.
    skips_non_finite: a loss scaler skips updates with infinite gradients, which is its design.
    look_inside: whether to look for dead units and collapsed attention, by a forward pass of a few
        rows every 5 * `every` updates, for which `step` needs `inputs`.
    page: shows the run while it trains: updates, evaluations and messages as they are seen here,
        and how it ended. See `diagnostics.page.RunPage`.

    As a context manager it reads what is left, writes a post-mortem when the block raises, and
    lets every exception through.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        vocab_size: int | None = None,
        unigram_entropy: float | None = None,
        schedule: Schedule | None = None,
        clip_norm: float | None = None,
        keep_steps: int = 100,
        every: int = 20,
        on_event: EventHandler | None = to_stderr,
        folder: str | Path | None = None,
        forward: Forward | None = None,
        precision: Callable[[], AbstractContextManager[Any]] = nullcontext,
        skips_non_finite: bool = False,
        look_inside: bool = True,
        page: RunPage | None = None,
    ) -> None:
        if keep_steps < 1 or every < 1:
            raise ValueError(f"keep_steps and every must be >= 1, got {keep_steps} and {every}")
        self.model: nn.Module | None = None
        self.every, self.look_inside = every, look_inside
        self.page = page
        self.step_count = 0  # number of the latest update
        self._speaker = Speaker(on_event)
        self._values = Values()
        self._history: deque[Update] = deque(maxlen=keep_steps)
        self._losses = LossWatch(self._speaker, vocab_size, unigram_entropy)
        self._gradients = GradientWatch(self._speaker, clip_norm, skips_non_finite)
        self._rates = RateWatch(self._speaker, schedule)
        self._modes = ModeWatch(self._speaker)
        self._batches = BatchWatch(self._speaker, self._values)
        self._evaluations = EvaluationWatch(self._speaker)
        self._activations = ActivationWatch(self._speaker, self._values, forward)
        self._staleness = StalenessWatch(self._speaker, self._values)
        self._parameters: ParameterWatch | None = None
        self._inquest = Inquest(
            self._speaker, None if folder is None else Path(folder), forward, precision, every
        )
        self._calls = 0
        self._looks = 0
        self._look_pending = False
        self._told = 0  # events that were handed on
        self._adopt(model, optimizer)

    # ---- what the loop calls -----------------------------------------------------------------

    def begin(self, inputs: Any, targets: Any = None) -> None:
        """Remember batch and random state before the forward pass; optional.

        With it a replay has the same dropout, and is possible for a loop that raises by itself
        before it reaches `step`.
        """
        self._inquest.keep(self.step_count + 1, inputs, targets, before=True)

    def step(
        self,
        loss: float | Tensor,
        model: nn.Module | None = None,
        optimizer: Optimizer | Sequence[Optimizer] | None = None,
        *,
        inputs: Any = None,
        targets: Any = None,
        learning_rate: float | None = None,
        grad_norm: float | Tensor | None = None,
        clipped: bool | None = None,
        step: int | None = None,
    ) -> None:
        """Take note of one update; see the module for where to call it.

        loss: mean nats, a number or a tensor of one element; a tensor on a GPU is read later.
        inputs, targets: the batch, or the last micro-batch; a tensor, a tuple, or a dict.
        learning_rate: of this update; None: read from the optimizer.
        grad_norm: global, before clipping, as `clip_grad_norm_` returns it; None: computed, and
            then it is the norm after clipping where the loop has clipped already.
        clipped: whether the gradient was scaled down; None: by comparing with `clip_norm`.
        step: number of the update, 1 for the first; None: one more than before.
        Raises ValueError for a loss that is not one number.
        """
        self._adopt(model, optimizer)
        self.step_count = self.step_count + 1 if step is None else step
        self._calls += 1
        due = self._calls in EARLY or self._calls % self.every == 0
        if inputs is not None:
            self._inquest.keep(self.step_count, inputs, targets, before=False)
        update = self._note_rates(learning_rate, clipped)
        norms = None
        known = grad_norm is not None
        if grad_norm is None:
            grad_norm, norms = global_norm(self._parameters.trainable if self._parameters else [])
        self._read(update, loss, grad_norm, known)
        if self.model is not None:
            self._look(update, inputs, targets, norms, due)
        if inputs is not None:
            self._batches.see(self.step_count, inputs, due=due)
        if due or not self._is_remote():
            self._values.flush()
        self._hand_on()
        if inputs is not None:
            self._inquest.end_of_step()

    def evaluation(self, validation_loss: float, training_loss: float | None = None) -> None:
        """Take note of an evaluation after the latest update.

        training_loss: measured on training data in the same way; None: the median of late updates
        stands in for it.
        """
        self.flush()
        if self.page is not None:
            self.page.log(
                self.step_count, validation_loss=validation_loss, training_loss=training_loss
            )
        usual = self._losses.usual()
        late = None if usual is None else usual[0]
        self._evaluations.see(
            self.step_count,
            float(one_number(validation_loss)),
            late if training_loss is None else float(one_number(training_loss)),
            same_way=training_loss is not None,
        )
        self._hand_on()

    @contextmanager
    def evaluating(self, model: nn.Module | None = None) -> Iterator[None]:
        """Watch what an evaluation does to the model: put it around the whole evaluation."""
        model = self.model if model is None else model
        if model is None:
            raise ValueError("evaluating() needs a model, here or in TrainingMonitor(model)")
        self.flush()
        with self._evaluations.watched(self.step_count, model):
            yield
        self._hand_on()

    def flush(self) -> None:
        """Read what still lies on a device, and speak about it."""
        self._values.flush()
        self._hand_on()

    def close(self) -> None:
        """Read what is left, and say how often each problem came back."""
        self._staleness.disarm()
        self.flush()
        if self._speaker.events and self._speaker.on_event is not None:
            again = [e for e in self._speaker.events if e.count > 1]
            if again:
                self._speaker.hand_on(closing(self.step_count, self._speaker.events))
        if self.page is not None:
            self.page.finish(postmortem=self.postmortem_path)

    def __enter__(self) -> TrainingMonitor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if isinstance(error, Exception):
            self._values.flush()
            self._inquest.note_exception(self.step_count, error, self.model, self.history)
        if error is not None and self.page is not None:
            self._hand_on()
            self.page.fail(error, postmortem=self.postmortem_path)
        self.close()

    # ---- what a person reads -----------------------------------------------------------------

    @property
    def events(self) -> list[Event]:
        """Every problem so far, each once, with counts."""
        return list(self._speaker.events)

    @property
    def notes(self) -> list[Event]:
        """What a healthy run may show too, and a person may want to know."""
        return list(self._speaker.notes)

    @property
    def history(self) -> list[Update]:
        """The last `keep_steps` updates, oldest first."""
        return list(self._history)

    @property
    def postmortem(self) -> dict[str, Any] | None:
        """The latest post-mortem as it was or would have been written."""
        return self._inquest.record

    @property
    def postmortem_path(self) -> Path | None:
        """Where the latest post-mortem was written."""
        return self._inquest.path

    @property
    def update_ratios(self) -> dict[str, float]:
        """Size of the latest measured update over size of the weights, by parameter group."""
        return {} if self._parameters is None else dict(self._parameters.ratios)

    @property
    def clipped_share(self) -> float:
        """The share of updates whose gradient was scaled down, from 0 to 1."""
        return self._gradients.clipped_share

    def summary(self) -> str:
        """Return what was seen, and what could not be seen, as lines of text."""
        self.flush()
        return summarise(
            self.step_count,
            self._speaker.events,
            self._speaker.notes,
            self._not_watched(),
            clipped=self.clipped_share if self._gradients.clip_norm else None,
            ratios=self.update_ratios,
        )

    # ---- how it works ------------------------------------------------------------------------

    def _adopt(
        self, model: nn.Module | None, optimizer: Optimizer | Sequence[Optimizer] | None
    ) -> None:
        if model is not None and model is not self.model:
            self.model = model
            optimizers = [] if self._parameters is None else self._parameters.optimizers
            self._parameters = ParameterWatch(self._speaker, self._values, model, optimizers)
            self._parameters.refresh()
            self._losses.vocab_size = self._losses.vocab_size or _vocab_size(model)
        if optimizer is not None and self._parameters is not None:
            several = isinstance(optimizer, Sequence)
            given: list[Any] = list(optimizer) if several else [optimizer]  # type: ignore
            for one in given:
                if not hasattr(one, "param_groups"):
                    raise TypeError(
                        f"optimizer must have param_groups, as torch's do, got {type(one).__name__}"
                    )
            self._parameters.optimizers = given

    def _note_rates(self, learning_rate: float | None, clipped: bool | None) -> Update:
        exact = learning_rate is not None
        if learning_rate is not None:
            rates: tuple[float, ...] = (float(learning_rate),)
        else:
            rates = () if self._parameters is None else read_rates(self._parameters.optimizers)
        self._rates.see(self.step_count, rates, exact=exact)
        update = Update(
            self.step_count,
            learning_rates=rates,
            clipped=clipped,
            warming_up=self._rates.warming_up,
        )
        self._history.append(update)
        return update

    def _read(
        self, update: Update, loss: float | Tensor, norm: float | Tensor | None, known: bool
    ) -> None:
        """Read loss and norm now where they are numbers or on the CPU, else at the next flush."""
        loss = one_number(loss)
        parts = [part for part in (loss, norm) if isinstance(part, Tensor)]
        if all(part.device.type in NEAR for part in parts):
            self._see(update, known, float(loss), None if norm is None else float(norm))
            return
        # a copy: the loop may add the next loss onto the same tensor
        kept = [part.detach().reshape(()).clone() for part in parts]

        def told(numbers: list[float]) -> None:
            left = iter(numbers)
            read = [next(left) if isinstance(part, Tensor) else part for part in (loss, norm)]
            self._see(update, known, float(read[0] or 0.0), read[1])

        self._values.ask(kept, told)

    def _see(self, update: Update, known: bool, loss: float, norm: float | None) -> None:
        update.loss, update.grad_norm = loss, norm
        clipped_before = self._gradients.clipped_steps
        if not self._losses.see(update.step, loss, warming_up=update.warming_up):
            self._inquest.note_loss(update, self.model, self.history)
        elif norm is not None and self._gradients.see(
            update.step,
            norm,
            clipped=update.clipped,
            before_clipping=known,
            warming_up=update.warming_up,
        ):
            self._inquest.note_gradient(update, self.model, self.history)
        if self.page is not None:
            self._show(self.page, update, self._gradients.clipped_steps > clipped_before)

    def _show(self, page: RunPage, update: Update, clipped: bool) -> None:
        page.log(
            update.step,
            train_loss=update.loss,
            learning_rate=max(update.learning_rates, default=None),
            grad_norm=update.grad_norm,
            clipped=clipped if self._gradients.clip_norm else update.clipped,
        )

    def _look(
        self,
        update: Update,
        inputs: Any,
        targets: Any,
        norms: list[Tensor] | None,
        due: bool,
    ) -> None:
        assert self.model is not None
        assert self._parameters is not None
        self._modes.see(update.step, self.model)
        with torch.no_grad():
            if self._look_pending:
                self._parameters.look_again(update.step)
                self._staleness.compare(update.step)
            self._look_pending = due
            if not due:
                return
            self._modes.look(update.step, self.model)
            self._parameters.look(update.step, norms, max(update.learning_rates, default=None))
            self._staleness.arm(self._parameters.with_gradient())
        self._looks += 1
        if update.loss is not None and not math.isfinite(update.loss):
            return
        early = self._looks in (3, 4, 5)
        if self.look_inside and inputs is not None and (early or self._looks % LOOKS_INSIDE == 0):
            self._activations.look(update.step, self.model, inputs, targets)

    def _is_remote(self) -> bool:
        return any(tensor.device.type != "cpu" for tensor, _ in self._values.waiting)

    def _hand_on(self) -> None:
        events = self._speaker.events
        while self._told < len(events):
            self._told += 1
            if self.page is not None:
                self.page.event(events[self._told - 1])
            self._speaker.hand_on(events[self._told - 1])

    def _not_watched(self) -> list[Text]:
        missing = []
        if self.model is None:
            missing.append(say("parameters and modes, because there is no model"))
        elif self._parameters is not None and not self._parameters.optimizers:
            missing.append(say("what the optimizer holds, because there is none"))
        if not self._inquest.has_batch:
            missing.append(say("batches, units and attention: step() is not given inputs"))
        elif self._activations.trouble is not None:
            missing.append(say("units and attention: {trouble}", trouble=self._activations.trouble))
        elif not self._activations.attentions_seen and self._looks >= LOOKS_INSIDE:
            missing.append(say("attention, because none was recognised in the forward pass"))
        if self._parameters is not None and self._parameters.gradients_seen is False:
            missing.append(say("gradients: step() is called where there are none, after zero_grad"))
        if self._rates.schedule is None:
            missing.append(say("the schedule, because none was declared"))
        return missing


def _vocab_size(model: nn.Module) -> int | None:
    config = getattr(model, "config", None)
    value = getattr(config, "vocab_size", None)
    return value if isinstance(value, int) and value > 1 else None
