"""A mark of a checklist, and what is known of a run when it is made."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diagnostics.help._evidence import Measured
from diagnostics.help.checklists._run_log import RunLog, as_number

RIGHT, WRONG, OPEN = "[x]", "[!]", "[ ]"


@dataclass(frozen=True)
class Mark:
    """A box and the sentence that it rests on; "" where nothing was measured."""

    box: str
    sentence: str = ""


@dataclass(frozen=True, kw_only=True)
class Facts:
    """What is known of a run.

    results: of a report.    log: the rows of a run.    settings: of generation, see `tick`.
    """

    results: Mapping[str, Measured] = field(default_factory=dict)
    log: RunLog = field(default_factory=RunLog)
    settings: Mapping[str, Any] = field(default_factory=dict)

    def setting(self, name: str) -> float | None:
        """Return a setting that is a number, or None."""
        return as_number(self.settings.get(name))

    @property
    def vocab_size(self) -> int | None:
        """V, as the settings or the report have it."""
        shapes = self.results.get("shapes")
        found = self.setting("vocab_size") or (
            as_number(shapes.numbers.get("vocab_size")) if shapes is not None else None
        )
        return int(found) if found is not None and 1 <= found < math.inf else None
