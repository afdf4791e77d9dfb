"""The container line: full isolation with one command, for whoever has Docker or Podman.

Inside, nothing can reach the network, write outside /tmp and the folder of the grades, gain
rights, or take more memory, processes and processors than are given here.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from exercises.grade.autograder import PACKAGES, library_root, pinned_requirements

IMAGE = "minigpt-grader"
BASE_IMAGE = "python:3.12-slim"
WALLS = (
    "--network none",
    "--read-only",
    "--tmpfs /tmp:rw,nosuid,nodev,size=1g",
    "--cap-drop ALL",
    "--security-opt no-new-privileges",
    "--pids-limit 512",
    "--memory 6g",
    "--memory-swap 6g",  # the same number: no swap
    "--cpus 2",
    "--init",  # collects processes that lost their parent
    "--env PYTHONPATH=/library",
    "--env PYTHONDONTWRITEBYTECODE=1",
    "--env HOME=/tmp",
)


def build_command(torch_index: str | None = None) -> str:
    """Return the command that builds the image, once; it needs the network.

    torch_index: where pip finds torch without CUDA, a tenth of the size.
    """
    index = "" if torch_index is None else f"--extra-index-url {shlex.quote(torch_index)} "
    packages = index + " ".join(pinned_requirements())
    return (
        f"docker build --tag {IMAGE} - <<'END'\n"
        f"FROM {BASE_IMAGE}\n"
        f"RUN pip install --no-cache-dir {packages}\n"
        "END"
    )


def container_command(
    submissions: Path,
    grades: Path,
    *,
    rubric: Path | None = None,
    private: Path | None = None,
    secret: Path | None = None,
    options: Sequence[str] = (),
) -> str:
    """Return the command that grades in a container, for a POSIX shell.

    grades: an existing folder; grades.csv and the feedback are written into it.
    options: more flags of `python -m exercises.grade`.
    """
    given = {"--rubric": rubric, "--private": private, "--secret": secret}
    inputs = {flag: path for flag, path in given.items() if path is not None}
    mounts = [
        *_library_mounts(),
        _mount(submissions, "/submissions"),
        _mount(grades, "/grades", "rw"),
        *(_mount(path, f"/{flag[2:]}") for flag, path in inputs.items()),
    ]
    flags = [f"{flag} /{flag[2:]}" for flag in inputs]
    flags += [shlex.quote(option) for option in options]
    command = "python -m exercises.grade /submissions --out /grades/grades.csv"
    lines = ["docker run --rm", _user(), *WALLS, *mounts, IMAGE, " ".join([command, *flags])]
    return " \\\n    ".join(lines)


def container_text(
    submissions: Path,
    grades: Path,
    torch_index: str | None = None,
    *,
    rubric: Path | None = None,
    private: Path | None = None,
    secret: Path | None = None,
) -> str:
    """Return both commands with a line about each, to be shown by `--container`."""
    command = container_command(submissions, grades, rubric=rubric, private=private, secret=secret)
    return (
        "# once, with the network: an image with Python and torch\n"
        f"{build_command(torch_index)}\n\n"
        "# then, without it: grade, writing into the folder of the grades only\n"
        f"{command}\n"
    )


def _user() -> str:
    """Return the flag that makes the files in `grades` belong to whoever runs the command."""
    return '--user "$(id -u):$(id -g)"'


def _library_mounts() -> Iterator[str]:
    root = library_root()
    for name in (*PACKAGES, "data"):
        if (root / name).is_dir():
            yield _mount(root / name, f"/library/{name}")


def _mount(path: Path, inside: str, mode: str = "ro") -> str:
    return f"--volume {shlex.quote(f'{path.absolute()}:{inside}:{mode}')}"
