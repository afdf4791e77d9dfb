"""Break the modes: dropout that never stops, a mask that eval mode alone has, a deaf eval()."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from exercises._symptom import training_symptom
from minigpt import MiniGPT
from minigpt.model import CausalSelfAttention, FeedForward


def break_always_on(lab: Lab) -> Pipeline:
    """Call the function and forget the flag: it is on by default."""

    class Dropping(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            hidden = functional.gelu(self.expand(x))
            dropped = functional.dropout(hidden, 0.2)  # BROKEN: was dropped = hidden
            return self.output(dropped)

    return lab.pipeline(edit_model=lambda model: retype(model, FeedForward, Dropping))


def break_eval_is_deaf(lab: Lab) -> Pipeline:
    """Override train() and forget the children: eval() ends at the model itself."""

    class Deaf(MiniGPT):
        def train(self, mode: bool = True) -> Deaf:
            self.training = mode  # BROKEN: was super().train(mode)
            return self

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Deaf))


def break_unmasked_training(lab: Lab) -> Pipeline:
    """Apply the mask in eval mode only: every check that runs in eval mode is content."""

    class Peeking(CausalSelfAttention):
        def forward(self, x: Tensor, cache: object = None, layer: int = 0) -> Tensor:
            B, T, C = x.shape
            queries, keys, values = (
                part.view(B, T, self.num_heads, C // self.num_heads).transpose(1, 2)
                for part in self.query_key_value(x).split(C, dim=2)
            )  # (B, H, T, D)
            causal = not self.training  # BROKEN: was causal = True
            mixed = functional.scaled_dot_product_attention(queries, keys, values, is_causal=causal)
            return self.output(mixed.transpose(1, 2).reshape(B, T, C))

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Peeking))


def break_two_paths(lab: Lab) -> Pipeline:
    """Forget the final norm on the path that generates."""

    class TwoPaths(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, *, cache: object = None
        ) -> tuple[Tensor, Tensor | None]:
            positions = torch.arange(token_ids.shape[1], device=token_ids.device)
            x = self.token_embedding(token_ids) + self.position_embedding(positions)  # (B, T, C)
            for block in self.blocks:
                x = block(x)
            if targets is None:
                return self.head(x), None  # BROKEN: was return self.head(self.final_norm(x)), None
            logits = self.head(self.final_norm(x))  # (B, T, V)
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, TwoPaths))


def mode_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Call the model three times in eval mode and once in train mode, then train briefly."""
    model, (inputs, targets) = pipeline.model, lab.get_batch(lab.val_ids)
    model.eval()
    calls = ", ".join(_loss(model, inputs, targets) for _ in range(3))
    model.train()
    in_train_mode = _loss(model, inputs, targets)
    model.eval()
    return {
        "loss of one batch, three calls in eval mode": calls,
        "the same batch in train mode (dropout is 0)": in_train_mode,
        **training_symptom(lab, pipeline),
    }


def _loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> str:
    with torch.no_grad():
        return f"{float(model(inputs, targets)[1]):.6f}"


EXERCISE = Exercise(
    name="break_modes",
    question=(
        "eval() changes one flag in every module. What has to be the same before and after, what "
        "may differ, and who would notice if nobody ever compared?"
    ),
    bugs=(
        Bug(
            name="always_on",
            break_it=break_always_on,
            trips="modes",
            reason="modes.eval_random",
            note="Validation becomes a lottery: each call gives another loss.",
        ),
        Bug(
            name="eval_is_deaf",
            break_it=break_eval_is_deaf,
            trips="modes",
            reason="modes.eval_incomplete",
            note=(
                "With dropout 0 no number changes, so nothing shows today. On the day dropout is "
                "switched on, validation and generation run with it."
            ),
        ),
        Bug(
            name="unmasked_training",
            break_it=break_unmasked_training,
            trips="modes",
            reason="modes.train_differs",
            level=2,
            note=(
                "The causal map is measured in eval mode and is perfect. The training loss looks "
                "better than it is, because in train mode the answer is one position to the right."
            ),
        ),
        Bug(
            name="two_paths",
            break_it=break_two_paths,
            trips="modes",
            reason="modes.targets_change_logits",
            level=2,
            note="The loss is computed on one path, the text is generated on the other.",
        ),
    ),
    hint="Silence every dropout, then ask for the same logits in both modes and on both paths.",
    lesson=(
        "With dropout off, the mode must not matter: not to the logits, not with targets, not "
        "without gradients. Compare the paths with one another before comparing runs."
    ),
    symptom=mode_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
