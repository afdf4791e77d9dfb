"""The self-test: what became of each injected bug, how it is told, and that nothing is touched."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, self_test, shift
from diagnostics.__main__ import main
from diagnostics._guard import same_bytes
from diagnostics._injection import CannotInject, Injection, changed_module, middle_module, patched
from diagnostics._probe import Probe
from diagnostics._result import CheckResult, verdict
from diagnostics._self_test import INJECTIONS, Outcome, SelfTest
from diagnostics._text import say
from minigpt import get_batch
from tests.diagnostics.tiny import Bigram, Recurrent, TinyGPT
from tests.diagnostics.whole import MAX_STEPS, Whole, learning_rate

IDS = torch.randint(19, (600,), generator=torch.Generator().manual_seed(0))
SHIFTS = sum(injection.check == "shift" for injection in INJECTIONS)


def _pipeline(**parts: Any) -> Pipeline:
    torch.manual_seed(0)
    healthy: dict[str, Any] = {"train_ids": IDS, "get_batch": lambda data: get_batch(data, 4, 12)}
    return Pipeline(TinyGPT(), **(healthy | parts))


def _injection(bug: str) -> Injection:
    return next(injection for injection in INJECTIONS if injection.id == bug)


def _blind(probe: Probe) -> CheckResult:
    return verdict(Status.PASS, "shift.ok", say("all is well"))


def _confused(probe: Probe) -> CheckResult:
    batch = probe.raw_batch
    identical = bool((batch.inputs[:, 1:] == batch.targets[:, :-1]).all())
    if identical:
        return _blind(probe)
    return verdict(Status.FAIL, "shift.unrelated", say("the targets are something else"))


# ---- outcomes --------------------------------------------------------------------------------


def test_a_healthy_check_names_every_bug_that_has_a_place() -> None:
    """One shift bug needs a model that shifts inside; the others are caught."""
    found = self_test(_pipeline(), only=["shift"])
    assert [t.injection.name for t in found.of(Outcome.ELSEWHERE)] == ["already_shifted"]
    assert len(found.of(Outcome.CAUGHT)) == found.injected == SHIFTS - 1
    assert found.score == 1.0
    assert found.passed


def test_a_blind_check_misses_every_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "run", _blind)
    found = self_test(_pipeline(), only=["shift"])
    assert len(found.of(Outcome.MISSED)) == found.injected == SHIFTS - 1
    assert found.score == 0.0
    assert not found.passed


def test_a_check_that_names_another_cause_is_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """It says `unrelated` to everything: only that bug is named."""
    monkeypatch.setattr(shift, "run", _confused)
    found = self_test(_pipeline(), only=["shift"])
    assert "unrelated" in [t.injection.name for t in found.of(Outcome.CAUGHT)]
    assert "identical" in [t.injection.name for t in found.of(Outcome.OTHERWISE)]
    assert 0 < found.score < 1
    assert not found.passed


def test_a_check_that_fails_already_proves_nothing() -> None:
    """Every bug of it is set aside, and the healthy report says why."""
    found = self_test(_pipeline(get_batch=lambda data: (data[None, :12],) * 2), only=["shift"])
    assert len(found.of(Outcome.FAILING)) == SHIFTS
    assert found.injected == 0
    assert math.isnan(found.score)
    assert not found.passed
    assert "shift.identical" in found.trials[0].note
    assert found.healthy["shift"].failed


def test_what_has_no_place_says_what_would_give_it_one() -> None:
    """A bare model: the bugs of the schedule need a schedule."""
    found = self_test(Pipeline(TinyGPT()), only=["schedule"])
    assert {t.outcome for t in found.trials} == {Outcome.ELSEWHERE}
    assert "learning_rate" in found.trials[0].unlock
    with pytest.raises(CannotInject, match="no learning_rate, max_steps"):
        _injection("schedule.negative").apply(Pipeline(TinyGPT()))


def test_a_warning_that_names_the_bug_counts() -> None:
    """A restart may be intended, so that the schedule check only warns."""
    pipeline = _pipeline(learning_rate=learning_rate, max_steps=MAX_STEPS)
    found = self_test(pipeline, only=["schedule"])
    trial = next(t for t in found.trials if t.injection.id == "schedule.restart")
    assert trial.outcome is Outcome.CAUGHT
    assert trial.result is not None
    assert trial.result.status is Status.WARN


def test_fast_skip_and_only_choose_the_bugs() -> None:
    only = self_test(_pipeline(), only=["batches", "range"], skip=["range"])
    assert {t.injection.check for t in only.trials} == {"batches"}
    with pytest.raises(ValueError, match="no check or stage named 'nothing'"):
        self_test(_pipeline(), only=["nothing"])


# ---- the user's objects ----------------------------------------------------------------------


def test_the_users_objects_come_back_untouched() -> None:
    """Weights, modes, hooks, gradients, ids and the random state are as before."""
    pipeline = _pipeline(pad_id=3, fresh=True, make_model=TinyGPT)
    model = pipeline.model.train()
    weight = next(model.parameters())
    weight.grad = torch.ones_like(weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ids, state, fields = IDS.clone(), torch.get_rng_state(), dict(vars(pipeline))
    self_test(pipeline, only=["batches", "modes", "padding", "positions", "gradients"])
    assert all(same_bytes(value, before[name]) for name, value in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())
    assert torch.equal(next(model.parameters()).grad, torch.ones_like(weight))  # type: ignore[arg-type]
    assert torch.equal(IDS, ids)
    assert torch.equal(torch.get_rng_state(), state)
    assert vars(pipeline) == fields


def test_a_file_is_spoilt_in_a_copy_only(tmp_path: Path) -> None:
    pipeline = Whole(lambda: TinyGPT(80)).pipeline(tmp_path)
    before = {path: path.read_bytes() for path in map(Path, pipeline.files)}
    found = self_test(pipeline, only=["files"])
    assert found.passed, str(found)
    assert {path: path.read_bytes() for path in before} == before


def test_patched_methods_are_taken_off_again() -> None:
    """Also where the object had a method of its own."""
    model = nn.Linear(2, 2)
    model.train = "own"  # type: ignore[assignment]
    with patched(model, train="changed", eval="changed"):
        assert vars(model)["train"] == vars(model)["eval"] == "changed"
    assert vars(model)["train"] == "own"
    assert "eval" not in vars(model)


# ---- copies ----------------------------------------------------------------------------------


class _Closed(nn.Module):
    """A deep copy of it computes with the original's weights, as minGPT's block does."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Recurrent()
        self.call = lambda ids: self.inner(ids)

    def forward(self, ids: Tensor) -> Tensor:
        """Return logits (B, T, V)."""
        return self.call(ids)


def test_a_model_that_cannot_be_copied_is_left_alone() -> None:
    """With make_model a fresh one gets its weights; without, the edit has no place."""
    bug = _injection("causal_independence.mask_too_wide")
    model = _Closed()
    with pytest.raises(CannotInject, match="weights of its own") as cannot:
        bug.apply(Pipeline(model, vocab_size=13))
    assert "make_model" in str(cannot.value.unlock)
    changed = bug.apply(Pipeline(model, vocab_size=13, make_model=_Closed))
    assert changed.model is not model
    weights = changed.model.state_dict()
    assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())


def test_an_edit_that_moves_nothing_is_no_bug() -> None:
    """Doubling what is doubled back, or a module that a bigram table does not have."""
    inert = changed_module(middle_module, lambda module, given, x: x * 2.0 / 2.0)
    with pytest.raises(CannotInject, match="moves no prediction"):
        inert(Pipeline(TinyGPT()))
    with pytest.raises(CannotInject, match="no module between"):
        inert(Pipeline(Bigram()))


# ---- what is shown ---------------------------------------------------------------------------


def _mixed(monkeypatch: pytest.MonkeyPatch) -> SelfTest:
    """A self-test in which every outcome appears."""
    monkeypatch.setattr(shift, "run", _confused)
    pipeline = _pipeline(learning_rate=lambda step: -1.0, max_steps=100)
    return self_test(pipeline, only=["shift", "split", "schedule"])


@pytest.mark.parametrize("columns", [60, 200])
def test_the_text_fits_and_is_ascii(monkeypatch: pytest.MonkeyPatch, columns: int) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    found = _mixed(monkeypatch)
    assert {t.outcome for t in found.trials} == set(Outcome)
    text = str(found)
    assert text.isascii()
    assert max(map(len, text.splitlines())) <= min(columns, 88)
    assert "[OTHER CAUSE] identical: every target is its own input" in " ".join(text.split())
    assert "cannot be injected" in text
    assert "already failing" in text


def test_a_missed_bug_is_shown_with_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shift, "run", _blind)
    text = str(self_test(_pipeline(), only=["shift"]))
    assert "[MISSED] identical: every target is its own input" in text
    assert "said     [OK] all is well" in text
    assert "wanted   shift.identical" in text
    assert f"0 of {SHIFTS - 1} bugs" in text
    assert f"{SHIFTS - 1} bugs are missed: green says nothing about them here" in text


def test_json_is_the_same_for_the_same_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = _mixed(monkeypatch)
    assert found.to_json() == _mixed(monkeypatch).to_json()
    content = json.loads(found.to_json())
    assert content["injected"] == found.injected
    assert {trial["outcome"] for trial in content["trials"]} == {t.outcome for t in found.trials}
    assert (content["kind"], content["schema_version"]) == ("diagnostics.self_test", 2)
    assert (content["healthy"]["kind"], content["healthy"]["schema_version"]) == (
        "diagnostics.report",
        2,
    )


def test_progress_is_told_before_each_bug() -> None:
    told: list[tuple[str, int, int]] = []
    self_test(_pipeline(), only=["shift"], progress=lambda *facts: told.append(facts))
    assert told[0] == ("shift.identical", 0, SHIFTS)
    assert [index for _, index, _ in told] == list(range(SHIFTS))


# ---- the command -----------------------------------------------------------------------------

TARGET = """
import torch
from diagnostics import Pipeline
from minigpt import get_batch
from tests.diagnostics.tiny import TinyGPT

def build():
    return Pipeline(TinyGPT(), train_ids=torch.arange(600) % 19,
                    get_batch=lambda data: get_batch(data, 4, 12))
"""


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The command on a target of its own folder."""
    monkeypatch.syspath_prepend(tmp_path)  # undoes what loading a target adds to the path
    path = tmp_path / "self_tested.py"
    path.write_text(TARGET, encoding="utf-8")
    return ["--target", f"{path}:build", "--self-test"]


def test_exit_codes(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 all caught, 1 one missed, 2 nothing could be injected, 3 the check broke itself."""
    assert main([*command, "--only", "shift"]) == 0
    assert "a mutation score of 100 %" in " ".join(capsys.readouterr().out.split())
    assert main([*command, "--only", "schedule"]) == 2
    assert "no bug could be put in" in capsys.readouterr().out
    monkeypatch.setattr(shift, "run", _blind)
    assert main([*command, "--only", "shift"]) == 1
    calls: list[Probe] = []

    def breaks(probe: Probe) -> CheckResult:
        calls.append(probe)
        if len(calls) == 1:  # the healthy pipeline
            return _blind(probe)
        return verdict(Status.ERROR, "shift.raised", say("a number is divided by 0"))

    monkeypatch.setattr(shift, "run", breaks)
    assert main([*command, "--only", "shift"]) == 3


def test_json_of_the_command(command: list[str], tmp_path: Path) -> None:
    path = tmp_path / "self_test.json"
    assert main([*command, "--only", "shift", "--json", str(path)]) == 0
    assert json.loads(path.read_text(encoding="utf-8"))["passed"] is True


def test_an_injection_is_a_value() -> None:
    """Its check and its name are read from its id; the id is the reason unless others are given."""
    bug = _injection("shift.wrapped_last")
    assert (bug.check, bug.name) == ("shift", "wrapped_last")
    assert bug.is_named_by(verdict(Status.FAIL, "shift.wrapped_last", say("x")))
    other = dataclasses.replace(bug, reasons=("shift.other",))
    assert not other.is_named_by(verdict(Status.FAIL, "shift.wrapped_last", say("x")))
