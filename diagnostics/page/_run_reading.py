"""What one reading of a run is, and what all of them measure with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._text import Text
from diagnostics.page._run_history import RunHistory, plain_events

INITIAL_NATS = 0.5  # a fresh GPT-2 initialisation lies within 0.1 of ln V
NEAR_NATS = 0.03  # from the entropy of single tokens, as the monitor's plateau
TOO_HIGH = ("loss_spike", "loss_diverges", "updates_too_large", "gradient_explodes")


@dataclass(frozen=True)
class Reading:
    """A sentence about the run, how serious it is ("pass", "warn", "fail", "none"), what to do."""

    status: str
    claim: Text
    next_step: Text | None = None


def event_of(run: RunHistory, reasons: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the first message of the monitor with one of these reasons, as plain values."""
    wanted = {f"monitor.{reason}" for reason in reasons}
    return next((e for e in plain_events(run.events) if e.get("reason") in wanted), None)
