"""Judging a student's pipeline: it computes in a job, and `diagnose` looks at it from here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from diagnostics import CheckResult
from exercises.isolation import wire
from exercises.isolation._session import LostError
from exercises.isolation.channel import Channel, PeerGoneError, PeerTimeoutError, RemoteError
from exercises.isolation.judge import Judging
from exercises.isolation.limits import MIB, JobSpec, Limits
from exercises.isolation.remote_pipeline import diagnose_remote

# a pipeline is asked many times: it gets this many times what one run of a check may use
TIME_FACTOR = 12
MODEL_MEMORY_BYTES = 4096 * MIB


@dataclass(frozen=True, kw_only=True)
class ModelJudgement:
    """What `diagnose` found; problem: why there was nothing to look at, else "".

    ran_out: time was up during a check; it and the later ones are errors, the earlier ones count.
    """

    results: tuple[CheckResult, ...] = ()
    problem: str = ""
    problem_line: int | None = None
    timed_out: bool = False
    ran_out: bool = False
    output: str = ""


def judge_model(judging: Judging, file: Path, checks: Sequence[str]) -> ModelJudgement:
    """Run checks on the pipeline of `build_pipeline` in a file."""
    spec = JobSpec(
        name="pipeline",
        folder=file.parent,
        arguments=(file.name,),
        seed=judging.seed("model", "student") % 2**31,
        limits=_limits(judging.limits),
        hidden=judging.hidden,
    )
    job = None
    try:
        with judging.sandbox.start(spec) as job:
            match job.channel.receive():
                case ("loaded",):
                    judgement = _diagnosed(judging, job.channel, checks)
                case ("unusable", str(name), str(said), int() | None as line):
                    judgement = ModelJudgement(problem=f"{name}: {said}"[:500], problem_line=line)
                case _:
                    judgement = ModelJudgement(problem="its process spoke nonsense")
    except PeerTimeoutError:
        return ModelJudgement(problem="it took too long", timed_out=True)
    except (PeerGoneError, wire.WireError):
        ended = job.ended if job is not None else "killed"
        return ModelJudgement(problem=f"its process ended ({ended})", timed_out=ended == "SIGXCPU")
    return replace(judgement, output=job.output)


def _diagnosed(judging: Judging, channel: Channel, checks: Sequence[str]) -> ModelJudgement:
    seed = judging.seed("model", "diagnose") % 2**31
    try:
        report = diagnose_remote(channel, seed=seed, only=list(checks))
    except RemoteError as error:
        return ModelJudgement(problem=f"build_pipeline raised {error.name}: {error.message}"[:500])
    except LostError as error:
        raise (error.__cause__ or PeerGoneError("its process has ended")) from error
    timed_out = any(
        result.numbers.get("exception") == PeerTimeoutError.__name__ for result in report.results
    )
    return ModelJudgement(results=report.results, ran_out=timed_out)


def _limits(limits: Limits) -> Limits:
    return replace(
        limits,
        cpu_seconds=math.ceil(limits.cpu_seconds * TIME_FACTOR),
        wall_seconds=limits.wall_seconds * TIME_FACTOR,
        memory_bytes=max(limits.memory_bytes, MODEL_MEMORY_BYTES),
        file_bytes=max(limits.file_bytes, 512 * MIB),
    )
