"""The sandbox: starts jobs in processes of their own, as far away as this system allows.

    with Sandbox() as sandbox, sandbox.start(JobSpec(name="check", ...)) as job:
        job.channel.ask(...)

On Linux, jobs are forked from a clean process, see `zygote`, and reach level L3 where the kernel
lets an ordinary user have namespaces, else L2. On other systems with fork they reach L2, on Windows
L1. What is achieved is measured in the job's own process before any of its code runs: a job that
is less shut in than the sandbox says is not run.
"""

from __future__ import annotations

import dataclasses
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import exercises
from exercises.isolation import linux, wire
from exercises.isolation.channel import Channel, PeerGoneError, PeerTimeoutError
from exercises.isolation.limits import JobSpec, Level, Limits

START_SECONDS = 120.0  # loading torch on a slow disk
OUTPUT_SHOWN = 2000  # characters of what a job prints
ANSWERS = Path(exercises.__file__).parent / "contracts"  # covered for students' code
CONTAINER_MARKS = (Path("/.dockerenv"), Path("/run/.containerenv"))


class IsolationError(Exception):
    """The level of isolation that was asked for cannot be had here."""


@dataclasses.dataclass
class Job:
    """One running job: its channel, which is closed with it, and how it ended."""

    channel: Channel
    ended: str = ""  # "killed", "exit 0", "SIGXCPU"; known after the `with` block
    output: str = ""  # the first characters that it printed; known after the `with` block


class Sandbox:
    """A context manager that holds the clean process; one job or several at a time.

    level_max: never go beyond it, for tests and comparisons.
    Raises IsolationError on entering when `require` cannot be reached.
    """

    def __init__(self, *, require: Level = Level.L1, level_max: Level = Level.L4) -> None:
        self.level = Level.L0  # what is achieved, for people
        self._reached = Level.L0  # without a container around it
        self._require = require
        self._level_max = level_max
        self._zygote: _Zygote | _Spawner | None = None
        self._scratch = Path()

    def __enter__(self) -> Sandbox:
        self._scratch = Path(tempfile.mkdtemp(prefix="sandbox-")).resolve()
        try:
            linux.set_dumpable(False)  # a job of the same user must not read this memory
            self._measure()
            if self.level < self._require:
                raise IsolationError(
                    f"isolation {self._require.name} is asked for, this system gives "
                    f"{self.level.name}"
                )
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop_zygote()
        shutil.rmtree(self._scratch, ignore_errors=True)

    @contextmanager
    def start(self, spec: JobSpec) -> Iterator[Job]:
        """Start a job; when the block ends, everything that it has started is killed.

        Raises IsolationError when its process is less shut in than the sandbox's level.
        """
        with self._started(spec, self._reached) as (job, measures):
            if not spec.trusted and self._level_of(measures) < self._reached:
                raise IsolationError(
                    f"a job reached {self._level_of(measures).name} only, not {self._reached.name}"
                )
            yield job

    def _measure(self) -> None:
        """Start an empty job at the highest level, and ask how far it got; else one level less."""
        empty = JobSpec(name="check", arguments=("nothing.py",))
        for level in (Level.L3, Level.L2, Level.L1):
            if level > self._level_max:
                continue
            try:
                with self._started(empty, level) as (_, measures):
                    self._reached = self._level_of(measures)
                break
            except (PeerGoneError, PeerTimeoutError, IsolationError):
                continue
        in_container = any(mark.exists() for mark in CONTAINER_MARKS)
        contained = in_container and self._reached >= Level.L3
        self.level = min(self._level_max, Level.L4 if contained else self._reached)

    def _level_of(self, measures: Mapping[str, bool]) -> Level:
        closed = measures["limits"] and (measures["closed"] or not linux.IS_LINUX)
        level = Level.L2 if closed else Level.L1
        if closed and measures["namespaces"]:
            level = Level.L3
        return min(self._level_max, level)

    @contextmanager
    def _started(self, spec: JobSpec, level: Level) -> Iterator[tuple[Job, Mapping[str, bool]]]:
        if self._zygote is None:
            forks = hasattr(os, "fork") and self._level_max > Level.L1
            self._zygote = (_Zygote if forks else _Spawner)(self._scratch)
        zygote = self._zygote
        scratch = self._scratch / secrets.token_hex(8)
        scratch.mkdir()
        output = self._scratch / f"{scratch.name}.txt"
        deadline = time.monotonic() + spec.limits.wall_seconds
        ours, theirs = socket.socketpair()
        job = Job(Channel(ours, deadline))
        try:
            with theirs, output.open("wb") as file:
                pid = zygote.start(_order(spec, scratch, level), theirs, file)
            gone = False
            try:
                yield job, _measures(job)
            except PeerGoneError:
                gone = True
                raise
            finally:
                job.ended = zygote.end(pid, gone)
        except (PeerGoneError, PeerTimeoutError) as error:
            if not zygote.is_alive():  # the next job gets another one
                self._stop_zygote()
                raise IsolationError("the clean process has ended") from error
            raise
        finally:
            job.channel.close()
            job.output = _beginning_of(output)
            shutil.rmtree(scratch, ignore_errors=True)
            output.unlink(missing_ok=True)

    def _stop_zygote(self) -> None:
        if self._zygote is not None:
            self._zygote.stop()
            self._zygote = None


class _Zygote:
    """The clean process, seen from here."""

    def __init__(self, scratch: Path) -> None:
        self._orders, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                _python(f"from {_HERE}.zygote import main; main({theirs.fileno()})"),
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                cwd=scratch,
                env=_clean_environment(),
                start_new_session=True,
            )
        self._channel = Channel(self._orders)
        self._ask_within(START_SECONDS, "ready")

    def start(self, order: Mapping[str, Any], connection: socket.socket, output: BinaryIO) -> int:
        """Fork a job; return its process id."""
        try:
            socket.send_fds(self._orders, [b"."], [connection.fileno(), output.fileno()])
        except OSError as error:
            raise PeerGoneError("the clean process has ended") from error
        self._channel.deadline = time.monotonic() + START_SECONDS
        self._channel.send(("start", dict(order)))
        return int(self._ask_within(START_SECONDS, "started")[0])

    def end(self, pid: int, gone: bool) -> str:
        """Kill a job and all that it has started; return how it had ended.

        gone: it has closed its channel, so it is about to end by itself.
        """
        try:
            self._orders.sendall(b".")
            self._channel.send(("end", pid, gone))
            return str(self._ask_within(START_SECONDS, "ended")[0])
        except (OSError, PeerGoneError, PeerTimeoutError):
            return "killed"

    def is_alive(self) -> bool:
        """Whether it still runs."""
        return self._process.poll() is None

    def stop(self) -> None:
        """End it, and with it every job."""
        self._channel.close()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=5)
        self._process.kill()
        self._process.wait()

    def _ask_within(self, seconds: float, expected: str) -> tuple[Any, ...]:
        self._channel.deadline = time.monotonic() + seconds
        kind, *rest = self._channel.receive()
        if kind != expected:
            raise wire.WireError(f"the clean process said {kind!r}, wanted {expected!r}")
        return tuple(rest)


class _Spawner:
    """A new process for every job, where forking is not possible or not wanted."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, order: Mapping[str, Any], connection: socket.socket, output: BinaryIO) -> int:
        """Start a process for a job; return its process id."""
        windows = sys.platform == "win32"
        process = subprocess.Popen(
            _python(f"from {_HERE}.spawned import main; main()"),
            pass_fds=() if windows else (connection.fileno(),),
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            cwd=self._scratch,
            env=_clean_environment(),
            start_new_session=not windows,
        )
        if sys.platform == "win32":
            address: Any = list(connection.share(process.pid))
        else:
            address = connection.fileno()
        assert process.stdin is not None
        with suppress(OSError), process.stdin as stdin:  # one that has died shows as such later
            stdin.write(wire.encode({**order, "connection": address}))
        self._processes[process.pid] = process
        return process.pid

    def end(self, pid: int, gone: bool) -> str:
        """Kill a job with its process group; return how it had ended."""
        process = self._processes.pop(pid)
        if gone:
            with suppress(subprocess.TimeoutExpired):
                process.wait(timeout=2)
        code = process.poll()
        if sys.platform == "win32":
            subprocess.run(["taskkill", "/F", "/T", "/PID", str(pid)], capture_output=True)
        else:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        process.kill()
        process.wait()
        if code is None:
            return "killed"
        return f"exit {code}" if code >= 0 else signal.Signals(-code).name

    def is_alive(self) -> bool:
        """Whether jobs can be started: there is nothing that could have ended."""
        return True

    def stop(self) -> None:
        """End every job."""
        for pid in list(self._processes):
            self.end(pid, gone=False)


_HERE = "exercises.isolation"


def _python(code: str) -> list[str]:
    """Return the command for Python with some code and this library.

    -I: no variable, folder or file of the user's decides what is imported. This library comes
    behind Python's own modules, and before any other copy of it that is installed.
    """
    root = str(Path(exercises.__file__).parents[1])
    place = "next((i for i, p in enumerate(sys.path) if '-packages' in p), len(sys.path))"
    return [sys.executable, "-I", "-c", f"import sys; sys.path.insert({place}, {root!r}); {code}"]


def _order(spec: JobSpec, scratch: Path, level: Level) -> dict[str, Any]:
    return {
        "name": spec.name,
        "arguments": tuple(spec.arguments),
        "seed": spec.seed,
        "folder": str(spec.folder) if spec.folder is not None else None,
        "scratch": str(scratch),
        "hidden": [str(path) for path in (*spec.hidden, ANSWERS)],
        "limits": dataclasses.asdict(spec.limits),
        "namespaces": level >= Level.L3 and linux.IS_LINUX and not spec.trusted,
    }


def _measures(job: Job) -> Mapping[str, bool]:
    kind, measures = job.channel.receive()
    if kind != "ready":
        raise wire.WireError("a job did not begin with what it measured of its isolation")
    return measures


def _beginning_of(path: Path) -> str:
    with suppress(OSError), path.open("rb") as file:
        return file.read(4 * OUTPUT_SHOWN).decode(errors="replace")[:OUTPUT_SHOWN]
    return ""


def _clean_environment() -> dict[str, str]:
    """Return what a process needs to start; nothing that changes how Python or torch behave."""
    kept = ("PATH", "SYSTEMROOT", "TMPDIR", "TEMP", "LD_LIBRARY_PATH")
    return {name: os.environ[name] for name in kept if name in os.environ} | {
        "OMP_NUM_THREADS": "1",
        "PYTHONHASHSEED": "0",
        "LC_ALL": "C.UTF-8",
    }


__all__ = ["IsolationError", "Job", "JobSpec", "Level", "Limits", "Sandbox"]
