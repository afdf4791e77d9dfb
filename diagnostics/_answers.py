"""What `python -m diagnostics` answers without running a check, and what it prints of a report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diagnostics._flags import CHECKLISTS

if TYPE_CHECKING:
    from diagnostics._report import Report

CLOCK_SLACK_S = 2.0  # file systems round times of change, FAT to two seconds


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
        from diagnostics.help.traceback import answer_traceback

        return answer_traceback(options.traceback)
    if options.symptom is not None and options.report is None and options.target is None:
        from diagnostics.help.symptoms import answer_symptom

        return answer_symptom(options.symptom), 0
    return None


def render(report: Report, options: argparse.Namespace, *, log: Sequence[object]) -> str:
    """Return what is printed of a report: its text, or the one answer that was asked for.

    log: the rows of the run's log, see `read_log`.    Raises ValueError for an unknown checklist.
    """
    if options.symptom is not None:
        from diagnostics.help.symptoms import answer_symptom

        return answer_symptom(options.symptom, report.to_dict())
    if options.checklist is not None:
        return _tick(options.checklist, report.to_dict(), log)
    return str(report)


def read_log(path: str | None, *, required: bool) -> list[object]:
    """Return the rows of a log of one JSON object per line, and the post-mortem of that run.

    A line that was cut short by a crash is left out. A post-mortem older than the log's last row
    belongs to a run before. Raises OSError where `path` is required and cannot be read; an
    optional or absent log has no rows.
    """
    if path is None or not (required or Path(path).is_file()):
        return []
    rows: list[object] = []
    for line in Path(path).read_text(encoding="utf-8", errors="replace").splitlines():
        with suppress(ValueError, RecursionError):
            rows.append(json.loads(line))
    for beside in sorted(Path(path).parent.glob("postmortem-step-*.json")):
        with suppress(OSError, ValueError, RecursionError):
            if beside.stat().st_mtime + CLOCK_SLACK_S < Path(path).stat().st_mtime:
                continue
            rows.append(json.loads(beside.read_text(encoding="utf-8")))
    return rows


def _tick(name: str, content: Mapping[str, Any], log: Sequence[object]) -> str:
    from diagnostics.help.checklists import tick

    rows = [row for row in log if isinstance(row, Mapping)]
    wanted = CHECKLISTS if name == "all" else (name,)
    return "\n\n".join(tick(each, content, run_log=rows) for each in wanted)
