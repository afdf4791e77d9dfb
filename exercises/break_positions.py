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
        ),
        Bug(
            name="constant",
            break_it=break_constant,
            trips="positions",
            reason="positions.constant",
            note="Row 0 gets all the gradient, the others none; the loss hardly tells.",
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
