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
            question=(
                "After 150 steps, where do the training loss and the honest loss on new text "
                "stand: near each other, or far apart? Which of the two is the lower one, and why?"
            ),
            hints=(
                (
                    "Look at inputs[0] and targets[0], one above the other, and at the place of "
                    "the data at which each of them begins."
                ),
                (
                    "Feed data in which every token is its own position, 0, 1, 2, ..., and print "
                    "targets - inputs. In a healthy batch every entry is 1."
                ),
                (
                    "Both slices use the same places. The targets must be read one place further "
                    "on in the data than the inputs."
                ),
            ),
            lesson=(
                "A task that can be solved by copying is learnt first and best. When a loss is far "
                "below what you expected, look for the answer among the inputs before you "
                "celebrate."
            ),
            guide="The run that was too good",
        ),
        Bug(
            name="two_ahead",
            break_it=break_two_ahead,
            trips="shift",
            reason="shift.too_far",
            note="The loss looks ordinary; only the text skips letters.",
            question=(
                "Will the training loss after 150 steps tell this model from a healthy one? What "
                "would you see in the text that it writes?"
            ),
            hints=(
                (
                    "The starts leave room for one token more than a healthy loader needs. Ask "
                    "which index needs that room."
                ),
                (
                    "Feed data = 0, 1, 2, ... and print targets - inputs. It must be 1 everywhere; "
                    "here it is the same wrong number in every place."
                ),
                (
                    "The step from an input to its target is added in the index of the targets. It "
                    "must move by one place, once."
                ),
            ),
            lesson=(
                "A wrong question can be nearly as hard as the right one, and then no loss betrays "
                "it. Check the distance between input and target itself, not how well it is "
                "learnt."
            ),
        ),
        Bug(
            name="wrapped",
            break_it=break_wrapped,
            trips="shift",
            reason="shift.wrapped_last",
            level=2,
            note="`inputs[:, 1:] == targets[:, :-1]` holds: it never looks at the last column.",
            question=(
                "How many of the 32 targets of a row are wrong, and will `inputs[:, 1:] == "
                "targets[:, :-1]` find them?"
            ),
            hints=(
                "Compare the columns of the batch one by one, and do not leave out the last one.",
                (
                    "With data = 0, 1, 2, ... print targets[:, -1] beside inputs[:, -1] and "
                    "inputs[:, 0]. Healthy is the input of the same column plus 1."
                ),
                (
                    "A row of T inputs does not hold the token after its end. The last target has "
                    "to be read from the data, not from the row."
                ),
            ),
            lesson=(
                "A test that compares two overlapping slices is blind where they do not overlap. "
                "After writing one, ask which entries it never reads."
            ),
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
