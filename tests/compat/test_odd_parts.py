"""Healthy parts that look odd: optimizers, schedules, loaders, evaluations, tokenizers.

The model is an ordinary one. Shapes: B batch, T time, N ids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from exercises._lab import Lab
from minigpt.evaluate import evaluation_mode
from tests.compat._parts import (
    BATCH_SIZE,
    BLOCK,
    LEARNING_RATE,
    MAX_STEPS,
    assert_healthy,
    call_pair,
    describe,
)
from tests.diagnostics.tiny import TinyGPT

PEAK = LEARNING_RATE


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with Lab() as made:
        yield made


def check(lab: Lab, only: Sequence[str], warnings: Sequence[str] = (), **parts: Any) -> None:
    V = lab.tokenizer.vocab_size
    assert_healthy(
        describe(lab, lambda: TinyGPT(V, std=0.1), **parts), only=only, warnings=warnings
    )


# ---- optimizers ----------------------------------------------------------------------------


class Lion(Optimizer):
    """Moves by the sign of a mixture of momentum and gradient (Chen et al. 2023)."""

    def __init__(self, parameters: Any, lr: float = 3e-4, weight_decay: float = 0.1) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                momentum = state.setdefault("momentum", torch.zeros_like(parameter))
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                direction = (0.9 * momentum + 0.1 * parameter.grad).sign()
                parameter.add_(direction, alpha=-group["lr"])
                momentum.lerp_(parameter.grad, 0.01)


def by_layer(model: Any) -> Optimizer:
    """Lower rates for lower layers."""
    groups = [
        {"params": [*model.tokens.parameters(), *model.positions.parameters()], "lr": PEAK / 4},
        {"params": model.blocks[0].parameters(), "lr": PEAK / 2},
        {"params": model.blocks[1].parameters(), "lr": PEAK},
        {"params": [*model.norm.parameters(), *model.head.parameters()], "lr": PEAK},
    ]
    return torch.optim.AdamW(groups)


OPTIMIZERS: dict[str, Callable[[nn.Module], Optimizer]] = {
    "lion": lambda model: Lion(model.parameters()),
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
    "nesterov": lambda model: torch.optim.SGD(
        model.parameters(), lr=0.05, momentum=0.9, nesterov=True
    ),
    "adam": lambda model: torch.optim.Adam(model.parameters(), lr=PEAK, amsgrad=True),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), lr=PEAK, fused=True),
    "rmsprop": lambda model: torch.optim.RMSprop(model.parameters(), lr=1e-3),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters(), lr=0.02),
    "nadam": lambda model: torch.optim.NAdam(model.parameters(), lr=PEAK),
    "adamax": lambda model: torch.optim.Adamax(model.parameters(), lr=PEAK),
    "by layer": by_layer,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_is_healthy(name: str, lab: Lab) -> None:
    only = ["optimizer", "training_step", "resume"]
    check(lab, only, make_optimizer=OPTIMIZERS[name], learning_rate=None)


# ---- schedules -----------------------------------------------------------------------------


def cosine(progress: float) -> float:
    return 0.5 * (1 + math.cos(math.pi * min(1.0, max(0.0, progress))))


def warm(step: int, steps: int = 10) -> float:
    return min(1.0, (step + 1) / steps)


def decayed_by_steps(step: int) -> float:
    return PEAK * warm(step) * 0.5 ** sum(step >= place for place in (80, 120, 160))


SCHEDULES: dict[str, tuple[Callable[[int], float], tuple[str, ...]]] = {
    "linear to zero": (lambda s: PEAK * max(0.0, min(warm(s), (MAX_STEPS - s) / 190)), ()),
    "cosine": (lambda s: PEAK * warm(s) * cosine((s - 10) / 190), ()),
    "cosine to a tenth": (lambda s: PEAK * warm(s) * (0.1 + 0.9 * cosine((s - 10) / 190)), ()),
    "cosine with restarts": (
        lambda s: PEAK * warm(s) * (0.01 + 0.99 * cosine(s % 50 / 50)),
        ("schedule.restart",),
    ),
    "warm up, stay, decay": (lambda s: PEAK * warm(s) * min(1.0, max(0.0, (200 - s) / 40)), ()),
    "constant": (lambda s: PEAK, ()),
    "constant after a warm-up": (lambda s: PEAK * warm(s), ()),
    "inverse square root": (lambda s: PEAK * min(warm(s), (10 / (s + 1)) ** 0.5), ()),
    "one cycle": (
        lambda s: PEAK * (0.04 + 0.96 * (cosine(1 - s / 60) if s < 60 else cosine((s - 60) / 140))),
        (),
    ),
    "steps": (decayed_by_steps, ()),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_schedule_is_healthy(name: str, lab: Lab) -> None:
    rate, warnings = SCHEDULES[name]
    check(lab, ["schedule"], warnings, learning_rate=rate)


# ---- loaders -------------------------------------------------------------------------------


class Sequential:
    """Reads on where the last batch ended, and begins anew at the end."""

    def __init__(self) -> None:
        self.place = 0

    def __call__(self, data: Tensor) -> tuple[Tensor, Tensor]:
        size = BATCH_SIZE * BLOCK
        if self.place + size + 1 > len(data):
            self.place = 0
        part = data[self.place : self.place + size + 1]
        self.place += size
        return part[:-1].view(BATCH_SIZE, BLOCK), part[1:].view(BATCH_SIZE, BLOCK)


class Shuffled:
    """Draws windows that do not overlap, each once an epoch, in another order every time."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __call__(self, data: Tensor) -> tuple[Tensor, Tensor]:
        if len(self.order) < BATCH_SIZE:
            self.order = torch.randperm((len(data) - 1) // BLOCK).tolist()
        chosen = [self.order.pop() for _ in range(BATCH_SIZE)]
        rows = torch.stack([data[i * BLOCK : i * BLOCK + BLOCK + 1] for i in chosen])
        return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def memory_mapped(data: Any) -> tuple[Tensor, Tensor]:
    """Cut rows out of a NumPy array, as nanoGPT does."""
    starts = torch.randint(len(data) - BLOCK, (BATCH_SIZE,)).tolist()
    x = torch.stack([torch.from_numpy(data[i : i + BLOCK].astype("int64")) for i in starts])
    y = torch.stack([torch.from_numpy(data[i + 1 : i + 1 + BLOCK].astype("int64")) for i in starts])
    return x, y


LOADERS: dict[str, tuple[Callable[[], Any], tuple[str, ...]]] = {
    "sequential": (Sequential, ("batches.aliased",)),  # views, which nobody writes into
    "shuffled": (Shuffled, ()),
    "memory-mapped": (lambda: memory_mapped, ()),
}


@pytest.mark.parametrize("name", LOADERS)
def test_a_loader_is_healthy(name: str, lab: Lab) -> None:
    make, warnings = LOADERS[name]
    check(lab, ["shift", "batches"], warnings, get_batch=make())


def test_a_data_loader_of_torch_is_healthy(lab: Lab) -> None:
    """Bound to its data, shuffled, with whole batches only."""

    def loader(ids: Tensor) -> Any:
        rows = ids.unfold(0, BLOCK + 1, BLOCK)
        data = torch.utils.data.TensorDataset(rows[:, :-1], rows[:, 1:])
        return torch.utils.data.DataLoader(data, BATCH_SIZE, shuffle=True, drop_last=True)

    loaders = {"train": loader(lab.train_ids), "val": loader(lab.val_ids)}

    def batch(split: str) -> tuple[Tensor, Tensor]:
        inputs, targets = next(iter(loaders[split]))
        return inputs, targets

    check(lab, ["shift", "batches"], get_batch=None, batch=batch)


def test_prompts_that_are_not_scored_are_healthy(lab: Lab) -> None:
    """Fine-tuning on answers: the targets of each row's beginning are ignored."""

    def batch(split: str) -> tuple[Tensor, Tensor]:
        ids = lab.train_ids if split == "train" else lab.val_ids
        starts = torch.randint(len(ids) - BLOCK, (BATCH_SIZE, 1))
        places = starts + torch.arange(BLOCK)
        hidden = torch.arange(BLOCK) < torch.randint(2, BLOCK - 3, (BATCH_SIZE, 1))
        return ids[places], ids[places + 1].masked_fill(hidden, -100)

    only = ["shift", "batches", "loss", "initial_loss", "training_step", "accumulation"]
    check(lab, only, get_batch=None, batch=batch)


# ---- evaluations ---------------------------------------------------------------------------


@torch.inference_mode()
def fixed_subset(model: nn.Module, ids: Tensor) -> float:
    """Sixteen windows, spread evenly, the same ones in every call."""
    with evaluation_mode(model):
        starts = torch.linspace(0, len(ids) - BLOCK - 1, 16).long()[:, None]
        places = starts + torch.arange(BLOCK)
        return float(call_pair(model, ids[places], ids[places + 1])[1])


@torch.no_grad()
def strided(model: nn.Module, ids: Tensor) -> float:
    """Windows that overlap by half; only tokens that were not scored before are."""
    total, scored = 0.0, 0
    with evaluation_mode(model):
        for start in range(0, len(ids) - 1, BLOCK // 2):
            end = min(start + BLOCK, len(ids) - 1)
            targets = ids[start + 1 : end + 1].clone()
            targets[: max(0, scored - start)] = -100
            count = int((targets != -100).sum())
            if count:
                loss = call_pair(model, ids[None, start:end], targets[None])[1]
                total, scored = total + float(loss) * count, end
    return total / scored


EVALUATIONS: dict[str, tuple[Callable[[nn.Module, Tensor], float], tuple[str, ...]]] = {
    "fixed subset": (fixed_subset, ("evaluation.reads_part",)),
    "strided": (strided, ()),
}


@pytest.mark.parametrize("name", EVALUATIONS)
def test_an_evaluation_is_healthy(name: str, lab: Lab) -> None:
    evaluate, warnings = EVALUATIONS[name]
    check(lab, ["evaluation"], warnings, evaluate=evaluate)


# ---- tokenizers ----------------------------------------------------------------------------


class Bytes:
    """An id for each byte of UTF-8."""

    vocab_size = 256

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: Sequence[int]) -> str:
        return bytes(ids).decode(errors="replace")


class Pairs:
    """Byte-pair encoding with merges learnt from a text; an id beyond 255 is a pair of ids."""

    def __init__(self, text: str, merges: int) -> None:
        self.merges: list[tuple[int, int]] = []
        ids = list(text.encode())
        for number in range(merges):
            pairs = list(itertools.pairwise(ids))
            self.merges.append(max(sorted(set(pairs)), key=pairs.count))
            ids = self._merge(ids, self.merges[-1], 256 + number)
        self.vocab_size = 256 + merges

    def encode(self, text: str) -> list[int]:
        ids = list(text.encode())
        for number, pair in enumerate(self.merges):
            ids = self._merge(ids, pair, 256 + number)
        return ids

    def decode(self, ids: Sequence[int]) -> str:
        parts = [bytes([i]) for i in range(256)]
        for a, b in self.merges:
            parts.append(parts[a] + parts[b])
        return b"".join(parts[i] for i in ids).decode(errors="replace")

    @staticmethod
    def _merge(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
        merged: list[int] = []
        for i in ids:
            if merged and (merged[-1], i) == pair:
                merged[-1] = new
            else:
                merged.append(i)
        return merged


@pytest.mark.parametrize("kind", ["bytes", "pairs"])
def test_a_tokenizer_of_bytes_is_healthy(kind: str, lab: Lab) -> None:
    tokenizer: Any = Bytes() if kind == "bytes" else Pairs(lab.train_text[:1500], 20)
    train, val = lab.train_text[:6000], lab.train_text[6000:8000]
    pipeline = describe(
        lab,
        lambda: TinyGPT(tokenizer.vocab_size, std=0.1),
        tokenizer=tokenizer,
        train_text=train,
        train_ids=torch.tensor(tokenizer.encode(train)),
        val_ids=torch.tensor(tokenizer.encode(val)),
    )
    only = ["tokenizer", "ids", "shift", "batches", "loss", "initial_loss", "evaluation"]
    assert_healthy(pipeline, only=only)
