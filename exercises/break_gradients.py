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
            return branches.mean(-1)  # BROKEN: was return branches.mean(-2)

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
            question=(
                "The forward pass of this model gives the same loss as the healthy one's. What "
                "happens at loss.backward(), and what would an optimizer do that is built over "
                "these parameters all the same?"
            ),
            hints=(
                "Look at a switch that each parameter carries, not at its value.",
                "Print sum(p.requires_grad for p in model.parameters()). A healthy model says "
                "29; this one says 0.",
                "The edit has to leave the parameters trainable: the switch is set for the "
                "whole model at once, the wrong way round.",
            ),
            lesson=(
                "requires_grad decides whether a gradient is computed at all. After freezing on "
                "purpose, count what is still trainable and compare it with the number you "
                "meant."
            ),
        ),
        Bug(
            name="detached",
            break_it=break_detached,
            trips="gradients",
            reason="gradients.missing",
            note="Embeddings, feed-forward layers and head learn on, and the loss falls.",
            question=(
                "The attention of both blocks is in the forward pass and its output reaches the "
                "loss. Will the loss fall, and which of the 29 parameters will move?"
            ),
            hints=(
                "Follow the output of the attention to the residual stream: is it still part of "
                "the graph when it arrives?",
                "Print the names with p.grad is None after one backward pass. A healthy model "
                "has none; here 12 names are listed, all in attention or in the norm before it.",
                "What forward returns must be the tensor as it was computed, with its grad_fn; "
                "a call that takes the value and leaves the graph behind has to go.",
            ),
            lesson=(
                "A cut graph changes no number of the forward pass. With a residual path round "
                "it, the rest learns and the loss falls, so count the missing gradients instead "
                "of watching the loss."
            ),
        ),
        Bug(
            name="plain_list",
            break_it=break_plain_list,
            trips="gradients",
            reason="gradients.unregistered",
            level=2,
            note="A loop over model.parameters() finds no missing gradient: the blocks are not in "
            "it at all.",
            question=(
                "The model computes the same loss as before. How many parameters does "
                "model.parameters() list now, and how many of those lack a gradient?"
            ),
            hints=(
                "Compare what the forward pass uses with what the model says it owns.",
                "Print len(list(model.parameters())). The healthy model says 29; this one says "
                "5, and all 5 have a gradient.",
                "nn.Module registers modules that are attributes or sit in an nn.ModuleList. "
                "Python's own containers are not looked into, so the blocks must stay in what "
                "they came in.",
            ),
            lesson=(
                "What is not registered is not trained, not saved and not moved to a device, "
                "and no loop over parameters() can say so. Compare the number of parameters "
                "with one counted by hand."
            ),
        ),
        Bug(
            name="overwritten",
            break_it=break_overwritten,
            trips="gradients",
            reason="gradients.wrong_value",
            level=2,
            note="Every gradient is there, finite and not zero. It is not the derivative.",
            question=(
                "A batch contains the letter e many times. How does each occurrence count in "
                "the gradient of e's row, and what would you look at to see that it does?"
            ),
            hints=(
                "Look at what the hand-written backward does with two positions that hold the "
                "same id.",
                "Give it ids [[3, 3]] and gradients of ones, and print row 3 of the result. "
                "Healthy is 2 in every channel; here it is 1.",
                "Rows that go to the same place have to be summed. Writing to an index can "
                "either replace or add, and one argument of the call says which.",
            ),
            lesson=(
                "Reading one row many times in the forward pass means adding many gradients in "
                "the backward pass. Check any backward of your own against finite differences, "
                "on data with repetitions."
            ),
        ),
        Bug(
            name="averaged",
            break_it=break_averaged,
            trips="gradients",
            reason="gradients.only_noise",
            level=2,
            note="No gradient is None or 0: the rounding of zero is not zero.",
            question=(
                "What the feed-forward layers return still has a slope, and no parameter lacks "
                "a gradient. How large will the gradients of their weights be, in float32 and "
                "in float64?"
            ),
            hints=(
                "Look at the shape of what each feed-forward layer returns, and at what adding "
                "it to x of shape (B, T, C) does.",
                "Print the norm of the gradient of blocks.0.feed_forward.expand.weight. A "
                "healthy model gives about 0.1 or more; here it is near 4e-9.",
                "One number per position that is added to all channels is taken out again by "
                "the next LayerNorm. The average has to run over the branches, so that the "
                "channels remain.",
            ),
            lesson=(
                "A gradient that is mathematically zero appears as rounding noise, and Adam "
                "scales noise up to full steps. Compare its size in float32 and float64: noise "
                "shrinks, a gradient does not."
            ),
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
