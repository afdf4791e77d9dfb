"""AdamW for a GPT: weight decay on matrices only, and state that follows the model's device."""

from __future__ import annotations

import torch
from torch import Tensor, nn

FUSED_DEVICES = frozenset({"cpu", "cuda"})  # where AdamW(fused=True) exists in every torch >= 2.4


def make_optimizer(
    model: nn.Module,
    *,
    learning_rate: float,
    weight_decay: float = 0.1,  # GPT-3 paper, appendix B; so are the betas
    betas: tuple[float, float] = (0.9, 0.95),
    fused: bool | None = None,
) -> torch.optim.AdamW:
    """Return AdamW over every trainable parameter of `model`, each of them exactly once.

    Matrices (ndim >= 2: linear layers and embeddings) decay; biases and the gains of norms do
    not, since pulling a gain to zero would silence its layer. A tied weight counts once.
    fused: one kernel for all parameters instead of a Python loop; None takes it where it exists.
    Raises ValueError when nothing is trainable, which would train without an error and in vain.
    """
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not trainable:
        raise ValueError("nothing to train: every parameter of the model is frozen")
    groups = [
        {"params": [p for p in trainable if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trainable if p.ndim < 2], "weight_decay": 0.0},
    ]
    if fused is None:
        fused = all(p.device.type in FUSED_DEVICES and p.is_floating_point() for p in trainable)
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=betas,
        fused=fused,
    )


def move_optimizer_to_device(optimizer: torch.optim.Optimizer, device: torch.device | str) -> None:
    """Move every tensor of the optimizer's state to `device`, in place.

    Needed after the model has moved, or after state from a file was put in by hand: moments on
    the CPU and gradients on a GPU cannot be added. The `step` counter stays on the CPU unless
    the group is fused or capturable: torch reads it in Python, and reading it from a GPU would
    wait for the GPU at every step.
    """
    device = torch.device(device)
    for group in optimizer.param_groups:
        step_moves = bool(group.get("fused")) or bool(group.get("capturable"))
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})  # .get: no empty entry for a new parameter
            for key, value in state.items():
                if isinstance(value, Tensor) and (key != "step" or step_moves):
                    state[key] = value.to(device)
