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
        ),
        Bug(
            name="data_replayed",
            break_it=break_data_replayed,
            trips="resume",
            reason="resume.data_replayed",
            note="The loss looks better after loading: the model knows these batches.",
        ),
        Bug(
            name="rate_restarts",
            break_it=break_rate_restarts,
            trips="resume",
            reason="resume.learning_rate",
            level=2,
            note="With a constant rate nobody would notice.",
        ),
        Bug(
            name="optimizer_elsewhere",
            break_it=break_optimizer_elsewhere,
            trips="resume",
            reason="resume.optimizer_elsewhere",
            level=2,
            note="Logits, moments and step are right at loading. From then on nothing is learnt.",
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
