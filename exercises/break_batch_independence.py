"""Break batch independence: let the rows of a batch read one another."""

from __future__ import annotations

from torch import Tensor

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt.model import CausalSelfAttention, FeedForward, KeyValueCache


def break_batch_axis(lab: Lab) -> Pipeline:
    """Give attention (T, B, C) where it wants (B, T, C): rows attend to rows."""

    class Confused(CausalSelfAttention):
        def forward(self, x: Tensor, cache: KeyValueCache | None = None, layer: int = 0) -> Tensor:
            mixed = super().forward(x.transpose(0, 1))  # BROKEN: was mixed = super().forward(x)
            return mixed.view_as(x) if mixed.shape == x.shape else mixed.transpose(0, 1)

    return lab.pipeline(edit_model=lambda model: retype(model, CausalSelfAttention, Confused))


def break_alone(lab: Lab) -> Pipeline:
    """Average over the batch inside the model, where only the loss should: a row alone differs."""

    class Averaged(FeedForward):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) / len(x)  # BROKEN: was return super().forward(x)

    return lab.pipeline(edit_model=lambda model: retype(model, FeedForward, Averaged))


EXERCISE = Exercise(
    name="break_batch_independence",
    question=(
        "Eight rows are trained on at once. What could make the prediction for one of them depend "
        "on the other seven, and would the loss tell?"
    ),
    bugs=(
        Bug(
            name="batch_axis",
            break_it=break_batch_axis,
            trips="batch_independence",
            reason="batch_independence.batch_axis",
            note=(
                "nn.MultiheadAttention without batch_first=True does this. No future token leaks, "
                "the loss falls to that of a bigram model, and nothing complains."
            ),
        ),
        Bug(
            name="alone",
            break_it=break_alone,
            trips="batch_independence",
            reason="batch_independence.alone",
            level=2,
            note=(
                "Changing one row leaves the others alone, so the textbook check passes. Only the "
                "size of the batch matters: what was trained with eight rows is used with one."
            ),
        ),
    ),
    hint="Look for what forward does with axis 0: transpose, len(x), dim=0, squeeze.",
    lesson=(
        "Three questions make sure that rows are strangers: does another row's change move this "
        "one, does its slot matter, and does it answer alone as it does in company?"
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
