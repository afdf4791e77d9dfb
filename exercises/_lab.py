"""The laboratory: a small healthy pipeline, every part of which an exercise can replace.

The model has the debug size (block 32, dim 64, 4 heads, 2 layers), the text is the start of the
built-in guide, and all files live in a temporary folder that goes away with the lab.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from diagnostics import Pipeline
from minigpt import (
    CharTokenizer,
    MiniGPT,
    MiniGPTConfig,
    generate,
    get_batch,
    load_checkpoint,
    make_optimizer,
    save_checkpoint,
)
from minigpt.corpus import data_path, read_text
from minigpt.encoded import save_ids
from minigpt.evaluate import evaluate
from minigpt.sampling import next_token_probabilities
from minigpt.schedule import learning_rate_at
from minigpt.seed import random_states, restore_random_states

BATCH_SIZE = 8
LEARNING_RATE = 1e-3
MAX_STEPS, WARMUP_STEPS = 300, 15
GRADIENT_NORM_MAX = 1.0
IGNORE_INDEX = -100  # of cross_entropy: targets that are not scored
TEXT_LENGTH = 40_000  # characters of the guide: enough for every check, encoded in milliseconds
SEED = 42

Edit = Callable[[Any], Any]  # (model) -> the same model, changed in place


class Lab:
    """A context manager; `lab.pipeline()` is healthy, `lab.pipeline(part=broken)` is not."""

    def __init__(self, seed: int = SEED) -> None:
        self.seed = seed
        # check -> the parts that it read when the healthy pipeline passed it
        self.proven: dict[str, frozenset[str]] = {}
        self.unable: dict[str, str] = {}  # check -> why this system cannot run it
        self._described: tuple[Pipeline, frozenset[str]] | None = None  # the last one
        self._undo: list[Callable[[], object]] = []
        self.folder = Path(tempfile.mkdtemp(prefix="exercises-"))
        text = read_text(data_path("guide.txt"))[:TEXT_LENGTH]
        self.text = text
        self.tokenizer = CharTokenizer.from_text(text)
        ids = torch.tensor(self.tokenizer.encode(text))  # (N,)
        cut = len(ids) * 9 // 10
        self.train_text = text[:cut]
        self.train_ids, self.val_ids = ids[:cut], ids[cut:]
        self.config = MiniGPTConfig.debug(self.tokenizer.vocab_size)
        self.tokenizer_path = self.folder / "char_tokenizer.json"
        self.train_path = self.folder / "train_ids.npy"
        self.val_path = self.folder / "val_ids.npy"
        self.write_files()

    def __enter__(self) -> Lab:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def undo_later(self, undo: Callable[[], object]) -> None:
        """Have `undo` called by `restore`: for a bug in a switch of the whole process."""
        self._undo.append(undo)

    def restore(self) -> None:
        """Undo what a bug did outside its pipeline: switches of the process, and the files."""
        while self._undo:
            self._undo.pop()()
        self.write_files()

    def write_files(self) -> None:
        """Write tokenizer and ids afresh."""
        self.tokenizer.save(self.tokenizer_path)
        save_ids(self.train_path, self.train_ids, vocab_size=self.tokenizer.vocab_size)
        save_ids(self.val_path, self.val_ids, vocab_size=self.tokenizer.vocab_size)

    def pipeline(self, *, edit_model: Edit | None = None, **parts: Any) -> Pipeline:
        """Describe the healthy pipeline with some parts replaced.

        edit_model: changes a model in place and returns it; applied to every model, the given one,
            fresh ones and loaded ones.
        parts: fields of Pipeline.
        """
        edit = edit_model or (lambda model: model)

        def make_model() -> nn.Module:
            return edit(MiniGPT(self.config))

        def load_state(path: Path) -> tuple[nn.Module, torch.optim.Optimizer, int]:
            model, optimizer, step = self.load_state(path)
            return edit(model), optimizer, step

        healthy: dict[str, Any] = {
            "make_model": make_model,
            "files": (self.tokenizer_path, self.train_path, self.val_path),
            "vocab_size": self.tokenizer.vocab_size,
            "block_size": self.config.block_size,
            "tokenizer": self.tokenizer,
            # the rarest character stands in for a pad: it is never doubled, as padding would be
            "pad_id": int(self.train_ids.bincount(minlength=self.config.vocab_size).argmin()),
            "train_text": self.train_text,
            "train_ids": self.train_ids,
            "val_ids": self.val_ids,
            "get_batch": self.get_batch,
            "make_optimizer": self.make_optimizer,
            "train_step": train_step,
            "accumulate": accumulate,
            "learning_rate": learning_rate,
            "max_steps": MAX_STEPS,
            "evaluate": evaluate,
            "generate": generate_greedily,
            "next_token_probabilities": next_token_probabilities,
            "save": self.save,
            "load": lambda path: edit(load_checkpoint(path).model),
            "save_state": self.save_state,
            "load_state": load_state,
            "batches_from": self.batches_from,
            "fresh": True,
            "replicate": DistributedDataParallel,
            "rank_batches": self.rank_batches,
        }
        edited = {"model", "make_model", "load", "load_state"} if edit_model else set()
        replaced = frozenset(edited | parts.keys())
        model = parts.pop("model", None)
        if model is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(self.seed)
                model = healthy["make_model"]()
        described = Pipeline(model, **(healthy | parts))
        self._described = (described, replaced)
        return described

    def replaced_parts(self, pipeline: Pipeline) -> frozenset[str] | None:
        """Return the parts in which a pipeline differs from the healthy one; None: not known.

        It is known for the last one described here, unless something outside of it was changed:
        a file, or a switch of the process.
        """
        if self._undo or self._described is None or self._described[0] is not pipeline:
            return None
        return self._described[1] or None

    def get_batch(self, data: Tensor) -> tuple[Tensor, Tensor]:
        """Draw random windows (B, T) and the same windows one token later."""
        return get_batch(data, BATCH_SIZE, self.config.block_size)

    def make_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """AdamW with decay on matrices only."""
        return make_optimizer(model, learning_rate=LEARNING_RATE)

    def save(self, model: nn.Module, path: Path) -> None:
        """Write a native checkpoint."""
        save_checkpoint(path, model, self.tokenizer)

    def save_state(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, step: int, path: Path
    ) -> None:
        """Write everything that a run needs to go on: model, optimizer, step, random states."""
        save_checkpoint(
            path.with_suffix(".safetensors"),
            model,
            self.tokenizer,
            optimizer=optimizer,
            step=step,
            random_states=random_states(),
        )

    def load_state(self, path: Path) -> tuple[nn.Module, torch.optim.Optimizer, int]:
        """Read the model, an optimizer over it, and the number of steps that were made."""
        checkpoint = load_checkpoint(path.with_suffix(".safetensors"))
        optimizer = self.make_optimizer(checkpoint.model)
        checkpoint.restore_optimizer(optimizer)
        restore_random_states(checkpoint.random_states or {})
        return checkpoint.model, optimizer, checkpoint.step

    def batches_from(self, step: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of a run from a step on: each is drawn from (seed, step) alone."""
        for number in itertools.count(step):
            generator = torch.Generator().manual_seed(1000 * self.seed + number)
            yield get_batch(self.train_ids, BATCH_SIZE, self.config.block_size, generator=generator)

    def rank_batches(self, rank: int, processes: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield the batches of one process of many: no two ranks ever have the same seed."""
        for number in itertools.count():
            generator = torch.Generator().manual_seed(self.seed + number * processes + rank)
            yield get_batch(self.train_ids, BATCH_SIZE, self.config.block_size, generator=generator)


def train_step(
    model: nn.Module, optimizer: torch.optim.Optimizer, inputs: Tensor, targets: Tensor
) -> Tensor:
    """Forward, backward, clip, step; return the loss before the step."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    _, loss = model(inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
    optimizer.step()
    return loss.detach()


def accumulate(
    model: nn.Module, optimizer: torch.optim.Optimizer, batches: list[tuple[Tensor, Tensor]]
) -> Tensor:
    """One step over micro-batches (B, T), in which every scored token has the same weight."""
    model.train()
    optimizer.zero_grad(set_to_none=True)
    counts = [int((targets != IGNORE_INDEX).sum()) for _, targets in batches]
    total = torch.zeros(())
    for (inputs, targets), count in zip(batches, counts, strict=True):
        if count:  # the mean over no tokens is 0 / 0
            loss = model(inputs, targets)[1] * (count / sum(counts))
            loss.backward()
            total += loss.detach()
    nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
    optimizer.step()
    return total


def learning_rate(step: int) -> float:
    """Return the rate of a step: a short warm-up, then half a cosine to a tenth of the peak."""
    return learning_rate_at(
        step,
        peak=LEARNING_RATE,
        warmup_steps=WARMUP_STEPS,
        max_steps=MAX_STEPS,
        floor=LEARNING_RATE / 10,
    )


def generate_greedily(model: Any, prompt: Tensor, count: int) -> Tensor:
    """Continue prompt (1, T0) by `count` most probable tokens."""
    return generate(model, prompt, count, greedy=True)


def retype(model: nn.Module, old: type[nn.Module], new: type[nn.Module]) -> nn.Module:
    """Make every module of class `old` behave as its subclass `new`; the weights stay.

    Changing the class of the instances leaves the classes themselves alone, so that the next
    model that is built is healthy again.
    """
    changed = 0
    for module in model.modules():
        if type(module) is old:
            module.__class__ = new
            changed += 1
    if not changed:
        raise LookupError(f"the model holds no {old.__name__}")
    return model
