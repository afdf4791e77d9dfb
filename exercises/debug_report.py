"""Write a debug report: the ten figures to note before asking, healthy beside broken."""

from __future__ import annotations

import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from exercises import _exit
from exercises._exercise import Exercise
from exercises._lab import Lab
from minigpt._cli import Parser, require_writable, run_command
from minigpt._files import write_text

# The first bug of each; which figure gives it away?
EXERCISES = (
    "break_shift",
    "break_range",
    "break_initial_loss",
    "break_causal_independence",
    "break_gradients",
    "break_optimizer",
)
FIGURES = (
    "tokenizer_fingerprint",
    "vocabulary_size",
    "token_range",
    "batch_shape",
    "initial_loss",
    "expected_baseline",
    "gradient_norm",
    "missing_gradients",
    "parameter_update_size",
    "single_batch_final_loss",
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the reports and show them; return 0 when every figure was measured, else 1."""
    return run_command(lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    parser = Parser(prog="python -m exercises.debug_report", description=__doc__)
    parser.add_argument(
        "--out", metavar="FILE", default="debug_report.json", help="default debug_report.json"
    )
    path = Path(parser.parse_args(arguments).out)
    require_writable(path, "--out")
    with Lab() as lab:
        reports = {"healthy": measure_figures(lab, lab.pipeline())}
        for name in EXERCISES:
            exercise: Exercise = importlib.import_module(f"exercises.{name}").EXERCISE
            bug = exercise.bugs[0]
            try:
                reports[f"{name} {bug.name}"] = measure_figures(lab, bug.break_it(lab))
            finally:
                lab.restore()
    _show(reports)
    write_text(path, json.dumps(reports, indent=2) + "\n")
    print(f"\nwritten to {path}; which figure gives each bug away?")
    missing = [name for name in FIGURES if reports["healthy"].get(name) is None]
    if missing:
        print(f"[FAIL] not measured on the healthy pipeline: {', '.join(missing)}")
    return _exit.NOT_CAUGHT if missing else _exit.CAUGHT


def measure_figures(lab: Lab, pipeline: Any) -> dict[str, Any]:
    """Run the checks and return the ten figures, None where a check could not measure."""
    from diagnostics import diagnose

    content = diagnose(pipeline, seed=lab.seed).to_dict()
    return {name: content["debug"][name] for name in FIGURES}


def _show(reports: dict[str, dict[str, Any]]) -> None:
    healthy = reports["healthy"]
    print("healthy")
    for name, value in healthy.items():
        print(f"  {name:<26} {_short(value)}")
    for title, figures in reports.items():
        moved = {n: v for n, v in figures.items() if _short(v) != _short(healthy[n])}
        if title != "healthy":
            print(f"{title}: {'these differ' if moved else 'no figure differs'}")
        for name, value in moved.items():
            print(f"  {name:<26} {_short(value)}")


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = "not measured" if value is None else str(value)
    return text if len(text) <= 44 else text[:41] + "..."


if __name__ == "__main__":
    raise SystemExit(main())
