"""Break the loss: report a number that looks like a cross-entropy and is another one."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT


def break_double_softmax(lab: Lab) -> Pipeline:
    """Hand probabilities to a loss that applies softmax itself."""

    class Broken(MiniGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            rows = logits.flatten(0, 1)  # (B * T, V)
            scores = rows.softmax(-1)  # BROKEN: was scores = rows
            return functional.cross_entropy(scores, targets.flatten())

        forward = _forward

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_shifted_twice(lab: Lab) -> Pipeline:
    """Shift inside the model although the loader has shifted already."""

    class Broken(MiniGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            T = targets.shape[1]
            last = max(1, T - 1)  # BROKEN: was last = T
            return functional.cross_entropy(
                logits[:, :last].flatten(0, 1), targets[:, T - last :].flatten()
            )

        forward = _forward

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_flattened(lab: Lab) -> Pipeline:
    """Flatten logits time first and targets row first: each position meets a foreign target."""

    class Broken(MiniGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            ordered = logits.transpose(0, 1)  # BROKEN: was ordered = logits
            return functional.cross_entropy(ordered.flatten(0, 1), targets.flatten())

        forward = _forward

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_denominator(lab: Lab) -> Pipeline:
    """Divide by all positions, the ignored ones too; without ignored targets nothing shows."""

    class Broken(MiniGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            losses = functional.cross_entropy(
                logits.flatten(0, 1), targets.flatten(), reduction="none"
            )  # (B * T,), 0 where the target is ignored
            count = targets.numel()  # BROKEN: was count = (targets != -100).sum()
            return losses.sum() / count

        forward = _forward

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))


def break_clamped(lab: Lab) -> Pipeline:
    """Clip the loss where the gradients were meant: at a large loss nothing is learnt."""

    class Broken(MiniGPT):
        def score(self, logits: Tensor, targets: Tensor) -> Tensor:
            loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
            return loss.clamp(max=6.0)  # BROKEN: was return loss

        forward = _forward

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Broken))
