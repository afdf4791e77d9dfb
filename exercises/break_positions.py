"""Break the positions: leave the position embedding out, or let positions share a row."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT
from minigpt.model import KeyValueCache


def break_not_added(lab: Lab) -> Pipeline:
    """Look the positions up and forget to add them."""

    class NotAdded(MiniGPT):
        def forward(
            self,
            token_ids: Tensor,
            targets: Tensor | None = None,
            *,
            cache: KeyValueCache | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            places = torch.arange(token_ids.shape[1], device=token_ids.device)
            positions = self.position_embedding(places)
            x = self.token_embedding(token_ids)
            x = x + positions * 0  # BROKEN: was x = x + positions
            for block in self.blocks:
                x = block(x)
            logits = self.head(self.final_norm(x))  # (B, T, V)
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, NotAdded))


def break_constant(lab: Lab) -> Pipeline:
    """Make the index with the wrong function: every position reads row 0."""

    class Constant(nn.Embedding):
        def forward(self, positions: Tensor) -> Tensor:
            rows = torch.zeros_like(positions)  # BROKEN: was rows = positions
            return super().forward(rows)

    return lab.pipeline(edit_model=lambda model: _edit_positions(model, Constant))


def break_last_two(lab: Lab) -> Pipeline:
    """Keep the index inside the table with a limit that is one too low."""

    class Limited(nn.Embedding):
        def forward(self, positions: Tensor) -> Tensor:
            last = self.num_embeddings - 2  # BROKEN: was last = self.num_embeddings - 1
            return super().forward(positions.clamp(max=last))

    return lab.pipeline(edit_model=lambda model: _edit_positions(model, Limited))


def _edit_positions(model: MiniGPT, kind: type[nn.Embedding]) -> nn.Module:
    model.position_embedding.__class__ = kind
    return model


EXERCISE = Exercise(
    name="break_positions",
    question=(
        "Attention by itself reads a set, not a sequence. If the position embedding never "
        "arrives, does training fail, and does the model still know the order of its tokens?"
    ),
    bugs=(
        Bug(
            name="not_added",
            break_it=break_not_added,
            trips="positions",
            reason="positions.unused_table",
            note=(
                "Swapping two tokens still moves the logits: with two layers, the causal mask lets "
                "the order through. Such a swap is no proof that positions are in use."
            ),
            question=(
                "Two tokens in the middle of a row trade places. Does the last prediction move "
                "in this model, and is its loss after 150 steps lower than the healthy one's, "
                "equal or higher?"
            ),
            hints=(
                "Follow the vectors of the positions from the table to the first block.",
                "Change row 5 of position_embedding.weight and print how far the logits move. "
                "Healthy is a move from position 5 on; here nothing moves.",
                "The sum that enters the first block has to hold the vector of the position "
                "with a weight of 1.",
            ),
            lesson=(
                "A part that has no effect costs nothing visible in a short run; here the loss "
                "even falls faster. To show that a part is in use, change it and look for the "
                "change in the output."
            ),
        ),
        Bug(
            name="constant",
            break_it=break_constant,
            trips="positions",
            reason="positions.constant",
            note="Row 0 gets all the gradient, the others none; the loss hardly tells.",
            question=(
                "Every position gets a vector from the table, and the sum is fed to the blocks. "
                "Which rows of the table will have a gradient that is not 0?"
            ),
            hints=(
                "Look at the index with which the table is read, for a block of 4 tokens.",
                "Print position_embedding.weight.grad.norm(dim=1). Healthy is a number above 0 "
                "in each row that the block reads; here it is in row 0 only.",
                "The index has to be the position itself, so that each position reads a row of "
                "its own.",
            ),
            lesson=(
                "One vector that all positions share is a bias, whatever its table is called. "
                "Ask which rows of a table are read, not only whether the table is."
            ),
        ),
        Bug(
            name="last_two",
            break_it=break_last_two,
            trips="positions",
            reason="positions.shared_rows",
            level=2,
            note=(
                "All positions but one are right, and a repeated token gives other logits at each "
                "of the first ones: a look at the start of the block passes."
            ),
            question=(
                "A block of 16 tokens and one of 32 are run through the model, and each is "
                "asked which row every position reads. Do both show the same fault?"
            ),
            hints=(
                "Look at the end of the block, at full length, and at the limit of the index "
                "there.",
                "Print the index that reads the table for T = 32. Healthy ends in 30, 31; here "
                "it ends in 30, 30.",
                "A table of N rows has the rows 0 to N - 1, and the limit of an index into it "
                "must be the last of them.",
            ),
            lesson=(
                "A limit that never acts in ordinary input hides an error by one. Test at the "
                "full length, where limits act, and not only at a convenient one."
            ),
        ),
    ),
    hint="Follow the index: which rows of the table does a block of T tokens read?",
    lesson=(
        "Add noise to one row of the table at a time. The first logits that move belong to the "
        "position that reads it; each position needs a row of its own, the last one too."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
