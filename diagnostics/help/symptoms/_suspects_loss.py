"""Suspects in the loss and in fresh weights. Reason ids are those of the checks."""

from __future__ import annotations

from diagnostics.help.symptoms._symptom import Suspect

LOSS_SUSPECTS = (
    Suspect(
        name="softmax_twice",
        what="softmax before a cross-entropy that takes its own",
        checks=("loss", "shapes"),
        reasons=(
            "loss.double_softmax",
            "loss.probabilities_returned",
            "loss.softmax_over_another_axis",
            "shapes.probabilities",
        ),
        action="give the raw logits to cross_entropy",
        exercise="break_loss",
    ),
    Suspect(
        name="loss_scaled",
        what="a loss in other units: a sum for a mean, base 2, divided, a perplexity",
        checks=("loss",),
        reasons=(
            "loss.summed",
            "loss.summed_over_rows",
            "loss.summed_over_time",
            "loss.multiplied",
            "loss.divided",
            "loss.averaged_over_vocabulary",
            "loss.base_two",
            "loss.perplexity",
        ),
        also=(
            "training_step.sum",
            "training_step.loss_scaled",
        ),
        action="report the mean over all scored tokens, in nats",
        exercise="break_loss",
    ),
    Suspect(
        name="loss_other",
        what="a loss whose value or gradient is not that of the cross-entropy of the logits",
        checks=("loss",),
        also=("training_step.other_loss",),
        action="return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())",
        exercise="break_loss",
    ),
    Suspect(
        name="loss_not_finite",
        what="a loss that is not finite although its logits are: log of 0, mean of nothing",
        checks=("loss", "accumulation"),
        reasons=(
            "loss.not_finite",
            "accumulation.nan_on_empty",
            "accumulation.nan_loss_on_empty",
        ),
        action="take cross_entropy of the raw logits, over at least one scored target",
        exercise="break_loss",
    ),
    Suspect(
        name="loss_counts_padding",
        what="padding or ignored targets that the mean counts",
        checks=("loss",),
        reasons=(
            "loss.padding_counted",
            "loss.ignored_counted",
            "loss.denominator_counts_ignored",
        ),
        action="set the targets of pads to -100, and divide by the number of the others",
        exercise="break_loss",
    ),
    Suspect(
        name="start_too_wide",
        what="fresh weights that are too large, so that random bets are confident",
        checks=("initial_loss",),
        reasons=("initial_loss.too_high", "initial_loss.std_and_variance"),
        judged="fresh",
        action="draw weights with std 0.02, as GPT-2 does, the output head included",
        exercise="break_initial_loss",
    ),
    Suspect(
        name="not_fresh",
        what="weights that are not fresh: a checkpoint came in",
        checks=("initial_loss",),
        reasons=("initial_loss.too_low",),
        judged="fresh",
        action="build the model anew, and load nothing before the first step",
        exercise="break_initial_loss",
    ),
    Suspect(
        name="weights_of_other_text",
        what="trained weights that belong to another text or tokenizer",
        checks=("initial_loss",),
        reasons=("initial_loss.wrong_weights",),
        judged="trained",
        action="compare the tokenizer's fingerprint with the one in the checkpoint",
        exercise="break_fingerprint",
    ),
    Suspect(
        name="start_too_low",
        what="a fresh model that already knows something of its targets",
        checks=("initial_loss",),
        reasons=("initial_loss.too_low",),
        judged="fresh",
        action="run the checks before it in the report first: shift, loss, causal_independence",
        exercise="break_initial_loss",
    ),
    Suspect(
        name="start_alike",
        what="layers that start as copies of one another, or from a pattern",
        checks=("initial_loss",),
        reasons=(
            "initial_loss.identical_layers",
            "initial_loss.patterned_weights",
            "initial_loss.layers_share_weights",
        ),
        judged="fresh",
        action="build each block by a call of its own, with weights drawn anew",
        exercise="break_initial_loss",
    ),
)
