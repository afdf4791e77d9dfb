"""A consequence is told of a failure that can have produced it, and of no other."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from diagnostics import CheckResult, Status
from diagnostics import _causation as causation
from diagnostics._catalog import CATALOG
from diagnostics._causation import can_explain
from diagnostics._suite import _mark_consequences
from tests.diagnostics.test_report import result


def failing(reason: str, status: Status = Status.FAIL) -> CheckResult:
    return dataclasses.replace(result(reason.partition(".")[0], status), reason=reason)


def causes(*reasons: str) -> dict[str, str | None]:
    marked = _mark_consequences([failing(reason) for reason in reasons])
    return {one.reason: one.consequence_of for one in marked}


def test_a_leak_is_told_as_one_also_beside_batches_that_leave_windows_out() -> None:
    found = causes(
        "batches.start_never_drawn", "causal_independence.no_mask", "honesty.sees_the_future"
    )
    assert found["honesty.sees_the_future"] == "causal_independence"
    assert found["causal_independence.no_mask"] is None


@pytest.mark.parametrize("reason", ["honesty.sees_the_future", "overfit.below_floor"])
def test_a_prediction_of_the_future_comes_from_no_fault_of_loss_or_optimizer(reason: str) -> None:
    assert causes("shift.identical", "loss.mismatch", reason)[reason] is None
    assert causes("loss.mismatch", "batch_independence.mixed", reason)[reason] == (
        "batch_independence"
    )


def test_known_targets_come_from_the_shift_and_a_low_loss_from_the_loss() -> None:
    found = causes("shift.identical", "loss.mismatch", "honesty.targets_are_known")
    assert found["honesty.targets_are_known"] == "shift"
    found = causes("shift.identical", "loss.mismatch", "honesty.loss_is_too_low")
    assert found["honesty.loss_is_too_low"] == "loss"


def test_windows_that_are_never_drawn_explain_no_other_check() -> None:
    """One batch is as it should be; a loader whose rows are torn apart is another matter."""
    assert not can_explain(failing("batches.part_of_data"), failing("overfit.no_progress"))
    assert can_explain(failing("batches.not_contiguous"), failing("honesty.learns_little"))


def test_only_failures_explain_and_only_what_the_catalogue_lists() -> None:
    warned = failing("shift.identical", Status.WARN)
    assert not can_explain(warned, failing("loss.mismatch"))
    assert can_explain(failing("shift.identical"), failing("loss.mismatch"))
    assert not can_explain(failing("shift.identical"), failing("checkpoint.changed"))
    assert not can_explain(failing("own.check"), failing("loss.mismatch"))
    assert not can_explain(failing("shapes.wrong_device"), failing("loss.raised", Status.ERROR))


def test_every_producer_is_listed_in_the_catalogue_as_one_that_explains() -> None:
    for reason, producers in causation._PRODUCERS.items():
        for producer in producers:
            assert reason.partition(".")[0] in CATALOG[producer].explains, (reason, producer)


def test_every_reason_that_is_named_is_one_that_a_check_gives() -> None:
    """A reason that was renamed would silently stop to be told apart."""
    folder = Path(causation.__file__).parent
    sources = "".join(
        path.read_text(encoding="utf-8")
        for path in folder.glob("*.py")
        if path.name != "_causation.py"
    )
    for reason in (*causation._WINDOWS_DRAWN, *causation._PRODUCERS):
        assert f'"{reason}"' in sources, reason
