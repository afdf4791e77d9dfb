"""Break the optimizer: too high a rate, the wrong parameters, decay in the wrong direction."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import AdamW, Optimizer

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import LEARNING_RATE, Lab
from exercises._run import run
from minigpt import MiniGPT, make_optimizer


def break_learning_rate(lab: Lab) -> Pipeline:
    """Train with a rate that is a hundred times too high."""

    def make(model: nn.Module) -> Optimizer:
        rate = 0.1  # BROKEN: was rate = LEARNING_RATE
        return make_optimizer(model, learning_rate=rate)

    # with a schedule, its peak would be the rate, whatever the optimizer was built with
    return lab.pipeline(make_optimizer=make, learning_rate=None)


def break_old_model(lab: Lab) -> Pipeline:
    """Build the optimizer for a model that was replaced since."""
    old_model = MiniGPT(lab.config)

    def make(model: nn.Module) -> Optimizer:
        parameters = old_model.parameters()  # BROKEN: was parameters = model.parameters()
        return AdamW(parameters, lr=LEARNING_RATE)

    return lab.pipeline(make_optimizer=make)


def break_left_out(lab: Lab) -> Pipeline:
    """Sort parameters into groups by name, with a name that not all of them have."""

    def make(model: nn.Module) -> Optimizer:
        matrices, vectors = [], []
        for name, parameter in model.named_parameters():
            if parameter.ndim >= 2:
                matrices.append(parameter)
            elif "norm" in name:  # BROKEN: was elif parameter.ndim < 2:
                vectors.append(parameter)
        groups: list[dict[str, Any]] = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]
        return AdamW(groups, lr=LEARNING_RATE)

    return lab.pipeline(make_optimizer=make)


def break_decay_sign(lab: Lab) -> Pipeline:
    """Write the optimizer by hand, and let the weight decay push outwards."""

    class SignedMomentum(Optimizer):
        """A step of one rate against the sign of the averaged gradient, with decay."""

        @torch.no_grad()
        def step(self, closure: object = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is None:
                        continue
                    state = self.state[parameter]
                    average = state.setdefault("average", torch.zeros_like(parameter))
                    average.lerp_(parameter.grad, 0.1)
                    pull = group["lr"] * group["decay"]
                    parameter.mul_(1 + pull)  # BROKEN: was parameter.mul_(1 - pull)
                    parameter.sub_(average.sign(), alpha=group["lr"])

    def make(model: nn.Module) -> Optimizer:
        return SignedMomentum(model.parameters(), {"lr": 3e-4, "decay": 0.1})

    return lab.pipeline(make_optimizer=make)


EXERCISE = Exercise(
    name="break_optimizer",
    question=(
        "After one step you print the first parameter before and after, and it has changed. "
        "Which faults of an optimizer does that leave open?"
    ),
    bugs=(
        Bug(
            name="learning_rate",
            break_it=break_learning_rate,
            trips="optimizer",
            reason="optimizer.update_too_large",
            note=(
                "Adam's first step moves each weight by one learning rate, whatever the gradient. "
                "The weights begin at about 0.02."
            ),
        ),
        Bug(
            name="old_model",
            break_it=break_old_model,
            trips="optimizer",
            reason="optimizer.foreign_parameters",
            note="Nothing complains: step() works on tensors that get no gradient, and moves none.",
        ),
        Bug(
            name="left_out",
            break_it=break_left_out,
            trips="optimizer",
            reason="optimizer.missing_parameters",
            level=2,
            note="The first parameter moves, the loss falls; the biases never leave 0.",
        ),
        Bug(
            name="decay_sign",
            break_it=break_decay_sign,
            trips="optimizer",
            reason="optimizer.decay_sign",
            level=2,
            note="In 150 steps nobody sees it; in 100,000 the weights have grown without bound.",
        ),
    ),
    hint="Compare what the optimizer holds with model.named_parameters(), by identity.",
    lesson=(
        "An optimizer is a list of tensors and a rule. Check the list by identity, the rule with "
        "one step with and one without a gradient, and the rate with five steps on one batch."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
