"""What a person would see of a bug: the loss that is reported, the honest one, and a sample.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from diagnostics._adapter import read_output
from diagnostics._probe import read_batch
from diagnostics._text import say

if TYPE_CHECKING:
    from exercises._lab import Lab

STEPS = 150  # enough for the losses of a healthy and a broken debug model to part
HONEST_WINDOWS = 256
SAMPLE_LENGTH = 48
TRAINING_LOSS, HONEST_LOSS = f"training loss after {STEPS} steps", "honest loss on new text"
# Parts without which there is no short training; a bug in none of them leaves the losses alone.
TRAINING_PARTS = frozenset(
    {"model", "make_model", "make_optimizer", "train_step", "get_batch", "train_ids"}
)
ALIKE_NATS = 0.03  # two seeds of one healthy debug model differ by more
NATS = re.compile(r"(-?[\d.]+|-?inf|nan) nats")


def training_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Train briefly; return the loss that the loop reports, the honest loss, and a sample."""
    model, losses = train_briefly(lab, pipeline)
    return {
        TRAINING_LOSS: _show_nats(losses[-10:].mean().item()),
        HONEST_LOSS: _show_nats(measure_honest_loss(lab, model)),
        "sample": _sample(lab, model),
    }


def compare_losses(healthy: Mapping[str, str], broken: Mapping[str, str]) -> str:
    """Say in words what the two losses show, above all when the broken run looks better."""
    training = _nats_worse(TRAINING_LOSS, healthy, broken)
    honest = _nats_worse(HONEST_LOSS, healthy, broken)
    if training is None or honest is None:
        return ""
    if not math.isfinite(training) or not math.isfinite(honest):
        return "A loss of the broken run is not a finite number: this one would be noticed."
    text = _in_words(honest)
    if abs(training) <= ALIKE_NATS and abs(honest) <= ALIKE_NATS:
        return "Both losses look healthy: no curve gives this bug away."
    if training < -ALIKE_NATS:
        return say(
            "The broken run looks better: its training loss is {nats} nats lower. On new text it "
            "is {text}.",
            nats=-training,
            text=text,
        )
    if training <= ALIKE_NATS:
        return say(
            "The training losses are alike. On new text the broken run is {text}.", text=text
        )
    return say(
        "The training loss of the broken run is {nats} nats higher; on new text it is {text}.",
        nats=training,
        text=text,
    )


def _nats_worse(name: str, healthy: Mapping[str, str], broken: Mapping[str, str]) -> float | None:
    """Return by how many nats the broken run is worse; None where one of them has no figure."""
    found = [NATS.fullmatch(figures.get(name, "")) for figures in (healthy, broken)]
    if found[0] is None or found[1] is None:
        return None
    return float(found[1][1]) - float(found[0][1])


def _in_words(honest: float) -> str:
    if abs(honest) <= ALIKE_NATS:
        return say("as good as the healthy one, to {nats} nats", nats=ALIKE_NATS)
    return say("{nats} nats {word}", nats=abs(honest), word="worse" if honest > 0 else "better")


def train_briefly(lab: Lab, pipeline: Pipeline, steps: int = STEPS) -> tuple[nn.Module, Tensor]:
    """Train a fresh model with the pipeline's own parts; return it and the losses (steps,)."""
    make_model, make_optimizer = pipeline.make_model, pipeline.make_optimizer
    train_step, get_batch = pipeline.train_step, pipeline.get_batch
    ids = lab.train_ids if pipeline.train_ids is None else pipeline.train_ids
    if not (make_model and make_optimizer and train_step and get_batch):
        raise ValueError("the lab's pipeline holds every part; an exercise took one away")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        model = make_model()
        optimizer = make_optimizer(model)
        losses = []
        for _ in range(steps):
            batch = read_batch(get_batch(ids), "get_batch")
            losses.append(train_step(model, optimizer, batch.inputs, batch.targets))
    return model, torch.stack([torch.as_tensor(loss).detach() for loss in losses])


def measure_honest_loss(lab: Lab, model: nn.Module) -> float:
    """Return the mean nats per token with which the model predicts text it cannot have seen.

    Only the last position of each window is scored, whose target no input holds: a model that
    reads the future, or that learnt to copy, has nothing to read or to copy here.
    """
    T = lab.config.block_size
    generator = torch.Generator().manual_seed(lab.seed)
    starts = torch.randint(len(lab.val_ids) - T, (HONEST_WINDOWS,), generator=generator)
    windows = lab.val_ids[starts[:, None] + torch.arange(T + 1)]  # (windows, T + 1)
    last = _logits(lab, model, windows[:, :-1])[:, -1]  # (windows, V)
    return functional.cross_entropy(last.float(), windows[:, -1]).item()


def _sample(lab: Lab, model: nn.Module) -> str:
    """Continue a prompt by drawing each token from the model's own last logits."""
    generator = torch.Generator().manual_seed(lab.seed)
    ids = lab.val_ids[:16].unsqueeze(0)  # (1, 16)
    for _ in range(SAMPLE_LENGTH):
        last = _logits(lab, model, ids[:, -lab.config.block_size :])[0, -1].float()
        if not torch.isfinite(last).all():
            return "(logits are not finite)"
        drawn = torch.multinomial((last / 0.8).softmax(-1), 1, generator=generator)
        ids = torch.cat([ids, drawn.unsqueeze(0)], dim=1)
    return repr(lab.tokenizer.decode(ids[0, 16:].clamp(max=lab.tokenizer.vocab_size - 1)))


def _logits(lab: Lab, model: nn.Module, inputs: Tensor) -> Tensor:
    was_training = model.training
    model.eval()
    with torch.no_grad():
        output = read_output(
            model(inputs), inputs.shape[0], inputs.shape[1], lab.tokenizer.vocab_size
        )
    model.train(was_training)
    return output.logits


def _show_nats(value: float) -> str:
    return f"{value:.3f} nats"
