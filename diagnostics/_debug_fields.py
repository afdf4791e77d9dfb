"""The ten figures of a debug report: what to write down before asking somebody else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from diagnostics._report import Report

# field -> (check, number of that check); a check that was not run leaves the field null
_SOURCES = {
    "tokenizer_fingerprint": ("fingerprint", "fingerprint"),
    "vocabulary_size": ("shapes", "vocab_size"),
    "token_min": ("range", "min"),
    "token_max": ("range", "max"),
    "batch_size": ("batches", "B"),
    "block_size": ("batches", "T"),
    "initial_loss": ("initial_loss", "loss_random"),
    "expected_baseline": ("initial_loss", "baseline"),
    "gradient_norm": ("gradients", "gradient_norm"),
    "missing_gradients": ("gradients", "missing"),
    "parameter_update_size": ("optimizer", "update_to_weight"),  # one number per step
    "single_batch_final_loss": ("overfit", "final_loss"),
}


def debug_fields(report: Report) -> Mapping[str, Any]:
    """Collect the figures from a report; losses in nats, the update relative to the weights."""
    numbers = {result.check: result.numbers for result in report.results}
    found = {name: numbers.get(check, {}).get(number) for name, (check, number) in _SOURCES.items()}
    low, high = found.pop("token_min"), found.pop("token_max")
    rows, columns = found.pop("batch_size"), found.pop("block_size")
    updates = found.pop("parameter_update_size")
    return found | {
        "token_range": None if low is None else [low, high],
        "batch_shape": None if rows is None else [rows, columns],
        "parameter_update_size": updates[0] if updates else None,
    }
