"""Break the loss: report a number that looks like a cross-entropy and is another one.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT

CHUNK = 64  # tokens that are scored at once in the bug of the remainder


class ScoredGPT(MiniGPT):
    """The reference, with the line that scores in a method of its own."""

    def forward(
        self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
    ) -> tuple[Tensor, Tensor | None]:
        """Return logits (B, T, V) and the loss, or None."""
        logits, _ = super().forward(token_ids, **options)
        return logits, None if targets is None else self.score(logits, targets)

    def score(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of logits (B, T, V) with targets (B, T)."""
        raise NotImplementedError


def break_double_softmax(lab: Lab) -> Pipeline:
    """Hand probabilities to a loss that applies softmax itself."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            rows = logits.flatten(0, 1)  # (B * T, V)
            scores = rows.softmax(-1)  # BROKEN: was scores = rows
            return functional.cross_entropy(scores, targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_shifted_twice(lab: Lab) -> Pipeline:
    """Shift inside the model although the loader has shifted already."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            cut = 1 if targets.shape[1] > 1 else 0  # BROKEN: was cut = 0
            kept = logits[:, : logits.shape[1] - cut]
            return functional.cross_entropy(kept.flatten(0, 1), targets[:, cut:].flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_flattened(lab: Lab) -> Pipeline:
    """Flatten logits time first and targets row first: each position meets a foreign target."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            ordered = logits.transpose(0, 1)  # BROKEN: was ordered = logits
            return functional.cross_entropy(ordered.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_denominator(lab: Lab) -> Pipeline:
    """Divide by all positions, the ignored ones too; without ignored targets nothing shows."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            losses = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), reduction="none"
            )  # (B * T,), 0 where the target is ignored
            count = targets.numel()  # BROKEN: was count = (targets != -100).sum()
            return losses.sum() / count

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_clamped(lab: Lab) -> Pipeline:
    """Clip the loss where the gradients were meant: a large loss then teaches nothing."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            return loss.clamp(max=6.0)  # BROKEN: was return loss

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_remainder(lab: Lab) -> Pipeline:
    """Score in chunks to save memory, and lose what fills none; a training batch fills four."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            rows, wanted = logits.flatten(0, 1), targets.flatten()  # (B * T, V), (B * T,)
            chunks = max(1, len(rows) // CHUNK)  # BROKEN: was chunks = -(-len(rows) // CHUNK)
            kept = wanted[: chunks * CHUNK]
            losses = [
                functional.cross_entropy(part, wanted_part, reduction="sum")
                for part, wanted_part in zip(
                    rows[: len(kept)].split(CHUNK), kept.split(CHUNK), strict=True
                )
            ]
            return torch.stack(losses).sum() / (kept != -100).sum()

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_z_loss(lab: Lab) -> Pipeline:
    """Add a z-loss with the wrong sign: it rewards a normaliser that grows."""

    class Broken(ScoredGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            penalty = 1e-3 * logits.logsumexp(-1).square().mean()
            return loss - penalty  # BROKEN: was return loss + penalty

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


EXERCISE = Exercise(
    name="break_loss",
    question=(
        "A model with random weights scores about ln V whatever is done to its loss. Which wrong "
        "formulas can that number tell from the right one?"
    ),
    bugs=(
        Bug(
            name="double_softmax",
            break_it=break_double_softmax,
            trips="loss",
            reason="loss.double_softmax",
            note="The first loss is ln V, as it should be; it can never fall below ln(V) - 1.",
            question=(
                "The first loss, before any training: is it near the healthy ln V? And after 150 "
                "steps, will this loss be level with the healthy one's 2.5, or above it?"
            ),
            hints=(
                (
                    "Look at what cross_entropy receives as its first argument. It takes the "
                    "softmax itself."
                ),
                (
                    "Print the smallest and the largest score that reach it, and their sum at one "
                    "position. Raw scores have any size and any sum; here all lie between 0 and 1 "
                    "and sum to 1."
                ),
                (
                    "The raw rows of logits have to reach the loss as they come from the model, "
                    "with nothing applied to them."
                ),
            ),
            lesson=(
                "A loss that stops at a round floor, while the predictions go on improving, is "
                "limited by its formula. Know whether a function wants scores, probabilities or "
                "logarithms of them."
            ),
            guide="The loss that stopped at 3.2",
        ),
        Bug(
            name="shifted_twice",
            break_it=break_shifted_twice,
            trips="loss",
            reason="loss.shifted_twice",
            note="Each shift is right on its own. The batch passes, and so does the first loss.",
            question=(
                "Training goes on and the loss falls. Is 150 steps enough for a visible gap to the "
                "healthy loss, and which token does the model learn to predict?"
            ),
            hints=(
                (
                    "Look at which target meets which position. Count how often the pair is moved "
                    "on its way from the text to the loss."
                ),
                (
                    "Take the ids 10, 11, 12, 13, 14: with inputs 10 to 13 the healthy targets are "
                    "11 to 14. Print the pairs that are scored; here 10 is scored against 12."
                ),
                (
                    "The targets come shifted from the loader, so the model must score every "
                    "position against the target in the same place, and cut nothing off."
                ),
            ),
            lesson=(
                "A convention between two parts, such as who shifts, belongs into one of them and "
                "into the other's description. Where both or neither act, each part is right and "
                "the pair is wrong."
            ),
        ),
        Bug(
            name="flattened",
            break_it=break_flattened,
            trips="loss",
            reason="loss.flattened_in_another_order",
            level=2,
            note="One batch can still be memorised: a wrong pairing that stays is learnable.",
            question=(
                "One fixed batch could still be learnt by heart with this loss. What about new "
                "text: will the loss after 150 steps be near 2.5, near 3.1 or near ln V, which is "
                "4.5?"
            ),
            hints=(
                (
                    "Look at the two tensors that are flattened, and at the order in which each of "
                    "them runs through rows and positions."
                ),
                (
                    "With B = 2 and T = 3, write row and position into each element and print both "
                    "lists. Healthy lists are equal; here the first goes down the rows while the "
                    "second goes along the time."
                ),
                (
                    "Both have to be flattened row by row. Nothing may move the axes of the logits "
                    "between the model and the loss."
                ),
            ),
            lesson=(
                "Two tensors that are flattened together must have the same order of axes at that "
                "moment. Equal lengths hide it, and so does a batch of one row."
            ),
        ),
        Bug(
            name="denominator",
            break_it=break_denominator,
            trips="loss",
            reason="loss.denominator_counts_ignored",
            level=2,
            note="Every batch without ignored targets is right to the last digit.",
            question=(
                "Will the losses of 150 steps differ from the healthy ones at all? What would a "
                "batch have to hold for the two to differ?"
            ),
            hints=(
                (
                    "Look at what the sum of the losses is divided by, and ask what that number is "
                    "when some targets are -100."
                ),
                (
                    "Mark three of four targets as ignored and compare with cross_entropy. A "
                    "healthy loss hardly changes; here it falls to about a quarter."
                ),
                (
                    "Divide by the number of targets that are scored, the ones that are not -100, "
                    "in place of the number of all positions."
                ),
            ),
            lesson=(
                "A mean has a sum and a count, and both must leave out the same elements. A count "
                "that is too large makes batches with much padding look easy and teaches little "
                "from them."
            ),
        ),
        Bug(
            name="clamped",
            break_it=break_clamped,
            trips="loss",
            reason="loss.clamped",
            level=2,
            note="Right at ordinary weights; only a large loss shows that it is cut off.",
            question=(
                "The losses of 150 steps agree to the last digit. Which weights, or which batch, "
                "would you choose to tell the two apart?"
            ),
            hints=(
                (
                    "Look at what happens to the finished loss when it is large. A healthy run "
                    "starts near 4.5 and never goes there."
                ),
                (
                    "Multiply all weights by 10 and compute the loss and its gradient. Healthy is "
                    "a loss far above 6 with a gradient; here it is exactly 6, and the gradient is "
                    "0."
                ),
                (
                    "Return the cross-entropy itself, whatever its size. If large steps are the "
                    "worry, limit the norm of the gradients after backward."
                ),
            ),
            lesson=(
                "Cutting a loss off does not soften it. Above the limit the gradient is zero, so "
                "the batches that are worst teach nothing."
            ),
            guide="Clipping",
        ),
        Bug(
            name="remainder",
            break_it=break_remainder,
            trips="loss",
            reason="loss.remainder_dropped",
            level=2,
            note="A batch of 256 tokens fills its chunks of 64. Any other size loses its end.",
            question=(
                "The losses of 150 steps agree with the healthy ones to the last digit. For which "
                "sizes of a batch would they not, and which tokens would be concerned?"
            ),
            hints=(
                (
                    "Look at how many positions take part in the sum, and compare with how many "
                    "there are."
                ),
                (
                    "Exchange one target after the other in a batch of 3 rows of 32 and print "
                    "whether the loss moves. Healthy is that all 96 count; here the last 32 do not."
                ),
                (
                    "The number of chunks has to be rounded up, so that a last chunk that is not "
                    "full is scored as well."
                ),
            ),
            lesson=(
                "Cutting work into pieces of a fixed size leaves a rest. Test a splitting with a "
                "size that does not divide, and demand that the pieces add up to the whole."
            ),
        ),
        Bug(
            name="z_loss",
            break_it=break_z_loss,
            trips="loss",
            reason="loss.z_loss_sign",
            level=2,
            note="A penalty that is subtracted is a prize. The reported loss looks better for it.",
            question=(
                "After 150 steps, will the reported loss be above or below the healthy one's "
                "2.531? And on new text: better, worse, or much the same?"
            ),
            hints=(
                (
                    "Look at what is added to the cross-entropy, and at whether training can make "
                    "the sum smaller without predicting better."
                ),
                (
                    "Print the reported loss minus the cross-entropy of the same logits. For a "
                    "penalty healthy is above 0; here it is about -0.02 before training."
                ),
                (
                    "The square of the normaliser is to be kept small, so it has to raise the loss "
                    "and not to lower it."
                ),
            ),
            lesson=(
                "Every term of a loss is something the optimizer will make smaller. Say for each "
                "term what that does, and log the terms apart, for a sum hides a sign."
            ),
        ),
    ),
    hint="Look at what reaches cross_entropy: its first argument, then which target meets which.",
    lesson=(
        "Recompute the loss from the logits that the same call returned, and compare all digits. "
        "Let B, T and V differ, ignore some targets, and make the loss large once."
    ),
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
