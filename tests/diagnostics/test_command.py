"""`python -m diagnostics` with input that cannot be used: one line, exit 2, no verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from diagnostics.__main__ import main

TARGETS = """
import sys
import torch
from diagnostics import Pipeline

def leaves():
    sys.exit(0)

def raises():
    raise ValueError("the reason\\nand more")

def needs_one(argument):
    return argument

def without_a_model():
    return Pipeline(None)

def number():
    return 3

def fine():
    return Pipeline(torch.nn.Embedding(5, 5))
"""


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of its own, with a file of targets."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)  # undoes what loading a target adds to the path
    Path("targets.py").write_text(TARGETS, encoding="utf-8")
    Path("leaving.py").write_text("import sys\nsys.exit(0)\n", encoding="utf-8")
    Path("grammar.py").write_text("def f(:\n", encoding="utf-8")
    Path("folder").mkdir()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--target", "targets.py:leaves"], "ended the program with SystemExit(0)"),
        (["--target", "leaving.py:f"], "ended the program with SystemExit(0)"),
        (["--target", "targets.py:raises"], "raised ValueError: the reason (targets.py:10)"),
        (["--target", "targets.py:needs_one"], "missing 1 required positional argument"),
        (["--target", "targets.py:without_a_model"], "got NoneType (targets.py:16)"),
        (["--target", "targets.py:number"], "must return a diagnostics.Pipeline, got int"),
        (["--target", "grammar.py:f"], "SyntaxError: invalid syntax (grammar.py, line 1)"),
        (["--target", "nowhere.py:f"], "there is no file nowhere.py"),
        (["--target", "..:f"], "wants module:function or file.py:function"),
        (["--target", "targets.py:fine", "--json", "no/r.json"], "there is no folder no"),
        (["--checkpoint", "nowhere.safetensors"], "at nowhere.safetensors, there is none"),
        (["--checkpoint", "folder"], "wanted a checkpoint at folder, that is a folder"),
        (["--only", "range", "--skip", "range"], "leaves nothing of what --only asks for"),
    ],
)
def test_one_line_and_exit_2(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """What cannot be checked is no verdict, least of all a green one."""
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert error.count("\n") == 1
    assert line in error
    assert "_target.py" not in error
    assert "_pipeline.py" not in error


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--target", "targets.py:fine", "--checkpoint", "x"], "--checkpoint is"),
        (["--seed", "-1"], "0..2**32 - 1, got '-1'"),
        (["--seed", "99999999999999999999999"], "0..2**32 - 1"),
    ],
)
def test_flags_that_do_not_fit_are_one_line(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flag that would have been passed over, or that overflows, is refused."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert line in error


def test_a_report_goes_to_a_device_too(capfd: pytest.CaptureFixture[str]) -> None:
    """`--json /dev/null` is no file to replace; it is written to."""
    if not Path("/dev/null").exists():
        pytest.skip("this system has no /dev/null")
    arguments = ["--target", "targets.py:fine", "--only", "environment", "--json", "/dev/null"]
    assert main(arguments) == 0
    assert Path("/dev/null").is_char_device()
