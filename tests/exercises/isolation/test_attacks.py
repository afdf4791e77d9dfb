"""Attacks that once worked on the grader from inside a job, each with what it gets now."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from exercises.contracts._private import contract_of
from exercises.isolation import linux, wire
from exercises.isolation.judge import CheckJudgement, Judging, judge_check
from exercises.isolation.limits import MIB, Level, Limits
from exercises.isolation.sandbox import Sandbox

LIMITS = Limits(cpu_seconds=2, wall_seconds=6.0, memory_bytes=400 * MIB, file_bytes=4 * MIB)
OVERFLOWING = json.dumps(["tensor", ["int64", [2**39, 2**39, 0]]])


def judged(sandbox: Sandbox, folder: Path, code: str) -> CheckJudgement:
    file = folder / "check_shift.py"
    file.write_text("import torch\n" + textwrap.dedent(code), encoding="utf-8")
    judging = Judging(sandbox=sandbox, secret=b"kept", submission="eve", seeds=1, limits=LIMITS)
    return judge_check(judging, contract_of("shift"), file, held_out=False)


def test_an_empty_tensor_whose_size_overflows_is_no_message() -> None:
    """No element, and strides beyond 2**63: torch's RuntimeError used to end the judge."""
    text = OVERFLOWING.encode()
    message = wire.HEAD.pack(len(text), 0) + text
    pieces = iter((message[: wire.HEAD.size], text, b""))
    with pytest.raises(wire.WireError, match="no message of this wire"):
        wire.decode(lambda count: next(pieces))


def test_a_check_that_sends_it_harms_itself_only(sandbox: Sandbox, tmp_path: Path) -> None:
    judgement = judged(
        sandbox,
        tmp_path,
        f"""
        import os, struct
        def check(implementation):
            implementation(torch.arange(300))
            text = b'["tuple",["call",' + {OVERFLOWING.encode()!r} + b"]]"
            os.write(3, struct.pack(">QQ", len(text), 0) + text)
            os._exit(0)
        """,
    )
    assert {verdict.outcome for verdict in judgement.verdicts} == {"error"}
    assert judgement.share == 0.0


@pytest.mark.skipif(not linux.IS_LINUX, reason="the kernel's choice is Linux's")
def test_a_job_dies_first_and_has_few_files(sandbox: Sandbox, tmp_path: Path) -> None:
    """Memory that runs out costs the job, not the grader; empty files are counted as well."""
    if sandbox.level < Level.L3:
        pytest.skip("below L3 a job has no disk of its own")
    judgement = judged(
        sandbox,
        tmp_path,
        """
        import os
        def check(implementation):
            implementation(torch.arange(300))
            score = open("/proc/self/oom_score_adj").read().strip()
            raise AssertionError(score, os.statvfs(".").f_files)
        """,
    )
    said = {verdict.message for verdict in judgement.verdicts}
    assert said == {f"AssertionError: ('1000', {linux.SCRATCH_FILES})"}
