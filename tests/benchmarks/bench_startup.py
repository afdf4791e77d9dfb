"""How long a user waits before anything happens, against the time that `import torch` takes.

Run by hand: `python tests/benchmarks/bench_startup.py`. Each run is a process of its own. The
report reads a debug checkpoint that is trained here for a few steps. Every optimizer that is made
in a process imports torch's compiler front end, which takes as long again as torch itself: a row
of its own shows what that alone costs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
from _timing import Comparison, compare, print_comparisons

ROOT = Path(__file__).resolve().parents[2]
TORCH = ["-c", "import torch"]
OPTIMIZER = ["-c", "import torch; torch.optim.SGD([torch.ones(1, requires_grad=True)], lr=1.0)"]
IMPORT = ["-c", "import torch; from diagnostics import Pipeline, diagnose"]
TRAIN = ["-m", "minigpt.train", "--preset", "debug", "--max-steps", "20", "--no-preflight"]
LIST = ["-m", "exercises", "--list"]
HELP = ["-m", "minigpt.train", "--help"]


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    print_comparisons(comparisons())


def comparisons(*, quick: bool = False) -> list[Comparison]:
    """Compare imports, lists, help and a whole report with `import torch`."""
    rounds = 2 if quick else 7
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch_alone = starter(TORCH, folder)
        rows = [
            compare(f"{figure} / torch", starter(command, folder), torch_alone, rounds=rounds)
            for figure, command in {
                "exercises --list": LIST,
                "minigpt.train --help": HELP,
                "making an optimizer": OPTIMIZER,
            }.items()
        ]
        library = starter(IMPORT, folder)
        rows.append(compare("diagnostics / torch", library, torch_alone, rounds=rounds, goal=1.05))
        starter(["-m", "minigpt.prepare"], folder)()
        starter(TRAIN, folder)()
        report = starter(["-m", "diagnostics"], folder, codes=(0, 1))  # 20 steps: a check may fail
        rows.append(compare("whole report / torch", report, torch_alone, rounds=rounds, goal=2.9))
    return rows


def starter(
    arguments: list[str], folder: Path, codes: tuple[int, ...] = (0,)
) -> Callable[[], object]:
    """Return a function that runs Python with these arguments, on one thread, in that folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}

    def start() -> None:
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode not in codes:
            raise RuntimeError(f"{arguments} ended with {done.returncode}: {done.stderr[-500:]}")

    return start


if __name__ == "__main__":
    main()
