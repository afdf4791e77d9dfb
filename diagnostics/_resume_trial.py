"""A run that is saved and goes on, and the same run loaded and going on: what is different?

Tensors are kept on the CPU. Shapes: B batch, T time.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._adapter import next_tokens
from diagnostics._guard import untouched
from diagnostics._optimizer_step import as_optimizers
from diagnostics._probe import Batch, MissingPartError, Probe, read_batch
from diagnostics._side_effects import random_states
from diagnostics._state import State, bare_name, read_state

NAMES = ("state.pt", "state.safetensors", "state")
STEPS_BEFORE, STEPS_AFTER = 3, 3
# The learning rate is halved before saving: a rate that starts again differs from it.
RATE_FACTOR = 0.5


@dataclass
class OptimizerState:
    """What an optimizer holds, by the names of its parameters."""

    kind: str
    tensors: dict[str, Tensor]  # "parameter / key": moments, step counts
    settings: list[dict[str, Any]]  # of each group, without its parameters
    foreign: int  # parameters that are not the model's
    covered: set[str]  # names of the parameters that it steps
    misplaced: list[str]  # state tensors on another device than their parameter


@dataclass(frozen=True)
class _Chance:
    """The global random states of Python, NumPy and torch."""

    python: Any
    numpy: Any
    torch: Tensor

    @classmethod
    def read(cls) -> _Chance:
        return cls(random.getstate(), np.random.get_state(), torch.get_rng_state())

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)


@dataclass
class Trip:
    """Everything that was seen."""

    start: State  # the model before its first step
    saved: State  # the model at the moment of saving
    saved_optimizer: OptimizerState
    after_saving: State
    after_saving_optimizer: OptimizerState
    loaded: State
    loaded_optimizer: OptimizerState
    loaded_step: Any
    continued: State  # the run that went on
    continued_optimizer: OptimizerState
    resumed: State  # the run that was loaded and went on
    losses: tuple[list[float], list[float]]
    random_kept: bool  # load_state put back the random states that steps draw from
    draws_random: bool  # a training step draws random numbers, as dropout does
    stays_in_eval: bool  # the loaded model was trained in eval mode


def make_trip(probe: Probe) -> Trip:
    """Train, save, go on; load, go on with the same batches and the same random state."""
    with (
        tempfile.TemporaryDirectory(prefix="diagnostics-") as folder,
        untouched([probe.pipeline.model]),  # load_state may load into the user's own model
        probe.model(train=True) as model,
        probe.seeded("resume"),
    ):
        return _trip(probe, model, Path(folder))


def _trip(probe: Probe, model: nn.Module, folder: Path) -> Trip:
    make_optimizer, load_state = probe.pipeline.make_optimizer, probe.pipeline.load_state
    assert load_state is not None
    if make_optimizer is None:
        raise MissingPartError("make_optimizer", why="there is no optimizer to save")
    step = _train_step(probe)
    batches = [_pair(probe, number) for number in range(STEPS_BEFORE + STEPS_AFTER)]
    optimizer = make_optimizer(model)
    start = read_state(model)
    for pair in batches[:STEPS_BEFORE]:
        step(model, optimizer, *pair)
    _lower_rates(optimizer)
    saved, saved_optimizer = read_state(model), read_optimizer(model, optimizer)
    chance, at_save = _Chance.read(), random_states()
    path = _save(probe, model, optimizer, folder)
    after_saving, after_optimizer = read_state(model), read_optimizer(model, optimizer)
    chance.restore()
    losses = [_number(step(model, optimizer, *pair)) for pair in batches[STEPS_BEFORE:]]
    drawn = [a != b for a, b in zip(random_states(), at_save, strict=True)]  # by generator
    continued, continued_optimizer = read_state(model), read_optimizer(model, optimizer)
    with probe.seeded("another process"):
        returned = load_state(path)
        kept = [a == b for a, b in zip(random_states(), at_save, strict=True)]
    twin, twin_optimizer, loaded_step = _unpack(returned)
    loaded, loaded_optimizer = read_state(twin), read_optimizer(twin, twin_optimizer)
    _same_rates(twin_optimizer, saved_optimizer)
    chance.restore()
    again = [_number(step(twin, twin_optimizer, *pair)) for pair in batches[STEPS_BEFORE:]]
    resumed = read_state(twin)
    return Trip(
        start,
        saved,
        saved_optimizer,
        after_saving,
        after_optimizer,
        loaded,
        loaded_optimizer,
        loaded_step,
        continued,
        continued_optimizer,
        resumed,
        (losses, again),
        all(same for same, used in zip(kept, drawn, strict=True) if used),
        any(drawn),
        any(continued.training) and not any(resumed.training),
    )


def read_optimizer(model: nn.Module, optimizer: Optimizer) -> OptimizerState:
    """Return a copy of what an optimizer (or a list of them) holds."""
    names = {id(p): bare_name(n) for n, p in model.named_parameters()}
    found = OptimizerState("", {}, [], 0, set(), [])
    for number, each in enumerate(as_optimizers(optimizer)):
        found.kind += ("+" if number else "") + type(each).__name__
        for group in each.param_groups:
            found.settings.append(
                {k: _plain(v) for k, v in group.items() if k != "params" and _comparable(v)}
            )
            for place, parameter in enumerate(group["params"]):
                name = names.get(id(parameter))
                if name is None:
                    found.foreign += 1
                else:
                    found.covered.add(name)
                label = name or f"parameter {place} of group {len(found.settings) - 1}"
                for key, value in each.state.get(parameter, {}).items():
                    if not isinstance(value, (Tensor, int, float)) or isinstance(value, bool):
                        continue
                    tensor = torch.as_tensor(value).detach()
                    found.tensors[f"{label} / {key}"] = tensor.cpu().clone()
                    # a step count may live on the CPU beside parameters on another device
                    if tensor.ndim and tensor.device != parameter.device:
                        found.misplaced.append(f"{label} / {key}")
    return found


def _plain(value: Any) -> Any:
    return float(value) if isinstance(value, Tensor) else value


def _comparable(value: Any) -> bool:
    if isinstance(value, Tensor):
        return value.numel() == 1
    return value is None or isinstance(value, (bool, int, float, str, tuple))


def _lower_rates(optimizer: Optimizer) -> None:
    for each in as_optimizers(optimizer):
        for group in each.param_groups:
            group["lr"] = group["lr"] * RATE_FACTOR


def _same_rates(optimizer: Optimizer, saved: OptimizerState) -> None:
    """Write the saved learning rates: a rate that was lost is judged by itself."""
    groups = [g for each in as_optimizers(optimizer) for g in each.param_groups]
    for group, settings in zip(groups, saved.settings, strict=False):
        group["lr"] = settings["lr"]


def _save(probe: Probe, model: nn.Module, optimizer: Optimizer, folder: Path) -> Path:
    """Write under the first file name that save_state accepts."""
    save_state = probe.pipeline.save_state
    assert save_state is not None
    refusal: Exception | None = None
    for name in NAMES:
        attempt = folder / name.replace(".", "_")
        attempt.mkdir()
        try:
            save_state(model, optimizer, STEPS_BEFORE, attempt / name)
        except ValueError as error:  # a suffix that it does not know
            refusal = refusal or error
            continue
        return attempt / name
    assert refusal is not None
    raise refusal


def _unpack(returned: Any) -> tuple[nn.Module, Optimizer, Any]:
    if not isinstance(returned, (tuple, list)) or len(returned) != 3:
        came = f"{len(returned)} things" if isinstance(returned, (tuple, list)) else type(returned)
        raise TypeError(f"load_state must return (model, optimizer, step), got {came}")
    model, optimizer, step = returned
    if not isinstance(model, nn.Module):
        raise TypeError(f"load_state must return the model first, got {type(model).__name__}")
    return model, optimizer, step


def _number(loss: Any) -> float:
    """Return the loss that a step gave, NaN where it gave none."""
    try:
        return float(torch.as_tensor(loss).detach())
    except (TypeError, ValueError, RuntimeError):
        return float("nan")


def _train_step(probe: Probe) -> Callable[..., Any]:
    """Return the user's step, or forward, backward and step where there is none."""
    if probe.pipeline.train_step is not None:
        return probe.pipeline.train_step

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizers = as_optimizers(optimizer)
        for each in optimizers:
            each.zero_grad(set_to_none=True)
        _, loss = probe.loss(model, Batch(inputs, targets))
        loss.backward()
        for each in optimizers:
            each.step()
        return loss.detach()

    return step


def _pair(probe: Probe, number: int) -> tuple[Tensor, Tensor]:
    """Return a random batch (B, T) and its targets, another one for every step."""
    T = probe.probe_length
    if probe.pipeline.labels == "same":
        ids = probe.tokens(4, T, f"resume {number}")
        return ids, next_tokens(ids, "same")
    ids = probe.tokens(4, T + 1, f"resume {number}")
    return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()


@dataclass
class Order:
    """The batches of a run from its start, and from a later step; inputs only."""

    start: list[Tensor]
    start_again: list[Tensor]  # under another seed
    later: list[Tensor]  # from STEPS_BEFORE on
    wanted: int  # where `later` must lie in `start`


def read_order(probe: Probe) -> Order:
    """Ask batches_from for the beginning, twice, and for a later step."""
    micro = max(1, probe.pipeline.micro_batches)
    ahead = STEPS_AFTER * micro
    count = STEPS_BEFORE * micro + ahead
    with probe.seeded("order"):
        start = _first_batches(probe, 0, count)
    with probe.seeded("another order"):
        again = _first_batches(probe, 0, count)
    with probe.seeded("order"):
        later = _first_batches(probe, STEPS_BEFORE, ahead)
    return Order(start, again, later, STEPS_BEFORE * micro)


def offsets_of(order: Order) -> list[int]:
    """Return every place in the run from its start at which the later batches lie."""
    later = order.later[:STEPS_AFTER]
    if not later:
        return []
    return [
        offset
        for offset in range(len(order.start) - len(later) + 1)
        if all(torch.equal(a, b) for a, b in zip(order.start[offset:], later, strict=False))
    ]


def _first_batches(probe: Probe, step: int, count: int) -> list[Tensor]:
    batches_from = probe.pipeline.batches_from
    assert batches_from is not None
    return [
        read_batch(raw, "batches_from").inputs.detach().cpu().clone()
        for raw in islice(batches_from(step), count)
    ]
