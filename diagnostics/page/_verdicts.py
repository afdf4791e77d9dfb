"""A report as its plain values have it: `Report.to_dict()`, or a file of this or an older release.

What an older release did not write is empty here; what cannot be read at all raises ValueError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diagnostics._catalog import STAGES

# the worst comes first: a stage is as well as its worst check, and a skip is no pass
_WORST = ("fail", "error", "warn", "pass", "skip")


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """One result. anchor: its id in the page, unique, or empty where nothing can be linked to."""

    check: str
    stage: str
    status: str
    reason: str
    claim: str
    measured: str
    expected: str
    where: str
    causes: tuple[str, ...]
    next_step: str
    numbers: Mapping[str, Any]
    consequence_of: str
    anchor: str

    @property
    def failed(self) -> bool:
        """True for what failed and for what raised."""
        return self.status in ("fail", "error")


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of the pipeline and the verdicts on it, none where nobody asked."""

    name: str
    verdicts: tuple[Verdict, ...]
    anchor: str

    @property
    def status(self) -> str:
        """The worst verdict, or "none"; skipped only where nothing at all was measured."""
        found = {verdict.status for verdict in self.verdicts}
        return next((status for status in _WORST if status in found), "none")


@dataclass(frozen=True, kw_only=True)
class Stored:
    """A report. first: what to mend first, None where nothing failed."""

    verdicts: tuple[Verdict, ...]
    first: Verdict | None
    debug: Mapping[str, Any]
    environment: Mapping[str, Any]
    notes: tuple[str, ...]
    seed: Any
    schema_version: Any
    subject: Mapping[str, Any]

    @property
    def counts(self) -> Counter[str]:
        """How many verdicts there are of each status."""
        return Counter(verdict.status for verdict in self.verdicts)

    @property
    def stages(self) -> tuple[Stage, ...]:
        """All stages of the catalogue in their order, then those that only the report knows."""
        names = [*STAGES, *dict.fromkeys(v.stage for v in self.verdicts if v.stage not in STAGES)]
        linked = any(verdict.anchor for verdict in self.verdicts)
        anchors = _anchors("stage", names) if linked else [""] * len(names)
        return tuple(
            Stage(
                name=name,
                verdicts=tuple(v for v in self.verdicts if v.stage == name),
                anchor=anchor,
            )
            for name, anchor in zip(names, anchors, strict=True)
        )

    def find(self, check: str) -> Verdict | None:
        """Return the verdict of a check, None where there is none."""
        return next((verdict for verdict in self.verdicts if verdict.check == check), None)


def read_stored(content: Mapping[str, Any], *, linked: bool = True) -> Stored:
    """Read a report's plain values; ValueError where they are none.

    linked: give every verdict an id. Parts that may stand twice in one page have none.
    """
    results = content.get("results")
    if not isinstance(results, Sequence) or not all(isinstance(r, Mapping) for r in results):
        raise ValueError("wanted the content of a report, with a list of results in it")
    names = [_text(result, "check") for result in results]
    anchors = _anchors("check", names) if linked else [""] * len(names)
    verdicts = tuple(_verdict(r, anchor) for r, anchor in zip(results, anchors, strict=True))
    return Stored(
        verdicts=verdicts,
        first=_first(verdicts, content.get("first_failure")),
        debug=_mapping(content, "debug"),
        environment=_mapping(content, "environment"),
        notes=_texts(content, "notes"),
        seed=content.get("seed"),
        schema_version=content.get("schema_version"),
        subject=_mapping(content, "subject"),
    )


def _verdict(result: Mapping[str, Any], anchor: str) -> Verdict:
    status = _text(result, "status")
    if status not in _WORST:
        raise ValueError(
            f"wanted a status out of {', '.join(_WORST)}, got {status!r} for the check "
            f"{_text(result, 'check')!r}"
        )
    return Verdict(
        check=_text(result, "check"),
        stage=_text(result, "stage") or "custom",
        status=status,
        reason=_text(result, "reason"),
        claim=_text(result, "claim"),
        measured=_text(result, "measured"),
        expected=_text(result, "expected"),
        where=_text(result, "where"),
        causes=_texts(result, "causes"),
        next_step=_text(result, "next_step"),
        numbers=_mapping(result, "numbers"),
        consequence_of=_text(result, "consequence_of"),
        anchor=anchor,
    )


def _first(verdicts: Sequence[Verdict], named: Any) -> Verdict | None:
    """Return what the report names, where that failed; else the first fault of its own."""
    failed = [verdict for verdict in verdicts if verdict.failed]
    candidates = [
        *(v for v in failed if v.check == named),
        *(v for v in failed if not v.consequence_of),
        *failed,
    ]
    return candidates[0] if candidates else None


def _anchors(kind: str, names: Sequence[str]) -> list[str]:
    """Return an id for each name: readable, unlike any other, and safe whatever the name holds."""
    found: list[str] = []
    for position, name in enumerate(names):
        plain = re.fullmatch(r"[a-z0-9_]+", name)
        anchor = f"{kind}-{name}" if plain else f"{kind}-.{position}"
        found.append(anchor if anchor not in found else f"{anchor}.{position}")
    return found


def _text(values: Mapping[str, Any], name: str) -> str:
    value = values.get(name)
    return "" if value is None else str(value)


def _texts(values: Mapping[str, Any], name: str) -> tuple[str, ...]:
    value = values.get(name)
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _mapping(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return _ordered(value) if isinstance(value, Mapping) else {}


def _ordered(value: Any) -> Any:
    """Return the value with the names of every mapping in one order, numbers in them by size.

    A file has them sorted, a report that was just measured has not, and both give one page.
    """
    if isinstance(value, Mapping):
        return {name: _ordered(value[name]) for name in sorted(value, key=_by_number)}
    return [_ordered(item) for item in value] if isinstance(value, (list, tuple)) else value


def _by_number(name: object) -> list[str | int]:
    """Return what puts "blocks.2" before "blocks.10"."""
    parts = re.split(r"([0-9]{1,18})", str(name))
    return [int(part) if position % 2 else part for position, part in enumerate(parts)]
