"""One trip of a model through save and load, and what came back of it.

Shapes: B batch, T time, W width of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnostics._guard import same_bytes
from diagnostics._probe import JITTER_STD, Probe
from diagnostics._state import State, read_state

NAMES = ("model.safetensors", "model.pt", "model")
MOVED_BY = 10 * JITTER_STD  # how far weights are moved after saving, to see references
LOGIT_NOISE = 1e-5  # of the largest logit: a mapped file may lie at another alignment in memory
DTYPE_NOISE = 1e-2  # the same for equal values in another dtype, whose arithmetic differs

Save = Callable[[nn.Module, Path], object]
Load = Callable[[Path], nn.Module]


@dataclass(frozen=True)
class Refusal:
    """Save or load raised."""

    part: str
    error: Exception


@dataclass(frozen=True)
class RoundTrip:
    """What was saved and what came back."""

    saved: State
    after_saving: State  # the same model, right after save
    moved: State  # the same model, after its weights were moved on purpose
    first: State
    second: State
    shares_storage: bool  # moving the first loaded model moved the second, or the file
    logits: tuple[Tensor, Tensor]  # saved, loaded; (B, T, W)
    repeatable: bool  # whether the model agrees with itself
    file_name: str

    @property
    def logit_difference(self) -> float:
        """How far the loaded model's logits are from the saved one's."""
        before, after = self.logits
        return distance(before, after) if before.shape == after.shape else math.inf

    @property
    def logits_agree(self) -> bool:
        """Whether they are equal, rounding aside; unrepeatable ones are for `modes` to judge."""
        if not self.repeatable:
            return True
        saved, first = self.saved.parameters, self.first.parameters
        retyped = any(n in first and saved[n].dtype != first[n].dtype for n in saved)
        noise = DTYPE_NOISE if retyped else LOGIT_NOISE
        finite = self.logits[0][self.logits[0].isfinite()].abs()
        size = float(finite.max()) if finite.numel() else 0.0
        return self.logit_difference <= noise * max(1.0, size)


def make_round_trip(probe: Probe, save: Save, load: Load, folder: Path) -> RoundTrip | Refusal:
    """Write and read under the first file name that both functions accept."""
    refusals: list[Refusal] = []
    for name in NAMES:
        attempt = folder / name.replace(".", "_")
        attempt.mkdir()
        trip = _round_trip(probe, save, load, attempt / name)
        if isinstance(trip, RoundTrip):
            return trip
        refusals.append(trip)
    written = [refusal for refusal in refusals if refusal.part == "load"]
    return written[-1] if written else refusals[0]


def same_values(a: State, b: State) -> bool:
    """Whether all parameters are equal bit for bit."""
    return a.parameters.keys() == b.parameters.keys() and all(
        same_bytes(tensor, b.parameters[name]) for name, tensor in a.parameters.items()
    )


def distance(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors of one shape; equal infinities do not differ."""
    apart = torch.where(a == b, 0.0, (a.double() - b.double()).abs())
    return float(apart.max()) if apart.numel() else 0.0


def _round_trip(probe: Probe, save: Save, load: Load, path: Path) -> RoundTrip | Refusal:
    tokens = probe.tokens(2, probe.probe_length, "checkpoint")
    with probe.seeded("checkpoint"), probe.model(train=True, jitter=JITTER_STD) as model:
        probe.logits(model, tokens)  # one pass in train mode, so that running statistics move
        before, again = _logits(probe, model, tokens), _logits(probe, model, tokens)
        model.train()
        for parameter in model.parameters():
            if parameter.requires_grad and parameter.is_floating_point():
                parameter.grad = torch.full_like(parameter, 0.5)
        saved = read_state(model)
        try:
            save(model, path)
        except Exception as error:  # any: users' parts may raise anything
            return Refusal("save", error)
        after_saving = read_state(model)
        _move(model)
        moved = read_state(model)
        try:
            first_model = _load(load, path)
            with probe.seeded("second load"):
                second_model = _load(load, path)
        except Exception as error:  # any: users' parts may raise anything
            return Refusal("load", error)
        first, second = read_state(first_model), read_state(second_model)
        logits = _logits(probe, first_model, tokens)
        shares = same_values(first, second) and _shares(load, path, first_model, second_model)
        repeatable = torch.equal(before, again)
        return RoundTrip(
            saved,
            after_saving,
            moved,
            first,
            second,
            shares,
            (before, logits),
            repeatable,
            path.name,
        )


def _shares(load: Load, path: Path, first: nn.Module, second: nn.Module) -> bool:
    """Move the first loaded model, and see whether the second or the file moved with it."""
    expected = read_state(second)
    _move(first)
    return not (
        same_values(read_state(second), expected)
        and same_values(read_state(_load(load, path)), expected)
    )


def _load(load: Load, path: Path) -> nn.Module:
    model = load(path)
    if not isinstance(model, nn.Module):
        raise TypeError(f"load must return an nn.Module, got {type(model).__name__}")
    return model


def _move(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.add_(MOVED_BY)


def _logits(probe: Probe, model: nn.Module, tokens: Tensor) -> Tensor:
    """Return logits in eval mode, on the CPU, wherever the model lies."""
    model.eval()
    first = next(model.parameters(), None)
    tokens = tokens if first is None else tokens.to(first.device)
    return probe.logits(model, tokens).float().cpu()
