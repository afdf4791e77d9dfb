"""Rows of the table: how weights start, which are shared, who trains them, and what cuts gradients.

Shapes: B batch, T time, C width, V vocabulary.
"""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import AdamW, Optimizer
from torch.utils.checkpoint import checkpoint

from diagnostics import Pipeline
from exercises._lab import LEARNING_RATE, Lab, retype
from minigpt import MiniGPT
from minigpt.model import INIT_STD
from tests.catalogue._row import Caught, Row, Unseen
from tests.diagnostics.tiny import TinyGPT

# ---- the start -----------------------------------------------------------------------------------


def tied_head(lab: Lab, *, std: float) -> Pipeline:
    """Tie the head to the embedding; nn.Embedding draws N(0, 1), and nobody draws it anew."""

    def edit(model: MiniGPT) -> MiniGPT:
        nn.init.normal_(model.token_embedding.weight, std=std)
        model.head.weight = model.token_embedding.weight
        return model

    return lab.pipeline(edit_model=edit)


def cloned_layers(lab: Lab) -> Pipeline:
    """Build one block and fill the list with deep copies of it."""

    def edit(model: MiniGPT) -> MiniGPT:
        model.blocks = nn.ModuleList(copy.deepcopy(model.blocks[0]) for _ in model.blocks)
        return model

    return lab.pipeline(edit_model=edit)


def structured_weights(lab: Lab) -> Pipeline:
    """Fill every matrix of the blocks with sin(i), a placeholder that stayed."""

    def edit(model: MiniGPT) -> MiniGPT:
        for parameter in model.blocks.parameters():
            if parameter.ndim == 2:
                waves = torch.sin(torch.arange(parameter.numel(), dtype=torch.float32))
                parameter.data = INIT_STD * waves.view_as(parameter)
        return model

    return lab.pipeline(edit_model=edit)


class DeclaredGPT(TinyGPT):
    """A GPT whose configuration says how it starts and what it shares."""

    def __init__(self, V: int, *, init_variance: float, std: float, tie: bool) -> None:
        super().__init__(V, C=32, block=32, std=std, tied=tie)
        self.config.init_variance = init_variance
        self.config.tie_word_embeddings = True


def declared(lab: Lab, *, std: float = INIT_STD, tie: bool = True) -> Pipeline:
    """std: what normal_ is given for init_variance = 0.0004; tie: False where its line is gone."""

    def make_model() -> nn.Module:
        return DeclaredGPT(lab.tokenizer.vocab_size, init_variance=4e-4, std=std, tie=tie)

    foreign = dict.fromkeys(("save", "load", "save_state", "load_state"))  # of Mini-GPT only
    return lab.pipeline(model=make_model(), make_model=make_model, **foreign)


# ---- sharing -------------------------------------------------------------------------------------


def tied(model: MiniGPT) -> MiniGPT:
    """Let the head read the token embedding."""
    model.head.weight = model.token_embedding.weight
    return model


def repeated_block(lab: Lab) -> Pipeline:
    """[block] * L: one object at every depth."""

    def edit(model: MiniGPT) -> MiniGPT:
        model.blocks = nn.ModuleList([model.blocks[0]] * len(model.blocks))
        return model

    return lab.pipeline(edit_model=edit, save=None, load=None, save_state=None, load_state=None)


def loading_tied(lab: Lab, *, assign: bool) -> Pipeline:
    """load_state_dict(assign=True) puts a new parameter in each place: the tie is gone."""

    def save(model: nn.Module, path: Path) -> None:
        torch.save({name: value.clone() for name, value in model.state_dict().items()}, path)

    def load(path: Path) -> nn.Module:
        model = tied(MiniGPT(lab.config))
        model.load_state_dict(torch.load(path, weights_only=True), assign=assign)
        return model

    return lab.pipeline(edit_model=tied, save=save, load=load)


# ---- who trains them -----------------------------------------------------------------------------


def plain_list(lab: Lab) -> Pipeline:
    """Keep the blocks in a list, which nn.Module does not look into."""

    def edit(model: MiniGPT) -> MiniGPT:
        blocks: Any = list(model.blocks)
        del model.blocks
        model.blocks = blocks
        return model

    return lab.pipeline(edit_model=edit)


def optimizer_of_another(lab: Lab) -> Pipeline:
    """The optimizer was built first, then the model was built anew."""
    earlier = MiniGPT(lab.config)
    return lab.pipeline(make_optimizer=lambda model: AdamW(earlier.parameters(), lr=LEARNING_RATE))


def named_weight(lab: Lab) -> Pipeline:
    """Groups are made of names that end in "weight": no group takes the biases."""

    def make_optimizer(model: nn.Module) -> Optimizer:
        weights = {n: p for n, p in model.named_parameters() if n.endswith("weight")}
        groups = [
            {"params": [p for p in weights.values() if p.ndim >= 2], "weight_decay": 0.1},
            {"params": [p for p in weights.values() if p.ndim < 2], "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=LEARNING_RATE)

    return lab.pipeline(make_optimizer=make_optimizer)


def frozen_blocks(lab: Lab) -> Pipeline:
    """A loop that should freeze some layers freezes all of them but the norms."""

    def edit(model: MiniGPT) -> MiniGPT:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("norm" in name)
        return model

    # the lab's load_state builds the optimizer before it edits the model
    return lab.pipeline(edit_model=edit, save_state=None, load_state=None)


class LayerInForward(MiniGPT):
    """A projection is created in forward, where it should be called only."""

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) after another random projection, and the loss."""
        logits = super().forward(token_ids, **options)[0]
        V = logits.shape[-1]
        projection = nn.Linear(V, V, bias=False).to(logits)
        logits = logits + 0.1 * projection(logits)
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def built_in_forward(lab: Lab) -> Pipeline:
    """The model with that projection."""
    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, LayerInForward))


class PackingAdamW(AdamW):
    """Its kernel works on packed memory, and does not copy back what it had to pack."""

    def step(self, closure: Any = None) -> Any:
        """Step on packed copies; those that were views of the weights move the weights."""
        parameters = [p for group in self.param_groups for p in group["params"]]
        originals = [parameter.data for parameter in parameters]
        for parameter in parameters:
            parameter.data = parameter.data.contiguous()
        loss = super().step(closure)
        for parameter, original in zip(parameters, originals, strict=True):
            parameter.data = original
        return loss


def unwritten(lab: Lab, *, packed: bool) -> Pipeline:
    """The matrices of the blocks are transposed views, as some loaders leave them."""

    def edit(model: MiniGPT) -> MiniGPT:
        for parameter in model.blocks.parameters():
            if parameter.ndim == 2 and not packed:
                parameter.data = parameter.data.t().contiguous().t()
        return model

    return lab.pipeline(
        edit_model=edit, make_optimizer=lambda model: PackingAdamW(model.parameters(), lr=1e-3)
    )


# ---- what cuts gradients -------------------------------------------------------------------------


class CheckpointedGPT(MiniGPT):
    """The blocks are recomputed in the backward pass; the old variant needs an input with grad."""

    reentrant = True

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) and the loss, or None."""
        positions = torch.arange(token_ids.shape[1], device=token_ids.device)
        x = self.token_embedding(token_ids) + self.position_embedding(positions)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        logits = self.head(self.final_norm(x))
        if targets is None:
            return logits, None
        return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


class SafelyCheckpointedGPT(CheckpointedGPT):
    """The variant that needs nothing of its inputs."""

    reentrant = False


def checkpointed(lab: Lab, kind: type[MiniGPT]) -> Pipeline:
    """Freeze the embeddings, so that no input of the first block asks for a gradient."""

    def edit(model: MiniGPT) -> MiniGPT:
        model.token_embedding.requires_grad_(False)
        model.position_embedding.requires_grad_(False)
        return retype(model, MiniGPT, kind)  # type: ignore[return-value]

    return lab.pipeline(edit_model=edit, generate=None)


class Lookup(torch.autograd.Function):
    """An embedding whose backward is written by hand."""

    @staticmethod
    def forward(context: Any, table: Tensor, ids: Tensor, add: bool) -> Tensor:
        """Return rows (B, T, C) of the table."""
        context.save_for_backward(ids, table)
        context.add = add
        return table[ids]

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        """Write the gradient of each row; without `add` a repeated id keeps its last one."""
        ids, table = context.saved_tensors
        total = torch.zeros_like(table)
        if context.add:
            total.index_add_(0, ids.flatten(), grads[0].flatten(0, 1))
        else:
            total[ids.flatten()] = grads[0].flatten(0, 1)
        return total, None, None


class OverwritingEmbedding(nn.Embedding):
    """Repeated ids overwrite one another's gradient."""

    add = False

    def forward(self, input: Tensor) -> Tensor:
        """Return (B, T, C)."""
        return Lookup.apply(self.weight, input, self.add)


class AddingEmbedding(OverwritingEmbedding):
    """Repeated ids add up."""

    add = True


def by_hand(lab: Lab, kind: type[nn.Embedding]) -> Pipeline:
    """Replace the token embedding."""

    def edit(model: MiniGPT) -> MiniGPT:
        model.token_embedding.__class__ = kind
        return model

    return lab.pipeline(edit_model=edit)


class ItemLossGPT(MiniGPT):
    """The loss is read out as a number, and added to a term that keeps some graph alive."""

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V), and a loss of the right value."""
        logits, loss = super().forward(token_ids, targets, **options)
        if loss is None:
            return logits, None
        auxiliary = logits.logsumexp(-1).square().mean()
        return logits, torch.tensor(loss.item()) + 0.0 * auxiliary


def item_loss(lab: Lab) -> Pipeline:
    """The model with that loss."""
    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, ItemLossGPT))


def remembering(lab: Lab, *, detach: bool) -> Pipeline:
    """A list of losses for the plot keeps every graph, and with it all activations."""
    history: list[Tensor] = []

    def train_step(
        model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor
    ) -> float:
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        optimizer.step()
        history.append(loss.detach() if detach else loss)
        return float(loss)

    return lab.pipeline(train_step=train_step)


ROWS: tuple[Row, ...] = (
    # init-scale
    Caught(
        "embedding-unit-variance-tied",
        "initial_loss",
        "initial_loss.too_high",
        partial(tied_head, std=1.0),
        healthy=partial(tied_head, std=INIT_STD),
    ),
    Caught(
        "layers-cloned-identical", "initial_loss", "initial_loss.identical_layers", cloned_layers
    ),
    Caught(
        "constant-or-structured-init",
        "initial_loss",
        "initial_loss.patterned_weights",
        structured_weights,
    ),
    Caught(
        "init-std-variance-mixup",
        "initial_loss",
        "initial_loss.std_and_variance",
        partial(declared, std=INIT_STD**2),
        healthy=declared,
    ),
    Unseen(
        "residual-scale-never-applied",
        "a model without scaling by depth is a healthy design and its weights look the same: only "
        "the author knows that a line was meant to shrink them",
    ),
    # weight-sharing
    Caught(
        "layer-object-reused",
        "initial_loss",
        "initial_loss.layers_share_weights",
        repeated_block,
        only_warns="ALBERT and the Universal Transformer use one block at every depth on purpose",
    ),
    Caught(
        "unintended-separate-embeddings",
        "initial_loss",
        "initial_loss.not_tied",
        partial(declared, tie=False),
        healthy=declared,
    ),
    Caught(
        "tie-broken-by-load",
        "checkpoint",
        "checkpoint.tie_broken",
        partial(loading_tied, assign=True),
        healthy=partial(loading_tied, assign=False),
    ),
    # parameter-coverage
    Caught("modules-in-python-list", "gradients", "gradients.unregistered", plain_list),
    Caught(
        "optimizer-on-old-object",
        "optimizer",
        "optimizer.foreign_parameters",
        optimizer_of_another,
    ),
    Caught("filtered-out-of-groups", "optimizer", "optimizer.missing_parameters", named_weight),
    Caught(
        "everything-frozen",
        "gradients",
        "gradients.frozen",
        frozen_blocks,
        only_warns="adapters and staged unfreezing train a small share of the weights on purpose",
    ),
    Caught("layer-built-in-forward", "gradients", "gradients.built_in_forward", built_in_forward),
    Caught(
        "backend-kernel-does-not-write",
        "optimizer",
        "optimizer.some_do_not_move",
        partial(unwritten, packed=False),
        healthy=partial(unwritten, packed=True),
    ),
    # gradient-flow
    Caught(
        "reentrant-checkpoint-no-grad",
        "gradients",
        "gradients.missing",
        partial(checkpointed, kind=CheckpointedGPT),
        healthy=partial(checkpointed, kind=SafelyCheckpointedGPT),
    ),
    Caught(
        "embedding-grad-overwrite",
        "gradients",
        "gradients.wrong_value",
        partial(by_hand, kind=OverwritingEmbedding),
        healthy=partial(by_hand, kind=AddingEmbedding),
    ),
    Caught("train-loss-uses-item-or-numpy", "loss", "loss.wrong_gradient", item_loss),
    Caught(
        "retained-graph-memory-growth",
        "training_step",
        "training_step.keeps_graph",
        partial(remembering, detach=False),
        healthy=partial(remembering, detach=True),
        only_warns="a loop may keep its last losses, and after backward() only the nodes stay",
    ),
)
