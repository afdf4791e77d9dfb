"""Figures and verdicts of two runs, healthy beside broken, without naming what is wrong."""

from __future__ import annotations

from collections.abc import Mapping

from diagnostics import CheckResult, Status
from diagnostics._render import LABELS, field
from exercises._console import in_ascii, tell

NOT_REACHED = "not reached"


def show_pairs(healthy: Mapping[str, str], broken: Mapping[str, str]) -> None:
    """Show each figure healthy and as this run has it; once where they are equal."""
    for name in {**healthy, **broken}:
        was, came = healthy.get(name, NOT_REACHED), broken.get(name, NOT_REACHED)
        tell(name, indent="  ")
        if was == came:
            tell(was, indent="    both      ")
        else:
            tell(was, indent="    healthy   ")
            tell(came, indent="    this run  ")


def show_verdict(result: CheckResult) -> None:
    """Show a verdict; of one that fails or warns neither claim, reason nor causes: they tell."""
    label = LABELS[result.status]
    if result.status in (Status.PASS, Status.SKIP):
        tell(f"{label} {result.check}: {result.claim}", hanging=5)
        return
    print(f"{label} {result.check}")
    for line in (*field("measured", result.measured), *field("expected", result.expected)):
        print(in_ascii(line))


def describe_error(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    message = str(error).strip().split("\n")[0]
    return f"{type(error).__name__}: {message}"
