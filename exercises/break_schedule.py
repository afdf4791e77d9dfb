"""Break the schedule: a curve in the wrong units, and a rate that never arrives.

Shapes: B batch, T time.
"""

from __future__ import annotations

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
        ),
        Bug(
            name="peak_never_reached",
            break_it=break_peak_never_reached,
            trips="schedule",
            reason="schedule.peak_never_reached",
            note="The loss falls, only slowly: most of the run happens at a tiny rate.",
        ),
        Bug(
            name="not_applied",
            break_it=break_not_applied,
            trips="schedule",
            reason="schedule.not_applied",
            level=2,
            note="A group takes any key. The log shows the computed rate, not the one in use.",
        ),
        Bug(
            name="only_first_group",
            break_it=break_only_first_group,
            trips="schedule",
            reason="schedule.only_some_groups",
            level=2,
            note="param_groups[0]['lr'] is right, and that is what everybody prints.",
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
