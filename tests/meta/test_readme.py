"""The README says what is so: generated parts are current, and what it shows runs."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from tests.meta import readme

TEXT = readme.README.read_text(encoding="utf-8")
HEADINGS = re.findall(r"^## (.+)$", TEXT, flags=re.MULTILINE)


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", TEXT, flags=re.MULTILINE | re.DOTALL)


def test_generated_sections_are_current() -> None:
    """`python tests/meta/readme.py --write` brings them up to date."""
    assert readme.render(TEXT) == TEXT


def test_there_are_exactly_two_set_up_commands() -> None:
    commands = [line for line in TEXT.splitlines() if line.startswith("python -m pip install")]
    assert len(commands) == 2
    assert "python -m exercises" in commands[0]
    assert "python -m pytest" in commands[1]


def test_the_own_model_example_runs_and_passes(tmp_path: Path) -> None:
    """The example is saved as my_pipeline.py and checked the way the README says."""
    example = next(block for block in code_blocks("python") if "def build" in block)
    assert len(example.splitlines()) <= 40
    (tmp_path / "my_pipeline.py").write_text(example, encoding="utf-8")
    command = next(line for line in TEXT.splitlines() if "--target my_pipeline.py:build" in line)
    done = subprocess.run(
        [sys.executable, *command.split()[1:]],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(readme.ROOT), "OMP_NUM_THREADS": "1", "PATH": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_that_the_readme_names_exists() -> None:
    for name in set(re.findall(r"`((?:minigpt|diagnostics|exercises|tests|data)/[\w./]+)`", TEXT)):
        if "encoded" not in name:
            assert (readme.ROOT / name).exists(), name
