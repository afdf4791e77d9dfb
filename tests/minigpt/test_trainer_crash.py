"""A few of the kills of `crash_trials`, which has the long form; they take seconds."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs fork and SIGKILL")
def test_a_killed_trainer_loses_nothing() -> None:
    """Killed 24 times in a handful of runs: all files load, all runs end with the same bytes."""
    command = [sys.executable, "-m", "tests.minigpt.crash_trials", "--kills=24", "--seed=3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("kills     24: ")
    assert all(" 0 by" not in line for line in lines[:1])
    chains = int(next(line for line in lines if line.startswith("chains")).split()[1].strip(","))
    assert chains >= 4
    assert f"identical {chains} of {chains} ended with the bytes" in done.stdout
