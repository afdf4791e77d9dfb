from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
QUICK = (
    "answers", "autograder", "container", "csv_file", "exercism", "feedback", "gradescope",
    "junit", "own_report", "rubric", "submissions",
)  # fmt: skip


def test_files_in_and_out_do_not_wait_for_torch() -> None:
    """A torch that raises on import is put first: nothing may notice."""
    names = ", ".join(f"exercises.grade.{name}" for name in QUICK)
    code = f"import sys; sys.modules['torch'] = None; import {names}; print('quick')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr) == ("quick\n", "")
