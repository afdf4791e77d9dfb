"""The parts of a pipeline around any small model, as a careful user would write them.

Shapes: B batch, T time, N ids, V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from diagnostics import Pipeline, Report, diagnose
from exercises._lab import Lab
from minigpt.evaluate import evaluation_mode

BLOCK, BATCH_SIZE = 12, 8
LEARNING_RATE, MAX_STEPS, WARMUP_STEPS = 3e-3, 200, 10
IGNORE_INDEX = -100  # of cross_entropy: targets that are not scored

Call = Callable[[nn.Module, Tensor, Tensor], tuple[Tensor, Tensor]]  # -> logits (B, T, V), loss


def assert_healthy(pipeline: Pipeline, *, warnings: Collection[str] = (), **options: Any) -> Report:
    """Assert that nothing fails, nothing raises, and nothing warns but what is expected to.

    warnings: reason ids that a person has to judge for this design.
    options: of `diagnose`.
    """
    report = diagnose(pipeline, **options)
    wrong = [
        r for r in report.results if r.failed or (r.status == "warn" and r.reason not in warnings)
    ]
    assert not wrong, "\n".join(map(str, wrong))
    assert report.passed, str(report)  # something was measured
    return report


def call_pair(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Call a model that returns (logits, loss), or a dict or an object that holds them."""
    output: Any = model(inputs, targets)
    if isinstance(output, tuple):
        return output[0], output[1]
    if isinstance(output, dict):
        return output["logits"], output["loss"]
    return output.logits, output.loss


def call_logits(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Call a model that returns logits, or an object with .logits, and add the loss."""
    output: Any = model(inputs)
    logits: Tensor = getattr(output, "logits", output)
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def describe(
    lab: Lab,
    make_model: Callable[[], nn.Module],
    *,
    call: Call = call_pair,
    block: int | None = BLOCK,
    **parts: Any,
) -> Pipeline:
    """Describe a whole pipeline around a model.

    call: how the loops below call the model; `forward` of the pipeline is left to be recognised.
    block: the longest context in tokens; None: the model has no limit, and none is declared.
    parts: fields of Pipeline that replace or add to the healthy ones.
    """
    torch.manual_seed(0)
    model = parts.pop("model", None) or make_model()
    make_optimizer = parts.get("make_optimizer", adamw)
    train_step = step_with(call)

    def load(path: Path) -> nn.Module:
        loaded = make_model()
        loaded.load_state_dict(torch.load(path))
        return loaded

    def save_state(model: nn.Module, optimizer: Optimizer, step: int, path: Path) -> None:
        state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state | {"random": torch.get_rng_state()}, path)

    def load_state(path: Path) -> tuple[nn.Module, Optimizer, int]:
        state = torch.load(path)
        loaded = make_model()
        loaded.load_state_dict(state["model"])
        optimizer = make_optimizer(loaded)
        optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])
        return loaded, optimizer, state["step"]

    healthy: dict[str, Any] = {
        "make_model": make_model,
        "block_size": block,
        "tokenizer": lab.tokenizer,
        "train_text": lab.train_text,
        "train_ids": lab.train_ids,
        "val_ids": lab.val_ids[:500],
        "get_batch": windows,
        "make_optimizer": adamw,
        "train_step": train_step,
        "accumulate": accumulate_with(call, first=int(parts.get("labels") == "same")),
        "learning_rate": warm_up_then_linear,
        "max_steps": MAX_STEPS,
        "evaluate": evaluate_with(call),
        "generate": generate_with(call, block),
        "save": lambda model, path: torch.save(model.state_dict(), path),
        "load": load,
        "save_state": save_state,
        "load_state": load_state,
        "batches_from": lambda step: batches_from(lab.train_ids, step),
        "fresh": True,
    }
    return Pipeline(model, **(healthy | parts))


def windows(data: Tensor, generator: torch.Generator | None = None) -> tuple[Tensor, Tensor]:
    """Draw random windows (B, T), and the same windows one token later."""
    starts = torch.randint(len(data) - BLOCK, (BATCH_SIZE, 1), generator=generator)
    places = starts + torch.arange(BLOCK)
    return data[places], data[places + 1]


def batches_from(ids: Tensor, step: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the batches of a run from a step on; each depends on its step alone."""
    for number in itertools.count(step):
        yield windows(ids, torch.Generator().manual_seed(number))


def adamw(model: nn.Module) -> Optimizer:
    """AdamW on what is trainable, without weight decay on vectors."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    groups = [
        {"params": [p for p in trainable if p.ndim > 1], "weight_decay": 0.1},
        {"params": [p for p in trainable if p.ndim <= 1], "weight_decay": 0.0},
    ]
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=LEARNING_RATE)


def warm_up_then_linear(step: int) -> float:
    """A short warm-up, then linearly to zero at the end of the run, and zero ever after."""
    warm = (step + 1) / WARMUP_STEPS
    left = (MAX_STEPS - step) / (MAX_STEPS - WARMUP_STEPS)
    return LEARNING_RATE * max(0.0, min(warm, left, 1.0))


def step_with(call: Call) -> Callable[[nn.Module, Optimizer, Tensor, Tensor], Tensor]:
    """Return one step of training: forward, backward, clip, step."""

    def train_step(
        model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor
    ) -> Tensor:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        _, loss = call(model, inputs, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return train_step


def accumulate_with(
    call: Call, first: int = 0
) -> Callable[[nn.Module, Optimizer, list[tuple[Tensor, Tensor]]], Tensor]:
    """Return one step over micro-batches in which every scored token has the same weight.

    first: the first column of the targets that is scored; 1 where the model shifts inside.
    """

    def accumulate(
        model: nn.Module, optimizer: Optimizer, batches: list[tuple[Tensor, Tensor]]
    ) -> Tensor:
        model.train()
        optimizer.zero_grad(set_to_none=True)
        counts = [int((targets[:, first:] != IGNORE_INDEX).sum()) for _, targets in batches]
        total = torch.zeros(())
        for (inputs, targets), count in zip(batches, counts, strict=True):
            if count:
                loss = call(model, inputs, targets)[1] * (count / sum(counts))
                loss.backward()
                total = total + loss.detach()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    return accumulate


def evaluate_with(call: Call) -> Callable[[nn.Module, Tensor], float]:
    """Return the mean loss over windows that do not overlap; the last one may be shorter."""

    @torch.no_grad()
    def evaluate(model: nn.Module, ids: Tensor) -> float:
        total, count = 0.0, 0
        whole = (len(ids) - 1) // BLOCK * BLOCK
        with evaluation_mode(model):
            for start, end in ((0, whole), (whole, len(ids) - 1)):
                if start < end:
                    T = min(BLOCK, end - start)
                    inputs, targets = (
                        ids[start:end].view(-1, T),
                        ids[start + 1 : end + 1].view(-1, T),
                    )
                    total += float(call(model, inputs, targets)[1]) * targets.numel()
                    count += targets.numel()
        return total / count

    return evaluate


def generate_with(call: Call, block: int | None) -> Callable[[nn.Module, Tensor, int], Tensor]:
    """Return greedy generation that reads the last block of the text."""

    @torch.no_grad()
    def generate(model: nn.Module, prompt: Tensor, count: int) -> Tensor:
        text = prompt
        with evaluation_mode(model):
            for _ in range(count):
                read = text if block is None else text[:, -block:]
                logits, _ = call(model, read, read)
                text = torch.cat([text, logits[:, -1].argmax(-1, keepdim=True)], 1)
        return text

    return generate
