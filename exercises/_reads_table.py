"""Which parts of a pipeline each check reads, as `_reads` found on the healthy one.

A table, because finding it runs every check, which takes longer than looking at a bug. It serves
what is shown, never what is proved; a test keeps it current.
"""

from __future__ import annotations

READS: dict[str, frozenset[str]] = {
    check: frozenset(parts.split())
    for check, parts in {
        "environment": (
            "batch block_size forward get_batch make_model make_optimizer model train_ids "
            "vocab_size"
        ),
        "files": "files train_text",
        "roundtrip": "tokenizer train_ids train_text",
        "fingerprint": "files model tokenizer train_ids train_text vocab_size",
        "range": (
            "batch get_batch ignore_index model next_token_probabilities pad_id tokenizer "
            "train_ids train_text val_ids vocab_size"
        ),
        "text": "model tokenizer train_ids train_text val_ids",
        "split": "batch batches_from block_size train_ids val_ids vocab_size",
        "shift": "batch block_size get_batch ignore_index labels tokenizer train_ids",
        "batches": (
            "batch block_size get_batch ignore_index labels model pad_id train_ids vocab_size"
        ),
        "modes": "block_size forward ignore_index labels model vocab_size",
        "shapes": "block_size forward ignore_index labels model vocab_size",
        "forward_hooks": (
            "batch block_size forward get_batch ignore_index labels model train_ids vocab_size"
        ),
        "loss": (
            "batch block_size forward get_batch ignore_index labels model pad_id tokenizer "
            "train_ids vocab_size"
        ),
        "initial_loss": (
            "batch block_size forward fresh get_batch ignore_index labels make_model model "
            "train_ids vocab_size"
        ),
        "batch_independence": "block_size forward ignore_index labels model pad_id vocab_size",
        "causal_independence": "block_size causal forward ignore_index labels model vocab_size",
        "prefix": "block_size causal forward ignore_index labels model pad_id vocab_size",
        "positions": "block_size causal forward ignore_index labels model pad_id vocab_size",
        "context": (
            "block_size causal forward ignore_index labels model pad_id train_ids vocab_size"
        ),
        "padding": (
            "batch block_size forward get_batch ignore_index labels model pad_id train_ids "
            "vocab_size"
        ),
        "gradients": (
            "batch block_size forward get_batch ignore_index labels model train_ids vocab_size"
        ),
        "optimizer": (
            "batch block_size forward get_batch ignore_index labels learning_rate make_model "
            "make_optimizer max_steps model train_ids vocab_size"
        ),
        "training_step": (
            "batch block_size forward get_batch ignore_index labels learning_rate "
            "make_optimizer max_steps model pad_id train_ids train_step vocab_size"
        ),
        "accumulation": (
            "accumulate batch block_size forward get_batch ignore_index labels learning_rate "
            "make_optimizer max_steps micro_batches model pad_id train_ids vocab_size"
        ),
        "distributed": (
            "accumulate block_size evaluate forward ignore_index labels learning_rate make_model "
            "make_optimizer max_steps micro_batches model pad_id rank_batches replicate tokenizer "
            "train_step val_ids vocab_size"
        ),
        "schedule": (
            "accumulate block_size forward ignore_index labels learning_rate make_optimizer "
            "max_steps micro_batches model pad_id train_step vocab_size"
        ),
        "evaluation": "block_size evaluate forward model train_ids val_ids vocab_size",
        "checkpoint": "block_size forward ignore_index labels load model save vocab_size",
        "resume": (
            "batches_from block_size forward labels load_state make_optimizer micro_batches "
            "model save_state train_step vocab_size"
        ),
        "generation": "block_size forward generate ignore_index labels model tokenizer vocab_size",
        "sampling": "model next_token_probabilities vocab_size",
        "overfit": (
            "batch block_size causal forward get_batch ignore_index labels make_model model "
            "train_ids vocab_size"
        ),
        "honesty": (
            "block_size causal forward get_batch ignore_index labels make_model model pad_id "
            "vocab_size"
        ),
    }.items()
}
