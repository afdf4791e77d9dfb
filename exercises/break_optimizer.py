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
            question=(
                "Five steps are made on one and the same batch. Where does its loss go from "
                "4.5: down at once, up first, or nowhere?"
            ),
            hints=(
                "Look at the size of one update beside the size of the weights that it changes.",
                "Print the norm of the change of a weight matrix over its own norm, for the "
                "second step. Healthy is below 0.1; here it is near 0.7.",
                "The rate of every step comes from the settings of the lab. A number of its own "
                "that is a hundred times larger has to give way to it.",
            ),
            lesson=(
                "With Adam the rate is the length of a step, whatever the gradient, so compare "
                "it with the size of the weights. Five steps on one batch show a rate that is "
                "far too high."
            ),
            guide="Reading the learning rate",
        ),
        Bug(
            name="old_model",
            break_it=break_old_model,
            trips="optimizer",
            reason="optimizer.foreign_parameters",
            note="Nothing complains: step() works on tensors that get no gradient, and moves none.",
            question=(
                "The optimizer holds 29 parameters of the right shapes, and step() raises "
                "nothing. What will the loss be after 150 steps?"
            ),
            hints=(
                "Ask of which model object the optimizer holds the parameters.",
                "Compare {id(p) for p in model.parameters()} with the ids in "
                "optimizer.param_groups. Healthy is equality; here not one id is shared.",
                "The parameters have to come from the model that the function is given, not "
                "from one that was built before.",
            ),
            lesson=(
                "An optimizer holds tensors, not a model: whatever replaces the model "
                "afterwards leaves it behind. Build it last, and compare by identity, because "
                "names and shapes agree all the same."
            ),
        ),
        Bug(
            name="left_out",
            break_it=break_left_out,
            trips="optimizer",
            reason="optimizer.missing_parameters",
            level=2,
            note="The first parameter moves, the loss falls; the biases never leave 0.",
            question=(
                "Matrices go to one group, vectors to another. How many of the model's 29 "
                "parameters do the two hold together, and what will the loss after 150 steps "
                "say about it?"
            ),
            hints=(
                "Look at what happens to a parameter that meets neither condition.",
                "Count the tensors in all groups. Healthy is 29; here there are 21, and the "
                "ones missing are biases with no norm in their name.",
                "The second condition must be true for every parameter for which the first is "
                "false: it should ask for the number of dimensions, not for a name.",
            ),
            lesson=(
                "Sorting into groups needs a last group that takes what is left over. Add up "
                "the group sizes and compare the sum with the model: a loss that falls does not "
                "count parameters."
            ),
            guide="Half a model",
        ),
        Bug(
            name="decay_sign",
            break_it=break_decay_sign,
            trips="optimizer",
            reason="optimizer.decay_sign",
            level=2,
            note="In 150 steps nobody sees it; in 100,000 the weights have grown without bound.",
            question=(
                "One step is made with all gradients set to 0. What should the weights do under "
                "a decay of 0.1, and what do they do here?"
            ),
            hints=(
                "Look at the part of the step that does not depend on the gradient.",
                "Set every gradient to 0, make one step and print the norm of a weight after "
                "over before. Healthy is slightly below 1; here it is slightly above.",
                "Decay pulls a weight toward 0, so the factor that it is multiplied by must be "
                "smaller than 1.",
            ),
            lesson=(
                "A rule with two terms needs a test for each alone: one step without decay, one "
                "without gradient. What is 1 part in 30,000 per step hides behind any gradient "
                "and still decides a long run."
            ),
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
