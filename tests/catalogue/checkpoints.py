"""Rows of the table: what a checkpoint must hold, under which names, and as copies.

Shapes: B batch, T time.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._lab import BATCH_SIZE, Lab, train_step
from minigpt import MiniGPT, MiniGPTConfig, get_batch
from minigpt.seed import random_states, restore_random_states
from tests.catalogue._row import Build, Caught, Row, Unseen

Weights = dict[str, Tensor]
PREFIX = "_orig_mod."  # torch.compile puts it before every name
AVERAGING_RATE = 0.01


def run_state(
    model_class: type[MiniGPT] = MiniGPT,
    *,
    optimizer_saved: bool = True,
    kept: Callable[[str], bool] = lambda name: True,
    step: Callable[..., Any] = train_step,
) -> Build:
    """A run's state in one dictionary, of which an entry can be forgotten."""

    def build(lab: Lab) -> Pipeline:
        def save_state(model: nn.Module, optimizer: Any, step: int, path: Path) -> None:
            state = {"step": step, "random": random_states()}
            weights = {n: w for n, w in model.state_dict().items() if kept(n)}
            torch.save(state | {"model": weights, "optimizer": optimizer.state_dict()}, path)

        def load_state(path: Path) -> tuple[nn.Module, torch.optim.Optimizer, int]:
            state = torch.load(path)
            model = model_class(lab.config)
            model.load_state_dict(state["model"], strict=False)
            optimizer = lab.make_optimizer(model)
            if optimizer_saved:
                optimizer.load_state_dict(state["optimizer"])
            restore_random_states(state["random"])
            return model, optimizer, state["step"]

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(lab.seed)
            model = model_class(lab.config)
        return lab.pipeline(
            model=model,
            make_model=lambda: model_class(lab.config),
            train_step=step,
            save_state=save_state,
            load_state=load_state,
            save=None,  # the lab's own writes the reference's model only
            load=None,
        )

    return build


class Averaged(MiniGPT):
    """A model that carries the running average of its weights in buffers."""

    def __init__(self, config: MiniGPTConfig) -> None:
        super().__init__(config)
        for name, parameter in [*self.named_parameters()]:
            self.register_buffer("average_" + name.replace(".", "_"), parameter.detach().clone())


def averaging_step(model: nn.Module, optimizer: Any, inputs: Tensor, targets: Tensor) -> Tensor:
    """Take the lab's step, then move the averages a little towards the weights."""
    loss = train_step(model, optimizer, inputs, targets)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            average = model.get_buffer("average_" + name.replace(".", "_"))
            average.lerp_(parameter, AVERAGING_RATE)
    return loss


def data_order(*, seeded_by_step: bool) -> Build:
    """Batches are drawn under one seed that is set at the start of the program."""

    def build(lab: Lab) -> Pipeline:
        def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
            torch.manual_seed(1337)
            while True:
                if seeded_by_step:
                    torch.manual_seed(1337 + step)
                    step += 1
                yield get_batch(lab.train_ids, BATCH_SIZE, lab.config.block_size)

        return lab.pipeline(batches_from=batches_from)

    return build


def kept_in_memory(copied: Callable[[Weights], Weights]) -> Build:
    """The best weights are kept in a dictionary until they are wanted."""

    def build(lab: Lab) -> Pipeline:
        best: dict[Path, Weights] = {}

        def save(model: nn.Module, path: Path) -> None:
            best[path] = copied(model.state_dict())

        return loaded(lab, save, lambda path: best[path])

    return build


def file_of(
    written: Callable[[Weights], Weights],
    read: Callable[[Weights], Weights],
    *,
    strict: bool,
) -> Build:
    """Weights go into a file in one form, and are read back in another."""

    def build(lab: Lab) -> Pipeline:
        def save(model: nn.Module, path: Path) -> None:
            torch.save(written(dict(model.state_dict())), path)

        return loaded(lab, save, lambda path: read(torch.load(path)), strict=strict)

    return build


def loaded(
    lab: Lab,
    save: Callable[[nn.Module, Path], None],
    weights_at: Callable[[Path], Weights],
    *,
    strict: bool = True,
) -> Pipeline:
    """A pipeline that loads weights into a new model."""

    def load(path: Path) -> nn.Module:
        model = MiniGPT(lab.config)
        model.load_state_dict(weights_at(path), strict=strict)
        return model

    return lab.pipeline(save=save, load=load)


def prefixed(weights: Weights) -> Weights:
    """Return the names of a compiled model."""
    return {PREFIX + name: tensor for name, tensor in weights.items()}


def stripped(weights: Weights) -> Weights:
    """Return the names of the model inside."""
    return {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}


def turned(weights: Weights) -> Weights:
    """Return matrices of attention's output in GPT-2's layout, (inputs, outputs)."""
    return {n: w.t() if n.endswith("attention.output.weight") else w for n, w in weights.items()}


def without_head(weights: Weights) -> Weights:
    """Leave the head out, as for a model whose head is tied to the embedding."""
    return {name: tensor for name, tensor in weights.items() if name != "head.weight"}


def as_it_is(weights: Weights) -> Weights:
    """Return all weights under their own names."""
    return weights


ROWS: tuple[Row, ...] = (
    Caught(
        "optimizer-state-not-saved",
        "resume",
        "resume.optimizer_state_lost",
        run_state(optimizer_saved=False),
        healthy=run_state(),
    ),
    Caught(
        "rng-or-data-position-not-restored",
        "resume",
        "resume.data_replayed",
        data_order(seeded_by_step=False),
        healthy=data_order(seeded_by_step=True),
    ),
    Unseen(
        "best-metric-not-restored",
        "The best loss so far is a number of the loop; load_state returns model, optimizer and "
        "step, so that what the loop starts its record with is in no part of a pipeline.",
    ),
    Caught(
        "scaler-or-ema-not-saved",
        "resume",
        "resume.buffers",
        run_state(Averaged, step=averaging_step, kept=lambda n: not n.startswith("average_")),
        healthy=run_state(Averaged, step=averaging_step),
    ),
    Caught(
        "best-state-by-reference",
        "checkpoint",
        "checkpoint.saved_by_reference",
        kept_in_memory(as_it_is),
        healthy=kept_in_memory(copy.deepcopy),
    ),
    Caught(
        "prefix-and-strict-false",
        "checkpoint",
        "checkpoint.nothing_loaded",
        file_of(prefixed, as_it_is, strict=False),
        healthy=file_of(prefixed, stripped, strict=False),
    ),
    Unseen(
        "last-saved-as-best",
        "A pipeline's save writes the model that it is given; which step of a run was the best, "
        "and which model the loop gives to save at its end, stands in the loop alone.",
    ),
    Caught(
        "square-matrix-transposed",
        "checkpoint",
        "checkpoint.transposed",
        file_of(turned, as_it_is, strict=True),
        healthy=file_of(turned, turned, strict=True),
    ),
    Caught(
        "missing-keys-randomly-initialised",
        "checkpoint",
        "checkpoint.random_after_load",
        file_of(without_head, as_it_is, strict=False),
        healthy=file_of(as_it_is, as_it_is, strict=False),
    ),
)
