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
            question=(
                "The model has 87 tokens and a width of 64. What first loss do you expect from "
                "weights that bet on nothing, and will this one be near it or several times as "
                "large?"
            ),
            hints=(
                (
                    "Look at the spread of the logits, and from there at the weights that make "
                    "them. Head and embedding are one tensor here."
                ),
                (
                    "Print the standard deviation of the token embedding and of the logits. "
                    "Healthy are about 0.02 and 0.16; here they are about 1 and 10."
                ),
                (
                    "The embedding has to be drawn with the small standard deviation that the "
                    "other weights are drawn with."
                ),
            ),
            lesson=(
                "A logit is a sum over the width, so its size grows with the root of the width "
                "times the size of the weights. A tied head inherits whatever the embedding was "
                "drawn with."
            ),
        ),
        Bug(
            name="cloned",
            break_it=break_cloned,
            trips="initial_loss",
            reason="initial_loss.identical_layers",
            level=2,
            note="The first loss is right. Two layers that should differ hold the same numbers.",
            question=(
                "The first loss: higher than the healthy one, lower, or the same within 0.02? What "
                "else would you have to look at to see a difference?"
            ),
            hints=(
                (
                    "Look at the weights themselves, one layer beside the other. The loss cannot "
                    "tell, because no layer has learnt anything yet."
                ),
                (
                    "Subtract the weights of block 0 from those of block 1 and print the largest "
                    "difference. Healthy is about 0.1; here it is exactly 0."
                ),
                (
                    "Every block has to keep the weights that it drew when it was made. A copy of "
                    "the first block is not a second draw."
                ),
            ),
            lesson=(
                "Random starts have to be independent draws. A copied module, or a seed that is "
                "set again before each module, makes layers that begin as one and are slow to part."
            ),
        ),
        Bug(
            name="constant",
            break_it=break_constant,
            trips="initial_loss",
            reason="initial_loss.patterned_weights",
            level=2,
            note="The first loss is right. All units of the layer compute the same thing.",
            question=(
                "Will the first loss differ from the healthy one by more than 0.02? And how many "
                "different units does the changed layer have at the start?"
            ),
            hints=(
                (
                    "Look at one weight matrix of the feed-forward part, row by row: each row is "
                    "one unit."
                ),
                (
                    "Print the standard deviation of the matrix and the difference of its first "
                    "two rows. Healthy is about 0.02 for the first and not 0 for the second; here "
                    "both are 0."
                ),
                (
                    "The weights have to be drawn at random with the usual standard deviation, in "
                    "place of being filled with it."
                ),
            ),
            lesson=(
                "A layer whose units start alike is one unit, repeated. They part only if what "
                "surrounds them differs, so draw every matrix at random unless zero is meant."
            ),
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
