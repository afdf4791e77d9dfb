"""Break the prefix: make a short row predict otherwise than the start of a long one."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, KeyValueCache


def break_from_end(lab: Lab) -> Pipeline:
    """Count positions from the end of the block: right for a full block, wrong for a prompt."""

    class FromEnd(nn.Embedding):
        def forward(self, positions: Tensor) -> Tensor:
            unused = self.num_embeddings - len(positions)  # BROKEN: was unused = 0
            return super().forward(positions + unused)

    def edit(model: MiniGPT) -> nn.Module:
        model.position_embedding.__class__ = FromEnd
        return model

    return lab.pipeline(edit_model=edit)


def break_one_token(lab: Lab) -> Pipeline:
    """Leave attention out for a single token, as there is nothing else to attend to."""

    class Hasty(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            needless = x.shape[1] == 1  # BROKEN: was needless = False
            return torch.zeros_like(x) if needless else super().forward(x, cache, layer)

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Hasty))


def break_by_length(lab: Lab) -> Pipeline:
    """Divide what attention gives by the length of the row: a mean that is taken twice."""

    class Diluted(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            mixed = super().forward(x, cache, layer)
            return mixed / x.shape[1]  # BROKEN: was return mixed

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Diluted))


EXERCISE = Exercise(
    name="break_prefix",
    question=(
        "In training every row fills the block; in generation the first prompt holds a few "
        "tokens. Which line of a model could tell the two apart, although no future token leaks?"
    ),
    bugs=(
        Bug(
            name="from_end",
            break_it=break_from_end,
            trips="prefix",
            reason="prefix.positions_from_end",
            note=(
                "Training and validation never notice, because their rows are full. Only a short "
                "prompt meets positions that its first tokens were never trained at."
            ),
            question=(
                "Rows of 32 tokens fill the block of 32. Will the training loss and the honest "
                "loss differ from the healthy ones? And the beginning of the sample?"
            ),
            hints=(
                (
                    "Look at the numbers with which the table of positions is read when a row is "
                    "shorter than the block."
                ),
                (
                    "Print the positions that a prompt of 3 tokens gets. Healthy are 0, 1, 2; here "
                    "they are 29, 30, 31."
                ),
                (
                    "The first token of a row has position 0, however many tokens follow. Nothing "
                    "has to be added to the positions that come in."
                ),
            ),
            lesson=(
                "Training on full blocks tests one length only. Whatever counts from the end of a "
                "row, or from the end of the block, moves when the row is shorter."
            ),
        ),
        Bug(
            name="one_token",
            break_it=break_one_token,
            trips="prefix",
            reason="prefix.one_token",
            level=2,
            note=(
                "A check with half a block passes. A position attends to itself, so that attention "
                "to one token is the value of that token, not nothing."
            ),
            question=(
                "For which lengths of a prompt does the answer change: for all, for short ones, or "
                "for a single one? Would a check at half a block notice?"
            ),
            hints=(
                (
                    "Look for a condition on the length of the row, and ask what attention gives "
                    "to a token that has nobody else to read."
                ),
                (
                    "Compare the logits of the first k tokens with the first k rows of the whole, "
                    "for k = 1, 2, 3. Healthy differences are 0; here only k = 1 is off."
                ),
                (
                    "A single token attends to itself, so its attention is the value of that "
                    "token. It needs the same path as every other length."
                ),
            ),
            lesson=(
                "A shortcut for a special case is a second implementation, and it needs a test of "
                "its own. The sizes 0, 1 and full are the ones to try."
            ),
        ),
        Bug(
            name="by_length",
            break_it=break_by_length,
            trips="prefix",
            reason="prefix.length_matters",
            level=2,
            note="The influence map is that of a healthy model: what leaks is the length alone.",
            question=(
                "No later token is read. Will the training loss after 150 steps be far off, or "
                "near the healthy 2.5? Which two runs of the model would you compare to see the "
                "bug?"
            ),
            hints=(
                (
                    "Look for T where it does more than make positions or a mask: somewhere a "
                    "value is scaled by it."
                ),
                (
                    "Print the largest difference between the first k rows of the whole and the k "
                    "tokens alone, for k = 1, 2, 16, 31. Healthy is 0 for each; here it falls as k "
                    "grows."
                ),
                (
                    "The weights of a softmax sum to 1 already, so what attention returns is a "
                    "mean. It must be passed on as it is."
                ),
            ),
            lesson=(
                "The length of a row is information about the future: at position t nobody knows "
                "yet how long the row will be. What is computed there may depend on t, and not on "
                "T."
            ),
        ),
    ),
    hint="Look for T, shape[1] and len() where they do more than make positions and masks.",
    lesson=(
        "Cut the row to 1, 2, 3 tokens, half a block, and a block but one: each must repeat what "
        "the whole row said. One comparison covers masks, positions, squeezes and scales."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
