"""Processes that form a group: the job that this one is part of, or workers that are forked here.

Every rank does the same. What may raise there runs inside `Group.meet`: after it every rank holds
what each of them found, or every rank knows who failed. A rank that waits for one that has stopped
waits for PATIENCE seconds and no longer; forked workers are ended in any case.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import socket
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import torch
import torch.distributed as dist

from diagnostics._steady import steady
from diagnostics._trace import user_frame

PATIENCE = 20.0  # seconds that a rank waits for another one inside the user's code
LIMIT = 120.0  # seconds for all that forked workers do
GRACE = 0.5  # seconds in which other ranks may say that they failed as well
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>: the signal to get when the process that forked ends
ENDED = "its process ended in the middle"
ECHOES = ("Timed out waiting", "onnection closed by peer", "onnection reset", "roken pipe")

Found = TypeVar("Found")


@dataclass(frozen=True)
class Failure:
    """What ended the work of one rank.

    frame: the user's line.    is_echo: another rank did not come, so the cause is elsewhere.
    """

    rank: int
    kind: str
    message: str
    frame: str = ""
    is_echo: bool = False


class RanksFailedError(Exception):
    """The work failed on at least one rank; `failures` is ordered by rank, echoes come last."""

    def __init__(self, failures: list[Failure]) -> None:
        self.failures = sorted(failures, key=lambda failure: (failure.is_echo, failure.rank))
        super().__init__(f"rank {self.failures[0].rank}: {self.failures[0].message}")


class NoWorkersError(Exception):
    """No group of processes can be started from here; the message says why."""


@dataclass(frozen=True)
class Group:
    """One rank's view of the processes. own: a gloo group that the user's code does not know."""

    rank: int
    size: int
    own: Any
    report: Callable[[Failure], None]  # called at once, before the others are met

    def meet(self, work: Callable[[], Found]) -> list[Found]:
        """Run `work` on this rank; return what it gave on every rank, in order of ranks.

        Raises RanksFailedError on every rank when it raised on one.
        """
        mine: tuple[Found | None, Failure | None]
        try:
            mine = (work(), None)
        except Exception as error:  # any: the user's code runs inside
            failure = _failure(self.rank, error)
            self.report(failure)
            mine = (None, failure)
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, mine, group=self.own)
        failures = [failure for _, failure in everyone if failure is not None]
        if failures:
            raise RanksFailedError(failures)
        return [found for found, _ in everyone]


def in_a_job() -> bool:
    """Whether this process is a rank of a job that has initialised torch.distributed."""
    return dist.is_available() and dist.is_initialized()


# ---- the user's own job ------------------------------------------------------------------------


@contextmanager
def joined() -> Iterator[Group]:
    """Yield this rank's view of its job; every rank has to enter. The job's group stays as it is.

    Meanwhile a rank waits for another one no longer than PATIENCE, where the backend allows it.
    """
    own = dist.new_group(backend="gloo", timeout=timedelta(seconds=3 * PATIENCE))
    try:
        with _impatient():
            yield Group(dist.get_rank(), dist.get_world_size(), own, lambda failure: None)
    finally:
        dist.destroy_process_group(own)


@contextmanager
def _impatient() -> Iterator[None]:
    """Shorten the time-out of the job's group; torch has no public way to do so."""
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    set_timeout = getattr(dist.distributed_c10d, "_set_pg_timeout", None)
    before = None
    with contextlib.suppress(Exception):  # any: without it a rank waits as long as the job says
        backend = dist.distributed_c10d._get_default_group()._get_backend(torch.device(device))
        before = backend.options._timeout
    if before is None or set_timeout is None:
        yield
        return
    set_timeout(timedelta(seconds=PATIENCE))
    try:
        yield
    finally:
        set_timeout(before)


# ---- workers -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Worker:
    rank: int
    pid: int
    reader: multiprocessing.connection.Connection


def in_workers(work: Callable[[Group], Found], size: int, *, limit: float = LIMIT) -> Found:
    """Run `work(group)` in `size` forked processes; return what it gave on rank 0.

    A fork has all objects at hand, so that nothing of the user's has to be pickled. The workers
    are joined over the loopback interface, print nothing, and are gone when this returns.
    Raises NoWorkersError where none can be started, RanksFailedError when the work failed.
    """
    _require_fork()
    workers: list[_Worker] = []
    with _folder() as folder:
        try:
            for rank in range(size):
                workers.append(_fork(work, rank, size, Path(folder), limit))
            found: Found = _wait(workers, limit)
            return found
        finally:
            for worker in workers:
                _end(worker)


def _folder() -> tempfile.TemporaryDirectory[str]:
    try:
        return tempfile.TemporaryDirectory(prefix="ranks-")
    except OSError as error:
        raise NoWorkersError(f"no temporary folder can be made: {error.strerror}") from error


def _require_fork() -> None:
    if not (dist.is_available() and dist.is_gloo_available()):
        raise NoWorkersError("this torch has no gloo backend")
    if sys.platform != "linux":  # macOS: its system libraries do not survive a fork
        raise NoWorkersError("processes can be forked safely on Linux only")
    if torch.cuda.is_initialized():
        raise NoWorkersError("CUDA is in use in this process and does not survive a fork")


def _fork(
    work: Callable[[Group], Any], rank: int, size: int, folder: Path, limit: float
) -> _Worker:
    reader, writer = multiprocessing.Pipe(duplex=False)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other threads: what they hold is not used there
            pid = os.fork()
    except OSError as error:
        raise NoWorkersError(f"no process can be started: {error.strerror}") from error
    if pid == 0:
        _serve(work, rank, size, folder, limit, writer)
    with contextlib.suppress(OSError):
        os.setpgid(pid, pid)  # here and there, whoever comes first
    writer.close()
    return _Worker(rank, pid, reader)


def _serve(
    work: Callable[[Group], Any],
    rank: int,
    size: int,
    folder: Path,
    limit: float,
    writer: multiprocessing.connection.Connection,
) -> NoReturn:
    """Be a worker; never return into the code of the process that was forked."""

    def send(kind: str, value: Any) -> None:
        writer.send_bytes(pickle.dumps((kind, value)))

    try:
        _settle(rank, size, limit, writer.fileno())
        try:
            patience = timedelta(seconds=PATIENCE)
            dist.init_process_group(
                "gloo",
                init_method=f"file://{folder / 'store'}",
                rank=rank,
                world_size=size,
                timeout=patience,
            )
            own = dist.new_group(timeout=3 * patience)
        except Exception as error:  # any: no loopback interface, no network at all
            send("no group", str(error).split("\n")[0][:200])
            os._exit(0)
        found = work(Group(rank, size, own, lambda failure: send("failed", failure)))
        send("done", found if rank == 0 else None)
    except RanksFailedError:
        with contextlib.suppress(Exception):
            send("over", None)  # each rank has reported its own
    except BaseException as error:
        with contextlib.suppress(Exception):
            send("failed", _failure(rank, error))
    finally:
        os._exit(0)


def _settle(rank: int, size: int, limit: float, kept: int) -> None:
    """Make a forked process a quiet one of its own, which ends by itself if all else fails.

    kept: the file number of the way back, which is below 3 where standard streams were closed.
    """
    os.setpgid(0, 0)
    with contextlib.suppress(AttributeError, OSError):  # no prctl: the alarm ends it, later
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()  # what was garbage at the fork is cleared away by the other process alone
    for asked in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(asked, signal.SIG_DFL)
    signal.alarm(round(limit) + 10)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for number in {0, 1, 2} - {kept}:
        os.dup2(nowhere, number)
    sys.stdout = sys.stderr = Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    torch.set_num_threads(1)  # a pool of threads is not forked along
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    os.environ.update({name: str(number) for name, number in numbers.items()})  # as torchrun does
    with contextlib.suppress(OSError):  # a sandbox may refuse to list them
        loopback = [name for _, name in socket.if_nameindex() if name in ("lo", "lo0")]
        if loopback:
            os.environ["GLOO_SOCKET_IFNAME"] = loopback[0]


def _wait(workers: list[_Worker], limit: float) -> Any:
    """Return rank 0's result; the first failure of its own, or the end of the time, ends all."""
    waiting = {worker.reader: worker for worker in workers}
    failures: list[Failure] = []
    until = time.monotonic() + limit
    found: list[Any] = []
    while waiting:
        ready = multiprocessing.connection.wait(list(waiting), max(0.0, until - time.monotonic()))
        if not ready:
            break
        for reader in ready:
            assert isinstance(reader, multiprocessing.connection.Connection)
            worker = waiting.pop(reader)
            kind, value = _receive(worker)
            if kind == "no group":
                raise NoWorkersError(f"a group could not be formed: {value}")
            if kind == "failed":
                failures.append(value)
                until = min(until, time.monotonic() + (4 * GRACE if value.is_echo else GRACE))
            elif kind == "done" and worker.rank == 0:
                found = [value]
    if failures:
        raise RanksFailedError(failures)
    if not found or waiting:
        late = ", ".join(str(worker.rank) for worker in waiting.values())
        message = f"no end after {limit:g} seconds on rank {late}"
        raise RanksFailedError([Failure(0, "", message, is_echo=True)])
    return found[0]


def _receive(worker: _Worker) -> tuple[str, Any]:
    try:
        kind, value = pickle.loads(worker.reader.recv_bytes())  # noqa: S301 - of our own fork
    except EOFError:
        return "failed", Failure(worker.rank, "", ENDED)
    return str(kind), value


def _end(worker: _Worker) -> None:
    """Kill a worker with all that it has started, and reap it."""
    with contextlib.suppress(OSError):
        os.killpg(worker.pid, signal.SIGKILL)
    with contextlib.suppress(OSError):
        os.kill(worker.pid, signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(worker.pid, 0)
    worker.reader.close()


def _failure(rank: int, error: BaseException) -> Failure:
    text = str(error).strip()
    return Failure(
        rank,
        type(error).__name__,
        steady(text.split("\n")[0])[:300],
        user_frame(error) or "",
        any(words in text for words in ECHOES),
    )
