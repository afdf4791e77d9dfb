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
OUTBURST = 5.0  # norm of a gradient that is not used


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
        nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
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


def break_skip_keeps_gradient(lab: Lab) -> Pipeline:
    """Skip a step whose gradient is an outburst, and leave that gradient to the next one."""

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        model.train()
        loss = model(inputs, targets)[1]
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), GRADIENT_NORM_MAX)
        made = bool(norm <= OUTBURST)
        if made:
            optimizer.step()
        clear = made  # BROKEN: was clear = True
        if clear:
            optimizer.zero_grad()
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
            question=(
                "Two steps are made on two different batches. Which gradient does the optimizer "
                "see in the second one, and what does clipping to a norm of 1.0 do to that?"
            ),
            hints=(
                "Look at what lies in parameter.grad before backward() runs in the second call.",
                "Call the step twice on one batch with a learning rate of 0, and print the norm "
                "of the gradient between backward() and the clipping. Healthy is the same "
                "number twice; here the second is larger by 1.",
                "backward() adds to what it finds. Something must empty the gradients once per "
                "step, before backward() or after step(); here that has been switched off.",
            ),
            lesson=(
                "backward() adds and never replaces, in every model. Clipping and Adam make a "
                "sum of old gradients the size of one gradient again, so only a look before the "
                "clipping shows it."
            ),
            guide="Clipping",
        ),
        Bug(
            name="eval_mode",
            break_it=break_eval_mode,
            trips="training_step",
            reason="training_step.eval_mode",
            note="With dropout 0.0 nothing changes at all. It does on the day someone raises it.",
            question=(
                "The loss after 150 steps with dropout 0.0 in the model: will it differ from "
                "the healthy one's? And with dropout 0.2?"
            ),
            hints=(
                "Look at the state that the step gives the model before the forward pass, not "
                "at the gradients.",
                "Print [m.training for m in model.modules()] inside the step. In training every "
                "one of them is True.",
                "A step that trains has to ask for train mode itself, because the evaluation "
                "before it may have left the other one.",
            ),
            lesson=(
                "The mode is state that outlives the function that set it. Set it where it is "
                "needed, at the start of the step, and set it back after every evaluation."
            ),
            guide="The check modes",
        ),
        Bug(
            name="one_step_late",
            break_it=break_one_step_late,
            trips="training_step",
            reason="training_step.step_before_backward",
            level=2,
            note="Weights move, gradients are there, the loss falls: each looks right by itself.",
            question=(
                "Forward, backward, clear and step are all there. Does the very first call move "
                "the weights, and is the loss after 150 steps lower than the healthy one's, "
                "equal or higher?"
            ),
            hints=(
                "Write down the order in which the four calls run, once for each value of the "
                "condition.",
                "Compare the weights before and after the very first call. A healthy first step "
                "moves them; this one does not.",
                "The step must come after backward(), so that it uses what backward() has just "
                "written; the condition that decides this has the wrong value.",
            ),
            lesson=(
                "A gradient of the last batch still points roughly downhill, so training goes "
                "on and only ends higher. Test the first step alone: there, late means that "
                "nothing moves."
            ),
            guide="Self-test: optimizer",
        ),
        Bug(
            name="clip_before_unscale",
            break_it=break_clip_before_unscale,
            trips="training_step",
            reason="training_step.clip_before_unscale",
            level=2,
            note="Adam divides by the size of the gradient: the loss curve hardly shows it.",
            question=(
                "The loss is multiplied by 1024 before backward(), and the gradient divided by "
                "1024 before the step. Which is the largest norm that the optimizer can see, "
                "with a limit of 1.0?"
            ),
            hints=(
                "Look at the units of the number that the gradient's norm is compared with.",
                "Print the norm of the gradient right before optimizer.step(). Healthy values "
                "are near the limit of 1 or a little below; here they are near 0.001.",
                "Between backward() and the division the gradient is 1024 times its true size, "
                "so the limit there has to be as many times larger, or the clipping has to wait "
                "for the division.",
            ),
            lesson=(
                "A limit means something only in the units of the true gradient. Adam removes "
                "the lost factor from the curve; weight decay, epsilon and another optimizer do "
                "not."
            ),
            guide="Clipping",
        ),
        Bug(
            name="skip_keeps_gradient",
            break_it=break_skip_keeps_gradient,
            trips="training_step",
            reason="training_step.skip_keeps_gradient",
            level=2,
            note="Thousands of steps are right. The one after an outburst is not.",
            question=(
                "A step whose gradient is far too large is skipped, and the weights stay. Which "
                "gradient does the optimizer see in the step after it?"
            ),
            hints=(
                "Follow a call in which the step is skipped to its last line. What is different "
                "from a call that steps?",
                "Print the norm of parameter.grad at the start of each call. In a healthy step "
                "it is None or 0 in every call, also after a skipped one.",
                "The outburst has to be thrown away where it is skipped: clearing must not "
                "depend on whether the step was made.",
            ),
            lesson=(
                "To skip a step means to forget its gradient as well. Each early exit from a "
                "loop needs the same cleaning up as its ordinary end, and rare branches have to "
                "be tested on purpose."
            ),
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
