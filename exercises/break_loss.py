"""Break the loss: report a number that looks like a cross-entropy and is another one.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT


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
        ),
        Bug(
            name="shifted_twice",
            break_it=break_shifted_twice,
            trips="loss",
            reason="loss.shifted_twice",
            note="Each shift is right on its own. The batch passes, and so does the first loss.",
        ),
        Bug(
            name="flattened",
            break_it=break_flattened,
            trips="loss",
            reason="loss.flattened_in_another_order",
            level=2,
            note="One batch can still be memorised: a wrong pairing that stays is learnable.",
        ),
        Bug(
            name="denominator",
            break_it=break_denominator,
            trips="loss",
            reason="loss.denominator_counts_ignored",
            level=2,
            note="Every batch without ignored targets is right to the last digit.",
        ),
        Bug(
            name="clamped",
            break_it=break_clamped,
            trips="loss",
            reason="loss.clamped",
            level=2,
            note="Right at ordinary weights; only a large loss shows that it is cut off.",
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
