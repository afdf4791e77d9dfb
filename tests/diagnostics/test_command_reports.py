"""`python -m diagnostics`: what is written and shown of a report, and what needs no run at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics import Report
from diagnostics.__main__ import main

TARGET = """
import torch
from torch import nn
from diagnostics import Pipeline

class Bigram(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(5, 5)

    def forward(self, ids):
        return self.table(ids)

def fine():
    torch.manual_seed(0)
    return Pipeline(Bigram(), train_ids=torch.arange(60) % 5, vocab_size=5)

def broken():
    torch.manual_seed(0)
    return Pipeline(Bigram(), train_ids=torch.arange(60) % 7, vocab_size=5)
"""
FINE = ["--target", "own.py:fine", "--only", "range", "shift"]
BROKEN = ["--target", "own.py:broken", "--only", "range"]


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work in a folder of its own, with a target in it."""
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(TARGET, encoding="utf-8")


def _stored(path: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return content


def test_a_page_and_its_numbers_are_written_beside_the_text(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--html` and `--json` add files; what is printed and the exit code stay the same."""
    assert main([*BROKEN, "--html", "r.html", "--json", "r.json"]) == 1
    assert "mend first: range (ids)" in capsys.readouterr().out
    page = Path("r.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "mend" in page
    assert "range" in page
    assert _stored("r.json")["first_failure"] == "range"


def test_a_stored_report_is_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    """`--report` shows text, page and JSON as the run itself did, byte for byte."""
    main([*BROKEN, "--html", "r.html", "--json", "r.json"])
    capsys.readouterr()
    assert main(["--report", "r.json", "--html", "again.html", "--json", "again.json"]) == 1
    assert "mend first: range (ids)" in capsys.readouterr().out
    assert Path("again.html").read_bytes() == Path("r.html").read_bytes()
    first, again = _stored("r.json"), _stored("again.json")
    for result in first["results"]:  # a sentence that was read back has forgotten its template
        result.pop("claim_template"), result.pop("claim_facts")
    assert again == first
    assert Report.from_dict(first).to_html() == Path("r.html").read_text(encoding="utf-8")


def test_a_request_for_help_names_the_command_and_the_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`--ask` prints Markdown in place of the report; its exit code is the report's."""
    assert main([*BROKEN, "--ask", "--json", "r.json"]) == 1
    request = capsys.readouterr().out
    assert request.startswith("# `range` fails: ")
    assert "python -m diagnostics --target own.py:broken --only range" in request
    assert "--json" not in request
    assert "class Bigram(nn.Module):" in request
    assert main(["--report", "r.json", "--ask", "request.md"]) == 1
    assert Path("request.md").read_text(encoding="utf-8").startswith("# `range` fails: ")
    assert "wrote request.md" in capsys.readouterr().out


def test_a_symptom_is_walked_by_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a report it is a guide; with one, the failing check stands."""
    assert main(["--symptom", "loss stuck"]) == 0
    guide = capsys.readouterr().out
    main([*BROKEN, "--json", "r.json"])
    capsys.readouterr()
    assert main(["--report", "r.json", "--symptom", "loss stuck"]) == 1
    walked = capsys.readouterr().out
    assert walked != guide
    assert "range" in walked


def test_a_checklist_ticks_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    """The range of the ids is measured, the overfit gate is not: it is left for a person."""
    assert main([*FINE, "--checklist", "before"]) == 0
    ticked = capsys.readouterr().out
    assert any(line.startswith("[x]") for line in ticked.splitlines())
    assert any(line.startswith("[ ]") for line in ticked.splitlines())
    assert not any(line.startswith("[!]") for line in ticked.splitlines())


def test_a_log_is_read_for_the_checklist_of_training(capsys: pytest.CaptureFixture[str]) -> None:
    """Rows of the log tick what no check can see; a torn last line is left out."""
    rows = [
        {"step": step, "train_loss": 3.0 - step / 50, "learning_rate": 1e-3, "grad_norm": 0.5}
        for step in range(10, 60, 10)
    ]
    torn = '{"step": 60, "train_lo'
    Path("log.jsonl").write_text("\n".join([*map(json.dumps, rows), torn]), encoding="utf-8")
    assert main([*FINE, "--checklist", "training", "--log", "log.jsonl"]) == 0
    assert "all 5 rows of the log hold a norm, from 0.5 to 0.5" in capsys.readouterr().out
    assert main([*FINE, "--checklist", "training", "--log", "nowhere.jsonl"]) == 2
    assert "nowhere.jsonl" in capsys.readouterr().err


def test_two_reports_are_compared_and_worse_is_1(capsys: pytest.CaptureFixture[str]) -> None:
    """A verdict that got worse is exit code 1, the same report 0, no report 2."""
    main([*FINE, "--only", "range", "--json", "a.json"])
    main([*BROKEN, "--json", "b.json"])
    capsys.readouterr()
    assert main(["--compare", "a.json", "a.json"]) == 0
    assert main(["--compare", "a.json", "b.json"]) == 1
    assert "B is worse" in capsys.readouterr().out
    assert main(["--compare", "a.json", "own.py"]) == 2
    assert "own.py" in capsys.readouterr().err


def test_a_traceback_is_read_from_the_bottom(capsys: pytest.CaptureFixture[str]) -> None:
    """A file with a traceback gives what and where; a file without one is exit code 2."""
    Path("log.txt").write_text(
        "Traceback (most recent call last):\n"
        '  File "train.py", line 12, in <module>\n'
        "    loss.backward()\n"
        '  File "/usr/lib/python3/site-packages/torch/_tensor.py", line 1, in backward\n'
        "    run()\n"
        "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn\n",
        encoding="utf-8",
    )
    assert main(["--traceback", "log.txt"]) == 0
    told = capsys.readouterr().out
    assert "train.py" in told
    assert "12" in told
    Path("empty.txt").write_text("all is well\n", encoding="utf-8")
    assert main(["--traceback", "empty.txt"]) == 2
    assert main(["--traceback", "nowhere.txt"]) == 2


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--compare", "a", "b", "--env"], "--env and --compare are one question each"),
        (["--ask", "--symptom", "x"], "--ask and --symptom print one answer each"),
        (["--report", "r.json", "--target", "own.py:fine"], "and --target asks for a new one"),
        (["--self-test", "--html", "r.html"], "--self-test has no page"),
        (["--checklist", "during"], "invalid choice"),
        (["--report", "r.json", "--only", "shift"], "and --only asks for a new one"),
        (["--report", "r.json", "--skip", "shift"], "and --skip asks for a new one"),
        (["--report", "r.json", "--seed", "3"], "and --seed asks for a new one"),
        (["--report", "r.json", "--fast"], "and --fast asks for a new one"),
        (["--report", "r.json", "--overfit-steps", "5"], "and --overfit-steps asks for a new"),
        (["--report", "r.json", "--tokenizer", "t.json"], "and --tokenizer asks for a new one"),
        (["--report", "r.json", "--log", "l.jsonl"], "--log is read for --checklist alone"),
        (["--report", "r.json", "--html", "r.json"], "--html would write over the report r.json"),
        (["--report", "r.json", "--html", "o", "--json", "./o"], "write to one file, ./o"),
        (["--symptom", "x", "--json", "r.json"], "--symptom alone runs no check and has no use"),
        (["--symptom", "x", "--only", "shift"], "has no use for --only"),
        (["--list", "--json", "r.json"], "--list runs no check and has no use for --json"),
        (["--compare", "a", "b", "--html", "c"], "--compare runs no check and has no use for"),
        (["--env", "--symptom", "x"], "--env runs no check and has no use for --symptom"),
        (["--self-test", "--ask"], "--self-test and --ask print one answer each"),
    ],
)
def test_flags_that_exclude_each_other(
    arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    assert stop.value.code == 2
    assert line in capsys.readouterr().err


def test_a_report_without_a_name_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--report", ""]) == 2
    assert "--report wants a file, got an empty name" in capsys.readouterr().err


def test_a_report_that_is_cut_says_where(capsys: pytest.CaptureFixture[str]) -> None:
    """The decoder's own words end in "at"; the place follows once."""
    Path("cut.json").write_text('{"a": "b', encoding="utf-8")
    assert main(["--report", "cut.json"]) == 2
    told = capsys.readouterr().err
    assert "unterminated string starting at line 1, column 7" in told


@pytest.mark.parametrize(
    "arguments",
    [
        ["--help"],
        ["--symptom", "loss stuck"],
        ["--traceback", "own.py"],
        ["--compare", "r.json", "r.json"],
    ],
)
def test_what_needs_no_run_loads_no_torch(arguments: list[str], tmp_path: Path) -> None:
    """The answer to a question is there at once; torch alone would take seconds."""
    main([*FINE, "--json", "r.json"])
    script = (
        "import sys, runpy\n"
        f"sys.argv = ['diagnostics', *{arguments!r}]\n"
        "try:\n"
        "    runpy.run_module('diagnostics', run_name='__main__')\n"
        "except SystemExit:\n"
        "    pass\n"
        "print('torch' in sys.modules)\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )
    assert run.stdout.splitlines()[-1] == "False"
