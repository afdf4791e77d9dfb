"""Break the gradients: parameters that never learn, or learn something else, in silence.

Shapes: B batch, T time, C width, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt.model import CausalSelfAttention, FeedForward, KeyValueCache, MiniGPT


def break_frozen(lab: Lab) -> Pipeline:
    """Freeze the whole model."""

    def edit(model: MiniGPT) -> MiniGPT:
        return model.requires_grad_(False)  # BROKEN: was return model.requires_grad_(True)

    # the reference's optimizer refuses such a model; most others take it and do nothing
    return lab.pipeline(edit_model=edit, make_optimizer=None)


def break_detached(lab: Lab) -> Pipeline:
    """Cut the attention branch from the graph: the residual path still learns."""

    class Broken(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            mixed = super().forward(x, cache, layer)
            return mixed.detach()  # BROKEN: was return mixed

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Broken))


def break_plain_list(lab: Lab) -> Pipeline:
    """Keep the blocks in a list, which nn.Module does not look into."""

    def edit(model: MiniGPT) -> MiniGPT:
        blocks = model.blocks
        del model.blocks
        kept: Any = list(blocks)  # BROKEN: was kept: Any = blocks
        model.blocks = kept
        return model

    # with a forward of its own no one asks whether the model can move to another device,
    # which blocks in a list do not: that would give it away earlier
    return lab.pipeline(edit_model=edit, forward=lambda model, ids, targets: model(ids, targets))


def break_overwritten(lab: Lab) -> Pipeline:
    """Write a backward by hand in which a repeated token keeps its last gradient only."""

    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(context: Any, table: Tensor, ids: Tensor) -> Tensor:
            context.save_for_backward(ids, table)
            return table[ids]  # (B, T, C)

        @staticmethod
        def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None]:
            ids, table = context.saved_tensors
            add = False  # BROKEN: was add = True
            rows = grads[0].flatten(0, 1)  # (B * T, C)
            total = torch.zeros_like(table).index_put_((ids.flatten(),), rows, accumulate=add)
            return total, None

    class Broken(nn.Embedding):
        def forward(self, input: Tensor) -> Tensor:
            return Lookup.apply(self.weight, input)

    def edit(model: MiniGPT) -> MiniGPT:
        model.token_embedding.__class__ = Broken
        return model

    return lab.pipeline(edit_model=edit)


def break_averaged(lab: Lab) -> Pipeline:
    """Average parallel branches along the wrong axis: one number, added to every channel."""

    class Broken(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            branches = torch.stack([super().forward(x)], dim=-2)  # (B, T, branches, C)
            mean = branches.mean(-1)  # BROKEN: was mean = branches.mean(-2)
            return mean

    return lab.pipeline(edit_model=lambda model: retype(model, FeedForward, Broken))


def show_gradients(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show what one backward pass leaves in the parameters of a fresh model."""
    assert pipeline.make_model is not None
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        model = pipeline.make_model()
        inputs, targets = lab.get_batch(lab.train_ids)
        loss = model(inputs, targets)[1]
    if loss.requires_grad:
        loss.backward()
    parameters = list(model.parameters())
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = sum(grad.square().sum().item() for grad in grads) ** 0.5
    return {
        "loss": f"{loss.item():.3f} nats",
        "parameters that the optimizer gets": str(len(parameters)),
        "of which have a gradient": str(len(grads)),
        "global gradient norm": f"{norm:.3f}",
    }


EXERCISE = Exercise(
    name="break_gradients",
    question=(
        "A loss that falls proves that something learns. How would you know that every parameter "
        "does, and that it learns the right thing?"
    ),
    bugs=(
        Bug(
            name="frozen",
            break_it=break_frozen,
            trips="gradients",
            reason="gradients.all_frozen",
            note="The only one of these that complains in training: backward() raises.",
        ),
        Bug(
            name="detached",
            break_it=break_detached,
            trips="gradients",
            reason="gradients.missing",
            note="Embeddings, feed-forward layers and head learn on, and the loss falls.",
        ),
        Bug(
            name="plain_list",
            break_it=break_plain_list,
            trips="gradients",
            reason="gradients.unregistered",
            level=2,
            note="A loop over model.parameters() finds no missing gradient: the blocks are not in "
            "it at all.",
        ),
        Bug(
            name="overwritten",
            break_it=break_overwritten,
            trips="gradients",
            reason="gradients.wrong_value",
            level=2,
            note="Every gradient is there, finite and not zero. It is not the derivative.",
        ),
        Bug(
            name="averaged",
            break_it=break_averaged,
            trips="gradients",
            reason="gradients.only_noise",
            level=2,
            note="No gradient is None or 0: the rounding of zero is not zero.",
        ),
    ),
    hint="Walk from the loss back: which tensors have a grad_fn, and which leaves does it reach?",
    lesson=(
        "None, zero and NaN are the easy cases. Walk the graph for leaves that no optimizer gets, "
        "and compare the gradient with a finite difference: the derivative needs no trust."
    ),
    symptom=show_gradients,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
