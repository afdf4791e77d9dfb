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
            question=(
                "Training and honest loss after 150 steps: will one of them stand out from the "
                "healthy run's 2.5, and by how much? What does the model use of its context?"
            ),
            hints=(
                (
                    "Look at what the attention is given, and at which of the axes of (B, T, C) it "
                    "takes for the time."
                ),
                (
                    "Change one token in row 0 of a batch and print how far the logits of row 1 "
                    "move. Healthy is exactly 0; here they move by some tenths."
                ),
                (
                    "The attention has to receive x with the batch first and the time second, as "
                    "it comes into forward."
                ),
            ),
            lesson=(
                "A module that mixes along the wrong axis still returns the right shape. Each "
                "module has a convention for the order of its axes; read it, and test with rows "
                "that must be strangers."
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
            question=(
                "Changing one row leaves all the others as they were. Then which loss will show "
                "this bug after 150 steps, the training loss or the honest loss?"
            ),
            hints=(
                (
                    "Look for the size of the batch in forward: anything that is computed from the "
                    "length of axis 0."
                ),
                (
                    "Run one row alone, and again as the first of a batch of five, and print the "
                    "largest difference of its logits. Healthy is below 1e-9 in float64; here it "
                    "is about 0.5."
                ),
                (
                    "The output of the feed-forward part must not be scaled by the number of rows. "
                    "The mean over the batch belongs into the loss, and cross_entropy takes it "
                    "there."
                ),
            ),
            lesson=(
                "Rows can be independent of each other's content and still depend on how many they "
                "are. Test a row in company and alone; a model is trained in one way and used in "
                "the other."
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
