"""Grading a class: several processes, each with a sandbox of its own, and a state that survives.

What has been graded is kept in the state folder, one file per submission, under a digest of
everything that the grade depends on. A run that was killed goes on where it stopped; a submission
that has changed since is graded again.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from exercises.grade._grading import Settings, grade_source, ungraded
from exercises.grade._notes import note
from exercises.grade._results import StudentGrade
from exercises.grade.own_report import ReportError, read_report, write_report
from exercises.grade.submissions import Source
from exercises.isolation import linux
from exercises.isolation.sandbox import IsolationError, Sandbox
from minigpt._cli import CommandError

ATTEMPTS = 2  # a submission on which a grading process ends is tried once more
SECRET_BYTES = 32


@dataclass(frozen=True)
class Graded:
    """One finished submission; before: an earlier run had graded it."""

    source: Source
    grade: StudentGrade
    before: bool = False


class State:
    """The folder in which a run keeps what it has done, and the secret that seeds are made from."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._students = folder / "students"
        self._students.mkdir(parents=True, exist_ok=True)
        for path in (folder, self._students):
            path.chmod(0o700)

    def secret(self) -> bytes:
        """Return the secret of this folder; make one the first time."""
        path = self.folder / "secret"
        if not path.exists():
            temporary = path.with_suffix(f".{os.getpid()}")
            temporary.write_bytes(secrets.token_bytes(SECRET_BYTES))
            temporary.chmod(0o600)
            temporary.replace(path)
        return path.read_bytes()

    def read(self, key: str) -> StudentGrade | None:
        """Return what was kept under a key; None for nothing, or for a damaged file."""
        try:
            grades = read_report((self._students / f"{key}.json").read_bytes())
        except (OSError, ReportError):
            return None
        return grades[0] if len(grades) == 1 else None

    def keep(self, key: str, grade: StudentGrade) -> None:
        """Keep a grade, in one piece."""
        write_report(self._students / f"{key}.json", [grade])


def grade_class(
    sources: Sequence[Source],
    settings: Settings,
    state: State,
    *,
    jobs: int,
    created_at: datetime | None = None,
) -> Iterator[Graded]:
    """Grade every submission in one of `jobs` processes; yield each one when it is done.

    Raises CommandError where the isolation that is asked for cannot be had.
    """
    waiting: queue.Queue[Source] = queue.Queue()
    for source in sources:
        waiting.put(source)
    done: queue.Queue[Graded | BaseException] = queue.Queue()
    workers = [_Worker(settings, state, created_at) for _ in range(min(jobs, len(sources)))]
    try:
        for worker in workers:
            threading.Thread(target=_supervise, args=(worker, waiting, done), daemon=True).start()
        for _ in sources:
            result = done.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        for worker in workers:
            worker.stop()


def _supervise(
    worker: _Worker, waiting: queue.Queue[Source], done: queue.Queue[Graded | BaseException]
) -> None:
    """Hand submissions to one grading process, and start it again when it has ended."""
    while not worker.stopped:
        try:
            source = waiting.get_nowait()
        except queue.Empty:
            return
        try:
            done.put(worker.grade(source))
        except BaseException as error:
            done.put(error)
            return


class _Worker:
    """One grading process, seen from here."""

    def __init__(self, settings: Settings, state: State, created_at: datetime | None) -> None:
        self._settings, self._state, self._created_at = settings, state, created_at
        self._process: Any = None
        self._connection: Connection[Any, Any] | None = None
        self._starting = threading.Lock()  # none is started behind the back of stop()
        self.stopped = False

    def grade(self, source: Source) -> Graded:
        """Grade one submission, in a new process if the last one has ended."""
        for _ in range(ATTEMPTS):
            try:
                with self._starting:
                    connection = self._connected()
                connection.send(source)
                answer = connection.recv()
            except (EOFError, OSError):
                self._end()
                if self.stopped:
                    break
                continue
            if isinstance(answer, str):
                raise CommandError(answer)
            return Graded(source, *answer)
        why = note(
            "grader.ended",
            "the grading process itself ended {count:time|times} on this submission; "
            "an instructor has to look at it",
            count=ATTEMPTS,
        )
        return Graded(source, ungraded(source, self._settings, why))

    def stop(self) -> None:
        """End the process and what it has started; no other one is started after it."""
        with self._starting:
            self.stopped = True
        self._end()

    def _connected(self) -> Connection[Any, Any]:
        if self.stopped:
            raise EOFError
        if self._connection is None:
            context = multiprocessing.get_context("spawn")
            ours, theirs = context.Pipe()
            self._process = context.Process(
                target=_work, args=(theirs, self._settings, self._state.folder, self._created_at)
            )
            self._process.start()
            theirs.close()
            self._connection = ours
        return self._connection

    def _end(self) -> None:
        """Close the connection, at which the process ends by itself; kill it if it does not."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        if self._process is not None:
            self._process.join(timeout=1)
            self._process.kill()
            self._process.join()


def _work(
    connection: Connection[Any, Any], settings: Settings, folder: Path, created_at: datetime | None
) -> None:
    """Grade what comes, until nothing comes any more; runs in a process of its own."""
    import signal

    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that started this one answers it
    linux.set_dumpable(False)
    torch.set_num_threads(1)
    state = State(folder)
    try:
        with Sandbox(require=settings.require) as sandbox, suppress(EOFError, BrokenPipeError):
            while True:
                _grade_next(connection, settings, state, sandbox, created_at)
    except IsolationError as error:
        with suppress(OSError, EOFError):
            connection.recv()
            connection.send(str(error))


def _grade_next(
    connection: Connection[Any, Any],
    settings: Settings,
    state: State,
    sandbox: Sandbox,
    created_at: datetime | None,
) -> None:
    source = connection.recv()
    found: list[StudentGrade] = []

    def graded_before(key: str) -> StudentGrade | None:
        grade = state.read(key)
        found.extend([grade] if grade is not None else [])
        return grade

    try:
        key, grade = grade_source(
            source, settings, sandbox, created_at=created_at, graded_before=graded_before
        )
    except IsolationError:  # below L3 a submission can end the clean process: its own loss only
        sys.exit(1)
    if not found:
        state.keep(key, grade)
    connection.send((grade, bool(found)))
