"""Break causal independence: let a position read the token that it has to predict.

Shapes: B batch, T time, C width, H heads, D head size.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt.model import CausalSelfAttention, KeyValueCache


class WrittenOutAttention(CausalSelfAttention):
    """The reference's attention, with the step that mixes tokens in a method of its own."""

    def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
        """Map (B, T, C) to (B, T, C); the cache is left unused."""
        B, T, C = x.shape
        queries, keys, values = (
            part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)  # (B, H, T, D)
            for part in self.query_key_value(x).split(C, dim=2)
        )
        return self.output(self.merge(self.mix(queries, keys, values)))

    def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Mix values (B, H, T, D) as the reference does."""
        return functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)

    def merge(self, mixed: Tensor) -> Tensor:
        """Join the heads (B, H, T, D) to (B, T, C)."""
        return mixed.transpose(1, 2).flatten(2)


def break_no_mask(lab: Lab) -> Pipeline:
    """Switch the causal mask off."""

    class Broken(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            causal = False  # BROKEN: was causal = True
            return functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)

    return _with_attention(lab, Broken)


def break_diagonal(lab: Lab) -> Pipeline:
    """Keep one diagonal too many: each layer reads one token ahead."""

    class Broken(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            T = queries.shape[2]
            every = torch.ones(T, T, dtype=torch.bool, device=queries.device)
            mask = every.tril(diagonal=1)  # BROKEN: was mask = every.tril()
            return functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)

    return _with_attention(lab, Broken)


def break_after_softmax(lab: Lab) -> Pipeline:
    """Mask the weights in place of the scores: the softmax has summed over the future already."""

    class Broken(WrittenOutAttention):
        def mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            scores = queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[3])  # (B, H, T, T)
            hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
            open_scores = scores  # BROKEN: was open_scores = scores.masked_fill(hidden, -math.inf)
            return open_scores.softmax(-1).masked_fill(hidden, 0.0) @ values

    return _with_attention(lab, Broken)


def break_heads(lab: Lab) -> Pipeline:
    """Join the heads without moving the time axis back: a token is made of pieces of several."""

    class Broken(WrittenOutAttention):
        def merge(self, mixed: Tensor) -> Tensor:
            B, H, T, D = mixed.shape
            moved = mixed  # BROKEN: was moved = mixed.transpose(1, 2)
            return moved.reshape(B, T, H * D)

    return _with_attention(lab, Broken)


def _with_attention(lab: Lab, broken: type[WrittenOutAttention]) -> Pipeline:
    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, broken))


EXERCISE = Exercise(
    name="break_causal_independence",
    question=(
        "If a position may read the token it has to predict, what happens to the training loss, "
        "and what to text that is generated one token at a time?"
    ),
    bugs=(
        Bug(
            name="no_mask",
            break_it=break_no_mask,
            trips="causal_independence",
            reason="causal_independence.no_mask",
            note="The training loss is the better one. The honest loss shows what was learnt.",
            question=(
                "The training loss and the honest loss after 150 steps: which of them is lower "
                "than the healthy one, and which is higher?"
            ),
            hints=(
                (
                    "Look at the call that mixes the values, and at what it is told about time. "
                    "The honest loss asks for one new token at a time, and there is no later token "
                    "to read."
                ),
                (
                    "Replace the last token of a row and print how far the logits at every earlier "
                    "position move. Healthy is exactly 0; here all of them move."
                ),
                (
                    "The attention call must be told that it is causal, in training and in "
                    "evaluation alike."
                ),
            ),
            lesson=(
                "A model that may read ahead learns to rely on it. A training loss well below the "
                "honest loss, before anything can have been learnt by heart, is a leak until the "
                "contrary is shown."
            ),
        ),
        Bug(
            name="diagonal",
            break_it=break_diagonal,
            trips="causal_independence",
            reason="causal_independence.mask_too_wide",
            note="One token ahead is all that is needed: it is the answer.",
            question=(
                "The training loss after 150 steps: near the healthy 2.5, or far below it? And the "
                "honest loss on new text? Say why before you look."
            ),
            hints=(
                (
                    "Look at the mask itself, for a row of four tokens: a table of four by four, "
                    "in which row t says what position t may read."
                ),
                (
                    "Count the places that each row keeps. Row t has to keep t + 1 of them, its "
                    "own token and those before it; here every row but the last keeps one more."
                ),
                (
                    "Build the lower triangle so that it ends on the main diagonal. The targets "
                    "are shifted already, so the mask must not shift as well."
                ),
            ),
            lesson=(
                "The shift of the targets and the edge of the mask each move by one. When both are "
                "moved for the same reason, the answer becomes an input."
            ),
            guide="The extra diagonal",
        ),
        Bug(
            name="after_softmax",
            break_it=break_after_softmax,
            trips="causal_independence",
            reason="causal_independence.normalised_over_future",
            level=2,
            note="No value of a later token is read, only its share of the sum: fresh weights leak "
            "less than 0.001, which a usual tolerance lets pass.",
            question=(
                "Think of the attention weights for a row of four tokens: which of them are 0 "
                "here, and is that enough for no prediction to depend on a later token?"
            ),
            hints=(
                (
                    "Look at the order of three operations: hide, softmax, mix. Ask over how many "
                    "tokens the sum inside the softmax runs."
                ),
                (
                    "Sum the attention weights of one position after everything was hidden. "
                    "Healthy is 1; here only the last position comes to 1, and the first is far "
                    "below."
                ),
                (
                    "The scores of later tokens have to be minus infinity before the softmax, so "
                    "that they add nothing to its sum. What is hidden afterwards was counted "
                    "already."
                ),
            ),
            lesson=(
                "A mask has to come before whatever normalises. A zero that is set afterwards "
                "hides the value and leaves its share in the denominator."
            ),
        ),
        Bug(
            name="heads",
            break_it=break_heads,
            trips="causal_independence",
            reason="causal_independence.heads_mixed",
            level=2,
            note="The mask is right. The shapes are right. With one head nothing would show.",
            question=(
                "The mask is right and every shape is right. Will the training loss after 150 "
                "steps be equal to the healthy one, lower or higher, and why?"
            ),
            hints=(
                (
                    "Look at what happens after the attention, where the heads become one vector "
                    "per token again. Follow the order of the axes, not the sizes."
                ),
                (
                    "Fill the mixed values with their own position t and print the result for T = "
                    "3. Row t must hold t in every place; here a row holds several positions."
                ),
                (
                    "The axis of time has to stand before the axis of heads when the last two are "
                    "glued together. A reshape moves no axis."
                ),
            ),
            lesson=(
                "reshape and view keep the order in memory, whatever the sizes are called. An axis "
                "moves by transpose or permute only, and sizes that fit prove nothing."
            ),
        ),
    ),
    hint="Write the T x T table of which position may read which, and compare it with the mask.",
    lesson=(
        "Replace one token at a time and look at every earlier position: the map of influence is "
        "zero above its diagonal, or the model reads the future. Its pattern names the cause."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
