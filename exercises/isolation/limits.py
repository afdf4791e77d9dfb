"""Levels of isolation, and what one job may use."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

MIB = 1024 * 1024


class Level(IntEnum):
    """How far code is kept away from whoever runs it; each one includes those before it."""

    L0 = 0  # in this process: practice only
    L1 = 1  # a process of its own, with a time limit for its whole process group
    L2 = 2  # and limits on what it may use, and no way into the process that started it
    L3 = 3  # and no network, no sight of other processes, files that cannot be written
    L4 = 4  # L3 with a container around it


MEANING = {
    Level.L0: "in the same process; for practice only",
    Level.L1: "a process of its own, killed with its group when its time is up",
    Level.L2: "L1, limits on memory, CPU and files, no access to the grader's memory",
    Level.L3: "L2, no network, no other process or file in sight, nothing to write but its own",
    Level.L4: "L3 inside a container",
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one process of a job may use; more than that ends it.

    cpu_seconds: of processor time.    wall_seconds: of the clock, also when it only sleeps.
    memory_bytes: beyond what Python and torch take by themselves.    file_bytes: of one file, and
    of all files together where the job has a disk of its own.    processes: at the same time.
    """

    cpu_seconds: int = 10
    wall_seconds: float = 30.0
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 32 * MIB
    open_files: int = 64
    processes: int = 8


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """One job: which function of `jobs` runs, on what, and what it must not see.

    name: a key of `jobs.JOBS`.    folder: the student's files; the job starts in a copy of it.
    arguments: plain data for the job.    seed: of every random generator.
    hidden: paths that are covered up where the level allows it.    trusted: it runs code of ours
    or an instructor's, which needs limits and a process of its own, but no walls.
    """

    name: str
    folder: Path | None = None
    arguments: tuple[object, ...] = ()
    seed: int = 0
    limits: Limits = Limits()
    hidden: tuple[Path, ...] = ()
    trusted: bool = False
