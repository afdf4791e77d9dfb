"""What can be seen of anybody's pipeline: its first loss, a short training, a number, a text.

Shapes: B batch, T time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from diagnostics._guard import untouched
from diagnostics._probe import Batch, Probe, read_batch
from exercises._figures import describe_error

STEPS = 60
SECONDS_MAX = 10.0  # of training; a large model gets fewer steps
EVALUATED_IDS = 2000
PROMPT_LENGTH, SAMPLE_LENGTH = 8, 24


@dataclass(frozen=True)
class OwnSeen:
    """What was seen.    losses: of a short training, as the loop reports them.

    figures: title -> value; also why there are no losses.
    """

    losses: tuple[float, ...] = ()
    figures: Mapping[str, str] = field(default_factory=dict)


def observe_own(pipeline: Pipeline, *, seed: int, steps: int = STEPS) -> OwnSeen:
    """Look at a pipeline without changing it; what raises is told instead.

    steps: of training at most; a slow model gets as many as fit into SECONDS_MAX.
    """
    tensors = [ids for ids in (pipeline.train_ids, pipeline.val_ids) if ids is not None]
    probe = Probe(pipeline, seed=seed)
    figures: dict[str, str] = {}
    losses: list[float] = []
    with untouched([pipeline.model], tensors):
        _note(figures, "loss before training", lambda: _first_loss(probe))
        _note(figures, f"training, {steps} steps at most", lambda: _train(probe, steps, losses))
        if pipeline.evaluate is not None and pipeline.val_ids is not None:
            _note(figures, "validation loss, as reported", lambda: _evaluate(probe))
        if pipeline.generate is not None and pipeline.tokenizer is not None:
            _note(figures, "sample", lambda: _sample(probe))
    return OwnSeen(tuple(losses), figures)


def _note(figures: dict[str, str], title: str, look: Callable[[], str]) -> None:
    try:
        figures[title] = look()
    except Exception as error:  # any: it is the user's own code, with a bug in it
        figures[title] = describe_error(error)


def _first_loss(probe: Probe) -> str:
    with probe.seeded("first loss"), probe.model() as model, torch.no_grad():
        return f"{float(probe.loss(model)[1]):.4f} nats"


def _train(probe: Probe, steps: int, losses: list[float]) -> str:
    """Train a fresh model with the pipeline's own parts and note each loss."""
    pipeline = probe.pipeline
    if pipeline.make_model is None or pipeline.make_optimizer is None:
        return "none: the pipeline brings no make_model and make_optimizer"
    start = time.perf_counter()
    with probe.seeded("training"):
        model = pipeline.make_model().to(probe.device)
        if model is pipeline.model:
            return "none: make_model gives no fresh model"
        optimizer = pipeline.make_optimizer(model)
        model.train()
        while len(losses) < steps and time.perf_counter() - start < SECONDS_MAX:
            losses.append(_step(probe, model, optimizer))
    last = losses[-10:]
    return f"{losses[0]:.4f}, at the end {sum(last) / len(last):.4f} nats"


def _step(probe: Probe, model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Make one step, with a plain loop where the pipeline brings none; return its loss."""
    batch = _draw(probe)
    if probe.pipeline.train_step is not None:
        return _number(probe.pipeline.train_step(model, optimizer, batch.inputs, batch.targets))
    optimizer.zero_grad(set_to_none=True)
    loss = probe.loss(model, batch)[1]
    loss.backward()
    optimizer.step()
    return float(loss)


def _draw(probe: Probe) -> Batch:
    """Return the next batch of the pipeline, on the model's device."""
    pipeline = probe.pipeline
    if pipeline.get_batch is not None and pipeline.train_ids is not None:
        drawn = probe.draw_batch(pipeline.train_ids)
    elif callable(pipeline.batch):
        drawn = read_batch(pipeline.batch("train"), "batch")
    else:
        return probe.batch
    return Batch(drawn.inputs.to(probe.device), drawn.targets.to(probe.device))


def _number(loss: Any) -> float:
    value = loss[0] if isinstance(loss, tuple) else loss
    return float("nan") if value is None else float(torch.as_tensor(value).detach())


def _evaluate(probe: Probe) -> str:
    evaluate, ids = probe.pipeline.evaluate, probe.pipeline.val_ids
    assert evaluate is not None
    assert ids is not None
    with probe.seeded("evaluate"), probe.model() as model:
        return f"{float(evaluate(model, ids[:EVALUATED_IDS])):.4f}"


def _sample(probe: Probe) -> str:
    """Continue the first ids of the data, or any ids, with the untrained or trained model."""
    pipeline = probe.pipeline
    assert pipeline.generate is not None
    prompt = _prompt(probe)
    with probe.seeded("generate"), probe.model() as model:
        ids = torch.as_tensor(pipeline.generate(model, prompt, SAMPLE_LENGTH))
    return ascii(pipeline.tokenizer.decode(ids.flatten().tolist()))


def _prompt(probe: Probe) -> Tensor:
    for ids in (probe.pipeline.val_ids, probe.pipeline.train_ids):
        if ids is not None and len(ids) >= PROMPT_LENGTH:
            return ids[None, :PROMPT_LENGTH].long().to(probe.device)
    return probe.tokens(1, PROMPT_LENGTH, "prompt")
