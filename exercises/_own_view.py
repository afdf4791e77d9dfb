"""What can be seen of anybody's pipeline: its first loss, a short training, a number, a text.

Shapes: B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from diagnostics._guard import untouched
from diagnostics._probe import Batch, Probe, read_batch
from exercises._figures import describe_error

STEPS, STEPS_MIN = 60, 5
WORK_MAX = 3e11  # multiplications of the training: about 8 seconds of one CPU core
EVALUATED_IDS = 2000
PROMPT_LENGTH, SAMPLE_LENGTH = 8, 24


@dataclass(frozen=True)
class OwnSeen:
    """What was seen.    losses: of a short training, as the loop reports them.

    figures: title -> value; also why there are no losses.    raised: whether a look raised.
    """

    losses: tuple[float, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)
    raised: bool = False


def observe_own(pipeline: Pipeline, *, seed: int) -> OwnSeen:
    """Look at a pipeline without changing it; what raises is told instead."""
    tensors = [ids for ids in (pipeline.train_ids, pipeline.val_ids) if ids is not None]
    with untouched([pipeline.model], tensors):
        view = _View(pipeline, seed)
        view.note("loss before training", view.first_loss)
        view.note("training loss", view.train)
        if pipeline.evaluate is not None and pipeline.val_ids is not None:
            view.note("validation loss, as reported", view.evaluate)
        if pipeline.generate is not None and pipeline.tokenizer is not None:
            view.note("sample", view.sample)
    return OwnSeen(tuple(view.losses), view.figures, view.raised)


class _View:
    """A pipeline under observation, and the model that a short training of it gave."""

    def __init__(self, pipeline: Pipeline, seed: int) -> None:
        self.pipeline = pipeline
        self.probe = Probe(pipeline, seed=seed)
        self.figures: dict[str, str] = {}
        self.losses: list[float] = []
        self.raised = False
        self.trained: nn.Module | None = None

    def note(self, title: str, look: Callable[[], str]) -> None:
        """Write down what a look gives, or what it raises."""
        try:
            self.figures[title] = look()
        except Exception as error:  # any: it is the user's own code, with a bug in it
            self.figures[title] = describe_error(error)
            self.raised = True

    def first_loss(self) -> str:
        with self.probe.seeded("first loss"), self.probe.model() as model, torch.no_grad():
            return f"{float(self.probe.loss(model)[1]):.4f} nats"

    def train(self) -> str:
        """Train a fresh model with the pipeline's own parts."""
        make_model, make_optimizer = self.pipeline.make_model, self.pipeline.make_optimizer
        if make_model is None or make_optimizer is None:
            parts = {"make_model": make_model, "make_optimizer": make_optimizer}
            missing = [name for name, part in parts.items() if part is None]
            return f"none: the pipeline brings no {' and no '.join(missing)}"
        with self.probe.seeded("training"):
            model = make_model().to(self.probe.device)
            if model is self.pipeline.model:
                return "none: make_model gives no fresh model"
            optimizer = make_optimizer(model)
            model.train()
            for _ in range(self._affordable_steps(model)):
                self.losses.append(self._step(model, optimizer))
        self.trained = model
        last = self.losses[-10:]
        return (
            f"{self.losses[0]:.4f}, after {len(self.losses)} steps {sum(last) / len(last):.4f} nats"
        )

    def evaluate(self) -> str:
        evaluate, ids = self.pipeline.evaluate, self.pipeline.val_ids
        assert evaluate is not None
        assert ids is not None
        with self.probe.seeded("evaluate"), self._model() as model:
            return f"{float(evaluate(model, ids[:EVALUATED_IDS])):.4f}"

    def sample(self) -> str:
        """Continue the first ids of the data, or any ids."""
        generate = self.pipeline.generate
        assert generate is not None
        prompt = self._prompt()
        with self.probe.seeded("generate"), self._model() as model:
            ids = torch.as_tensor(generate(model, prompt, SAMPLE_LENGTH))
        return ascii(self.pipeline.tokenizer.decode(ids.flatten().tolist()))

    def _affordable_steps(self, model: nn.Module) -> int:
        size = sum(parameter.numel() for parameter in model.parameters())
        work = 6 * max(1, size) * self.probe.batch.inputs.numel()  # of one step
        return max(STEPS_MIN, min(STEPS, int(WORK_MAX / work)))

    def _step(self, model: nn.Module, optimizer: Optimizer) -> float:
        """Make one step, with a plain loop where the pipeline brings none; return its loss."""
        batch = self._draw()
        if self.pipeline.train_step is not None:
            return _number(self.pipeline.train_step(model, optimizer, batch.inputs, batch.targets))
        optimizer.zero_grad(set_to_none=True)
        loss = self.probe.loss(model, batch)[1]
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    def _draw(self) -> Batch:
        """Return the next batch of the pipeline, on the model's device."""
        load, ids = self.pipeline.batch, self.pipeline.train_ids
        if self.pipeline.get_batch is not None and ids is not None:
            drawn = self.probe.draw_batch(ids)
        elif callable(load):
            drawn = read_batch(load("train"), "batch")
        else:
            return self.probe.batch
        mask, device = drawn.attention_mask, self.probe.device
        return Batch(
            drawn.inputs.to(device),
            drawn.targets.to(device),
            None if mask is None else mask.to(device),
        )

    @contextmanager
    def _model(self) -> Iterator[nn.Module]:
        """Lend the trained model; a copy of the pipeline's own where there is none."""
        if self.trained is not None:
            yield self.trained.eval()
        else:
            with self.probe.model() as model:
                yield model

    def _prompt(self) -> Tensor:
        for ids in (self.pipeline.val_ids, self.pipeline.train_ids):
            if ids is not None and len(ids) >= PROMPT_LENGTH:
                return ids[None, :PROMPT_LENGTH].long().to(self.probe.device)
        return self.probe.tokens(1, PROMPT_LENGTH, "prompt")


def _number(loss: Any) -> float:
    value = loss[0] if isinstance(loss, tuple) else loss
    return float("nan") if value is None else float(torch.as_tensor(value).detach())
