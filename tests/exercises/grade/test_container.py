from __future__ import annotations

import shlex
from itertools import pairwise
from pathlib import Path

from exercises.grade.container import build_command, container_command, container_text

ROOT = Path(__file__).resolve().parents[3]


def words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))


def test_the_walls_and_the_mounts(tmp_path: Path) -> None:
    found = words(
        container_command(
            tmp_path / "hand ins",
            tmp_path / "grades",
            rubric=tmp_path / "r.toml",
            options=["--require", "L4"],
        )
    )
    assert found[:2] == ["docker", "run"]
    for wall in ("--rm", "--read-only", "--init"):
        assert wall in found
    pairs = list(pairwise(found))
    for pair in (
        ("--network", "none"),
        ("--cap-drop", "ALL"),
        ("--security-opt", "no-new-privileges"),
        ("--pids-limit", "512"),
        ("--memory", "6g"),
        ("--memory-swap", "6g"),
        ("--user", "$(id -u):$(id -g)"),
    ):
        assert pair in pairs
    assert [value for flag, value in pairs if flag == "--volume"] == [
        f"{ROOT}/minigpt:/library/minigpt:ro",
        f"{ROOT}/diagnostics:/library/diagnostics:ro",
        f"{ROOT}/exercises:/library/exercises:ro",
        f"{ROOT}/data:/library/data:ro",
        f"{tmp_path}/hand ins:/submissions:ro",
        f"{tmp_path}/grades:/grades:rw",
        f"{tmp_path}/r.toml:/rubric:ro",
    ]
    assert found[found.index("minigpt-grader") :] == [
        "minigpt-grader", "python", "-m", "exercises.grade", "/submissions", "--out",
        "/grades/grades.csv", "--rubric", "/rubric", "--require", "L4",
    ]  # fmt: skip


def test_only_the_grades_can_be_written(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    command = container_command(tmp_path, tmp_path / "grades", private=tmp_path, secret=secret)
    writable = [word for word in words(command) if word.endswith(":rw")]
    assert writable == [f"{tmp_path}/grades:/grades:rw"]
    assert words(command)[-4:] == ["--private", "/private", "--secret", "/secret"]


def test_the_text_has_both_commands(tmp_path: Path) -> None:
    rubric = tmp_path / "r.toml"
    text = container_text(tmp_path, tmp_path, rubric=rubric)
    assert build_command() in text
    assert container_command(tmp_path, tmp_path, rubric=rubric) in text
    assert "--rubric /rubric" in text
    assert text.count("\n# ") + text.startswith("# ") == 2
    assert " torch==" in build_command()
