"""Break the training step: the order of its lines, the mode, and where clipping stands.

Shapes: B batch, T time.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import GRADIENT_NORM_MAX, Lab
from exercises._run import run

LOSS_SCALE = 1024.0  # as a GradScaler would multiply the loss in half precision


def break_not_cleared(lab: Lab) -> Pipeline:
    """Forget to clear: the gradients of all batches so far add up."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        clear = False  # BROKEN: was clear = True
        if clear:
            optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def break_eval_mode(lab: Lab) -> Pipeline:
    """Stay in eval mode, as after an evaluation: dropout never acts."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.eval()  # BROKEN: was model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def break_one_step_late(lab: Lab) -> Pipeline:
    """Step first and compute the gradient afterwards: every step uses the last batch's."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        late = True  # BROKEN: was late = False
        loss = model(inputs, targets)[1]
        if late:
            optimizer.step()
        optimizer.zero_grad()
        loss.backward()
        if not late:
            optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


def break_clip_before_unscale(lab: Lab) -> Pipeline:
    """Clip the gradient of the scaled loss, and divide by the scale afterwards."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        optimizer.zero_grad()
        loss = model(inputs, targets)[1]
        (loss * LOSS_SCALE).backward()
        limit = GRADIENT_NORM_MAX  # BROKEN: was limit = GRADIENT_NORM_MAX * LOSS_SCALE
        nn.utils.clip_grad_norm_(model.parameters(), limit)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.grad is not None:
                    parameter.grad.div_(LOSS_SCALE)
        optimizer.step()
        return loss.detach()

    return lab.pipeline(train_step=step)


EXERCISE = Exercise(
    name="break_training_step",
    question=(
        "zero_grad, forward, backward, clip, step: in which orders does the loss still fall, and "
        "how would you notice that the optimizer saw another gradient than that of its batch?"
    ),
    bugs=(
        Bug(
            name="not_cleared",
            break_it=break_not_cleared,
            trips="training_step",
            reason="training_step.not_cleared",
            note="Clipping hides the growing sum; what remains is a very long momentum.",
        ),
        Bug(
            name="eval_mode",
            break_it=break_eval_mode,
            trips="training_step",
            reason="training_step.eval_mode",
            note="With dropout 0.0 nothing changes at all. It does on the day someone raises it.",
        ),
        Bug(
            name="one_step_late",
            break_it=break_one_step_late,
            trips="training_step",
            reason="training_step.step_before_backward",
            level=2,
            note="Weights move, gradients are there, the loss falls: each looks right by itself.",
        ),
        Bug(
            name="clip_before_unscale",
            break_it=break_clip_before_unscale,
            trips="training_step",
            reason="training_step.clip_before_unscale",
            level=2,
            note="Adam divides by the size of the gradient: the loss curve hardly shows it.",
        ),
    ),
    hint="Print the norm of the gradient right before optimizer.step(), for two different batches.",
    lesson=(
        "Look at the gradient at the moment of its use. It is the batch's own times one factor: 1, "
        "or what brings its norm to the limit. Everything else is a line in the wrong place."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
