"""Every benchmark in one table: `python -m tests.benchmarks [--quick] [--only NAME] [--json FILE]`.

A goal is the largest ratio, ours / peer, that was aimed at; each row says whether it was met here
and now. Rows without one are for orientation. Peers: the folder that NANOGPT_DIR names,
transformers and tokenizers where they are installed, and what most tutorials write.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
NAMES = (
    "training_step",
    "batches",
    "tokenizer",
    "generate",
    "checkpoint",
    "monitor",
    "diagnose",
    "startup",
)


def main(arguments: list[str] | None = None) -> int:
    """Run what was asked for, print the table, return 0 where every goal was met and 1 if not."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks", description="Measure ours beside its peers."
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer rounds, and only the smallest models")
    add("--only", choices=NAMES, action="append", help="may be given more than once")
    add("--json", type=Path, metavar="FILE", help="write the numbers there, too")
    options = parser.parse_args(arguments)
    sys.path.insert(0, str(FOLDER))  # the files import one another as they do when run by hand
    rows = measure(options.only or NAMES, quick=options.quick)
    timing = importlib.import_module("_timing")
    timing.print_comparisons(rows)
    goals = [row for row in rows if row.goal is not None]
    met = sum(row.verdict == "met" for row in goals)
    print(f"{met} of {len(goals)} goals met")
    if options.json:
        content = {
            "machine": timing.describe_machine(),
            "rows": [dataclasses.asdict(row) | {"verdict": row.verdict} for row in rows],
        }
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0 if met == len(goals) else 1


def measure(names: tuple[str, ...] | list[str], *, quick: bool) -> list[Any]:
    """Return the rows of these benchmarks, in their order; on one thread, as all goals are."""
    import torch

    rows = []
    for name in names:
        print(f"measuring {name} ...", file=sys.stderr, flush=True)
        torch.set_num_threads(1)
        rows += importlib.import_module(f"bench_{name}").comparisons(quick=quick)
    return rows


if __name__ == "__main__":
    raise SystemExit(main())
