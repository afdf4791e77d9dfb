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
    model = pipeline.model.eval()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)  # the same batch for the healthy and the broken model
        inputs, targets = lab.get_batch(lab.val_ids)
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
            question=(
                "Ask for the loss of one batch three times in eval mode: three equal numbers, or "
                "three different ones? What would that mean for a comparison of two checkpoints?"
            ),
            hints=(
                (
                    "Look at whatever draws random numbers in forward, and ask how it gets to know "
                    "the mode."
                ),
                (
                    "Call the model twice in eval mode with the same ids and print the largest "
                    "difference of the logits. Healthy is exactly 0; here it is not."
                ),
                (
                    "The hidden values have to reach the output layer unchanged, as the "
                    "configuration has a dropout of 0. Where dropout is wanted, its function must "
                    "be told whether the model is training."
                ),
            ),
            lesson=(
                "A function knows nothing of the mode unless it is told. Prefer modules for "
                "whatever depends on it, and demand that eval mode repeats bit for bit."
            ),
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
            question=(
                "Dropout is 0 in this configuration. After model.eval(), how many of the modules "
                "inside are in eval mode? And on which day would you notice?"
            ),
            hints=(
                (
                    "Look at the method that eval() calls, and follow what it does for the modules "
                    "inside the model."
                ),
                (
                    "After model.eval(), print for each module whether it is training. Healthy is "
                    "False for every one; here 28 modules say True."
                ),
                (
                    "The override has to pass the mode on to all children, which the method of the "
                    "parent class does."
                ),
            ),
            lesson=(
                "Who overrides a method that walks a tree takes over the walk. After every switch, "
                "check the leaves and not the root."
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
            question=(
                "The loss of one batch in eval mode and in train mode, with dropout 0: will the "
                "two numbers be equal? After 150 steps, which loss is too good, training or honest?"
            ),
            hints=(
                "Look for self.training in forward, and for what depends on it besides dropout.",
                (
                    "Give one batch to the model in both modes and print the largest difference of "
                    "the logits. With dropout 0 healthy is 0; here it is not, and only the mode "
                    "was changed."
                ),
                "The mask has to be causal in both modes, without a condition.",
            ),
            lesson=(
                "Whatever is measured in eval mode says nothing about a branch that runs in train "
                "mode only. Compare the two modes once, with all randomness off, and trust your "
                "other measurements afterwards."
            ),
        ),
        Bug(
            name="two_paths",
            break_it=break_two_paths,
            trips="modes",
            reason="modes.targets_change_logits",
            level=2,
            note="The loss is computed on one path, the text is generated on the other.",
            question=(
                "Training and its loss use one path, generation the other. Which of the three "
                "figures will look healthy: the training loss, the honest loss, the sample?"
            ),
            hints=(
                (
                    "Look at the two ways out of forward, the one with targets and the one "
                    "without, and compare them step by step."
                ),
                (
                    "Give the same ids once with targets and once without, and print the spread of "
                    "the logits. Healthy are equal; here the two differ, already before training."
                ),
                (
                    "The path without targets has to apply the final norm before the head, as the "
                    "other one does."
                ),
            ),
            lesson=(
                "Two paths to the same value drift apart. Compute the logits once, and let the "
                "branch decide about the loss alone."
            ),
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
