"""The commands of the exercises with input that cannot be used, and output nobody reads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import exercises
from exercises.__main__ import main

ROOT = Path(exercises.__file__).parents[1]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nonsense"], "error: there is no exercise 'nonsense'; `python -m exercises --list`"),
        (["shfit"], "error: there is no exercise 'shfit'; did you mean shift? "),
        (["shift", "--json", "nowhere/r.json"], "error: --json nowhere/r.json: there is no folder"),
        (["--status", "shift"], "error: --status shows everything and takes no names"),
        (["--status", "--verify"], "error: --status and --verify are two commands"),
        (["--verify", "--json", "r.json"], "error: --json is for the receipts of a run, --verify"),
    ],
)
def test_one_line_and_exit_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known before a minute of work, not after it."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


def test_an_exercise_answers_help_and_refuses_arguments() -> None:
    """What it would pass over without a word, it does not take."""
    asked = _run("exercises.break_shift", "--help")
    assert asked.returncode == 0
    assert asked.stdout.startswith("usage: python -m exercises.break_shift")
    refused = _run("exercises.break_shift", "--quick")
    assert refused.returncode == 2
    assert refused.stderr.startswith("error: unrecognized arguments: --quick")
    assert refused.stderr.count("\n") == 1


def test_prose_fits_a_narrow_terminal() -> None:
    """At 60 columns the sentences are folded there; the default stays 88."""
    code = (
        "from exercises._terminal import put; from exercises.break_shift import EXERCISE; "
        "put(EXERCISE.question + EXERCISE.lesson)"
    )
    for columns, limit in (("60", 60), ("200", 88)):
        done = subprocess.run(
            [sys.executable, "-c", code], env=os.environ | {"COLUMNS": columns},
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert limit - 15 < max(map(len, done.stdout.splitlines())) <= limit


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    """`| head -1` closes the pipe: no traceback."""
    with subprocess.Popen(
        [sys.executable, "-m", "exercises", "--list"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 0


@pytest.mark.skipif(sys.platform == "win32", reason="Ctrl-C reaches a process in another way")
@pytest.mark.parametrize("seconds", [0.5, 3.0])
def test_an_interrupt_leaves_no_traceback(seconds: float) -> None:
    """Whether torch is loading, processes are starting or exercises are running."""
    with subprocess.Popen(
        [sys.executable, "-m", "exercises", "shift", "range"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        time.sleep(seconds)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT)
    assert error in ("", "error: interrupted\n")


def _run(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
