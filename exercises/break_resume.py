"""Break resuming: load a run that does not go on where it stopped."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import BATCH_SIZE, LEARNING_RATE, Lab
from exercises._run import run
from minigpt import get_batch, load_checkpoint
from minigpt.seed import restore_random_states

State = tuple[nn.Module, torch.optim.Optimizer, int]
STEPS_BEFORE, STEPS_AFTER = 60, 20


def break_moments_lost(lab: Lab) -> Pipeline:
    """Load the weights and start a new optimizer: its moments are zero."""

    def load_state(path: Path) -> State:
        checkpoint = load_checkpoint(path.with_suffix(".safetensors"))
        optimizer = lab.make_optimizer(checkpoint.model)
        restore_random_states(checkpoint.random_states or {})
        optimizer.zero_grad()  # BROKEN: was checkpoint.restore_optimizer(optimizer)
        return checkpoint.model, optimizer, checkpoint.step

    return lab.pipeline(load_state=load_state)


def break_data_replayed(lab: Lab) -> Pipeline:
    """Start the order of batches again at every start of the program."""

    def batches_from(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        for number in itertools.count(0):  # BROKEN: was for number in itertools.count(step):
            generator = torch.Generator().manual_seed(number)
            yield get_batch(lab.train_ids, BATCH_SIZE, lab.config.block_size, generator=generator)

    return lab.pipeline(batches_from=batches_from)


def break_rate_restarts(lab: Lab) -> Pipeline:
    """Set the first learning rate after loading, over the one that the schedule had reached."""

    def load_state(path: Path) -> State:
        model, optimizer, step = lab.load_state(path)
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE  # BROKEN: was group["lr"] = float(group["lr"])
        return model, optimizer, step

    # no schedule sets the rate anew at each step, so what the checkpoint says is what counts
    return lab.pipeline(load_state=load_state, learning_rate=None)


def break_optimizer_elsewhere(lab: Lab) -> Pipeline:
    """Return an optimizer with the right moments that steps another model's weights."""

    def load_state(path: Path) -> State:
        model, optimizer, step = lab.load_state(path)
        model = lab.load_state(path)[0]  # BROKEN: was model = model.train()
        return model, optimizer, step

    return lab.pipeline(load_state=load_state)


def symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Train, stop, load and go on; return the losses around the stop."""
    parts = pipeline.train_step, pipeline.batches_from, pipeline.save_state, pipeline.load_state
    train_step, batches_from, save_state, load_state = parts
    if not (train_step and batches_from and save_state and load_state):
        raise ValueError("the lab's pipeline holds every part; an exercise took one away")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        model = pipeline.make_model() if pipeline.make_model else pipeline.model
        optimizer: torch.optim.Optimizer = lab.make_optimizer(model)
        before = [
            float(train_step(model, optimizer, *pair))
            for pair in itertools.islice(batches_from(0), STEPS_BEFORE)
        ]
        for group in optimizer.param_groups:
            group["lr"] *= 0.1  # as a schedule has it late in a run
        path = lab.folder / "resume"
        save_state(model, optimizer, STEPS_BEFORE, path)
        model, optimizer, step = load_state(path)
        rate = optimizer.param_groups[0]["lr"]
        after = [
            float(train_step(model, optimizer, *pair))
            for pair in itertools.islice(batches_from(step), STEPS_AFTER)
        ]
    return {
        "learning rate after loading": f"{rate:g}",
        f"loss, last 5 of {STEPS_BEFORE} steps": f"{sum(before[-5:]) / 5:.3f} nats",
        "loss, first 5 after loading": f"{sum(after[:5]) / 5:.3f} nats",
        "loss, 15 steps later": f"{sum(after[-5:]) / 5:.3f} nats",
    }


EXERCISE = Exercise(
    name="break_resume",
    question=(
        "A run is stopped after 60 steps and loaded. What must be in the file, beside the weights, "
        "for step 61 to be the one that it would have been?"
    ),
    bugs=(
        Bug(
            name="moments_lost",
            break_it=break_moments_lost,
            trips="resume",
            reason="resume.optimizer_state_lost",
            note="The first steps after loading are as large as those of a fresh optimizer.",
            question=(
                "Weights and step come back right. What is different about the first update after "
                "loading, and which settings beside the moments does a new optimizer bring along?"
            ),
            hints=(
                (
                    "Compare the optimizers and not the models: the one before saving and the one "
                    "after loading."
                ),
                (
                    "Print len(optimizer.state) right after loading. A healthy one has an entry "
                    "for each of the 29 parameters; here it is empty."
                ),
                (
                    "The checkpoint holds the state of the optimizer. It has to be put back into "
                    "the new optimizer before the first step."
                ),
            ),
            lesson=(
                "An optimizer with a memory is a part of the run, not a tool beside it. Whatever a "
                "step reads besides its batch belongs into the checkpoint."
            ),
            guide="The restart",
        ),
        Bug(
            name="data_replayed",
            break_it=break_data_replayed,
            trips="resume",
            reason="resume.data_replayed",
            note="The loss looks better after loading: the model knows these batches.",
            question=(
                "Will the loss right after loading be higher or lower than that of the run which "
                "never stopped, and does the model know more about new text for it?"
            ),
            hints=(
                (
                    "Leave weights and optimizer alone, and compare the batches that a run reads "
                    "before and after it is loaded."
                ),
                (
                    "Print the first row of the first batch of batches_from(0) and of "
                    "batches_from(60). In a healthy run they differ; here they are the same."
                ),
                (
                    "The numbers from which the batches are drawn must begin with the step at "
                    "which the run goes on."
                ),
            ),
            lesson=(
                "The place in the data is state as well. A loss that falls after a restart calls "
                "for a reason just as one that jumps does."
            ),
            guide="The restart",
        ),
        Bug(
            name="rate_restarts",
            break_it=break_rate_restarts,
            trips="resume",
            reason="resume.learning_rate",
            level=2,
            note="With a constant rate nobody would notice.",
            question=(
                "The rate has been lowered to a tenth before saving. Which number of the table "
                "shows the fault at once, and why would the loss alone not do?"
            ),
            hints=(
                (
                    "Print the settings of the optimizer's groups before saving and after loading, "
                    "beside its moments."
                ),
                (
                    "Healthy is the saved rate, 0.0001 in the table. Here it is ten times as "
                    "large, the rate with which the run began."
                ),
                (
                    "Loading has set the right rate already. Nothing that comes after it may put a "
                    "constant over it."
                ),
            ),
            lesson=(
                "The order of loading matters: what is set after load_state_dict wins over the "
                "file. A higher rate late in a run may even lower the loss for a while, so look at "
                "the rate and not at the loss."
            ),
            guide="Reading the learning rate",
        ),
        Bug(
            name="optimizer_elsewhere",
            break_it=break_optimizer_elsewhere,
            trips="resume",
            reason="resume.optimizer_elsewhere",
            level=2,
            note="Logits, moments and step are right at loading. From then on nothing is learnt.",
            question=(
                "Logits, moments and step are right at loading. What happens to the loss in the "
                "next 100 steps, and what does optimizer.step() change?"
            ),
            hints=(
                (
                    "Ask which tensors the optimizer holds, and whether they are those of the "
                    "model that is returned."
                ),
                (
                    "Count the parameters in optimizer.param_groups that are one and the same "
                    "object as a parameter of the model. Healthy is 29 of 29; here it is 0."
                ),
                (
                    "The model is replaced by another one after the optimizer was made for it. "
                    "Both must come from the same loading."
                ),
            ),
            lesson=(
                "An optimizer knows tensors, not a model. Whenever a model is loaded, copied or "
                "wrapped anew, make the optimizer after that, and check by identity whose weights "
                "it steps."
            ),
        ),
    ),
    hint="Compare two runs: one that goes on, and one that is loaded and gets the same batches.",
    lesson=(
        "Train 3, save, train 3 must equal load, train 3, bit for bit. It covers what no list of "
        "keys does: moments, rates, random states, and whose weights the optimizer holds."
    ),
    symptom=symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
