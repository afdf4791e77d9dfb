"""Bring your own model: found by hand in tiny pipelines, and the command around it."""

from __future__ import annotations

import dataclasses
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import exercises
from diagnostics import Pipeline
from diagnostics._injection import Injection
from exercises import _own_bug, _own_view, own_model
from exercises._own_bug import NoPlaceError, by_id, infect, infect_blindly
from exercises._own_view import observe_own
from exercises.own_model import main
from tests.diagnostics.tiny import Bigram

ROOT = Path(exercises.__file__).parents[1]
V, B, T = 11, 4, 6

PLACE = '''
"""A pipeline of a student."""

import torch
from diagnostics import Pipeline
from tests.diagnostics.tiny import Bigram
from tests.exercises.test_own_model import count_up, make_adam


def build():
    torch.manual_seed(0)
    return Pipeline(
        Bigram(), make_model=Bigram, make_optimizer=make_adam, get_batch=count_up,
        train_ids=torch.arange(500) % 11, vocab_size=11, block_size=6,
    )


def bare():
    return Pipeline(Bigram())


def quits():
    raise SystemExit(0)
'''


def count_up(data: Tensor) -> tuple[Tensor, Tensor]:
    """Draw windows (B, T) and the same windows one later."""
    starts = torch.randint(len(data) - T, (B, 1))
    places = starts + torch.arange(T)
    return data[places], data[places + 1]


def make_adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.1)


def tiny(**parts: object) -> Pipeline:
    """A bigram table on data in which every token is followed by the next one."""
    torch.manual_seed(0)
    described: dict[str, object] = {
        "make_model": Bigram,
        "make_optimizer": make_adam,
        "get_batch": count_up,
        "train_ids": torch.arange(500) % V,
        "vocab_size": V,
        "block_size": T,
    }
    return Pipeline(Bigram(), **(described | parts))  # type: ignore[arg-type]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a student's file; return the place of its function."""
    monkeypatch.setattr(_own_view, "STEPS", 6)
    monkeypatch.setenv("COLUMNS", "60")
    path = tmp_path / "my_pipeline.py"
    path.write_text(PLACE, encoding="utf-8")
    return f"{path}:build"


# ---- what is seen ----------------------------------------------------------------------------


def test_a_table_of_zeros_starts_at_ln_v(monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal logits give ln 11 = 2.3979 nats; six steps of Adam on a sure next token lower it."""
    monkeypatch.setattr(_own_view, "STEPS", 6)
    model = Bigram(std=0.0)
    pipeline = dataclasses.replace(tiny(), model=model, make_model=lambda: Bigram(std=0.0))
    seen = observe_own(pipeline, seed=1)
    assert len(seen.losses) == 6
    assert seen.losses[0] == pytest.approx(math.log(V), abs=1e-6)
    assert list(seen.losses) == sorted(seen.losses, reverse=True)
    assert seen.figures["loss before training"] == "2.3979 nats"
    assert seen.figures["training loss"].startswith("2.3979, after 6 steps ")
    assert torch.equal(model.table.weight, torch.zeros(V, V))


def test_without_parts_to_train_with_the_first_loss_is_left() -> None:
    seen = observe_own(Pipeline(Bigram(std=0.0), vocab_size=V, block_size=T), seed=1)
    assert seen.losses == ()
    assert seen.figures == {
        "loss before training": "2.3979 nats",
        "training loss": "none: the pipeline brings no make_model and no make_optimizer",
    }
    seen = observe_own(dataclasses.replace(tiny(), make_optimizer=None), seed=1)
    assert seen.figures["training loss"] == "none: the pipeline brings no make_optimizer"


def test_a_model_that_is_no_fresh_one_is_not_trained() -> None:
    """make_model that returns the pipeline's own model: training would change it."""
    model = Bigram(std=0.0)
    seen = observe_own(dataclasses.replace(tiny(), model=model, make_model=lambda: model), seed=1)
    assert seen.figures["training loss"] == "none: make_model gives no fresh model"
    assert torch.equal(model.table.weight, torch.zeros(V, V))


def test_what_raises_is_told() -> None:
    def broken_step(*_: object) -> float:
        raise ZeroDivisionError("by zero\nand more")

    seen = observe_own(tiny(train_step=broken_step), seed=1)
    assert seen.losses == ()
    assert seen.figures["training loss"] == "ZeroDivisionError: by zero"
    assert seen.raised
    assert not observe_own(Pipeline(Bigram(), vocab_size=V, block_size=T), seed=1).raised


def test_a_pipeline_that_raises_by_itself_is_told_so(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its loss raises with and without the bug: the two look alike, and nothing can be found."""
    path = Path(place.removesuffix(":build"))
    broken = path.read_text(encoding="utf-8").replace("def build():", "def build_it():")
    broken += "\n\ndef build():\n    pipeline = build_it()\n"
    broken += "    pipeline.model.forward = None\n    return pipeline\n"
    path.write_text(broken, encoding="utf-8")
    main([place, "--bug", "shift.identical"])
    said = "[WARN] your pipeline raises without the bug too, so little of the bug can be seen;"
    assert said in " ".join(capsys.readouterr().out.split())
    main([place])
    assert "--target PLACE shows where the pipeline raises" in " ".join(
        capsys.readouterr().out.split()
    )


def test_value_and_text_come_from_the_trained_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trained model goes on with the first eight ids, and is measured on all of them."""
    monkeypatch.setattr(_own_view, "STEPS", 5)

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join("abcdefghijk"[i] for i in ids)

    seen = observe_own(
        tiny(
            val_ids=torch.arange(50) % V,
            evaluate=lambda model, ids: float(len(ids)),
            generate=lambda model, prompt, count: torch.cat([prompt, prompt], dim=1),
            tokenizer=Letters(),
        ),
        seed=1,
    )
    assert seen.figures["validation loss, as reported"] == "50.0000"
    assert seen.figures["sample"] == "'abcdefghabcdefgh'"


# ---- which bug -------------------------------------------------------------------------------


@pytest.mark.parametrize("bug", ["shift.identical", "gradients.all_frozen"])
def test_a_bug_is_put_into_a_copy_and_named_by_its_check(bug: str) -> None:
    """A bug in a part and one in the model: the student's own parts and weights stay."""
    pipeline = tiny()
    parts = {field.name: getattr(pipeline, field.name) for field in dataclasses.fields(Pipeline)}
    weights = pipeline.model.state_dict()["table.weight"].clone()
    victim = infect(pipeline, by_id()[bug], seed=1)
    observe_own(victim.pipeline, seed=1)
    assert victim.caught
    assert victim.result.reason == bug
    assert all(getattr(pipeline, name) is part for name, part in parts.items())
    assert torch.equal(pipeline.model.state_dict()["table.weight"], weights)
    assert all(parameter.requires_grad for parameter in pipeline.model.parameters())


@pytest.mark.parametrize(
    ("bug", "unlock"),
    [("sampling.negated", "next_token_probabilities"), ("split.empty", "val_ids")],
)
def test_a_missing_part_is_named(bug: str, unlock: str) -> None:
    with pytest.raises(NoPlaceError) as caught:
        infect(tiny(), by_id()[bug], seed=1)
    assert unlock in caught.value.unlock


def test_a_check_that_fails_already_proves_nothing() -> None:
    """Targets that equal the inputs fail shift before any bug is put in."""

    def copied(data: Tensor) -> tuple[Tensor, Tensor]:
        inputs, _ = count_up(data)
        return inputs, inputs

    with pytest.raises(NoPlaceError, match=r"shift says shift.identical without it"):
        infect(tiny(get_batch=copied), by_id()["shift.too_far"], seed=1)


def test_the_same_number_draws_the_same_bug_and_numbers_differ() -> None:
    drawn = [infect_blindly(tiny(), number, seed=1) for number in (1, 1, 2, 3, 4)]
    ids = [victim.injection.id for victim in drawn]
    assert ids[0] == ids[1]
    assert len(set(ids)) >= 3
    assert all(victim.caught for victim in drawn)


# ---- the command -----------------------------------------------------------------------------


def test_a_named_bug_is_shown_caught_and_explained(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([place, "--bug", "shift.identical", "--probe", "shift"]) == 0
    shown = capsys.readouterr().out
    assert shown.isascii()
    assert max(map(len, shown.splitlines())) <= 60
    assert "every target is its own input" in shown
    assert "[OK] caught by shift for shift.identical" in shown
    assert "t training loss" in shown


def test_a_bug_without_a_place_exits_with_2_and_says_what_gives_one(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([place, "--bug", "evaluation.bits"]) == 2
    shown = capsys.readouterr().out
    assert shown.startswith("[SKIP] the bug has no place in this pipeline: ")
    assert "evaluate" in shown


def test_a_blind_bug_is_named_only_after_the_right_answer(
    place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The drawn bug is known here from the function that draws it."""
    bug = infect_blindly(tiny(), 1, seed=42).injection
    wrong = next(name for name in ("roundtrip", "schedule") if name != bug.check)
    assert main([place, "--random", "1"]) == 0
    assert main([place, "--random", "1", "--probe", bug.check]) == 0
    assert main([place, "--random", "1", "--answer", wrong]) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 60
    before = " ".join(shown.split())
    assert bug.id not in before
    assert bug.title not in before
    assert f"[FAIL] {bug.check}" in before
    assert f"{wrong} does not see this bug" in before
    assert main([place, "--random", "1", "--answer", bug.check]) == 0
    after = " ".join(capsys.readouterr().out.split())
    assert f"The bug: {bug.title} ({bug.id})" in after


def sit_down(monkeypatch: pytest.MonkeyPatch, *typed: str | None) -> None:
    """Pretend that a person sits there and types these lines; None is the end of the input."""
    lines = iter(typed)
    monkeypatch.setattr(own_model, "on_terminal", lambda: True)
    monkeypatch.setattr(own_model, "ask", lambda prompt: next(lines))


def test_a_blind_bug_is_found_by_typing(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bug = infect_blindly(tiny(), 1, seed=42).injection
    wrong = next(name for name in ("roundtrip", "schedule") if name != bug.check)
    sit_down(monkeypatch, "", "nonsense", bug.check, f"answer {wrong}", f"answer {bug.check}")
    assert main([place, "--random", "1"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "there is no check 'nonsense'" in shown
    places = [
        shown.index(text)
        for text in (
            f"[FAIL] {bug.check} measured",
            f"[FAIL] {wrong} does not see this bug",
            f"The bug: {bug.title} ({bug.id})",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize("last", [None, "quit"])
def test_leaving_a_blind_bug_reveals_nothing(
    last: str | None,
    place: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sit_down(monkeypatch, last)
    assert main([place, "--random", "1"]) == 1
    assert "The bug: " not in capsys.readouterr().out


def test_a_prediction_is_compared_with_the_check(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Asked between what is seen and what the check says."""
    for guess, told in (("shift", "That is what you said."), ("loss", "You said loss.")):
        monkeypatch.setattr(own_model, "ask_for_one", lambda question, known, guess=guess: guess)
        assert main([place, "--bug", "shift.identical"]) == 0
        assert capsys.readouterr().out.endswith(f"{told}\n")


def test_a_bug_that_its_check_misses_exits_with_1(
    place: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug that changes nothing cannot be seen."""
    nothing = Injection("shift.nothing", "nothing is done", lambda pipeline: pipeline)
    monkeypatch.setattr(_own_bug, "INJECTIONS", (nothing,))
    assert main([place, "--bug", "shift.nothing"]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "[FAIL] not caught: shift says shift.ok, wanted was shift.nothing" in shown
    assert main([place, "--random", "1"]) == 2
    assert capsys.readouterr().out.startswith("[SKIP] of 1 known bug none has a place here and ")


def test_the_list_tells_what_has_a_place(place: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([place]) == 0
    shown = capsys.readouterr().out
    assert "  shift.identical: every target is its own input" in shown
    assert "[SKIP] the pipeline brings no evaluate: evaluation.train_mode" in " ".join(
        shown.split()
    )
    assert "give Pipeline evaluate" in shown
    assert f" of {len(by_id())} bugs have a place in this pipeline" in shown
    assert shown.splitlines()[-2:] == [
        "  next  the same command with --random 1, an unnamed bug",
        "  or    the same with --bug ID, one of those above",
    ]
    assert max(map(len, shown.splitlines())) <= 60


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["nothing"], "error: the target wants module:function or file.py:function, got"),
        (["nowhere.py:build"], "error: there is no file nowhere.py"),
        (["PLACE", "--bug", "shift.identcal"], "error: there is no bug 'shift.identcal'; did you"),
        (["PLACE", "--probe", "shfit"], "error: there is no check 'shfit'; did you mean shift"),
        (["PLACE", "--answer", "shfit"], "error: there is no check 'shfit'; did you mean shift"),
        (["QUITS"], "error: the target "),
    ],
)
def test_what_cannot_be_used_is_one_line_and_exit_2(
    arguments: list[str], line: str, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = {"PLACE": place, "QUITS": place.replace("build", "quits")}
    assert main([places.get(word, word) for word in arguments]) == 2
    error = capsys.readouterr().err
    assert error.startswith(line)
    assert error.count("\n") == 1


def test_help_does_not_wait_for_torch() -> None:
    code = (
        "import runpy, sys; sys.modules['torch'] = None; sys.argv = ['own_model', '--help']; "
        "runpy.run_module('exercises.own_model', run_name='__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT, capture_output=True, text=True, check=False, env=os.environ | {"COLUMNS": "60"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert max(map(len, done.stdout.splitlines())) <= 60
