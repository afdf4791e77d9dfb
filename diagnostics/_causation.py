"""Which failure can have produced which: what `consequence_of` in a report is decided by."""

from __future__ import annotations

from diagnostics._catalog import CATALOG
from diagnostics._report import LATENT
from diagnostics._result import CheckResult

# Faults in which windows are drawn. Each window is as it should be, so that no other check, which
# computes with one batch or draws from data of its own, can fail by them.
_WINDOWS_DRAWN = (
    "batches.always_the_same",
    "batches.few_starts",
    "batches.gaps",
    "batches.part_of_data",
    "batches.repeats",
    "batches.same_order",
    "batches.same_rows",
    "batches.split_ignored",
    "batches.start_never_drawn",
    "batches.train_reads_val",
    "batches.val_reads_train",
)
# Failures that say what they come from: of the checks that may explain theirs, these can.
_READS_AHEAD = ("shapes", "batch_independence", "causal_independence")
_PRODUCERS = {
    "honesty.sees_the_future": _READS_AHEAD,
    "overfit.below_floor": _READS_AHEAD,
    "honesty.targets_are_known": ("shift", "initial_loss"),
    "honesty.loss_is_too_low": ("loss",),
}


def can_explain(cause: CheckResult, result: CheckResult) -> bool:
    """Whether a failure can have produced a later one, as far as catalogue and reasons tell."""
    if not cause.failed or cause.reason in LATENT or cause.reason in _WINDOWS_DRAWN:
        return False
    if cause.check not in CATALOG or result.check not in CATALOG[cause.check].explains:
        return False
    return cause.check in _PRODUCERS.get(result.reason, (cause.check,))
