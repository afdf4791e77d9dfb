"""Three checklists: before training, during training, during generation. Literal data.

An item is ticked by checks of a report, by a measurement of `_marks`, or by a person.
"""

from __future__ import annotations

from diagnostics.help.checklists._item import Item, absence_of
from diagnostics.help.checklists._items_before import BEFORE

DURING = (
    Item(
        text="the learning rate is logged beside the loss",
        measure="rate_logged",
        look="Log the rate that the optimizer used in each logged step.",
    ),
    Item(
        text="the gradient norm before clipping is logged",
        measure="norm_logged",
        look="Log what clip_grad_norm_ returns; it is the norm before clipping.",
    ),
    Item(
        text="clipping is the exception",
        measure="clipped_share",
        look="Count the steps whose norm is above the limit.",
    ),
    Item(
        text="losses and norms in the log are finite",
        measure="finite",
        look="Look for nan and inf in the log, and for postmortem-step-*.json beside it.",
    ),
    Item(
        text="the monitor has nothing to say",
        measure="events",
        look="Put a TrainingMonitor round the loop; python -m minigpt.train does so itself.",
    ),
    Item(
        text="the loss falls",
        measure="loss_falls",
        look="Compare the first and the last loss of the log.",
    ),
    Item(
        text="the gap between validation and training does not open",
        measure="gap",
        look="Subtract: generalization gap = validation loss - training loss.",
    ),
    Item(
        text="the checkpoint that is kept is the best one by validation",
        measure="best_checkpoint",
        look="Compare its step with the lowest validation loss; never choose by the test split.",
    ),
    Item(
        text="the run ends when validation no longer improves",
        measure="early_stopping",
        look="python -m minigpt.train --patience 5",
    ),
    Item(
        text="an evaluation leaves weights, modes and random state alone",
        checks=("evaluation",),
        look="python -m diagnostics --only evaluation",
    ),
    Item(
        text="the rate follows its schedule, in every group",
        checks=("schedule",),
        look="python -m diagnostics --only schedule",
    ),
    Item(
        text="a stopped run goes on as if it had never stopped",
        checks=("resume",),
        look="Train 20 steps; then 7, stop, resume, 13: the losses must be the same.",
    ),
)

GENERATION = (
    Item(
        text="the checkpoint is the best one by validation",
        measure="best_checkpoint",
        look="Compare the checkpoint's step with the lowest validation loss of the log.",
    ),
    absence_of(
        "weights_not_loaded",
        text="its weights were really loaded",
        look="Load with strict=True, and measure the loss on a page of text.",
    ),
    Item(
        text="the tokenizer is the one of the checkpoint",
        checks=("fingerprint",),
        look="python -m diagnostics --only fingerprint",
    ),
    Item(
        text="eval mode: dropout is off while text is generated",
        checks=("generation", "modes"),
        reasons=(
            "generation.dropout_on",
            "generation.eval_missing",
            "modes.eval_random",
            "modes.eval_incomplete",
        ),
        look="Call model.eval(), and generate greedily twice: the texts must be equal.",
    ),
    absence_of(
        "generation_context",
        text="the context is cropped to the last block",
        look="Look for ids[:, -block_size:] in the loop.",
    ),
    Item(
        text="only the last position is sampled",
        checks=("generation",),
        reasons=(  # those of the suspect `generation_position` that are about the place
            "generation.first_position",
            "generation.position_before",
            "generation.wrong_axis",
            "generation.wrong_token",
        ),
        look="Look for logits[:, -1, :] in the loop.",
    ),
    Item(
        text="the temperature is above 0",
        measure="temperature",
        look="Use 0.8, or 0.6 for calmer text; 0 always takes the most probable token.",
    ),
    Item(
        text="top-k is at most V",
        measure="top_k",
        look="Use 20, or 10 for calmer text, and no more than the vocabulary holds.",
    ),
    Item(
        text="temperature, top-k and top-p do what they say",
        checks=("sampling",),
        look="python -m diagnostics --only sampling",
    ),
    Item(
        text="the prompt is used",
        measure="prompt",
        look='python -m minigpt.generate --compare-prompts "T" "The loss is"',
    ),
    Item(
        text="repetition is measured as a rate, and not only seen",
        measure="repetition",
        look="python -m minigpt.generate",
    ),
)

CHECKLISTS: dict[str, tuple[Item, ...]] = {
    "before": BEFORE,
    "training": DURING,
    "generation": GENERATION,
}
TITLES = {
    "before": "before training",
    "training": "during training",
    "generation": "during generation",
}
