"""Judging for practice: the student's file runs in processes of its own, with a time limit."""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from exercises.contracts._contract import Contract
from exercises.isolation.judge import (
    CheckJudgement,
    FixJudgement,
    Judging,
    judge_check,
    judge_fix,
)
from exercises.isolation.sandbox import IsolationError, Sandbox
from minigpt._cli import CommandError

SEEDS = 3  # of each implementation; grading uses others


class Judge:
    """Judges files of one student, as often as they are saved."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def fix(self, contract: Contract, path: Path) -> FixJudgement:
        """Examine the `implementation` of a file with the contract's own check."""
        with _alone(path) as file:
            return judge_fix(self._judging(path), contract, file)

    def check(
        self, contract: Contract, path: Path, progress: Callable[[], object] = lambda: None
    ) -> CheckJudgement:
        """Run the `check` of a file on the right and on the public wrong implementations."""
        with _alone(path) as file:
            return judge_check(
                self._judging(path), contract, file, held_out=False, progress=progress
            )

    def _judging(self, path: Path) -> Judging:
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        return Judging(sandbox=self._sandbox, submission=digest, seeds=SEEDS)


@contextmanager
def practice() -> Iterator[Judge]:
    """Yield a judge; its processes end with the block.

    Raises CommandError where this system gives a student's code no process of its own.
    """
    try:
        with Sandbox() as sandbox:
            yield Judge(sandbox)
    except IsolationError as error:
        raise CommandError(f"the file was not judged: {error}") from error


@contextmanager
def _alone(path: Path) -> Iterator[Path]:
    """Yield a copy in a folder of its own, with the modules beside it that it may import.

    A job gets a copy of the whole folder of its file, and a student's may hold anything.
    """
    with tempfile.TemporaryDirectory(prefix="exercises-") as folder:
        for each in {path, *path.parent.glob("*.py")}:
            if each.is_file():
                shutil.copyfile(each, Path(folder) / each.name)
        yield Path(folder).resolve() / path.name
