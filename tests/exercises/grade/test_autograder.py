from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import jsonschema
import pytest

from exercises.grade.autograder import build_autograder, requirements_text
from minigpt._cli import CommandError
from tests.exercises.grade.test_gradescope import SCHEMA

ROOT = Path(__file__).resolve().parents[3]
bash = pytest.mark.skipif(
    shutil.which("bash") is None or shutil.which("timeout") is None, reason="needs bash and timeout"
)


def test_the_zip_holds_what_gradescope_runs(tmp_path: Path) -> None:
    rubric, secret, private = tmp_path / "r.toml", tmp_path / "s", tmp_path / "implementations"
    rubric.write_text("[check.shift]", encoding="utf-8")
    secret.write_bytes(b"\x01\x02")
    (private / "shift").mkdir(parents=True)
    (private / "shift" / "wrong.py").write_text("x = 1\n", encoding="utf-8")
    (private / ".git").mkdir()
    (private / ".git" / "config").write_bytes(b"")
    path = tmp_path / "autograder.zip"
    names = build_autograder(path, rubric=rubric, private=private, secret=secret)
    with zipfile.ZipFile(path) as archive:
        assert tuple(archive.namelist()) == names
        contents = {name: archive.read(name) for name in names}
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    assert [name for name in names if not name.startswith("library/")] == [
        "private/shift/wrong.py",
        "requirements.txt",
        "rubric.toml",
        "run_autograder",
        "secret",
        "setup.sh",
    ]
    assert contents["rubric.toml"] == b"[check.shift]"
    assert contents["secret"] == b"\x01\x02"
    for name in ("minigpt/model.py", "diagnostics/shift.py", "exercises/grade/autograder.py"):
        assert contents[f"library/{name}"] == (ROOT / name).read_bytes()
    assert contents["library/data/guide.txt"] == (ROOT / "data" / "guide.txt").read_bytes()
    assert "library/exercises/grade/gradescope_files/setup.sh" in names
    assert not any("__pycache__" in name or "/." in name for name in names)
    assert modes["setup.sh"] == modes["run_autograder"] == 0o100755
    assert modes["requirements.txt"] == 0o100644
    assert contents["run_autograder"].startswith(b"#!/usr/bin/env bash\n")


def test_equal_inputs_give_equal_bytes(tmp_path: Path) -> None:
    build_autograder(tmp_path / "a.zip")
    build_autograder(tmp_path / "b.zip")
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


def test_the_versions_are_the_ones_that_are_installed() -> None:
    lines = requirements_text("https://wheels.example/cpu").splitlines()
    assert lines[0] == "--extra-index-url https://wheels.example/cpu"
    assert requirements_text().splitlines() == lines[1:]
    assert lines[1:] == [
        f"{name}=={importlib.metadata.version(name).split('+')[0]}"
        for name in ("torch", "numpy", "tqdm", "safetensors")
    ]


def test_an_input_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(CommandError, match=r"there is no file .*r\.toml; check the name"):
        build_autograder(tmp_path / "a.zip", rubric=tmp_path / "r.toml")
    with pytest.raises(CommandError, match=r"there is no folder .*nowhere; check the name"):
        build_autograder(tmp_path / "a.zip", private=tmp_path / "nowhere")
    assert list(tmp_path.iterdir()) == []


def test_the_library_runs_from_the_zip(tmp_path: Path) -> None:
    """With nothing of this checkout on the path, the help of the diagnostics is found."""
    build_autograder(tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extractall(tmp_path / "source")
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'source' / 'library')!r});"
        "import exercises.grade.submissions as s, minigpt.corpus as c;"
        "print(s.__file__, len(c.guide().text), 'torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    place, length, torch_is_loaded = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path / "source" / "library")
    assert int(length) > 10_000
    assert torch_is_loaded == "False"


# ---- run_autograder, with a grader of a few lines ----------------------------------------------


def run_autograder(
    root: Path, grader: str, seconds: str = "60"
) -> subprocess.CompletedProcess[str]:
    """Run the script below `root`; `grader` is the Python code that stands for the real grader."""
    module = root / "library" / "exercises" / "grade"
    module.mkdir(parents=True)
    (module / "__main__.py").write_text(f"import json, os, sys\n{grader}\n", encoding="utf-8")
    (root / "venv" / "bin").mkdir(parents=True)
    python = root / "venv" / "bin" / "python"
    python.write_text(
        f'#!/bin/sh\nif [ "$2" = "-m" ]; then shift 3; exec "{sys.executable}" -I '
        f'"{module}/__main__.py" "$@"; fi\nexec "{sys.executable}" "$@"\n',
        encoding="utf-8",
    )
    python.chmod(0o755)
    script = ROOT / "exercises" / "grade" / "gradescope_files" / "run_autograder"
    return subprocess.run(
        ["bash", str(script)],
        env={**os.environ, "AUTOGRADER_ROOT": str(root), "AUTOGRADER_SECONDS": str(seconds)},
        capture_output=True,
        text=True,
        check=False,
    )


def results_of(root: Path) -> dict[str, object]:
    content: dict[str, object] = json.loads((root / "results" / "results.json").read_bytes())
    jsonschema.validate(content, SCHEMA)
    return content


WRITE = "json.dump({'score': 7, 'tests': [], 'output': repr(sys.argv[1:])}, open(sys.argv[3], 'w'))"


@bash
def test_the_grader_gets_what_is_there(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "rubric.toml").write_bytes(b"")
    (tmp_path / "submission_metadata.json").write_bytes(b"{}")
    done = run_autograder(tmp_path, WRITE)
    assert done.returncode == 0, done.stderr
    assert results_of(tmp_path) == {
        "score": 7,
        "tests": [],
        "output": repr(
            [
                f"{tmp_path}/submission",
                "--gradescope",
                f"{tmp_path}/results/results.json",
                "--metadata",
                f"{tmp_path}/submission_metadata.json",
                "--rubric",
                f"{tmp_path}/source/rubric.toml",
            ]
        ),
    }


@bash
@pytest.mark.parametrize(
    ("grader", "output"),
    [
        ("sys.exit(3)", "The grader ended with code 3, so the score is 0. Tell the staff."),
        (
            f"{WRITE}; os.kill(os.getpid(), 9)",
            "The grader ended with code 137, so the score is 0. Tell the staff.",
        ),
        (
            "open(sys.argv[3], 'w').write('{')",
            "The grader left no result, so the score is 0. Tell the staff.",
        ),
        ("os.remove(sys.argv[3])", "The grader left no result, so the score is 0. Tell the staff."),
        (
            "pass",
            "Grading has not come to an end, so the score is 0. Submit again, or ask the staff.",
        ),
    ],
    ids=["broken", "killed", "half a file", "no file", "silent"],
)
def test_there_is_a_result_whatever_happens(tmp_path: Path, grader: str, output: str) -> None:
    done = run_autograder(tmp_path, grader)
    assert done.returncode == 0
    results = results_of(tmp_path)
    assert (results["score"], results["output"]) == (0, output)


@bash
def test_a_grader_that_does_not_end_is_stopped(tmp_path: Path) -> None:
    done = run_autograder(tmp_path, "import time; time.sleep(600)", seconds=1)
    assert done.returncode == 0
    assert results_of(tmp_path)["output"] == (
        "The grader ended with code 124, so the score is 0. Tell the staff."
    )


@bash
@pytest.mark.parametrize("name", ["setup.sh", "run_autograder"])
def test_the_scripts_are_well_formed(name: str) -> None:
    script = ROOT / "exercises" / "grade" / "gradescope_files" / name
    done = subprocess.run(["bash", "-n", str(script)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
