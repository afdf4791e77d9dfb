"""Break the schedule: a curve in the wrong units, and a rate that never arrives.

Shapes: B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import LEARNING_RATE, MAX_STEPS, Lab, learning_rate, train_step
from exercises._run import run

WARMUP = 30


def break_negative(lab: Lab) -> Pipeline:
    """Decay in a straight line, without an end."""

    def rate(step: int) -> float:
        progress = step / MAX_STEPS  # BROKEN: was progress = min(1.0, step / MAX_STEPS)
        return LEARNING_RATE * (1.0 - progress)

    return lab.pipeline(learning_rate=rate)


def break_peak_never_reached(lab: Lab) -> Pipeline:
    """Take a warm-up that was meant for a run of 100,000 steps."""

    def rate(step: int) -> float:
        warmup = 2000  # BROKEN: was warmup = WARMUP
        return LEARNING_RATE * min(1.0, (step + 1) / warmup)

    return lab.pipeline(learning_rate=rate)


def break_not_applied(lab: Lab) -> Pipeline:
    """Compute the rate of each step, and leave it at that."""
    steps = [0]

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        rate = learning_rate(steps[0] % MAX_STEPS)
        for group in optimizer.param_groups:
            group["rate"] = rate  # BROKEN: was group["lr"] = rate
        steps[0] += 1
        return train_step(model, optimizer, inputs, targets)

    return lab.pipeline(train_step=step)


def break_only_first_group(lab: Lab) -> Pipeline:
    """Assign the rate to the first parameter group; biases and norms keep the old one."""
    steps = [0]

    def step(model: nn.Module, optimizer: Optimizer, inputs: Tensor, targets: Tensor) -> Tensor:
        groups = optimizer.param_groups[:1]  # BROKEN: was groups = optimizer.param_groups
        for group in groups:
            group["lr"] = learning_rate(steps[0] % MAX_STEPS)
        steps[0] += 1
        return train_step(model, optimizer, inputs, targets)

    return lab.pipeline(train_step=step)


def break_rises_again(lab: Lab) -> Pipeline:
    """Give the cosine the steps after the warm-up, and let it begin with the run."""

    def rate(step: int) -> float:
        floor = LEARNING_RATE / 10
        if step < WARMUP:
            return LEARNING_RATE * (step + 1) / WARMUP
        if step >= MAX_STEPS:
            return floor
        done = step  # BROKEN: was done = step - WARMUP
        progress = done / (MAX_STEPS - WARMUP)
        return floor + (LEARNING_RATE - floor) * (1.0 + math.cos(math.pi * progress)) / 2

    return lab.pipeline(learning_rate=rate)


def rate_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Return what the schedule says, and what the groups hold after a few steps."""
    schedule, make_optimizer, step = (
        pipeline.learning_rate,
        pipeline.make_optimizer,
        pipeline.train_step,
    )
    assert schedule is not None
    assert make_optimizer is not None
    assert step is not None
    places = (0, WARMUP, MAX_STEPS - 1, 2 * MAX_STEPS)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        optimizer = make_optimizer(pipeline.model)
        for _ in range(3):
            step(pipeline.model, optimizer, *lab.get_batch(lab.train_ids))
    held = [group["lr"] for group in optimizer.param_groups]
    return {
        f"schedule at steps {', '.join(map(str, places))}": ", ".join(
            f"{schedule(place):.2e}" for place in places
        ),
        "rates of the groups after 3 steps": ", ".join(f"{rate:.2e}" for rate in held),
    }


EXERCISE = Exercise(
    name="break_schedule",
    question=(
        "You plot the schedule and it looks right. Which of its faults does a plot not show, and "
        "which one needs a longer x axis?"
    ),
    bugs=(
        Bug(
            name="negative",
            break_it=break_negative,
            trips="schedule",
            reason="schedule.negative",
            note="All is well until someone prolongs the run; then every step goes uphill.",
            question=(
                "The run of 300 steps is prolonged to 600. Which rate does the schedule give at "
                "step 450, and what does a step with it do to the loss?"
            ),
            hints=(
                "Look at the curve beyond the last planned step.",
                "Print the rate at steps 0, 299, 300 and 600. Healthy is a rate of 0 or more "
                "everywhere; here step 600 has the peak with a minus sign.",
                "The share of the run that is done has to stop at 1, whatever the step.",
            ),
            lesson=(
                "A formula for the inside of a range gives numbers outside of it too, and "
                "nobody plots those. Bound what a schedule computes, and read it beyond its "
                "end."
            ),
        ),
        Bug(
            name="peak_never_reached",
            break_it=break_peak_never_reached,
            trips="schedule",
            reason="schedule.peak_never_reached",
            note="The loss falls, only slowly: most of the run happens at a tiny rate.",
            question=(
                "The rate rises in every step of the run, as a warm-up should. Which share of "
                "the peak is reached in the last of 300 steps, and what does the loss look "
                "like?"
            ),
            hints=(
                "Compare the length of the warm-up with the length of the run.",
                "Print the largest rate of all 300 steps over the peak. Healthy is 1; here it "
                "is 0.15.",
                "The warm-up's length has to be the one that belongs to this run, a few per "
                "cent of its steps.",
            ),
            lesson=(
                "Lengths in steps belong to a run and do not travel with the code. Print the "
                "highest rate that a run uses, or state such lengths as shares of it."
            ),
            guide="Reading the learning rate",
        ),
        Bug(
            name="not_applied",
            break_it=break_not_applied,
            trips="schedule",
            reason="schedule.not_applied",
            level=2,
            note="A group takes any key. The log shows the computed rate, not the one in use.",
            question=(
                "The rate is computed in each step and written into every parameter group. "
                "Which rate do the steps use?"
            ),
            hints=(
                "Look at the name under which the rate is stored, and at the name that the "
                "optimizer reads.",
                "Print group['lr'] after three calls. A healthy one has followed the schedule "
                "to 2e-04; here it still is 1e-03.",
                "A parameter group is a dictionary, which takes any key in silence. torch's "
                "optimizers read one certain key for the rate.",
            ),
            lesson=(
                "Writing to a dictionary never fails, so a wrong key is a setting without "
                "effect. Log the rate from the optimizer's own groups, not from the variable "
                "that you computed."
            ),
        ),
        Bug(
            name="only_first_group",
            break_it=break_only_first_group,
            trips="schedule",
            reason="schedule.only_some_groups",
            level=2,
            note="param_groups[0]['lr'] is right, and that is what everybody prints.",
            question=(
                "The optimizer has two parameter groups, and the log prints the rate of "
                "param_groups[0] at every step. What does the log look like, and what does it "
                "leave out?"
            ),
            hints=(
                "Look at how many groups the step goes through.",
                "Print [g['lr'] for g in optimizer.param_groups] after three calls. Healthy is "
                "2e-04 twice; here the second is 1e-03 still.",
                "Each group holds a rate of its own, and there is none for all of them: every "
                "one has to be written.",
            ),
            lesson=(
                "Index 0 is a sample and not the whole. What is set per group has to be set, "
                "and logged, for every group."
            ),
        ),
        Bug(
            name="rises_again",
            break_it=break_rises_again,
            trips="schedule",
            reason="schedule.rises_again",
            level=2,
            note="The warm-up is right, and the end is near the floor: a plot passes at a glance.",
            question=(
                "The warm-up takes 30 of 300 steps, and half a cosine the 270 steps after it. "
                "In which step is the rate at its lowest, and how do the steps 28 to 32 look?"
            ),
            hints=(
                "Look at the number of steps that the cosine has behind it when the warm-up ends.",
                "Print the rate at steps 29, 30, 270 and 299. Healthy falls from 1e-03 without "
                "a jump and is lowest at 299; here it is lowest at 270, and rises after it.",
                "The cosine has as many steps as are left after the warm-up, so it has to count "
                "from the end of the warm-up and not from the start of the run.",
            ),
            lesson=(
                "The numerator and the denominator of a share have to leave out the same steps. "
                "Read a schedule at its joints and at its end, where half a cosine turns round."
            ),
        ),
    ),
    hint="Read optimizer.param_groups inside the step, all of them, next to learning_rate(step).",
    lesson=(
        "A schedule is two things: a curve, which can be read without training, and an assignment, "
        "which can only be seen in the optimizer. Check both, beyond the end of the run too."
    ),
    symptom=rate_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
