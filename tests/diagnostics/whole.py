"""A healthy pipeline with every part, around any tiny model: for tests that need all of them.

Shapes: B batch, T time, M ids, T0 prompt tokens, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diagnostics import Pipeline
from minigpt import CharTokenizer, get_batch, make_optimizer
from minigpt.corpus import data_path, read_text
from minigpt.encoded import save_ids
from minigpt.sampling import next_token_probabilities
from minigpt.schedule import learning_rate_at
from tests.diagnostics.tiny import cross_entropy

ROWS, BLOCK = 4, 12
PEAK, WARMUP, MAX_STEPS = 1e-3, 10, 200
TEXT = read_text(data_path("guide.txt"))[:6000]
TOKENIZER = CharTokenizer.from_text(TEXT)
IDS = torch.tensor(TOKENIZER.encode(TEXT))
CUT = len(IDS) * 9 // 10


@dataclass(frozen=True)
class Whole:
    """All parts of a pipeline around `make`, a model of V = TOKENIZER.vocab_size."""

    make: Callable[[], nn.Module]

    def pipeline(self, folder: Path, **parts: Any) -> Pipeline:
        """Describe the healthy pipeline with some parts replaced; its files lie in a folder."""
        path = folder / "train_ids.npy"
        save_ids(path, IDS[:CUT], vocab_size=TOKENIZER.vocab_size)
        healthy: dict[str, Any] = {
            "make_model": self.make,
            "files": (path,),
            "forward": forward,
            "vocab_size": TOKENIZER.vocab_size,
            "block_size": BLOCK,
            "tokenizer": TOKENIZER,
            "train_text": TEXT[:CUT],
            "train_ids": IDS[:CUT],
            "val_ids": IDS[CUT:],
            "get_batch": lambda data: get_batch(data, ROWS, BLOCK),
            "batch": lambda split: get_batch(
                IDS[:CUT] if split == "train" else IDS[CUT:], ROWS, BLOCK
            ),
            "pad_id": int(IDS[:CUT].bincount(minlength=TOKENIZER.vocab_size).argmin()),
            "make_optimizer": lambda model: make_optimizer(model, learning_rate=PEAK),
            "train_step": train_step,
            "accumulate": accumulate,
            "learning_rate": learning_rate,
            "max_steps": MAX_STEPS,
            "evaluate": evaluate,
            "generate": generate,
            "next_token_probabilities": next_token_probabilities,
            "save": lambda model, path: torch.save(model.state_dict(), path),
            "load": self.load,
            "save_state": save_state,
            "load_state": self.load_state,
            "batches_from": batches_from,
            "fresh": True,
            "replicate": DistributedDataParallel,
            "rank_batches": rank_batches,
        }
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            model = self.make()
        return Pipeline(model, **(healthy | parts))

    def load(self, path: Path) -> nn.Module:
        """Make a model and read its weights."""
        model = self.make()
        model.load_state_dict(torch.load(path, weights_only=True))
        return model

    def load_state(self, path: Path) -> tuple[nn.Module, torch.optim.Optimizer, int]:
        """Read model, optimizer, step, and the random state."""
        stored = torch.load(path, weights_only=True)
        model = self.make()
        model.load_state_dict(stored["model"])
        optimizer = make_optimizer(model, learning_rate=PEAK)
        optimizer.load_state_dict(stored["optimizer"])
        torch.set_rng_state(stored["random"])
        return model, optimizer, stored["step"]


def logits_of(model: nn.Module, ids: Tensor) -> Tensor:
    """Return logits (B, T, V), whatever the model wraps them in."""
    output = model(ids)
    if isinstance(output, tuple):
        output = output[0]
    return output if isinstance(output, Tensor) else output.logits


def forward(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Return (logits, mean cross-entropy)."""
    logits = logits_of(model, inputs)
    return logits, cross_entropy(logits, targets)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Tensor:
    """One step without clipping; return the loss before it."""
    model.train()
    optimizer.zero_grad()
    loss = forward(model, inputs, targets)[1]
    loss.backward()
    optimizer.step()
    return loss.detach()


def accumulate(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """One step over micro-batches (B, T), in which every scored token has the same weight."""
    model.train()
    optimizer.zero_grad()
    counts = [int((targets != -100).sum()) for _, targets in batches]
    total = torch.zeros(())
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:
            loss = forward(model, inputs, targets)[1] * (count / sum(counts))
            loss.backward()
            total += loss.detach()
    optimizer.step()
    return total


def learning_rate(step: int) -> float:
    """A short warm-up, then half a cosine to a tenth of the peak."""
    return learning_rate_at(
        step, peak=PEAK, warmup_steps=WARMUP, max_steps=MAX_STEPS, floor=PEAK / 10
    )


@torch.no_grad()
def evaluate(model: nn.Module, ids: Tensor) -> float:
    """Return the mean nats over windows of (M,) ids, the last one shorter; modes come back."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    starts = range(0, len(ids) - 1, BLOCK)
    rows = [ids[start : start + BLOCK + 1] for start in starts]
    whole = torch.stack([row for row in rows if len(row) == BLOCK + 1])
    nats, count = 0.0, 0
    for batch in (*whole.split(64), *(row[None] for row in rows if len(row) <= BLOCK)):
        loss = forward(model, batch[:, :-1], batch[:, 1:])[1]
        scored = batch[:, 1:].numel()
        nats, count = nats + float(loss) * scored, count + scored
    for module, training in modes:
        module.training = training
    return nats / count


@torch.no_grad()
def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
    """Continue prompt (1, T0) greedily; beyond the block its last tokens are read."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    ids = prompt
    for _ in range(count):
        best = logits_of(model, ids[:, -BLOCK:])[:, -1].argmax(-1, keepdim=True)
        ids = torch.cat([ids, best], 1)
    for module, training in modes:
        module.training = training
    return ids


def save_state(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path) -> None:
    """Write everything that a run needs to go on."""
    stored = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "step": step,
        "random": torch.get_rng_state(),
    }
    torch.save(stored, path)


def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a run from a step on."""
    for number in itertools.count(step):
        generator = torch.Generator().manual_seed(number)
        yield get_batch(IDS[:CUT], ROWS, BLOCK, generator=generator)


def rank_batches(rank: int, processes: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of one rank of a run."""
    return itertools.islice(batches_from(rank), 0, None, processes)
