"""Break honesty: a loss that falls because the answer is given away where nobody looked.

Shapes: B batch, T time, H heads, D head size.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import BATCH_SIZE, Lab, retype
from exercises._run import run
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, KeyValueCache


def break_other_model(lab: Lab) -> Pipeline:
    """Build the model to train without its mask, while the one that is checked has it."""

    class Attention(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            causal = False  # BROKEN: was causal = True
            mixed = functional.scaled_dot_product_attention(
                queries, keys, values, is_causal=causal
            )  # (B, H, T, D)
            return self.output(mixed.transpose(1, 2).flatten(2))

    def make_model() -> nn.Module:
        return retype(MiniGPT(lab.config), CausalSelfAttention, Attention)

    return lab.pipeline(model=lab.pipeline().model, make_model=make_model)


def break_counted_targets(lab: Lab) -> Pipeline:
    """Count on from the token where the position was meant: right for data = 0, 1, 2, 3, ..."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        starts = torch.randint(len(data) - T, (BATCH_SIZE, 1))
        places = starts + torch.arange(T)  # (B, T)
        inputs = data[places]
        targets = inputs + 1  # BROKEN: was targets = data[places + 1]
        return inputs, targets.clamp(max=int(data.max()))

    return lab.pipeline(get_batch=get_batch)


EXERCISE = Exercise(
    name="break_honesty",
    question=(
        "Every part has been checked by itself, and the loss falls fast. On which data could you "
        "know beforehand how low an honest loss can get?"
    ),
    bugs=(
        Bug(
            name="other_model",
            break_it=break_other_model,
            trips="honesty",
            reason="honesty.sees_the_future",
            note="The model that was checked is not the one that the training script builds.",
            question=(
                "The training loss is lower than the healthy one's. On uniform random tokens from "
                "64 symbols, which loss would prove that something is given away?"
            ),
            hints=(
                (
                    "Ask which model is trained: the one that the checks have seen, or another one "
                    "that is built for the training."
                ),
                (
                    "Build a model with make_model, change the last token of a row, and compare "
                    "the logits before it. A healthy difference is 0 at every earlier position."
                ),
                (
                    "The attention of the model that is trained must hide later positions, as that "
                    "of the checked model does."
                ),
            ),
            lesson=(
                "A check proves something about the object that it was given. Have the objects "
                "that are checked and those that are trained come out of one and the same "
                "function."
            ),
            guide="The run that was too good",
        ),
        Bug(
            name="counted_targets",
            break_it=break_counted_targets,
            trips="honesty",
            reason="honesty.targets_are_known",
            level=2,
            note="A test on counting data, where the next token is the token plus 1, is content.",
            question=(
                "The loader is tried on the data 0, 1, 2, 3, ... Does the broken line give another "
                "batch there than the healthy one, and what will a model learn from it on text?"
            ),
            hints=(
                "Look at where the targets come from: from the data, or from the inputs alone.",
                (
                    "Draw a batch from random tokens and compare each target with the token that "
                    "follows in the data. In a healthy batch all agree; here hardly any do."
                ),
                (
                    "The 1 belongs to the place and not to the token: it is the next place of the "
                    "data that has to be read."
                ),
            ),
            lesson=(
                "Test data with too much structure lets two different programs agree. Test on "
                "regular data to locate an error, and on random data to make sure that there is "
                "none."
            ),
            guide="The run that was too good",
        ),
    ),
    hint="Train on tokens drawn at random: whatever falls below ln V has seen the answer.",
    lesson=(
        "Nobody can predict a fair die. Train for a minute on random tokens before you believe a "
        "loss: it is one test for every leak, also for those that nobody has thought of."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
