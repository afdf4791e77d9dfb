"""A report: every result in the catalogue's order, and the one thing to mend first."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from diagnostics._debug_fields import debug_fields
from diagnostics._result import CheckResult, Status
from diagnostics._steady import steady
from diagnostics._text import Text

SCHEMA_VERSION = 2
KIND = "diagnostics.report"
# faults that harm nothing where the run is now: they explain no other failure, and come last
LATENT = ("shapes.wrong_device",)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What `diagnose` found.

    results: one per selected check, in the catalogue's order.
    environment: versions and devices, see `diagnostics.environment.measure_environment`.
    notes: what a person should know about how it was measured.
    subject: what was measured, as digests and counts, see `diagnostics._subject`; empty where it
        is not known, as in reports of schema version 1.
    """

    results: tuple[CheckResult, ...]
    seed: int = 42
    environment: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    subject: Mapping[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        """True when nothing failed, nothing raised, and at least one check measured something."""
        measured = any(result.passed for result in self.results)
        return measured and not any(result.failed for result in self.results)

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Every result with status FAIL, consequences included."""
        return self._with(Status.FAIL)

    @property
    def errors(self) -> tuple[CheckResult, ...]:
        """Every result with status ERROR: the check or the user's part in it raised."""
        return self._with(Status.ERROR)

    @property
    def first_failure(self) -> CheckResult | None:
        """What to mend first: the first FAIL, or the first ERROR when nothing failed.

        A fault that harms nothing on this device comes first only where it is the only one.
        """
        own = [r for r in self.results if r.failed and r.consequence_of is None]
        own.sort(key=lambda r: (r.status is not Status.FAIL, r.reason in LATENT))  # stable
        return own[0] if own else None

    @property
    def seconds(self) -> float:
        """Time that all checks took together."""
        return sum(result.seconds for result in self.results)

    def __getitem__(self, check: str) -> CheckResult:
        for result in self.results:
            if result.check == check:
                return result
        raise KeyError(f"no result named {check!r}; there are {[r.check for r in self.results]}")

    def __str__(self) -> str:
        from diagnostics._render import render_report

        return render_report(self)

    def to_dict(self, *, timings: bool = False) -> dict[str, Any]:
        """Return the report as plain JSON values, as `report.schema.json` beside this file has it.

        timings: as in `to_json`. `diagnostics._stored.load_report` reads them back from a file.
        """
        first = self.first_failure
        return {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "passed": self.passed,
            "first_failure": None if first is None else first.check,
            "seed": self.seed,
            "subject": _plain(self.subject),
            "debug": _plain(debug_fields(self)),
            "environment": _plain(self.environment),
            "notes": [steady(note) for note in self.notes],
            "results": [_result_to_dict(result, timings) for result in self.results],
        }

    def to_json(self, *, timings: bool = False) -> str:
        """Return canonical JSON: the same bytes for the same seed in the same environment.

        The number of threads is part of it: a model of a million parameters and more is computed
        with all of them, and they sum in an order of their own.
        timings: also give each result's seconds, which differ from run to run.
        Numbers that JSON does not know are written as the strings "nan", "inf" and "-inf".
        """
        content = self.to_dict(timings=timings)
        return json.dumps(content, indent=2, sort_keys=True, allow_nan=False) + "\n"

    def to_html(self) -> str:
        """Return the report as one page of HTML that needs nothing else: no script, no network.

        The same bytes as from the stored JSON report; write it to a file in UTF-8.
        """
        from diagnostics.page import render_report_page

        return render_report_page(self.to_dict())

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Report:
        """Return the report that `to_dict` described; see `diagnostics.load_report` for a file.

        Claims are plain sentences then, which no other language can be made of.
        """
        return cls(
            results=tuple(map(_result_from_dict, content["results"])),
            seed=content["seed"],
            environment=content["environment"],
            notes=tuple(content["notes"]),
            subject=content.get("subject", {}),
        )

    def _repr_html_(self) -> str:
        """Return the headline, the path and the verdicts, as a notebook shows them."""
        from diagnostics.page import render_report_fragment

        return render_report_fragment(self.to_dict())

    def _with(self, status: Status) -> tuple[CheckResult, ...]:
        return tuple(result for result in self.results if result.status is status)


def _result_to_dict(result: CheckResult, timings: bool) -> dict[str, Any]:
    plain: dict[str, Any] = {
        "check": result.check,
        "stage": result.stage,
        "family": result.family,
        "status": str(result.status),
        "reason": result.reason,
        "claim": steady(result.claim),
        "measured": steady(result.measured),
        "expected": steady(result.expected),
        "where": steady(result.where),
        "causes": [steady(cause) for cause in result.causes],
        "next_step": steady(result.next_step),
        "numbers": _plain(result.numbers),
        "consequence_of": result.consequence_of,
    }
    if isinstance(result.claim, Text):  # so that another language can be rendered later
        plain["claim_template"] = result.claim.template
        facts = {name: _steady_fact(fact) for name, fact in result.claim.facts.items()}
        plain["claim_facts"] = _plain(facts)
    if timings:
        plain["seconds"] = round(result.seconds, 4)
    return plain


def _result_from_dict(plain: Mapping[str, Any]) -> CheckResult:
    texts = ("check", "reason", "claim", "measured", "expected", "where", "next_step")
    return CheckResult(
        **{name: plain[name] for name in texts},
        status=Status(plain["status"]),
        causes=tuple(plain["causes"]),
        numbers=plain["numbers"],
        consequence_of=plain["consequence_of"],
        seconds=plain.get("seconds", 0.0),
    )


def _steady_fact(fact: Any) -> Any:
    return steady(fact) if isinstance(fact, str) else fact


def _plain(value: Any) -> Any:
    """Turn a measurement into JSON values; tensors and NumPy numbers through their own lists."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):  # whose order differs from process to process
        return sorted((_plain(item) for item in value), key=repr)
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return steady(str(value))
