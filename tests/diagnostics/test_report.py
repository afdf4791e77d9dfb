"""The report and its results: verdicts, the one thing to mend first, canonical JSON."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from diagnostics import CheckFailedError, CheckResult, Report, Status
from diagnostics._suite import _mark_consequences
from diagnostics._text import say


def result(check: str, status: Status, **fields: Any) -> CheckResult:
    """A result with the least that it needs."""
    word = "ok" if status is Status.PASS else "broken"
    return CheckResult(
        **{"check": check, "status": status, "reason": f"{check}.{word}", "claim": "a claim"}
        | fields
    )


def report(*results: CheckResult, **fields: Any) -> Report:
    """A report over some results."""
    return Report(results=results, **fields)


def test_a_result_is_neither_true_nor_false() -> None:
    """`if result:` would take a skip for a pass."""
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(result("shift", Status.PASS))


@pytest.mark.parametrize(
    ("status", "passed", "failed"),
    [
        (Status.PASS, True, False),
        (Status.WARN, True, False),
        (Status.FAIL, False, True),
        (Status.SKIP, False, False),
        (Status.ERROR, False, True),
    ],
)
def test_five_verdicts(status: Status, passed: bool, failed: bool) -> None:
    """A skip is neither; require lets pass and warn through."""
    one = result("shift", status)
    assert (one.passed, one.failed) == (passed, failed)
    if passed:
        assert one.require() is one
    else:
        with pytest.raises(CheckFailedError, match="a claim"):
            one.require()


def test_stage_and_family_come_from_the_catalogue() -> None:
    """A check of somebody's own is custom."""
    assert (result("shift", Status.PASS).stage, result("loss", Status.PASS).family) == (
        "batches",
        "correctness",
    )
    assert result("mine", Status.PASS).stage == result("mine", Status.PASS).family == "custom"


def test_nothing_measured_is_not_passed() -> None:
    """Skips alone, or no result at all, prove nothing."""
    assert not report().passed
    assert not report(result("shift", Status.SKIP)).passed
    assert report(result("shift", Status.SKIP), result("loss", Status.WARN)).passed
    assert not report(result("shift", Status.PASS), result("loss", Status.ERROR)).passed


def test_fault_that_waits_for_another_device_comes_last() -> None:
    """On the CPU a tensor made on the CPU harms nothing: what is wrong here and now comes first."""
    device = result("shapes", Status.FAIL, reason="shapes.wrong_device")
    mask = result("causal_independence", Status.FAIL)
    assert report(device, mask).first_failure is mask
    assert report(device).first_failure is device
    assert [r.consequence_of for r in _mark_consequences([device, mask])] == [None, None]


def test_first_failure_is_a_fail_that_is_no_consequence() -> None:
    """An error earlier on comes second, a consequence never."""
    error, fail = result("files", Status.ERROR), result("loss", Status.FAIL)
    consequence = result("shapes", Status.FAIL, consequence_of="batches")
    assert report(error, consequence, fail).first_failure is fail
    assert report(error, consequence).first_failure is error
    assert report(result("shift", Status.PASS)).first_failure is None
    assert report(error, consequence, fail).failures == (consequence, fail)
    assert report(error, fail).errors == (error,)


def test_results_are_found_by_name() -> None:
    """And an unknown one says which there are."""
    one = result("shift", Status.PASS)
    assert report(one)["shift"] is one
    with pytest.raises(KeyError, match="no result named 'loss'; there are"):
        report(one)["loss"]


def test_json_holds_every_kind_of_number() -> None:
    """Tensors and NumPy become lists; what JSON does not know becomes a word."""
    numbers = {
        "nan": math.nan,
        "inf": -math.inf,
        "tensor": torch.tensor([1, 2]),
        "scalar": torch.tensor(0.5),
        "numpy": np.float32(0.25),
        "flag": True,
        "none": None,
        "set": {"b", "a"},
        3: (1, [2.0]),
        "big": 2**70,
        "path": object,
    }
    text = report(result("shift", Status.PASS, numbers=numbers)).to_json()
    read = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    got = read["results"][0]["numbers"]
    assert (got["nan"], got["inf"]) == ("nan", "-inf")
    assert (got["tensor"], got["scalar"], got["numpy"]) == ([1, 2], 0.5, 0.25)
    assert (got["flag"], got["none"], got["set"], got["3"]) == (True, None, ["a", "b"], [1, [2.0]])
    assert got["big"] == 2**70
    assert got["path"] == str(object)


def test_json_is_canonical_and_tells_times_only_when_asked() -> None:
    """The same bytes for the same seed: seconds would differ from run to run."""
    slow, fast = (
        report(result("shift", Status.FAIL, seconds=s, claim=say("{n} wrong", n=3)), seed=7)
        for s in (1.0, 2.0)
    )
    assert slow.to_json() == fast.to_json()
    assert slow.to_json(timings=True) != fast.to_json(timings=True)
    read = json.loads(slow.to_json())
    assert (read["kind"], read["schema_version"]) == ("diagnostics.report", 2)
    assert (read["seed"], read["passed"]) == (7, False)
    assert read["first_failure"] == "shift"
    assert read["results"][0]["claim"] == "3 wrong"
    assert read["results"][0]["claim_template"] == "{n} wrong"
    assert read["results"][0]["claim_facts"] == {"n": 3}
    assert slow.seconds == 1.0
