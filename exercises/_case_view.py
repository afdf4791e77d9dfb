"""What a person sees of a run without knowing what is wrong with it, healthy beside broken.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from diagnostics._probe import read_batch
from exercises._exercise import Exercise
from exercises._figures import describe_error
from exercises._lab import Lab
from exercises._symptom import (
    STEPS,
    _sample,
    measure_honest_loss,
    train_briefly,
    training_symptom,
)

HONEST_EVERY = 25  # steps between two honest losses
SHOWN_IDS = 10
SHOWN_CHARACTERS = 48


@dataclass(frozen=True)
class Seen:
    """A short training.

    losses: as the loop reports them.    honest: measured before, between and after.
    sample: what the model writes.    figures: what else the exercise shows.
    stopped: how the training ended before its time; empty when it did not.
    """

    losses: tuple[float, ...] = ()
    honest: tuple[float, ...] = ()
    sample: str = ""
    figures: Mapping[str, str] = field(default_factory=dict)
    stopped: str = ""

    @property
    def last_loss(self) -> float:
        """The mean of the last ten reported losses."""
        last = self.losses[-10:]
        return sum(last) / len(last) if last else float("nan")


def observe(lab: Lab, pipeline: Pipeline, exercise: Exercise) -> Seen:
    """Train a fresh model briefly and look; what a bug makes impossible is told, not raised."""
    losses: list[float] = []
    honest: list[float] = []
    sample, stopped = "", ""
    try:
        model, _ = train_briefly(lab, _watched(lab, pipeline, losses, honest))
        honest.append(measure_honest_loss(lab, model))
        sample = _sample(lab, model)
    except Exception as error:  # any: the bug decides what raises
        stopped = f"ended after {len(losses)} of {STEPS} steps: {describe_error(error)}"
    figures = {} if exercise.symptom is training_symptom else _figures(lab, pipeline, exercise)
    return Seen(tuple(losses), tuple(honest), sample, figures, stopped)


def _watched(lab: Lab, pipeline: Pipeline, losses: list[float], honest: list[float]) -> Pipeline:
    """Return the pipeline with a loop that notes its losses, on the pipeline's own ids."""
    step, draw, ids = pipeline.train_step, pipeline.get_batch, pipeline.train_ids
    if step is None or draw is None or ids is None:
        raise LookupError("the pipeline brings no train_step, get_batch or train_ids")

    def watched_step(model: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> Any:
        if len(losses) % HONEST_EVERY == 0:
            honest.append(measure_honest_loss(lab, model))
        loss = step(model, optimizer, inputs, targets)
        losses.append(float(torch.as_tensor(loss).detach()))
        return loss

    return dataclasses.replace(pipeline, train_step=watched_step, get_batch=lambda data: draw(ids))


def look(lab: Lab, pipeline: Pipeline, name: str) -> Mapping[str, str]:
    """Return what one of the cheap probes shows: title -> value."""
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            return _LOOKS[name](lab, pipeline)
    except Exception as error:  # any: the bug decides what raises
        return {name: describe_error(error)}


def _figures(lab: Lab, pipeline: Pipeline, exercise: Exercise) -> Mapping[str, str]:
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            return exercise.symptom(lab, pipeline)
    except Exception as error:  # any: the bug decides what raises
        return {"looking closer": describe_error(error)}


def _draw(lab: Lab, pipeline: Pipeline) -> tuple[Tensor, Tensor]:
    if pipeline.get_batch is None:
        raise LookupError("the pipeline brings no get_batch")
    batch = read_batch(pipeline.get_batch(_train_ids(lab, pipeline)), "get_batch")
    return batch.inputs, batch.targets


def _train_ids(lab: Lab, pipeline: Pipeline) -> Tensor:
    return lab.train_ids if pipeline.train_ids is None else pipeline.train_ids


def _look_at_batch(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    inputs, targets = _draw(lab, pipeline)
    shown = {}
    for row in range(min(2, len(inputs))):
        shown[f"row {row}, inputs begin"] = str(inputs[row, :SHOWN_IDS].tolist())
        shown[f"row {row}, targets begin"] = str(targets[row, :SHOWN_IDS].tolist())
        shown[f"row {row}, inputs end"] = str(inputs[row, -4:].tolist())
        shown[f"row {row}, targets end"] = str(targets[row, -4:].tolist())
    return shown


def _look_at_text(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    ids, text = _train_ids(lab, pipeline), pipeline.train_text or ""
    middle = len(ids) // 2
    shown = {
        "text begins": ascii(text[:SHOWN_CHARACTERS]),
        "ids begin": _decoded(pipeline, ids[:SHOWN_CHARACTERS]),
        "ids, from the middle": _decoded(pipeline, ids[middle : middle + SHOWN_CHARACTERS]),
    }
    inputs, targets = _draw(lab, pipeline)
    shown["row 0, inputs"] = _decoded(pipeline, inputs[0])
    shown["row 0, targets"] = _decoded(pipeline, targets[0])
    return shown


def _decoded(pipeline: Pipeline, ids: Tensor) -> str:
    try:
        return ascii(pipeline.tokenizer.decode(ids.tolist()))
    except Exception as error:  # any: an id may have no character
        return describe_error(error)


def _look_at_sizes(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    inputs, targets = _draw(lab, pipeline)
    model = pipeline.model
    shown = {"inputs": _size(inputs), "targets": _size(targets)}
    for title, rows in (("a whole batch", inputs), ("row 0 alone", inputs[:1])):
        with torch.no_grad():
            logits = model(rows)[0]
        shown[f"logits of {title}"] = _size(logits)
    with torch.no_grad():
        logits, loss = model(inputs, targets)
    shown["with targets: logits"] = _size(logits)
    shown["with targets: loss"] = f"{_size(loss)}, {loss.float().mean().item():.4f}"
    return shown


def _size(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _look_at_rate(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    shown = {}
    rate, steps = pipeline.learning_rate, pipeline.max_steps or 0
    if rate is None:
        shown["schedule"] = "none"
    for step in (0, steps // 20, steps // 2, steps - 1) if rate is not None else ():
        shown[f"schedule at step {step}"] = f"{rate(step):.2e}" if rate is not None else ""
    if pipeline.make_optimizer is None:
        return shown | {"optimizer": "none"}
    optimizer = pipeline.make_optimizer(pipeline.model)
    shown["tensors of the model"] = str(len(list(pipeline.model.parameters())))
    for number, group in enumerate(optimizer.param_groups):
        shown[f"group {number}"] = (
            f"{len(group['params'])} tensors, rate {group['lr']:.2e}, "
            f"decay {group.get('weight_decay', group.get('decay', 0.0))}"
        )
    return shown


def _look_at_ids(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    shown = {"entries of the tokenizer": str(getattr(pipeline.tokenizer, "vocab_size", "not told"))}
    for name, ids in (("train", pipeline.train_ids), ("validation", pipeline.val_ids)):
        if ids is None:
            shown[name] = "none"
            continue
        kind = str(ids.dtype).removeprefix("torch.")
        span = f"{ids.min().item()} to {ids.max().item()}" if len(ids) else "empty"
        shown[name] = f"{len(ids)} ids, {kind}, {span}"
    return shown


_LOOKS = {
    "batch": _look_at_batch,
    "decode": _look_at_text,
    "sizes": _look_at_sizes,
    "rate": _look_at_rate,
    "ids": _look_at_ids,
}
