"""Suspects beside the parts: settings, age, memory, speed. Reason ids are the checks' own."""

from __future__ import annotations

from diagnostics.help.symptoms._symptom import Suspect

RUN_SUSPECTS = (
    Suspect(
        name="settings_cold",
        what="settings that leave too little choice: greedy, or a low temperature",
        look=(
            "python -m minigpt.generate --preset balanced",
            "That is temperature 0.8, top-k 20, top-p 0.9, repetition penalty 1.05; it prints the "
            "share of 8-character runs that repeat: below 20 % in prose, from 50 % it goes in "
            "circles.",
        ),
        action="use temperature 0.8, top-k 20, top-p 0.9, repetition penalty 1.05",
        exercise="break_sampling",
    ),
    Suspect(
        name="settings_hot",
        what="settings that leave too much choice: a high temperature, no top-k, no top-p",
        look=(
            "python -m minigpt.generate --preset strict",
            "That is temperature 0.6, top-k 10, top-p 0.9.",
        ),
        action="use temperature 0.6, top-k 10, top-p 0.9",
        exercise="break_sampling",
    ),
    Suspect(
        name="little_trained",
        what="a model that has not learnt enough yet",
        look=(
            "Read the validation loss of the checkpoint in checkpoints/mini_gpt_log.jsonl.",
            "python -m minigpt.train --preset cpu",
        ),
        action="train on until validation stops falling, and generate with the best checkpoint",
    ),
    Suspect(
        name="memorised",
        what="a model that has learnt a small text by heart",
        look=(
            "Search 40 characters of the sample in the training text.",
            "Compare train_loss with validation_loss at the end of checkpoints/mini_gpt_log.jsonl.",
        ),
        action="generate with the best checkpoint by validation",
    ),
    Suspect(
        name="prompt_unlike",
        what="a prompt unlike the training text, or longer than the block",
        look=(
            'python -m minigpt.generate --compare-prompts "T" "The loss is"',
            "It says in nats how much the rich prompt changes the prediction.",
        ),
        action="prompt with a beginning from the training text, shorter than the block",
    ),
    Suspect(
        name="budget",
        what="sizes that need more memory than the device has free",
        look=("python -m minigpt.memory --measure",),
        action="halve --batch-size and double --accumulation-steps: the update stays the same",
    ),
    Suspect(
        name="graph_kept",
        what="tensors that keep old graphs alive, such as a list of losses",
        checks=("training_step",),
        reasons=("training_step.keeps_graph",),
        settled=False,
        look=("Print the memory after each of 20 steps: it must not grow from step to step.",),
        action="keep loss.item() or loss.detach() and never the loss itself",
        exercise="break_training_step",
    ),
    Suspect(
        name="sizes_slow",
        what="sizes that cost this much on this machine",
        look=(
            "Compare tokens_per_second in checkpoints/mini_gpt_log.jsonl from row to row.",
            "python -m minigpt.train --compile --matmul-precision auto",
        ),
        action="measure tokens per second for one change at a time, longest step first",
    ),
    Suspect(
        name="window_slow",
        what="generation that recomputes a whole block for every token",
        look=("python -m minigpt.generate --slide-by 16",),
        action="keep keys and values within the block; beyond it drop half a block at once",
    ),
    Suspect(
        name="not_seeded",
        what="random numbers that no seed fixes, or operations without a fixed order",
        checks=("environment",),
        reasons=("environment.not_reproducible",),
        settled=False,
        look=("Run 20 steps twice with one seed: the losses must agree in every digit.",),
        action="seed Python, NumPy, torch and CUDA once, at the start",
        exercise="break_environment",
    ),
    Suspect(
        name="state_shared",
        what="a model that remembers the call before, or resets the random state",
        checks=("modes",),
        reasons=(
            "modes.stateful",
            "modes.buffers_changed",
            "modes.resets_random_state",
            "modes.weights_changed",
        ),
        also=("generation.resets_random_state",),
        action="keep no tensor of one call for the next, and seed nothing inside forward",
        exercise="break_modes",
    ),
)
