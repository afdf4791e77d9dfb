"""What `python -m diagnostics` answers without running a check, and what it prints of a report."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics._flags import CHECKLISTS

if TYPE_CHECKING:
    from diagnostics._report import Report

CLOCK_SLACK_S = 2.0  # file systems round times of change, FAT to two seconds


@dataclass(frozen=True)
class RunFacts:
    """What a checklist can tick besides a report: rows of the log, settings of generation."""

    log: Sequence[Mapping[str, Any]] = ()
    generation: Mapping[str, Any] | None = None


def answer(options: argparse.Namespace) -> tuple[str, int] | None:
    """Return the text and the exit code of a question that needs no run, None for any other.

    Raises ValueError and OSError for what cannot be read; the message is one line.
    """
    if options.list:
        from diagnostics._render import render_catalog

        return render_catalog(), 0
    if options.explain is not None:
        from diagnostics._catalog import explain

        return explain(options.explain), 0
    if options.env:
        from diagnostics.environment import render_environment

        return render_environment(), 0
    if options.compare is not None:
        from diagnostics.compare import compare_files

        comparison = compare_files(*options.compare)
        return str(comparison), comparison.exit_code
    if options.traceback is not None:
        from diagnostics.help.traceback import STANDARD_INPUT, answer_traceback

        if options.traceback == STANDARD_INPUT and sys.stdin.isatty():
            sys.stderr.write("paste the traceback, then end it with Ctrl-D on a line of its own\n")
        return answer_traceback(options.traceback)
    if options.symptom is not None and options.report is None and options.target is None:
        from diagnostics.help.symptoms import answer_symptom

        return answer_symptom(options.symptom), 0
    return None


def render(report: Report, options: argparse.Namespace, *, run: RunFacts) -> str:
    """Return what is printed of a report: its text, or the one answer that was asked for."""
    if options.symptom is not None:
        from diagnostics.help.symptoms import answer_symptom

        return answer_symptom(options.symptom, report.to_dict())
    if options.checklist is not None:
        return _tick(options.checklist, report.to_dict(), run)
    return str(report)


def read_log(path: str | None, *, required: bool) -> list[Mapping[str, Any]]:
    """Return the rows of a log of one JSON object per line, and the post-mortem of that run.

    A line that was cut short by a crash is left out. A post-mortem older than the log's last row
    belongs to a run before. Raises OSError where `path` is required and cannot be read; an
    optional or absent log has no rows.
    """
    if path is None or not (required or Path(path).is_file()):
        return []
    rows: list[Any] = []
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    for beside in sorted(Path(path).parent.glob("postmortem-step-*.json")):
        with suppress(OSError, ValueError, RecursionError):
            if beside.stat().st_mtime + CLOCK_SLACK_S < Path(path).stat().st_mtime:
                continue
            rows.append(json.loads(beside.read_text(encoding="utf-8")))
    return [row for row in rows if isinstance(row, Mapping)]


def _tick(name: str, content: Mapping[str, Any], run: RunFacts) -> str:
    from diagnostics.help.checklists import tick

    wanted = CHECKLISTS if name == "all" else (name,)
    ticked = (
        tick(each, content, run_log=run.log, generation_settings=run.generation) for each in wanted
    )
    return "\n\n".join(ticked)
