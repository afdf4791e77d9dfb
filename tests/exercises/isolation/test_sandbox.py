"""The sandbox: what is achieved is measured, not promised."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from exercises.isolation import linux
from exercises.isolation.channel import PeerGoneError, PeerTimeoutError
from exercises.isolation.limits import MEANING, MIB, JobSpec, Level, Limits
from exercises.isolation.sandbox import IsolationError, Sandbox

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="jobs are forked")

SERVED = JobSpec(name="implementation", arguments=("range", "list", None), trusted=True)


def job_of(folder: Path, code: str, **limits: float) -> JobSpec:
    """Return the job of a check with this body, which is given an implementation."""
    (folder / "check_shift.py").write_text(f"def check(implementation):\n{code}", encoding="utf-8")
    return JobSpec(
        name="check",
        folder=folder,
        arguments=("check_shift.py",),
        limits=Limits(**limits),  # type: ignore[arg-type]
    )


def verdict(sandbox: Sandbox, spec: JobSpec) -> tuple[object, ...]:
    with sandbox.start(spec) as job:
        return tuple(job.channel.receive())


def test_levels_have_a_meaning_each() -> None:
    assert list(MEANING) == list(Level)


def test_what_cannot_be_had_is_refused() -> None:
    with pytest.raises(IsolationError, match="L4 is asked for, this system gives L2"):
        Sandbox(require=Level.L4, level_max=Level.L2).__enter__()


@pytest.mark.skipif(not linux.IS_LINUX, reason="limits and closed memory are Linux's")
def test_linux_gives_at_least_l2(sandbox: Sandbox) -> None:
    assert sandbox.level >= Level.L2


def test_a_job_starts_in_a_copy_of_its_folder(sandbox: Sandbox, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("read me", encoding="utf-8")
    spec = job_of(
        tmp_path,
        "    assert open('notes.txt').read() == 'read me'\n"
        "    open('notes.txt', 'w').write('changed')\n",
    )
    assert verdict(sandbox, spec) == ("accepted", "", "", None)
    assert (tmp_path / "notes.txt").read_text(encoding="utf-8") == "read me"


def test_jobs_are_seeded(sandbox: Sandbox, tmp_path: Path) -> None:
    code = (
        "    import random, numpy, torch\n"
        "    assert False, (random.random(), numpy.random.rand(), torch.rand(1).item())\n"
    )
    spec = job_of(tmp_path, code)
    first, second = (verdict(sandbox, spec) for _ in range(2))
    assert first == second
    assert first[0] == "rejected"


def test_what_a_job_prints_is_kept_in_part(sandbox: Sandbox, tmp_path: Path) -> None:
    spec = job_of(tmp_path, "    print('hello'); print('x' * 10_000)\n")
    with sandbox.start(spec) as job:
        job.channel.receive()
    assert job.output.startswith("hello\nxxx")
    assert len(job.output) == 2000


def test_limits_end_a_job(sandbox: Sandbox, tmp_path: Path) -> None:
    sleeping = job_of(tmp_path, "    import time; time.sleep(1000)\n", wall_seconds=1.0)
    with pytest.raises(PeerTimeoutError):
        verdict(sandbox, sleeping)
    computing = job_of(tmp_path, "    while True: pass\n", cpu_seconds=1)
    with pytest.raises(PeerGoneError), sandbox.start(computing) as job:
        job.channel.receive()
    assert job.ended in ("SIGXCPU", "SIGKILL", "killed")
    hungry = job_of(tmp_path, "    x = bytearray(300_000_000)\n", memory_bytes=200 * MIB)
    assert verdict(sandbox, hungry)[:2] == ("rejected", "MemoryError")


def test_several_jobs_at_a_time(sandbox: Sandbox) -> None:
    with sandbox.start(SERVED) as first, sandbox.start(SERVED) as second:
        assert first.channel.receive() == second.channel.receive() == ("loaded",)


def test_a_clean_process_that_is_killed_is_replaced(tmp_path: Path) -> None:
    spec = job_of(tmp_path, "    pass\n")
    with Sandbox() as sandbox:
        assert verdict(sandbox, spec)[0] == "accepted"
        assert sandbox._zygote is not None
        os.kill(sandbox._zygote._process.pid, signal.SIGKILL)  # type: ignore[union-attr]
        sandbox._zygote._process.wait()  # type: ignore[union-attr]
        with pytest.raises((IsolationError, PeerGoneError)):
            verdict(sandbox, spec)
        assert verdict(sandbox, spec)[0] == "accepted"


def test_without_fork_a_job_is_a_process_of_its_own(tmp_path: Path) -> None:
    """What Windows gets, run here: level L1."""
    with Sandbox(level_max=Level.L1) as sandbox:
        assert sandbox.level is Level.L1
        spec = job_of(tmp_path, "    import os; print(os.getpid())\n")
        with sandbox.start(spec) as job:
            assert job.channel.receive()[0] == "accepted"
        assert int(job.output) not in (os.getpid(), os.getppid())
        sleeping = job_of(tmp_path, "    import time; time.sleep(1000)\n", wall_seconds=30.0)
        with sandbox.start(sleeping) as job:
            pass
        assert job.ended == "killed"


def test_folders_go_away_with_the_sandbox() -> None:
    with Sandbox() as sandbox, sandbox.start(SERVED):
        scratch = sandbox._scratch
        assert scratch.is_dir()
    assert not scratch.exists()
    assert sys.exc_info() == (None, None, None)
