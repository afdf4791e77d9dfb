"""Prove many exercises at once, each in a process of its own."""

from __future__ import annotations

import concurrent.futures
import importlib
import multiprocessing
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch
from tqdm import tqdm

from exercises._exercise import Receipt, prove, require_healthy
from exercises._lab import Lab

Found = TypeVar("Found")


def prove_all(names: list[str], jobs: int) -> list[tuple[str, Receipt]]:
    """Prove every bug of the named exercises, each exercise in one of `jobs` processes."""
    found = run_all(_prove_exercise, names, jobs)
    return [(name, receipt) for name in names for receipt in found[name]]


def run_all(job: Callable[[str], Found], names: list[str], jobs: int) -> dict[str, Found]:
    """Return what a job finds for each name; each runs in one of `jobs` processes.

    Raises HealthyPipelineError, also where the job did not ask for every check.
    """
    found: dict[str, Found] = {}
    context = multiprocessing.get_context("spawn")  # the one that works on every system
    with (
        tempfile.TemporaryDirectory(prefix="exercises-") as folder,
        concurrent.futures.ProcessPoolExecutor(jobs, context, _set_up, (folder,)) as pool,
    ):
        with _interrupts_held():  # the processes inherit it: only this one answers Ctrl-C
            whole = pool.submit(_prove_healthy)
            futures = {pool.submit(job, name): name for name in names}
        done = concurrent.futures.as_completed(futures)
        try:
            # no bar without a terminal
            for future in tqdm(done, total=len(futures), disable=None, leave=False):
                found[futures[future]] = future.result()
            whole.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for process in multiprocessing.active_children():  # Ctrl-C: nobody waits for the rest
                process.terminate()
            raise
    return found


@contextmanager
def laboratory() -> Iterator[Lab]:
    """Yield a laboratory that knows what the healthy pipeline has passed in this process."""
    with Lab() as lab:
        lab.proven = _proven
        yield lab


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Keep Ctrl-C waiting until the block ends; processes started inside never get one."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _set_up(folder: str) -> None:
    torch.set_num_threads(1)  # faster at this size, and the same numbers on every machine
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # for systems where this is not inherited
    tempfile.tempdir = folder  # labs of a process that was ended go away with the folder


# What the healthy pipeline has passed in this process; every laboratory's is the same.
_proven: dict[str, frozenset[str]] = {}


def _prove_healthy() -> None:
    with laboratory() as lab:
        require_healthy(lab)


def _prove_exercise(name: str) -> list[Receipt]:
    exercise = importlib.import_module(f"exercises.{name}").EXERCISE
    with laboratory() as lab:
        return [prove(lab, bug) for bug in exercise.bugs]
