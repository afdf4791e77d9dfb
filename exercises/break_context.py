"""Break the context: hide more than the future."""

from __future__ import annotations

import torch
from torch import Tensor, nn
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


def break_hidden_id(lab: Lab) -> Pipeline:
    """Take an ordinary id for a pad, and hide it from every later position."""
    pad = int(lab.train_ids.bincount().argmax())  # the most common character

    class Hiding(CausalSelfAttention):
        real: Tensor  # (B, T), False where a key is hidden

        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, -1).transpose(1, 2)  # (B, H, T, D)
                for part in self.query_key_value(x).split(C, dim=2)
            )
            causal = torch.ones(T, T, dtype=torch.bool, device=x.device).tril()
            itself = torch.eye(T, dtype=torch.bool, device=x.device)
            mask = causal & self.real[:, None, None, :] | itself
            mixed = functional.scaled_dot_product_attention(queries, keys, values, attn_mask=mask)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    class Masked(MiniGPT):
        def forward(
            self,
            token_ids: Tensor,
            targets: Tensor | None = None,
            *,
            cache: KeyValueCache | None = None,
        ) -> tuple[Tensor, Tensor | None]:
            real = token_ids != pad  # BROKEN: was real = token_ids != -1
            for module in self.modules():
                if isinstance(module, Hiding):
                    module.real = real
            return super().forward(token_ids, targets, cache=cache)

    def edit(model: MiniGPT) -> nn.Module:
        retype(model, MiniGPT, Masked)
        return retype(model, CausalSelfAttention, Hiding)

    return lab.pipeline(edit_model=edit)


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
            question=(
                "The causal test finds no leak in this model. Which loss is the best it can "
                "reach: that of a table of single letters, of letter pairs, or of longer "
                "context?"
            ),
            hints=(
                "Look at the mask of the attention, row by row.",
                "Print mask.sum(-1) for a row of 4. Healthy is 1, 2, 3, 4; here it is 1, 1, 1, 1.",
                "Of a square of ones only the part above the diagonal has to go; what lies "
                "below it is the context.",
            ),
            lesson=(
                "A test for what must not be seen passes best where nothing is seen. Ask the "
                "other way round as well: change an earlier token, and a later prediction must "
                "move."
            ),
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
            question=(
                "Every position reads all of its past, and nothing leaks. Will the loss after "
                "150 steps be lower than the healthy one's, equal or higher, and by how much?"
            ),
            hints=(
                "Compare the ids that go into forward with the ids that the embedding gets.",
                "Change token 3 and print which logits move. Healthy is from position 3 on; "
                "here it is from position 4 on.",
                "The ids must reach the embedding as they came: the loader has made the shift "
                "between inputs and targets already.",
            ),
            lesson=(
                "A shift belongs in one place, the loader or the model. Made twice, it hides "
                "the newest token, which is the best clue there is, and only the diagonal of "
                "the influence map shows it."
            ),
            guide="The check shift",
        ),
        Bug(
            name="hidden_id",
            break_it=break_hidden_id,
            trips="context",
            reason="context.hidden_id",
            level=2,
            note="All other ids are read as they should be: random tokens hardly ever show it.",
            question=(
                "Random tokens show nothing: each position reads its own and those before it. "
                "Is the loss after 150 steps lower than the healthy one's, equal or higher, and "
                "which tokens would you try next?"
            ),
            hints=(
                "Look at which keys are hidden besides the future, and at what decides it.",
                "Put each id in turn before other tokens and print how far the last logits move "
                "when its embedding moves. Healthy is a move for every id; here one common id "
                "gives none.",
                "Ids are names. None of them may be taken for a pad unless the tokenizer says "
                "that it is one, and here none is.",
            ),
            lesson=(
                "Code that treats one id as special holds an assumption about the tokenizer. "
                "Test every id that is common in the data, not random ones only."
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
