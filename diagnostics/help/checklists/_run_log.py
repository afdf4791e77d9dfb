"""The rows of a run's log as numbers, whoever wrote them.

A row is an object with a whole `step`; `train_loss` (of the update itself), `training_loss` and
`validation_loss` (of an evaluation), `learning_rate`, `grad_norm` (before clipping) and `clipped`
may be missing or null. Post-mortems and events of the monitor may stand among the rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

POSTMORTEM = "diagnostics.monitor.postmortem"
_NUMBERS = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


@dataclass(frozen=True)
class RunLog:
    """rows: with a step, in its order.    postmortem: its sentence.    events: their sentences."""

    rows: tuple[Mapping[str, Any], ...] = ()
    postmortem: str | None = None
    events: tuple[str, ...] = ()

    @property
    def updates(self) -> tuple[Mapping[str, Any], ...]:
        """The rows after the first update; step 0 is an evaluation of fresh weights."""
        return tuple(row for row in self.rows if row["step"] > 0)

    @property
    def validation(self) -> tuple[tuple[int, float], ...]:
        """Step and validation loss of each evaluation after an update, in nats."""
        return tuple(pair for pair in self.losses("validation_loss") if pair[0] > 0)

    @property
    def best(self) -> tuple[int, float] | None:
        """Step and loss of the best evaluation, the first of equals; None without one."""
        return min(self.validation, key=lambda pair: pair[1], default=None)

    @property
    def pairs(self) -> tuple[tuple[float, float, bool], ...]:
        """Training and validation loss of each row that has both, and if both are evaluations."""
        found = []
        for row in self.updates:
            training, validation = (
                _loss(row, "training_loss", "train_loss"),
                _loss(row, _VALIDATION),
            )
            if training is not None and validation is not None:
                found.append((training, validation, _loss(row, "training_loss") is not None))
        return tuple(found)

    def losses(self, *names: str) -> tuple[tuple[int, float], ...]:
        """Step and the first finite one of these losses, for each row that has one."""
        found = ((row["step"], _loss(row, *names)) for row in self.rows)
        return tuple((step, loss) for step, loss in found if loss is not None)


_VALIDATION = "validation_loss"


def read_log(rows: Sequence[object] | None) -> RunLog:
    """Sort what a run left behind; what is no row, no event and no post-mortem is left out."""
    found: list[Mapping[str, Any]] = []
    events: list[str] = []
    postmortem = None
    for row in rows or ():
        if not isinstance(row, Mapping):
            continue
        said = row.get("sentence") or row.get("claim")
        if row.get("schema") == POSTMORTEM:
            postmortem = str(said or row.get("reason"))
        elif str(row.get("reason", "")).startswith("monitor."):
            events.append(f"{said or row['reason']} (step {row.get('step')})")
        elif isinstance(row.get("step"), int) and not isinstance(row["step"], bool):
            found.append(row)
    return RunLog(tuple(sorted(found, key=lambda row: row["step"])), postmortem, tuple(events))


def as_number(value: object) -> float | None:
    """Return a JSON number, also one that is spelt "nan" or "inf"; None for anything else."""
    if isinstance(value, str):
        return _NUMBERS.get(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _loss(row: Mapping[str, Any], *names: str) -> float | None:
    numbers = (as_number(row.get(name)) for name in names)
    return next((n for n in numbers if n is not None and math.isfinite(n)), None)
