"""Break the context: hide more than the future."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, KeyValueCache


def break_diagonal(lab: Lab) -> Pipeline:
    """Build a mask that leaves each position itself and nothing else."""

    class Lonely(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, D)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            ones = torch.ones(T, T, dtype=torch.bool, device=x.device)
            mask = ones.tril().triu()  # BROKEN: was mask = ones.tril()
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Lonely))


def break_shifted_inside(lab: Lab) -> Pipeline:
    """Shift the input inside the model as well: the newest token is never read."""

    class Shifted(MiniGPT):
        def forward(
            self,
            token_ids: Tensor,
            targets: Tensor | None = None,
            *,
            cache: KeyValueCache | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            start = 1  # BROKEN: was start = 0
            shifted = functional.pad(token_ids, (start, 0))[:, : token_ids.shape[1]]
            return super().forward(shifted, targets, cache=cache)

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Shifted))


EXERCISE = Exercise(
    name="break_context",
    question=(
        "A mask that hides too little is found by changing the future. How would you find one "
        "that hides too much, and what would its loss look like?"
    ),
    bugs=(
        Bug(
            name="diagonal",
            break_it=break_diagonal,
            trips="context",
            reason="context.unused",
            note="Nothing leaks, and the loss stops where a table of pairs would stop.",
        ),
        Bug(
            name="shifted_inside",
            break_it=break_shifted_inside,
            trips="context",
            reason="context.self_hidden",
            level=2,
            note=(
                "Position t reads every token before t, but not token t: a check that asks only "
                "whether the past is used passes. The model predicts two tokens ahead."
            ),
        ),
    ),
    hint="Which tokens does position 3 read? Change tokens 0 to 3 in turn, and look at logit 3.",
    lesson=(
        "Zero above the diagonal is half of the test. On the diagonal and somewhere below it the "
        "influence map must not be zero."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
