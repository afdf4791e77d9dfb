"""Break the initial loss: weights that are confident, or alike, before anything was learnt."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping

import torch
from torch import nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt.model import INIT_STD, Block, MiniGPT


def break_unit_variance(lab: Lab) -> Pipeline:
    """Tie the head to an embedding that was drawn as nn.Embedding draws it."""

    def edit(model: MiniGPT) -> MiniGPT:
        std = 1.0  # BROKEN: was std = INIT_STD
        nn.init.normal_(model.token_embedding.weight, std=std)
        model.head.weight = model.token_embedding.weight
        return model

    return lab.pipeline(edit_model=edit)


def break_cloned(lab: Lab) -> Pipeline:
    """Make all layers as copies of the first: the loss starts at ln V, and nothing shows."""

    def edit(model: MiniGPT) -> MiniGPT:
        first, *others = model.blocks
        others = [copy.deepcopy(first) for _ in others]  # BROKEN: was others = list(others)
        model.blocks = nn.ModuleList([first, *others])
        return model

    return lab.pipeline(edit_model=edit)


def break_constant(lab: Lab) -> Pipeline:
    """Leave a placeholder in place of the random start: all units of a layer stay equal."""

    def edit(model: MiniGPT) -> MiniGPT:
        for block in model.blocks:
            assert isinstance(block, Block)
            weight = block.feed_forward.expand.weight
            nn.init.constant_(weight, INIT_STD)  # BROKEN: was nn.init.normal_(weight, std=INIT_STD)
        return model

    return lab.pipeline(edit_model=edit)


def show_first_loss(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show the loss before any training, and what guessing would score."""
    assert pipeline.get_batch is not None
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(lab.seed)
        inputs, targets = lab.get_batch(lab.train_ids)
        logits = pipeline.model(inputs)[0]  # (B, T, V)
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).item()
    first, second = (block.feed_forward.expand.weight for block in _two_blocks(pipeline))
    return {
        "first loss": f"{loss:.3f} nats",
        "what guessing scores, ln V": f"{math.log(lab.tokenizer.vocab_size):.3f} nats",
        "spread of the logits": f"{logits.std().item():.3f}",
        "largest difference between layers 0 and 1": f"{(first - second).abs().max().item():.3f}",
    }


def _two_blocks(pipeline: Pipeline) -> list[Block]:
    blocks = [module for module in pipeline.model.modules() if isinstance(module, Block)]
    return blocks[:2]


EXERCISE = Exercise(
    name="break_initial_loss",
    question=(
        "Before training, a model should spread its bets over all V tokens. What does the first "
        "loss say about the initial weights, and what does it not say?"
    ),
    bugs=(
        Bug(
            name="unit_variance",
            break_it=break_unit_variance,
            trips="initial_loss",
            reason="initial_loss.too_high",
            note="nn.Embedding draws N(0, 1). As a head of width C it gives logits of size "
            "sqrt(C), and confident nonsense.",
        ),
        Bug(
            name="cloned",
            break_it=break_cloned,
            trips="initial_loss",
            reason="initial_loss.identical_layers",
            level=2,
            note="The first loss is right. Two layers that should differ hold the same numbers.",
        ),
        Bug(
            name="constant",
            break_it=break_constant,
            trips="initial_loss",
            reason="initial_loss.patterned_weights",
            level=2,
            note="The first loss is right. All units of the layer compute the same thing.",
        ),
    ),
    hint="Compare the standard deviation of each matrix with 0.02, and the layers with each other.",
    lesson=(
        "The first loss is a free test of the initial weights: ln V, not more. But a right first "
        "loss does not prove a right start: look at the weights of a fresh model themselves."
    ),
    symptom=show_first_loss,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
