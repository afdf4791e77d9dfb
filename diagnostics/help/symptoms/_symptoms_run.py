"""Symptoms of running: errors, memory, speed, resuming, loading, several processes."""

from __future__ import annotations

from diagnostics.help.symptoms._symptom import Lead, Symptom

RUN_SYMPTOMS = (
    Symptom(
        name="resume_worse",
        title="the loss is worse after resuming",
        looks="Right after loading the loss jumps, or the curve goes on otherwise than before.",
        phrases=(
            "resume worse than before",
            "resume loss jumps",
            "resume loss higher than before",
            "loss higher after loading checkpoint",
            "resumed training differs",
            "resumed loss is lower",
            "continue training worse",
        ),
        leads=(
            Lead("weights_not_loaded", "The first loss is near ln V: the weights are fresh."),
            Lead("checkpoint_lossy", "The logits of one batch differ before any step."),
            Lead("state_lost", "Logits are equal at first; the updates after it are not."),
            Lead("data_replayed", "The loss is lower than before: rows are read a second time."),
            Lead("schedule", "The rate starts its warm-up again."),
        ),
    ),
    Symptom(
        name="load_fails",
        title="a checkpoint does not load",
        looks="Missing keys, unexpected keys or a size mismatch.",
        phrases=(
            "checkpoint does not load",
            "missing keys",
            "unexpected keys",
            "size mismatch",
            "error loading state dict",
            "cannot load model",
        ),
        note="Missing keys: the model has more than the file. Unexpected keys: the file has more. "
        "Size mismatch: both have it, in other sizes.",
        leads=(
            Lead("files_damaged", "The file itself is cut short or of another format."),
            Lead("architecture_other", "Names or sizes differ: V, width, or number of layers."),
            Lead("tokenizer_other", "The size of the vocabulary is that of another tokenizer."),
        ),
    ),
    Symptom(
        name="loaded_model_worse",
        title="a loaded model is worse than the one that was saved",
        looks="It loads without an error, and its loss or its text is worse than at saving.",
        phrases=(
            "loaded model is worse",
            "model worse after loading",
            "loss different after loading",
            "checkpoint loads but text is garbage",
            "saved model gives other results",
            "loaded model gives random output",
        ),
        leads=(
            Lead("tokenizer_other", "The tokenizer is not the one of the checkpoint."),
            Lead("weights_not_loaded", "The loss is near ln V: strict=False kept fresh weights."),
            Lead("architecture_other", "Every tensor fits, and heads or eps are others."),
            Lead("checkpoint_lossy", "Logits differ although all keys fit: buffers, ties, types."),
            Lead("generation_dropout", "Logits differ from call to call: dropout is on."),
        ),
    ),
    Symptom(
        name="out_of_memory",
        title="out of memory",
        looks="An error that says so, or a process that the system ends.",
        phrases=(
            "out of memory",
            "cuda oom",
            "memory grows every step",
            "memory leak",
            "process killed memory",
            "does not fit in memory",
        ),
        note="A budget: weights + gradients + optimizer states + activations. In order: measure, "
        "batch and accumulation, length, precision, checkpointing, then weights and optimizer.",
        leads=(
            Lead("budget", "It fails at the first step, or at the first evaluation."),
            Lead("graph_kept", "It fails after many steps: each one leaves something behind."),
            Lead("slow_switches", "Hooks or anomaly detection keep what each step computed."),
        ),
    ),
    Symptom(
        name="slow",
        title="training or generation is slow",
        looks="Fewer tokens per second than expected, or fewer with each step.",
        phrases=(
            "training is slow",
            "generation is slow",
            "very slow",
            "takes forever",
            "speed drops over time",
            "gets slower every step",
        ),
        leads=(
            Lead("slow_switches", "A plain run without them is several times faster."),
            Lead("graph_kept", "Each step takes longer than the one before."),
            Lead("window_slow", "Generation slows down once the block is full."),
            Lead("budget", "The machine swaps: free memory is near 0."),
            Lead("sizes_slow", "The speed is the same from the first step to the last."),
        ),
    ),
    Symptom(
        name="not_repeatable",
        title="two runs with the same seed differ",
        looks="The same command, the same machine, and another loss at some step.",
        phrases=(
            "runs differ with the same seed",
            "not reproducible",
            "results differ every run",
            "different results each time",
            "seed does not work",
            "not deterministic",
        ),
        note="Between machines or numbers of threads, the last digits may differ: sums in another "
        "order.",
        leads=(
            Lead("not_seeded", "The first losses differ already."),
            Lead("tokenizer_other", "The vocabulary comes from a set, in another order each time."),
            Lead("validation_leaks", "The split is drawn anew at each start."),
            Lead("eval_random", "One model in eval mode differs from itself."),
            Lead("state_shared", "A call leaves something behind for the next one."),
            Lead("evaluation_changes", "Runs with and without evaluations differ."),
        ),
    ),
    Symptom(
        name="index_error",
        title="index out of range, or a device-side assert",
        looks="An IndexError on the CPU; on a GPU an assert whose line is not the real one.",
        phrases=(
            "index out of range",
            "device side assert",
            "cuda error assert",
            "target out of bounds",
            "index error embedding",
        ),
        note="Run the same batch on the CPU: there the error names the line.",
        leads=(
            Lead("ids_outside", "The largest id is V or more, or one is negative."),
            Lead("tokenizer_other", "The tokenizer has more entries than the model has rows."),
            Lead("positions_lost", "The row is longer than the table of positions."),
            Lead("generation_context", "It comes once the text is longer than the block."),
        ),
    ),
    Symptom(
        name="shape_error",
        title="shapes, types or devices do not fit",
        looks="A RuntimeError about sizes, dtypes or two devices.",
        phrases=(
            "shape mismatch",
            "shapes cannot be multiplied",
            "expected all tensors on the same device",
            "expected scalar type long",
            "wrong dtype",
            "dimension error",
            "wrong device",
        ),
        leads=(
            Lead("batch_form", "The batch is not (B, T) int64, or on another device."),
            Lead("logits_layout", "It depends on B or T: a squeeze, a fixed length."),
            Lead("wrong_device", "It comes on a GPU only: a tensor is made on the CPU."),
            Lead("architecture_other", "It comes after loading another configuration."),
        ),
    ),
    Symptom(
        name="batch_matters",
        title="a row predicts something else in another batch",
        looks="The same row alone and in a batch, or padded, gives different logits.",
        phrases=(
            "prediction depends on the batch",
            "padding changes the output",
            "different result with batch size 1",
            "padded batch gives different logits",
            "left padding wrong",
        ),
        leads=(
            Lead("eval_random", "The same call twice differs as well: dropout is on."),
            Lead("rows_mix", "A row changes with the other rows, all of the same length."),
            Lead("pads_read", "It changes only where rows are padded."),
            Lead("length_matters", "A cut row has other logits than the whole one."),
            Lead("logits_layout", "B = 1 or T = 1 is squeezed away."),
        ),
    ),
    Symptom(
        name="processes_no_better",
        title="several processes train no better than one, or hang",
        looks="Twice the processes, and the same curve per step; ranks with other weights; a hang.",
        phrases=(
            "multi gpu no faster",
            "ddp hangs",
            "distributed training hangs",
            "ranks have different weights",
            "multiple processes same loss",
            "distributed worse than single",
        ),
        leads=(
            Lead("processes", "Ranks read the same rows, or step with their own gradient alone."),
            Lead("accumulation", "One process differs from one large batch as well."),
            Lead("same_batch", "One process alone repeats its batches too."),
        ),
    ),
    Symptom(
        name="accuracy_stuck",
        title="the accuracy does not move",
        looks="The accuracy is that of the most frequent token, or of a coin.",
        phrases=(
            "accuracy stuck",
            "accuracy does not improve",
            "predicts only one token",
            "always predicts the same class",
            "accuracy at chance",
            "only spaces",
        ),
        note="Compare with two predictors: a random one has 1 / V, a constant one the share of the "
        "most frequent token, about 0.17 for the space in English letters. A metric wants logits "
        "(.., V) or predictions (..): look which of them it was given.",
        leads=(
            Lead("targets_unrelated", "Targets have nothing to do with their inputs."),
            Lead("logits_layout", "The argmax is taken over another axis than V."),
            Lead("context_hidden", "The prediction is the same after every token."),
            Lead("frozen", "Parameters are frozen, and only the output's bias learns."),
            Lead("rate_too_high", "Units are dead after a jump: one token wins everywhere."),
            Lead("little_trained", "The loss still falls: at first only frequencies are learnt."),
        ),
    ),
)
