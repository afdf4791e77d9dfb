"""Judging what students hand in: their code runs in jobs, the verdicts are made here.

A check is run against right and wrong implementations, each time in a fresh process that knows
neither which one it meets nor how many there are. A repaired implementation is examined by the
contract's own check, which runs here and gets nothing but values.
"""

from __future__ import annotations

import hashlib
import hmac
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exercises.contracts._contract import Contract, Finding, first_fault
from exercises.contracts._private import RIGHT, private_implementations
from exercises.isolation import wire
from exercises.isolation.channel import Channel, PeerGoneError, PeerTimeoutError, RemoteError
from exercises.isolation.limits import JobSpec, Limits
from exercises.isolation.sandbox import Job, Sandbox
from exercises.isolation.verdict import Verdict

CALLS_MAX = 2000  # of one check on one implementation
FILE_SECONDS_MAX = 240.0  # of the clock, for all runs of one check; what is left counts as time-out
STUDENT_LIMITS = Limits()
IMPLEMENTATION_LIMITS = Limits(cpu_seconds=30, wall_seconds=120.0)

PeerFailure = (PeerGoneError, PeerTimeoutError, wire.WireError)


@dataclass(frozen=True, kw_only=True)
class Judging:
    """How to judge: where jobs run, with what seeds and limits, and what they must not see.

    secret: seeds are made from it, so that nobody can know them.    submission: what is judged,
    a digest: other submissions get other seeds.    seeds: how often everything is repeated.
    private: an instructor's folder of implementations.
    """

    sandbox: Sandbox
    secret: bytes = b"practice"
    submission: str = ""
    seeds: int = 2
    limits: Limits = STUDENT_LIMITS
    hidden: tuple[Path, ...] = ()
    private: Path | None = None

    def seed(self, *what: object) -> int:
        """Return the seed of one run: the same for the same secret, submission and names."""
        text = "\0".join([self.submission, *map(str, what)])
        digest = hmac.new(self.secret, text.encode(), hashlib.sha256).digest()
        return int.from_bytes(digest[:6], "big")


@dataclass(frozen=True, kw_only=True)
class CheckJudgement:
    """What a student's check said of each implementation, over all seeds.

    problem: why the file could not be used at all; else "".    lines: of the file, at which an
    implementation was rejected.    output: the beginning of what it printed.
    returned: the type that it returned instead of None, which is no verdict.
    """

    verdicts: tuple[Verdict, ...]
    problem: str = ""
    problem_line: int | None = None
    lines: frozenset[int] = frozenset()
    output: str = ""
    returned: str = ""
    timed_out: bool = False

    @property
    def wheats(self) -> tuple[int, int]:
        """How many correct implementations were accepted, of how many."""
        return _count(self.verdicts, right=True, outcome="accepted")

    @property
    def chaffs(self) -> tuple[int, int]:
        """How many wrong ones were rejected, of how many."""
        return _count(self.verdicts, right=False, outcome="rejected")

    @property
    def valid(self) -> bool:
        """Whether every correct implementation was accepted."""
        accepted, total = self.wheats
        return not self.problem and accepted == total > 0

    @property
    def share(self) -> float:
        """The share of wrong ones that were rejected; 0 for a check that is not valid."""
        caught, total = self.chaffs
        return caught / total if self.valid and total else 0.0


@dataclass(frozen=True, kw_only=True)
class FixJudgement:
    """What the contract's check found in a repaired implementation; fault is None when it holds.

    problem: why the file could not be used at all; else "".
    """

    fault: Finding | None = None
    problem: str = ""
    problem_line: int | None = None
    output: str = ""
    timed_out: bool = False

    @property
    def repaired(self) -> bool:
        """Whether it keeps its promise, as far as anybody looked."""
        return self.fault is None and not self.problem


# ---- a check ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    name: str
    right: bool
    crashes: bool = False
    private: bool = False


@dataclass(frozen=True)
class _Run:
    """One run of a check on one implementation with one seed."""

    outcome: str
    message: str = ""
    line: int | None = None
    returned: str = ""
    output: str = ""


class _TooManyCallsError(PeerTimeoutError):
    """A check has called its implementation more often than any check needs to."""


def judge_check(
    judging: Judging,
    contract: Contract,
    file: Path,
    *,
    held_out: bool = True,
    progress: Callable[[], object] = lambda: None,
) -> CheckJudgement:
    """Run `check` of a file on every implementation of a contract, shuffled, with every seed.

    held_out: with the wrong implementations that are kept for grading.    progress: called after
    each run.    The other files of the file's folder are there for it to import.
    """
    cases = _cases(judging, contract, held_out)
    plan = [(case, number) for case in cases for number in range(judging.seeds)]
    random.Random(judging.seed(contract.check, "order")).shuffle(plan)
    runs: dict[_Case, list[_Run]] = {case: [] for case in cases}
    end = time.monotonic() + FILE_SECONDS_MAX
    for case, number in plan:
        if time.monotonic() > end or _has_timed_out(runs[case]):
            run = _Run("timeout", "the time for it was used up by other runs")
        else:
            run = _run_check(judging, contract, file, case, number)
        if run.outcome == "unusable":  # the same for every implementation: nothing to compare
            return CheckJudgement(
                verdicts=(), problem=run.message, problem_line=run.line, output=run.output
            )
        runs[case].append(run)
        progress()
        if run.outcome == "timeout" and case.right:
            end = 0.0  # a correct one is not accepted: what follows cannot change the score
    return _judgement(runs)


def _cases(judging: Judging, contract: Contract, held_out: bool) -> list[_Case]:
    cases = [_Case(right.name, True) for right in contract.rights]
    cases += [
        _Case(wrong.name, False, wrong.crashes)
        for wrong in contract.wrongs
        if held_out or not wrong.held_out
    ]
    if judging.private is not None:
        for name in private_implementations(judging.private, contract.check):
            cases.append(_Case(name, name.startswith(RIGHT), private=True))
    return cases


def _run_check(judging: Judging, contract: Contract, file: Path, case: _Case, number: int) -> _Run:
    names = (contract.check, case.name, number)
    served = JobSpec(
        name="implementation",
        arguments=(contract.check, case.name, str(judging.private) if case.private else None),
        seed=judging.seed("implementation", *names),
        limits=IMPLEMENTATION_LIMITS,
        trusted=True,
    )
    with judging.sandbox.start(served) as implementation:
        implementation.channel.receive()
        job = None
        try:
            with judging.sandbox.start(_spec(judging, "check", file, names)) as job:
                kind, calls = _relay(job.channel, implementation.channel)
        except _TooManyCallsError:
            return _Run("timeout", f"it made more than {CALLS_MAX} calls")
        except PeerTimeoutError:
            return _Run("timeout", _took_longer(judging))
        except (PeerGoneError, wire.WireError) as error:
            return _abnormal_end(judging.limits, job, error)
    return _run_from(kind, calls, case, job.output)


def _relay(student: Channel, implementation: Channel) -> tuple[tuple[Any, ...], int]:
    """Carry calls from a student's check to an implementation, until the check has spoken.

    Returns its last message, and how many calls were answered with a value or an error.
    """
    for calls in range(CALLS_MAX):
        message = student.receive()
        if not isinstance(message, tuple) or not message or message[0] != "call":
            return message, calls
        try:
            implementation.send(message)
            answer = implementation.receive()
        except PeerFailure:
            answer = ("raised", "MemoryError", "the call was too large or took too long", None)
        student.send(answer)
    raise _TooManyCallsError


def _run_from(message: Any, calls: int, case: _Case, output: str) -> _Run:
    match message:
        case ("accepted", str(returned), _, _):
            outcome, said, line = "accepted", "", None
        case ("rejected", str(name), str(said), int() | None as line):
            outcome, returned = "rejected", ""
            said = f"{name}: {said}" if said else name
        case ("ended" | "unusable" as kind, str(name), str(said), int() | None as line):
            outcome, returned = {"ended": "error"}.get(kind, kind), ""
            said = f"{name}: {said}" if said else name
        case _:
            return _Run("error", "its process spoke nonsense", output=output)
    if outcome in ("accepted", "rejected") and calls == 0:
        before = f" before it raised {said[:400]}" if said else ""
        return _Run("not_called", f"it never called the implementation{before}", line, "", output)
    return _Run(outcome, said[:500], line, returned[:50], output)


def _took_longer(judging: Judging) -> str:
    return f"it took longer than {judging.limits.wall_seconds:g} s"


def _abnormal_end(limits: Limits, job: Job | None, error: Exception) -> _Run:
    ended = job.ended if job is not None else "killed"
    output = job.output if job is not None else ""
    if ended == "SIGXCPU":
        used = f"it used up its {limits.cpu_seconds} s of processor time"
        return _Run("timeout", used, output=output)
    if isinstance(error, wire.WireError):
        return _Run("error", "its process spoke nonsense", output=output)
    how = "" if ended == "killed" else f" ({ended})"  # killed by us, before its end was known
    return _Run("error", f"its process ended without a verdict{how}", output=output)


def _judgement(runs: Mapping[_Case, Sequence[_Run]]) -> CheckJudgement:
    everything = [run for case in runs for run in runs[case]]
    verdicts = tuple(_verdict(case, runs[case]) for case in runs)
    return CheckJudgement(
        verdicts=verdicts,
        lines=frozenset(
            run.line
            for case in runs
            for run in runs[case]
            if run.outcome == "rejected" and run.line is not None and not case.right
        ),
        output=next((run.output for run in everything if run.output), ""),
        returned=next((run.returned for run in everything if run.returned), ""),
        timed_out=any(run.outcome == "timeout" for run in everything),
    )


def _verdict(case: _Case, runs: Sequence[_Run]) -> Verdict:
    outcomes = {run.outcome for run in runs}
    shown = next((run for run in runs if run.outcome != "accepted"), runs[0])
    outcome, message = shown.outcome, shown.message
    if len(outcomes) > 1:
        counted = sorted(f"{_how_often(runs, name)} x {name}" for name in outcomes)
        outcome, message = "unstable", f"{', '.join(counted)}; {message}".rstrip("; ")
    elif outcome == "error" and case.crashes and not case.right:
        outcome = "rejected"  # the bug is declared to crash, and it did
    return Verdict(
        implementation=case.name,
        right=case.right,
        outcome=outcome,
        message=message,
        line=shown.line,
    )


def _how_often(runs: Sequence[_Run], outcome: str) -> int:
    return sum(run.outcome == outcome for run in runs)


def _has_timed_out(runs: Sequence[_Run]) -> bool:
    return _how_often(runs, "timeout") > 0


def _count(verdicts: Sequence[Verdict], *, right: bool, outcome: str) -> tuple[int, int]:
    of_kind = [verdict for verdict in verdicts if verdict.right is right]
    return sum(verdict.outcome == outcome for verdict in of_kind), len(of_kind)


# ---- a repaired implementation ---------------------------------------------------------------


def judge_fix(judging: Judging, contract: Contract, file: Path) -> FixJudgement:
    """Examine `implementation` of a file with the contract's own check, with every seed."""
    for number in range(judging.seeds):
        judgement = _examine_once(judging, contract, file, number)
        if not judgement.repaired:
            return judgement
    return judgement


def _examine_once(judging: Judging, contract: Contract, file: Path, number: int) -> FixJudgement:
    names = (contract.check, "fix", number)
    job = None
    try:
        with judging.sandbox.start(_spec(judging, "fix", file, names)) as job:
            match job.channel.receive():
                case ("loaded",):
                    judgement = FixJudgement(fault=_fault(judging, contract, job.channel, number))
                case ("unusable", str(name), str(said), int() | None as line):
                    judgement = FixJudgement(problem=f"{name}: {said}"[:500], problem_line=line)
                case _:
                    judgement = FixJudgement(problem="its process spoke nonsense")
    except PeerTimeoutError:
        return FixJudgement(problem=_took_longer(judging), timed_out=True)
    except (PeerGoneError, wire.WireError) as error:
        run = _abnormal_end(judging.limits, job, error)
        return FixJudgement(
            problem=run.message, output=run.output, timed_out=run.outcome == "timeout"
        )
    return FixJudgement(
        fault=judgement.fault,
        problem=judgement.problem,
        problem_line=judgement.problem_line,
        output=job.output,
    )


def _fault(judging: Judging, contract: Contract, channel: Channel, number: int) -> Finding | None:
    torch.manual_seed(judging.seed(contract.check, "examine", number))
    try:
        return first_fault(contract, lambda *arguments: channel.ask("call", *arguments))
    except RemoteError as error:
        return Finding(float("inf"), f"it raised {error}"[:500])
    except PeerFailure:
        raise
    except Exception as error:  # values that nobody has thought of; never a pass
        return Finding(float("inf"), f"what it returned cannot be examined: {error}"[:500])


def _spec(judging: Judging, name: str, file: Path, names: Sequence[object]) -> JobSpec:
    return JobSpec(
        name=name,
        folder=file.parent,
        arguments=(file.name,),
        seed=judging.seed("student", *names),
        limits=judging.limits,
        hidden=judging.hidden,
    )
