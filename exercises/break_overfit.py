"""Break the overfit test: a model that starts well, falls, and stops short of one batch.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab, retype
from exercises._run import run
from minigpt import MiniGPT, make_optimizer
from minigpt.model import CausalSelfAttention

STEPS = 60  # the healthy model needs about 40
RATES = (0.0, 0.2)  # of dropout, to compare on one batch


def break_clamped(lab: Lab) -> Pipeline:
    """Bound the loss from below, against over-confidence: at the bound learning ends."""

    class Clamped(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
        ) -> tuple[Tensor, Tensor | None]:
            logits, loss = super().forward(token_ids, targets, **options)
            if loss is not None:
                loss = loss.clamp(min=2.0)  # BROKEN: was loss = loss.clamp(min=0.0)
            return logits, loss

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Clamped))


def break_capped(lab: Lab) -> Pipeline:
    """Cap the logits softly, as Gemma 2 does, but far too low for any certainty."""

    class Capped(MiniGPT):
        def forward(
            self, token_ids: Tensor, targets: Tensor | None = None, **options: Any
        ) -> tuple[Tensor, Tensor | None]:
            logits, _ = super().forward(token_ids, None, **options)
            cap = 0.3  # BROKEN: was cap = 30.0
            logits = cap * torch.tanh(logits / cap)  # (B, T, V)
            if targets is None:
                return logits, None
            return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    return lab.pipeline(edit_model=lambda model: retype(model, MiniGPT, Capped))


def memorising_symptom(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Memorise one batch without and with dropout; return losses and accuracy, in eval mode."""
    shown: dict[str, str] = {}
    for rate in RATES:
        loss, accuracy = _memorise(lab, pipeline, rate)
        shown[f"one batch, {STEPS} steps, dropout {rate}"] = (
            f"loss {loss:.3f} nats, {100 * accuracy:.1f} % right"
        )
    return shown


def _memorise(lab: Lab, pipeline: Pipeline, rate: float) -> tuple[float, float]:
    if pipeline.make_model is None:
        raise ValueError("the lab's pipeline holds make_model; an exercise took it away")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(lab.seed)
        model = pipeline.make_model()
        for module in model.modules():
            if isinstance(module, nn.Dropout):
                module.p = rate
            elif isinstance(module, CausalSelfAttention):
                module.dropout = rate
        inputs, targets = lab.get_batch(lab.train_ids)
        optimizer = make_optimizer(model, learning_rate=3e-3)
        for _ in range(STEPS):
            optimizer.zero_grad(set_to_none=True)
            model(inputs, targets)[1].backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        logits = model(inputs)[0]
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return float(loss), float((logits.argmax(-1) == targets).float().mean())


EXERCISE = Exercise(
    name="break_overfit",
    question=(
        "A model that learns anything at all can learn one batch by heart. What would you look at "
        "in its curve to tell why one cannot, and does dropout hinder it?"
    ),
    bugs=(
        Bug(
            name="clamped",
            break_it=break_clamped,
            trips="overfit",
            reason="overfit.loss_is_bounded",
            note="At the start all is well: loss, gradients and first steps are the healthy ones.",
            question=(
                "Loss, gradients and the first steps are healthy. At which value will the loss of "
                "this one batch come to rest, and how long can training go on without changing "
                "that?"
            ),
            hints=(
                (
                    "Look at the curve of the loss that the model itself reports, and at the value "
                    "that it takes again and again."
                ),
                (
                    "Print the norm of all gradients when the curve has come to rest. Healthy "
                    "gradients shrink along with the loss; here they are exactly 0 at a loss of 2."
                ),
                (
                    "The loss is cut off at a bound far above what the model can reach. A bound "
                    "may lie no higher than 0, which cross-entropy never crosses."
                ),
            ),
            lesson=(
                "Where a function is flat there is no gradient, so a clamp in the path of the loss "
                "switches learning off. To limit the steps, limit the gradient."
            ),
            guide="Reading the overfit curve",
        ),
        Bug(
            name="capped",
            break_it=break_capped,
            trips="overfit",
            reason="overfit.loss_stays_high",
            level=2,
            note="The accuracy reaches 100 %, so whoever counts right answers sees nothing.",
            question=(
                "After 300 steps on one batch the accuracy is 100 %. Has its loss reached 0 as "
                "well, and what is the largest probability that a token can get?"
            ),
            hints=(
                (
                    "Look at the logits rather than at the accuracy: at the smallest and the "
                    "largest of them after training."
                ),
                (
                    "Print logits.amax() - logits.amin(). A healthy model that knows its batch has "
                    "them more than 10 apart; here they never are more than 0.6 apart."
                ),
                (
                    "A soft cap sets how certain the model may be. It has to be so large that it "
                    "is not felt at ordinary logits, as the 30 of Gemma 2 is."
                ),
            ),
            lesson=(
                "Accuracy asks only which logit is the largest, loss asks by how much. When one of "
                "the two is perfect and the other is not, look at the scale of the logits."
            ),
            guide="Reading the overfit curve",
        ),
    ),
    hint="Draw loss and accuracy of one batch over the steps, and mark where each comes to rest.",
    lesson=(
        "Where a curve comes to rest says what the model cannot do. Compute the floor of the batch "
        "before you call it stuck, look at loss and accuracy both, and remember that nearly every "
        "silent bug passes this test. Dropout slows memorising down and does not prevent it."
    ),
    symptom=memorising_symptom,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
