"""Break the shift: train on targets that are not the token after their input."""

from __future__ import annotations

import torch
from torch import Tensor

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import BATCH_SIZE, Lab
from exercises._run import run


def break_identical(lab: Lab) -> Pipeline:
    """Cut the targets where the inputs are cut: the model learns to copy."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        starts = torch.randint(len(data) - T, (BATCH_SIZE, 1))
        places = starts + torch.arange(T)  # (B, T)
        inputs = data[places]
        targets = data[places]  # BROKEN: was targets = data[places + 1]
        return inputs, targets

    return lab.pipeline(get_batch=get_batch)


def break_two_ahead(lab: Lab) -> Pipeline:
    """Shift once while slicing and once more while pairing: the model learns to skip."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        starts = torch.randint(len(data) - T - 1, (BATCH_SIZE, 1))
        places = starts + torch.arange(T)  # (B, T)
        inputs = data[places]
        targets = data[places + 2]  # BROKEN: was targets = data[places + 1]
        return inputs, targets

    return lab.pipeline(get_batch=get_batch)


def break_wrapped(lab: Lab) -> Pipeline:
    """Roll instead of slice: only the last column is wrong."""

    def get_batch(data: Tensor) -> tuple[Tensor, Tensor]:
        T = lab.config.block_size
        starts = torch.randint(len(data) - T, (BATCH_SIZE, 1))
        places = starts + torch.arange(T)  # (B, T)
        inputs = data[places]
        targets = inputs.roll(-1, 1)  # BROKEN: was targets = data[places + 1]
        return inputs, targets

    return lab.pipeline(get_batch=get_batch)


EXERCISE = Exercise(
    name="break_shift",
    question=(
        "A batch is a pair of windows. If both are cut from the same place, what does the model "
        "learn, and what does its loss look like while it does?"
    ),
    bugs=(
        Bug(
            name="identical",
            break_it=break_identical,
            trips="shift",
            reason="shift.identical",
            note="The loss falls to nearly nothing: copying is the easiest task there is.",
        ),
        Bug(
            name="two_ahead",
            break_it=break_two_ahead,
            trips="shift",
            reason="shift.too_far",
            note="The loss looks ordinary; only the text skips letters.",
        ),
        Bug(
            name="wrapped",
            break_it=break_wrapped,
            trips="shift",
            reason="shift.wrapped_last",
            level=2,
            note="`inputs[:, 1:] == targets[:, :-1]` holds: it never looks at the last column.",
        ),
    ),
    hint="Look at the slice of the targets, and count on paper with data = 0, 1, 2, 3, ...",
    lesson=(
        "Feed the loader data in which every value is its own position. Then the right answer is "
        "inputs + 1 in every place, and no text can hide a wrong column."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
