"""`diagnose`: order, skips, errors with the user's frame, consequences, nothing touched."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import (
    CheckFailedError,
    CheckResult,
    Pipeline,
    Status,
    diagnose,
    require_healthy,
)
from diagnostics._catalog import CATALOG, select
from diagnostics._probe import MissingPartError
from diagnostics._suite import _mark_consequences, skipped
from tests.diagnostics.test_report import result
from tests.diagnostics.tiny import TinyGPT

QUICK = ["shift", "batches", "shapes"]


def windows(data: Tensor) -> tuple[Tensor, Tensor]:
    """Draw 6 random windows of 12 tokens."""
    places = torch.randint(len(data) - 12, (6, 1)) + torch.arange(12)
    return data[places], data[places + 1]


def unshifted(data: Tensor) -> tuple[Tensor, Tensor]:
    """Targets that equal their inputs."""
    inputs, _ = windows(data)
    return inputs, inputs.clone()


def pipeline(**parts: Any) -> Pipeline:
    """A small healthy pipeline with some parts replaced."""
    ids = torch.randint(19, (400,), generator=torch.Generator().manual_seed(1))
    healthy = {"model": TinyGPT(), "get_batch": windows, "train_ids": ids}
    return Pipeline(**(healthy | parts))


def test_results_follow_the_catalogue_and_progress_counts() -> None:
    """Whatever the order of the request."""
    calls: list[tuple[str, int, int]] = []
    report = diagnose(
        pipeline(), only=["forward_hooks", "shift"], progress=lambda *call: calls.append(call)
    )
    assert [r.check for r in report.results] == ["shift", "forward_hooks"]
    assert calls == [("shift", 0, 2), ("forward_hooks", 1, 2)]
    assert report.passed
    assert all(r.seconds > 0 for r in report.results)


def test_a_model_alone_is_enough_and_every_skip_names_its_argument() -> None:
    """Nothing is guessed at, nothing raises."""
    report = diagnose(Pipeline(TinyGPT()), skip=["overfit"])
    assert [r.check for r in report.results] == [name for name in CATALOG if name != "overfit"]
    assert not report.errors, str(report)
    for one in report.results:
        if one.reason.endswith("missing_part"):
            assert one.status is Status.SKIP
            assert "give Pipeline" in one.next_step


def test_wrong_arguments_are_refused_before_anything_runs() -> None:
    """A dictionary is not a pipeline, a slip is not a check."""
    with pytest.raises(TypeError, match="diagnose wants a Pipeline, got dict"):
        diagnose({})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="did you mean shift"):
        diagnose(pipeline(), only=["shfit"])
    with pytest.raises(TypeError, match=r"must be a torch\.nn\.Module, got str"):
        Pipeline("model")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"Pipeline\(get_batch=\.\.\.\) must be callable"):
        pipeline(get_batch=3)
    with pytest.raises(ValueError, match='labels must be "next" or "same"'):
        pipeline(labels="shifted")


def test_a_part_that_raises_is_an_error_with_the_users_line() -> None:
    """The others still run."""

    def broken(split: str) -> tuple[Tensor, Tensor]:
        raise KeyError("no such column")

    report = diagnose(pipeline(get_batch=None, batch=broken), only=QUICK)
    error = report["shift"]
    assert (error.status, error.reason) == (Status.ERROR, "shift.raised")
    assert "KeyError: 'no such column'" in error.claim
    assert "test_suite.py" in error.where
    assert "in broken: raise KeyError" in error.where
    assert "read the traceback from the bottom" in error.next_step
    assert report["shapes"].status is Status.PASS
    assert not report.passed
    assert report.first_failure is error


def test_a_device_side_assert_sends_to_the_cpu() -> None:
    """On a GPU neither message nor line tell the place."""

    def broken(split: str) -> tuple[Tensor, Tensor]:
        raise RuntimeError("CUDA error: device-side assert triggered")

    report = diagnose(pipeline(get_batch=None, batch=broken), only=["shift"])
    assert '.to("cpu")' in report["shift"].next_step


def test_an_interrupt_is_not_swallowed_and_leaves_nothing_behind() -> None:
    """Ctrl-C ends the run, and the model is as it was."""
    model = TinyGPT().train()

    def interrupted(split: str) -> tuple[Tensor, Tensor]:
        model.eval()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        diagnose(pipeline(model=model, get_batch=None, batch=interrupted), only=["shift"])
    assert model.training


def test_declared_designs_become_warnings() -> None:
    """The field allow takes reason ids, as one string or several."""
    failing = pipeline(get_batch=unshifted)
    assert diagnose(failing, only=["shift"])["shift"].status is Status.FAIL
    for allow in ("shift.identical", ["shift.identical"]):
        one = diagnose(pipeline(get_batch=unshifted, allow=allow), only=["shift"])["shift"]
        assert one.status is Status.WARN
        assert one.reason == "shift.identical"
        assert "declared as intended" in one.next_step


def test_consequences_point_at_the_first_failure_that_explains_them() -> None:
    """Shift explains loss, and loss explains overfit; a check that passed explains nothing."""
    results = [
        result("shift", Status.FAIL),
        result("shapes", Status.PASS),
        result("loss", Status.FAIL),
        result("overfit", Status.ERROR),
        result("checkpoint", Status.FAIL),
    ]
    marked = {r.check: r.consequence_of for r in _mark_consequences(results)}
    assert marked == {
        "shift": None,
        "shapes": None,
        "loss": "shift",
        "overfit": "shift",
        "checkpoint": None,
    }
    warned = [result("modes", Status.FAIL), result("training_step", Status.WARN)]
    assert _mark_consequences(warned)[1].consequence_of == "modes"
    passed = [result("shift", Status.WARN), result("loss", Status.FAIL)]
    assert _mark_consequences(passed)[1].consequence_of is None


def test_a_skip_names_what_unlocks_it() -> None:
    """Alternatives are joined by or."""
    one: CheckResult = skipped("shift", MissingPartError("batch", "get_batch", why="no batch"))
    assert (one.status, one.reason) == (Status.SKIP, "shift.missing_part")
    assert one.claim == "not measured: no batch"
    assert one.next_step == "to unlock it, give Pipeline batch or get_batch"
    assert one.numbers == {"missing": ["batch", "get_batch"]}


def test_everything_of_the_users_comes_back() -> None:
    """Weights, buffers, modes, gradients, hooks, data and random states, after a full run."""
    model = TinyGPT().train()
    model.blocks[0].eval()
    model.head.weight.grad = torch.ones_like(model.head.weight)
    calls: list[int] = []
    model.norm.register_forward_hook(lambda *_: calls.append(1))
    described = pipeline(
        model=model,
        make_optimizer=lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3),
    )
    assert described.train_ids is not None
    before, ids = copy.deepcopy(model.state_dict()), described.train_ids.clone()
    modes = [module.training for module in model.modules()]
    hooks = len(model.norm._forward_hooks)
    random_state = torch.get_rng_state()
    diagnose(described, overfit_steps=5)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(model.head.weight.grad, torch.ones_like(model.head.weight))
    assert all(p.grad is None for n, p in model.named_parameters() if n != "head.weight")
    assert len(model.norm._forward_hooks) == hooks
    assert torch.equal(described.train_ids, ids)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_two_runs_give_the_same_bytes() -> None:
    """And the seed is part of the report."""
    described = pipeline()
    first = diagnose(described, skip=["overfit"], seed=5).to_json()
    torch.rand(3)  # the global state plays no part
    assert diagnose(described, skip=["overfit"], seed=5).to_json() == first
    assert json.loads(first)["seed"] == 5


def test_checks_run_with_gradients_whatever_the_caller_does() -> None:
    """Inside no_grad a loss has no gradient; the report must not depend on it."""
    with torch.no_grad():
        report = diagnose(pipeline(), only=["gradients"])
        assert not torch.is_grad_enabled()
    assert report["gradients"].status is Status.PASS


def test_a_model_that_cannot_run_gives_errors_not_a_crash() -> None:
    """Every check that calls it says so."""

    class Broken(nn.Module):
        vocab_size = 9

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(2))

        def forward(self, ids: Tensor) -> Tensor:
            raise RuntimeError("no forward")

    report = diagnose(Pipeline(Broken()), only=["shapes", "causal_independence", "overfit"])
    assert not report.passed
    assert all(r.failed for r in report.results)
    assert any("no forward" in r.claim for r in report.results)


def test_fast_leaves_out_what_learns_or_forks_unless_it_is_asked_for() -> None:
    learning = {name for name, row in CATALOG.items() if row.learns}
    forking = {name for name, row in CATALOG.items() if row.forks}
    assert (learning, forking) == ({"overfit", "honesty"}, {"distributed"})
    assert set(select(fast=True)) == set(CATALOG) - learning - forking
    assert select(["overfit"], fast=True) == ["overfit"]
    assert select(["overfit", "shift"], ["overfit"], fast=True) == ["shift"]
    ran = [
        r.check
        for r in diagnose(pipeline(), skip=set(CATALOG) - {"shift", "overfit"}, fast=True).results
    ]
    assert ran == ["shift"]


def test_require_healthy_returns_the_report_or_raises_with_its_text() -> None:
    report = require_healthy(pipeline(), only=QUICK, seed=3)
    assert (report.passed, report.seed) == (True, 3)
    with pytest.raises(CheckFailedError, match="mend first: shift") as raised:
        require_healthy(pipeline(get_batch=unshifted), only=QUICK)
    assert "the targets equal the inputs" in str(raised.value)


def test_require_healthy_is_not_satisfied_by_nothing_measured() -> None:
    """Every check that was asked for lacks its part: that is no guarantee."""
    with pytest.raises(CheckFailedError, match="not measured"):
        require_healthy(Pipeline(TinyGPT()), only=["roundtrip", "sampling"])


@pytest.mark.parametrize("raises", [False, True])
def test_a_small_model_is_computed_on_one_thread_and_the_threads_come_back(raises: bool) -> None:
    """Also after Ctrl-C; a user's own choice inside a part is not the report's to keep."""
    seen: list[int] = []

    def watched(data: Tensor) -> tuple[Tensor, Tensor]:
        seen.append(torch.get_num_threads())
        if raises:
            raise KeyboardInterrupt
        return windows(data)

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        if raises:
            with pytest.raises(KeyboardInterrupt):
                diagnose(pipeline(get_batch=watched), only=["shift"])
        else:
            diagnose(pipeline(get_batch=watched), only=["shift"])
        assert set(seen) == {1}
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
