"""The clean process that every job is forked from: it has loaded torch and holds no secret.

It is started once, with nothing but a socket; a job that is forked from it costs some hundredths
of a second instead of the seconds that loading torch takes. It never runs a job's code itself, and
it is the parent of whatever a job leaves behind, so that nothing outlives a job.

Orders on the socket: ("start", spec) with two file descriptors, answered ("started", pid);
("end", pid, whether it has closed its channel), answered ("ended", how). A closed socket ends it.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from exercises.isolation import linux, new_root
from exercises.isolation.channel import Channel, PeerGoneError

SIGNALLED = 100  # exit code of the outer process of a job: this plus the number of the signal
FAILED_TO_START = 99
LAST_SECONDS = 2.0


def main(descriptor: int) -> None:
    """Serve orders from the socket with that descriptor until it closes."""
    import torch

    torch.set_num_threads(1)  # a fork keeps no threads, so there must be none to lose
    from exercises.isolation import jobs

    jobs.load_everything()
    gc.collect()
    gc.freeze()  # collecting in a job would copy every page of what is loaded
    linux.set_dumpable(False)
    linux.adopt_orphans()
    orders = socket.socket(fileno=descriptor)
    running: set[int] = set()
    with suppress(PeerGoneError, EOFError, OSError):  # whoever gave the orders has ended
        _serve(orders, Channel(orders), running)
    for pid in running:
        _end(pid, set())


def _serve(orders: socket.socket, channel: Channel, running: set[int]) -> None:
    channel.send(("ready",))
    while True:
        descriptors = _received_descriptors(orders)
        order = channel.receive()
        if order[0] == "start":
            pid = _fork_job(order[1], descriptors, orders)
            running.add(pid)
            channel.send(("started", pid))
        else:
            running.discard(order[1])
            channel.send(("ended", _end(order[1], running, spoke_last=order[2])))


def _received_descriptors(orders: socket.socket) -> list[int]:
    """Each order comes behind one byte, with which descriptors may travel."""
    first, descriptors, _, _ = socket.recv_fds(orders, 1, 2)
    if not first:
        raise EOFError
    return descriptors


def _fork_job(spec: Mapping[str, Any], descriptors: list[int], orders: socket.socket) -> int:
    pid = os.fork()
    if pid:
        for descriptor in descriptors:
            os.close(descriptor)
        return pid
    try:
        orders.close()
        _become_job(spec, *descriptors)
    except BaseException:
        os._exit(FAILED_TO_START)
    os._exit(0)


def _end(pid: int, others: set[int], *, spoke_last: bool = False) -> str:
    """Kill a job and everything it has started; return how it had ended by itself, or "killed".

    spoke_last: its channel is closed, so it is about to end, and is given a moment for it.
    """
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
        end = time.monotonic() + (LAST_SECONDS if spoke_last else 0.0)
        while not done and time.monotonic() < end:
            time.sleep(0.002)
            done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:  # it was ended together with another one
        return "killed"
    if not done:
        for kill in (os.killpg, os.kill):
            with suppress(ProcessLookupError, PermissionError):
                kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    while orphans := set(linux.children_of(os.getpid())) - others:
        for orphan in orphans:
            with suppress(ProcessLookupError):
                os.kill(orphan, signal.SIGKILL)
        for orphan in orphans:
            with suppress(ChildProcessError):
                os.waitpid(orphan, 0)
    return _how(status) if done else "killed"


def _how(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    number = -code if code < 0 else code - SIGNALLED
    if number > 0:
        with suppress(ValueError):
            return signal.Signals(number).name
    return f"exit {code}"


# ---- in the job's process --------------------------------------------------------------------


def _become_job(spec: Mapping[str, Any], connection: int, output: int) -> None:
    """Shut this process in as far as the system allows, then run the job."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL)
    connection, output = _keep_only(connection, output)
    measures = {"limits": False, "closed": False, "namespaces": False}
    if spec["namespaces"]:
        linux.set_dumpable(True)  # or the maps of the user namespace cannot be written
        linux.die_first()
        measures["namespaces"] = linux.enter_namespaces()
        _continue_in_child(spec["limits"]["cpu_seconds"])
        linux.die_with_parent()
    space = linux.address_space_bytes()  # asked here: the job may have no /proc
    scratch = Path(spec["scratch"])
    given = Path(spec["folder"]) if spec["folder"] else None
    if measures["namespaces"]:
        entered = new_root.enter(scratch, given, spec["limits"]["file_bytes"])
        covered = [linux.cover(Path(path)) for path in spec["hidden"]]
        measures["namespaces"] = entered and all(covered)
        work = new_root.JOB / "work"
    else:
        work = scratch / "work"
        fill(work, given)
    # without them not even root may look into a process that is not dumpable
    measures["closed"] = linux.drop_capabilities() and linux.gain_no_privileges()
    start_afresh(work, spec["seed"])
    measures["limits"] = _set_limits(spec["limits"], space, measures["namespaces"])

    from exercises.isolation import jobs

    jobs.run(spec["name"], spec["arguments"], Channel(socket.socket(fileno=connection)), measures)


def _keep_only(connection: int, output: int) -> tuple[int, int]:
    """Point the standard streams away, and close every other descriptor."""
    connection, output = os.dup(connection), os.dup(output)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(connection, 3, inheritable=False)
    os.closerange(4, 65536)
    return 3, 1


def _continue_in_child(cpu_seconds: int) -> None:
    """Fork once more, into the new process namespace; this process only waits and reports.

    The first process of a namespace gets no signal before the last one, which kills: whether that
    was for the processor time, the time tells.
    """
    pid = os.fork()
    if not pid:
        return
    os.close(3)
    _, status, used = os.wait4(pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code == -signal.SIGKILL and used.ru_utime + used.ru_stime >= cpu_seconds:
        code = -signal.SIGXCPU
    os._exit(code if code >= 0 else SIGNALLED - code)


def fill(work: Path, given: Path | None) -> None:
    """Make the folder that a job works in, with the files that it is given."""
    if given is None:
        work.mkdir()
    else:
        shutil.copytree(given, work, symlinks=True)


def start_afresh(work: Path, seed: int) -> None:
    """Give the job its folder, an empty environment and its own random numbers."""
    import numpy
    import torch

    os.chdir(work)
    os.environ.clear()
    os.environ.update(HOME=str(work), TMPDIR=str(work), PATH=os.defpath, LC_ALL="C.UTF-8")
    tempfile.tempdir = None
    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    torch.manual_seed(seed)
    sys.dont_write_bytecode = True
    sys.pycache_prefix = str(work / ".none")  # no compiled file beside the student's is looked at


def _set_limits(limits: Mapping[str, Any], space: int, own_users: bool) -> bool:
    """Set what the process may use; space: the address space that it takes already."""
    try:
        import resource
    except ImportError:  # Windows
        return False
    wanted = {
        "RLIMIT_CPU": (limits["cpu_seconds"], limits["cpu_seconds"] + 1),
        "RLIMIT_FSIZE": (limits["file_bytes"],) * 2,
        "RLIMIT_NOFILE": (limits["open_files"],) * 2,
        "RLIMIT_CORE": (0, 0),
    }
    if space:
        wanted["RLIMIT_AS"] = (space + limits["memory_bytes"],) * 2
    if own_users:  # elsewhere all processes of the user are counted
        wanted["RLIMIT_NPROC"] = (limits["processes"],) * 2
    try:
        for name, values in wanted.items():
            resource.setrlimit(getattr(resource, name), values)
    except (OSError, ValueError):
        return False
    return True
