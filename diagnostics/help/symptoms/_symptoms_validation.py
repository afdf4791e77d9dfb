"""Symptoms of the validation loss."""

from __future__ import annotations

from diagnostics.help.symptoms._symptom import Lead, Symptom

VALIDATION_SYMPTOMS = (
    Symptom(
        name="overfitting",
        title="validation rises while training falls",
        looks="validation - training grows, and validation is above its best by 0.01 nats or more.",
        phrases=(
            "validation loss rises",
            "validation goes up while training goes down",
            "overfitting",
            "gap between training and validation",
            "generalization gap",
            "does not generalize",
            "perfect on training and bad on validation",
            "good on training and bad on validation",
            "training loss falls but validation loss rises",
            "validation loss is getting worse",
            "low training loss and high validation loss",
            "training loss 0.01 and validation loss 5",
        ),
        note="generalization gap = validation loss - training loss, measured alike. The best "
        "checkpoint is chosen by validation, never by test: mini_gpt_best holds it.",
        leads=(
            Lead("same_batch", "The training loss goes to 0: one batch is repeated."),
            Lead("narrow_batches", "A part of the text is learnt by heart, the rest never seen."),
            Lead("validation_other", "The gap is there from the first evaluations on."),
            Lead("step_in_eval_mode", "Dropout is set and never acts in the steps."),
            Lead("evaluation_other", "The two losses are not computed in the same way."),
            Lead("data_short", "All is sound, and the run makes many epochs over the text."),
        ),
    ),
    Symptom(
        name="underfitting",
        title="training and validation loss both stay high",
        looks="The gap is small, below 0.1 nats, and both losses are higher than wanted.",
        phrases=(
            "underfitting",
            "training and validation loss both high",
            "both losses stay high",
        ),
        leads=(
            Lead("context_hidden", "Both come to rest at the loss of token pairs."),
            Lead("too_few_steps", "Both still fall at the end."),
            Lead("rate_too_low", "The curve is smooth and slow; three times the rate is faster."),
            Lead("dropout_high", "Without dropout both fall further."),
            Lead("capacity", "A wider model gets lower in the same steps."),
        ),
    ),
    Symptom(
        name="validation_below",
        title="the validation loss is below the training loss",
        looks="Validation is lower than training in most evaluations, by more than the noise.",
        phrases=(
            "validation loss lower than training loss",
            "validation better than training",
            "validation below training",
        ),
        note="With dropout a training loss that is taken in train mode is higher by design. So is "
        "the mean of an epoch in which the model was still learning.",
        leads=(
            Lead("validation_leaks", "Long runs of validation tokens stand in the training text."),
            Lead("validation_other", "The validation text is easier: tables, one topic."),
            Lead("dropout_in_loss", "Measured in eval mode, the training loss is the lower one."),
            Lead("evaluation_other", "The evaluation computes another number than the step."),
        ),
    ),
    Symptom(
        name="validation_jumps",
        title="the validation loss jumps from one evaluation to the next",
        looks="The same weights, evaluated twice, give different numbers; or the curve is jagged.",
        phrases=(
            "validation loss jumps",
            "validation loss noisy",
            "validation loss changes every time",
            "evaluation gives different numbers",
            "evaluation different each time",
            "same checkpoint different validation loss",
            "evaluation not repeatable",
            "evaluation is random",
        ),
        leads=(
            Lead("eval_random", "Logits in eval mode differ from call to call."),
            Lead("evaluation_in_train_mode", "The evaluation runs with dropout on."),
            Lead("evaluation_random", "Each evaluation reads other windows."),
            Lead("validation_short", "There are few windows, and each counts for much."),
            Lead("evaluation_other", "The last, shorter batch counts as much as a full one."),
            Lead("rate_too_high", "Two evaluations of one checkpoint agree: the weights jump."),
        ),
    ),
    Symptom(
        name="validation_high",
        title="the validation loss is high from the first evaluation on",
        looks="Training falls as it should, and validation is far above it and never comes close.",
        phrases=(
            "validation loss high from the start",
            "validation loss never falls",
            "gap between training and validation",
            "perfect on training and bad on validation",
            "good on training and bad on validation",
            "validation loss does not improve",
            "validation stuck",
            "validation not better",
            "validation loss not below",
            "low training loss and high validation loss",
            "training loss 0.01 and validation loss 5",
            "validation loss much higher than training",
        ),
        leads=(
            Lead("tokenizer_other", "The validation ids were made with another tokenizer."),
            Lead("same_batch", "The training loss is that of one batch."),
            Lead("targets_identical", "Training learns to copy; the evaluation asks for the next."),
            Lead("train_path_differs", "The loss is low in train mode only."),
            Lead("validation_other", "The validation text is of another kind."),
            Lead("evaluation_other", "The evaluation does not shift, or sums up."),
        ),
    ),
    Symptom(
        name="worse_after_evaluation",
        title="training changes after an evaluation",
        looks="Each evaluation is followed by a jump, or a run without evaluations is another run.",
        phrases=(
            "worse after evaluation",
            "loss jumps after each evaluation",
            "training changes after validation",
            "evaluation changes the weights",
            "dropout off after evaluation",
        ),
        leads=(
            Lead("evaluation_changes", "Mode, weights or random state are others after it."),
            Lead("gradients_off", "Gradients are still switched off after the first evaluation."),
            Lead("step_in_eval_mode", "The steps after it run in eval mode."),
            Lead("state_shared", "The model remembers the call before."),
        ),
    ),
)
