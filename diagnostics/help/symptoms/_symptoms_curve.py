"""Symptoms of learning one batch by heart, and of gradients and updates."""

from __future__ import annotations

from diagnostics.help.symptoms._symptom import Lead, Symptom

CURVE_SYMPTOMS = (
    Symptom(
        name="overfit_stuck",
        title="one batch is not learnt: its loss stays at ln V",
        looks="300 steps on one batch, and its loss is where it began: there is no signal.",
        about="uniform",
        phrases=(
            "cannot overfit one batch",
            "single batch loss stuck",
            "one batch not memorised",
            "does not overfit one batch",
            "overfit one batch stuck",
            "overfit test fails",
            "overfit one batch stays at ln V",
        ),
        note="Healthy: about 0 with accuracy 1, in some dozens of steps at debug size. The model "
        "of this test is thrown away afterwards; the long run begins with fresh weights.",
        leads=(
            Lead("targets_unrelated", "Labels are all ignored, or drawn anew in each call."),
            Lead("gradients_off", "The loss carries no graph."),
            Lead("frozen", "Nothing requires a gradient."),
            Lead("gradient_incomplete", "The gradient ends before it reaches the weights."),
            Lead("other_weights", "The optimizer steps weights that the model does not have."),
            Lead("rate_too_low", "The rate is 0, or lost to rounding.", settled=True),
            Lead("cannot_memorise", "None of these, with our optimizer and our rate as well."),
        ),
    ),
    Symptom(
        name="overfit_diverges",
        title="one batch: the loss falls and then rises, or becomes NaN",
        looks="The curve of one batch goes down first, then up again or to nan.",
        phrases=(
            "one batch loss falls then rises",
            "single batch loss explodes",
            "overfit one batch nan",
            "one batch nan",
            "one batch nan after some steps",
            "one batch not finite",
            "overfit curve rises",
        ),
        leads=(
            Lead("rate_too_high", "With a tenth of the rate the batch is learnt."),
            Lead("half_precision", "In float32 the batch is learnt with the same rate."),
            Lead("not_cleared", "The norm grows with each step on the same batch."),
            Lead(
                "module_not_finite",
                "An output grows out of bounds before the first step.",
                settled=True,
            ),
            Lead("cannot_memorise", "With our optimizer and rate the curve diverges too."),
        ),
    ),
    Symptom(
        name="overfit_incomplete",
        title="one batch: the loss falls, and some targets are never learnt",
        looks="The loss of one batch falls and comes to rest, with an accuracy below 1.",
        phrases=(
            "one batch accuracy below one",
            "overfit accuracy below one",
            "overfit accuracy stops at 97",
            "one batch loss stops above zero",
        ),
        note="A random batch of real text seldom allows 100 %: two rows may begin alike and go on "
        "differently.",
        leads=(
            Lead("labels_contradict", "The accuracy has reached the ceiling: this is healthy."),
            Lead("targets_unrelated", "Some targets are not the token after their input."),
            Lead("context_hidden", "Targets that need earlier tokens are the ones not learnt."),
            Lead("positions_lost", "Repeated tokens get the same prediction at every place."),
            Lead("loss_bounded", "Accuracy 1, and the loss rests at one value above 0."),
            Lead("dropout_high", "With dropout 0.0 the same batch is learnt."),
            Lead("cannot_memorise", "The check comes to rest below the ceiling too."),
        ),
    ),
    Symptom(
        name="overfit_healthy",
        title="one batch is learnt to a loss of about 0: is that right?",
        looks="Loss near 0 and accuracy 1 on one batch that is repeated on purpose.",
        about="low",
        phrases=(
            "overfit one batch reaches zero",
            "one batch loss zero accuracy 1",
            "one batch accuracy 1",
            "one batch loss is low",
        ),
        note="It is what the test is for: learning is possible. It says little about right and "
        "wrong: most silent bugs memorise a batch too, and labels that are all equal are learnt "
        "at once. Throw this model away.",
        leads=(
            Lead("targets_identical", "A batch of targets that equal inputs is learnt as well."),
            Lead("sees_future", "So is one whose answers the model can read."),
            Lead("gives_targets_away", "New random tokens show what one batch cannot."),
        ),
    ),
    Symptom(
        name="gradient_missing",
        title="gradients are None or 0, or weights do not move",
        looks="parameter.grad is None or all zeros after backward(), or a step changes nothing.",
        phrases=(
            "gradient none",
            "gradient is zero",
            "gradients vanish",
            "grad is None",
            "parameter does not get a gradient",
            "weights do not change",
            "optimizer does nothing",
            "does not require grad",
            "element 0 of tensors does not require grad",
        ),
        leads=(
            Lead("gradients_off", "loss.requires_grad is False."),
            Lead("frozen", "The parameter's requires_grad is False."),
            Lead("gradient_incomplete", "Only some parameters are concerned, which it names."),
            Lead("units_dead", "The gradient is 0 and the units put out 0 for every token."),
            Lead("other_weights", "Gradients are there; the optimizer holds other tensors."),
            Lead("step_order", "Gradients are cleared between backward() and step()."),
            Lead(
                "rate_too_low",
                "Gradients are there, and the update is lost to rounding.",
                settled=True,
            ),
        ),
    ),
    Symptom(
        name="always_clipped",
        title="the gradient is clipped in nearly every step",
        looks="The norm before clipping is above the limit in 95 % of the steps or more.",
        phrases=(
            "gradient always clipped",
            "constant clipping",
            "clips every step",
            "grad norm always above clip",
        ),
        note="Clipping is no cure: it hides what makes the norm large. Where the loss falls well, "
        "the limit is too low and nothing else is wrong.",
        leads=(
            Lead("loss_scaled", "The loss is a sum: norms grow with the number of tokens."),
            Lead("start_too_wide", "The norm is large at step 0 and falls within some steps."),
            Lead("module_not_finite", "Outputs grow from block to block.", settled=True),
            Lead("rate_too_high", "The norm grows while the loss swings."),
            Lead("not_cleared", "The norm grows like the number of steps."),
            Lead("accumulation", "The norm is as many times too large as there are micro-batches."),
            Lead("clipping", "The limit is tiny, or clipping comes before unscaling."),
        ),
    ),
)
