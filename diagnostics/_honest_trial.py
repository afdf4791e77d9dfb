"""Train briefly on tokens of known entropy, and measure three losses on new data.

Shapes: B batch, T time, V symbols of the source, W width of the logits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics._overfit_curve import LARGE_SIZE, LEARNING_RATE, adamw, without_dropout
from diagnostics._probe import Batch, Probe

LN2 = math.log(2.0)
STEPS, STEPS_MIN = 80, 40
ROWS, LENGTH = 8, 32
# Rows are cut into pieces for the uniform source: in rows of 32 a GPT-2 initialisation without a
# mask needs more than 130 steps to find the next token among all others, in rows of 8 only 30.
PIECE = 8
WORK_MAX = 3e11  # multiplications per source: about 8 seconds of one CPU core
UNIFORM_V, CHAIN_V = 64, 16
TAIL = 0.2  # of the steps, at the end, over which losses are averaged
DATA_MIN = 2048  # tokens in the data that get_batch draws from
SLOW_SIZE = 20_000  # parameters below which a higher rate is safe: tables, tiny networks


@dataclass(frozen=True)
class Effort:
    """What a model of this size can afford."""

    rows: int
    length: int
    steps: int
    rate: float


@dataclass
class Trial:
    """One source and how training on it went. Losses are means over the last steps, in nats."""

    name: str  # "uniform" or "chain"
    source: str
    V: int
    entropy: float
    steps: int
    rate: float
    reports: list[float] = field(default_factory=list)  # the model's own, per step
    recomputations: list[float] = field(default_factory=list)  # logits against targets
    honesties: list[float] = field(default_factory=list)  # logits against the token that follows
    not_finite_at: int | None = None

    @property
    def reported(self) -> float:
        """The model's own loss."""
        return self._tail(self.reports)

    @property
    def first_reported(self) -> float:
        """The model's own loss before the first step."""
        return self.reports[0]

    @property
    def recomputed(self) -> float:
        """Cross-entropy of the logits with the targets."""
        return self._tail(self.recomputations)

    @property
    def honest(self) -> float:
        """Cross-entropy of the logits with the token that really comes next."""
        return self._tail(self.honesties)

    def describe(self) -> dict[str, Any]:
        """Return the trial as plain numbers."""
        return {
            self.name: {
                "entropy": self.entropy,
                "reported": self.reported,
                "recomputed": self.recomputed,
                "honest": self.honest,
                "symbols": self.V,
                "steps": self.steps,
                "learning_rate": self.rate,
                "curve": self.recomputations[:: max(1, len(self.recomputations) // 20)],
            }
        }

    def _tail(self, losses: list[float]) -> float:
        last = losses[-max(1, round(TAIL * len(losses))) :]
        return sum(last) / len(last)


def plan(probe: Probe, size: int, steps: int) -> Effort | None:
    """Return rows, length and steps for a model of `size` parameters; None when it is too large."""
    length = min(LENGTH, probe.probe_length)
    affordable = int(WORK_MAX / (6 * max(1, size)))  # tokens in all steps
    rows = max(2, min(ROWS, affordable // (length * steps)))
    steps = min(steps, affordable // (rows * length))
    if steps < STEPS_MIN:
        return None
    rate = LEARNING_RATE * min(1.0, math.sqrt(LARGE_SIZE / max(1, size)))
    return Effort(rows, length, steps, rate * (10 if size < SLOW_SIZE else 1))


def count_symbols(probe: Probe) -> int:
    """Return how many tokens the sources can be made of: with one, nothing is uncertain."""
    return len(_alphabet(probe))


def measure_uniform(probe: Probe, effort: Effort) -> Trial:
    """Train on independent uniform tokens: their entropy is ln V."""
    V = min(UNIFORM_V, count_symbols(probe))
    source = f"uniform tokens from {V} symbols"
    steps = max(min(STEPS_MIN, effort.steps), effort.steps * 5 // 8)
    trial = Trial("uniform", source, V, math.log(V), steps, effort.rate)

    def draw(count: int, generator: torch.Generator) -> Tensor:
        return torch.randint(V, (count,), generator=generator)

    return _train(probe, effort, trial, draw, min(PIECE, effort.length))


def measure_chain(probe: Probe, effort: Effort) -> Trial:
    """Train on a chain in which each token has two equally likely successors: entropy ln 2."""
    V = min(CHAIN_V, count_symbols(probe))
    source = "a chain with two successors per token"
    trial = Trial("chain", source, V, LN2, effort.steps, effort.rate)

    def draw(count: int, generator: torch.Generator) -> Tensor:
        bits = torch.randint(2, (count,), generator=generator)
        if V & (V - 1) == 0:  # shift a bit in: the token is made of the last log2 V bits
            width = V.bit_length() - 1
            padded = torch.cat([torch.randint(2, (width - 1,), generator=generator), bits])
            windows = padded.unfold(0, width, 1)  # (count, width), oldest bit first
            return windows @ (2 ** torch.arange(width - 1, -1, -1))
        state, chain = 0, []
        for bit in bits.tolist():
            state = (2 * state + bit) % V
            chain.append(state)
        return torch.tensor(chain)

    return _train(probe, effort, trial, draw, effort.length)


def _train(
    probe: Probe,
    effort: Effort,
    trial: Trial,
    draw: Callable[[int, torch.Generator], Tensor],
    piece: int,
) -> Trial:
    """Train on new tokens at every step, in rows of at most `piece` tokens."""
    generator = probe.generator(trial.source)
    alphabet = _alphabet(probe)
    own_loader = _reads_our_data(probe)
    kept: list[Tensor] = []
    with (
        probe.seeded("honesty"),
        torch.enable_grad(),
        probe.model(train=True, fresh=True) as model,
        without_dropout(model),
    ):
        parameters = [p for p in model.parameters() if p.requires_grad]
        optimizer = adamw(parameters, trial.rate)
        for _ in range(trial.steps):
            batch = _batch(
                probe, effort, lambda count: alphabet[draw(count, generator)], own_loader
            )
            batch = _cut(batch, piece)
            optimizer.zero_grad(set_to_none=True)
            logits, loss = probe.loss(model, batch)
            if not loss.requires_grad:
                break
            loss.mean().backward()
            nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            kept.append(_three_losses(probe, logits.detach(), loss.detach(), batch))
    for step, row in enumerate(torch.stack(kept).tolist()):
        trial.reports.append(row[0])
        trial.recomputations.append(row[1])
        trial.honesties.append(row[2])
        if trial.not_finite_at is None and not all(map(math.isfinite, row)):
            trial.not_finite_at = step
    return trial


def _three_losses(probe: Probe, logits: Tensor, loss: Tensor, batch: Batch) -> Tensor:
    """Return (3,): reported, against the targets, and against the token that comes next."""
    with torch.no_grad():
        recomputed = probe.adapter.cross_entropy(logits, batch.targets)
        if logits.shape[1] != batch.inputs.shape[1] or logits.shape[1] < 2:
            return torch.stack([loss.float().mean(), recomputed.float(), recomputed.float()])
        honest = functional.cross_entropy(
            logits[:, :-1].flatten(0, 1).float(), batch.inputs[:, 1:].flatten()
        )
        return torch.stack([loss.float().mean(), recomputed.float(), honest])


def _batch(probe: Probe, effort: Effort, draw: Callable[[int], Tensor], own_loader: bool) -> Batch:
    """Return a batch on the device: the user's loader on our data, or a pair of our own."""
    if own_loader:
        data = draw(max(DATA_MIN, 4 * (probe.block_size or 0)))
        drawn = probe.draw_batch(data)
        batch = drawn.crop(effort.rows, effort.length, probe.pipeline.ignore_index)
        mask = None if batch.attention_mask is None else batch.attention_mask.to(probe.device)
        inputs, targets = batch.inputs.to(probe.device), batch.targets.to(probe.device)
        return Batch(inputs.long(), targets.long(), mask, "get_batch")
    same = probe.pipeline.labels == "same"
    length = effort.length + (not same)
    ids = torch.stack([draw(length) for _ in range(effort.rows)]).to(probe.device)
    if same:
        return Batch(ids, ids.clone())
    return Batch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous())


def _cut(batch: Batch, piece: int) -> Batch:
    """Cut rows (B, T) into (B * k, piece); what is left over is dropped."""
    T = batch.inputs.shape[1] // piece * piece
    if T == 0:
        return batch

    def cut(tensor: Tensor) -> Tensor:
        return tensor[:, :T].reshape(-1, piece)

    mask = None if batch.attention_mask is None else cut(batch.attention_mask)
    return Batch(cut(batch.inputs), cut(batch.targets), mask, batch.source)


def _reads_our_data(probe: Probe) -> bool:
    """Whether there is a loader that cuts data of ours; one that cannot is not at fault."""
    if probe.pipeline.get_batch is None:
        return False
    alphabet = _alphabet(probe)
    data = alphabet[torch.arange(max(DATA_MIN, 4 * (probe.block_size or 0))) % len(alphabet)]
    try:
        with probe.seeded("honesty loader"):
            batch = probe.draw_batch(data)
    except Exception:  # any: the loader may raise whatever it likes
        return False
    is_pair = batch.inputs.ndim == 2 and batch.inputs.shape == batch.targets.shape
    return is_pair and bool(torch.isin(batch.inputs.cpu(), data).all())


def _alphabet(probe: Probe) -> Tensor:
    """Return the ids (V,) that the sources are made of: the first ones that are no padding."""
    ids = torch.arange(min(probe.usable_vocab_size, UNIFORM_V + 2))
    special = {probe.pipeline.pad_id, probe.pipeline.ignore_index}
    return torch.tensor([i for i in ids.tolist() if i not in special][:UNIFORM_V])
