"""What to tick before training, in the order of the report. Literal data."""

from __future__ import annotations

from diagnostics.help.checklists._item import Item, absence_of

BEFORE = (
    Item(
        text="Python, torch and the device are the ones that you mean",
        checks=("environment",),
        look="python -m diagnostics --env",
    ),
    Item(
        text="files are there, whole and current",
        checks=("files",),
        look="python -m diagnostics --only files",
    ),
    Item(
        text="the tokenizer gives every text back",
        checks=("roundtrip",),
        also=("text.characters_lost",),
        look="python -m diagnostics --only roundtrip",
    ),
    Item(
        text="tokenizer, ids and checkpoint belong together, by fingerprint",
        checks=("fingerprint",),
        also=("text.other_tokenizer",),
        look="python -m diagnostics --only fingerprint",
    ),
    Item(
        text="every id lies in 0 to V - 1",
        checks=("range",),
        also=(
            "batches.ids",
            "batches.wrapped_ids",
            "text.wrapped",
        ),
        look="python -m diagnostics --only range",
    ),
    Item(
        text="the ids decode to the text that you mean",
        checks=("text",),
        look="Decode the first 200 ids and read them.",
    ),
    Item(
        text="validation text is never trained on, and long enough",
        checks=("split",),
        look="python -m diagnostics --only split",
    ),
    Item(
        text="every target is the next token, the last one too",
        checks=("shift",),
        also=(
            "honesty.targets_are_known",
            "loss.shifted_twice",
            "training_step.shifted_again",
        ),
        look="python -m diagnostics --only shift",
    ),
    Item(
        text="batches are (B, T) int64 on the model's device, and differ from call to call",
        checks=("batches",),
        also=("training_step.same_batch",),
        look="python -m diagnostics --only batches",
    ),
    Item(
        text="logits are (B, T, V) for every size, and all of them finite",
        checks=("shapes", "forward_hooks"),
        look="python -m diagnostics --only shapes forward_hooks",
    ),
    Item(
        text="the loss is the mean cross-entropy in nats",
        checks=("loss",),
        also=(
            "training_step.other_loss",
            "training_step.sum",
        ),
        look="python -m diagnostics --only loss",
    ),
    Item(
        text="the baselines are known: a blind guess, and a constant predictor",
        measure="baselines",
        look="Write down ln V, and the entropy of single tokens, before you tune anything.",
    ),
    Item(
        text="fresh weights start near ln V",
        checks=("initial_loss",),
        reasons=("initial_loss.too_high", "initial_loss.too_low", "initial_loss.not_finite"),
        judged="fresh",
        look="Read the first line of the training run: the loss at step 0, and ln V beside it.",
    ),
    absence_of(
        "sees_future",
        "rows_mix",
        text="no prediction sees its own future, or another row",
        look="python -m diagnostics --only causal_independence batch_independence",
    ),
    Item(
        text="every trainable parameter gets a finite gradient that is not zero",
        checks=("gradients",),
        look="python -m diagnostics --only gradients",
    ),
    Item(
        text="one step moves every trainable parameter, by a sane amount",
        checks=("optimizer",),
        look="python -m diagnostics --only optimizer",
    ),
    Item(
        text="each step uses the gradient of its own batch, once",
        checks=("training_step",),
        also=(
            "accumulation.not_cleared",
            "accumulation.cleared_gradient",
            "accumulation.only_last",
            "accumulation.steps_twice",
        ),
        look="python -m diagnostics --only training_step",
    ),
    Item(
        text="one batch is learnt by heart: the gate before any long run",
        checks=("overfit",),
        look="python -m diagnostics --only overfit",
    ),
    Item(
        text="the model of that test is thrown away: the run begins with fresh weights",
        measure="starts_fresh",
        look="Build the model anew after the test, and do not load its checkpoint.",
    ),
    Item(
        text="the sizes fit the memory",
        look="python -m minigpt.memory",
    ),
    Item(
        text="one change since the last run, and a baseline run without it",
        look="Write down the one change, and the loss of the run that you compare with.",
    ),
)
