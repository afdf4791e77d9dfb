"""Stopped anywhere in any way, and resumed, a run ends with the bits of one that was not."""

import random
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minigpt._training_state import BEST_NAME, LAST_NAME, TrainState
from minigpt.checkpoint import load_checkpoint
from minigpt.seed import set_seed
from minigpt.trainer import Trainer
from tests.minigpt.test_trainer import everything, make_trainer, read_log, without_speed

# Each one holds what could be forgotten: dropout (in all of them), batches within an update, a
# count of evaluations without a gain, clipped updates, bfloat16, a log that is sparser or denser.
RUNS: dict[str, dict[str, Any]] = {
    "plain": {},
    "accumulated": {"accumulation_steps": 3, "evaluate_every": 4, "log_every": 1},
    "early": {"learning_rate": 3.0, "min_learning_rate": 3.0, "patience": 2, "evaluate_every": 3},
    "clipped": {"clip_norm": 0.9, "learning_rate": 0.05, "evaluate_every": 2, "log_every": 5},
    "bfloat16": {"dtype": "bfloat16", "accumulation_steps": 2, "evaluate_every": 5},
}
WAYS = ("pause", "stop", "ctrl_c", "ctrl_c", "best")


@cache
def whole(name: str) -> tuple[list[Tensor], TrainState, list[dict[str, Any]], dict[str, bytes]]:
    """Return what the run ends with that nobody stopped: tensors, counters, rows, files."""
    folder = Path(mkdtemp())
    trainer = make_trainer(folder, RUNS[name])
    trainer.run()
    return everything(trainer), trainer.state, without_speed(read_log(folder)), files(folder)


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of both checkpoints."""
    return {name: (folder / name).read_bytes() for name in (LAST_NAME, BEST_NAME)}


def start(folder: Path, name: str, file: str = LAST_NAME, **options: Any) -> Trainer:
    """Return a trainer as a new process makes it: from the file, or from nothing."""
    if not (folder / file).exists():
        return make_trainer(folder, RUNS[name], **options)
    set_seed(random.randrange(1000))  # whatever the process has drawn before
    checkpoint = load_checkpoint(folder / file)
    model = checkpoint.model
    return make_trainer(folder, RUNS[name], model=model, checkpoint=checkpoint, **options)


def interrupt_forward(model: nn.Module, number: int) -> None:
    """Ctrl-C in the middle of a forward pass: between the batches of an update, say."""
    calls = iter(range(number))

    def hook(*_: object) -> None:
        if next(calls, None) is None:
            raise KeyboardInterrupt

    model.register_forward_pre_hook(hook)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", RUNS)
def test_any_stops_change_no_bit(tmp_path: Path, name: str, seed: int) -> None:
    """Three stops at random places, each in a random way, each continued by a new trainer.

    Weights, moments, random states, counters, rows and the bytes of both files are compared.
    """
    choose = random.Random(f"{name} {seed}")
    for _ in range(3):
        way = choose.choice(WAYS)
        trainer = start(tmp_path, name, BEST_NAME if way == "best" else LAST_NAME)
        until = choose.randint(min(trainer.state.step + 1, 20), 20)
        if way == "ctrl_c":
            interrupt_forward(trainer.model, choose.randrange(1, 40))
            try:
                trainer.run()
            except KeyboardInterrupt:
                continue
        elif way == "stop":
            trainer.should_stop = lambda run=trainer, step=until: run.state.step >= step  # type: ignore[misc]
            trainer.run()
        else:
            trainer.run(stop_after=until)
    last = start(tmp_path, name)
    assert last.run() in ("finished", "early")
    tensors, state, rows, contents = whole(name)
    for ours, theirs in zip(everything(last), tensors, strict=True):
        assert torch.equal(ours, theirs)
    assert last.state == state
    assert without_speed(read_log(tmp_path)) == rows
    assert files(tmp_path) == contents
    assert {path.name for path in tmp_path.iterdir()} == {*contents, "mini_gpt_log.jsonl"}


def test_the_runs_hold_what_they_promise() -> None:
    """Otherwise the test above would compare runs in which nothing can be forgotten."""
    assert whole("early")[1].evaluations_without_gain == 2
    assert 0 < whole("early")[1].best_step < whole("early")[1].step < 20
    assert 0 < whole("clipped")[1].clipped_steps < 20
    losses = {name: whole(name)[1].validation_loss for name in RUNS}
    assert len(set(losses.values())) == len(RUNS)


def test_resuming_from_the_best_takes_the_folder_back_to_it(tmp_path: Path) -> None:
    """Killed right afterwards, a plain --resume goes on from there too, with the right rows."""
    make_trainer(tmp_path, RUNS["early"]).run()
    best = load_checkpoint(tmp_path / BEST_NAME)
    assert 0 < best.step < load_checkpoint(tmp_path / LAST_NAME).step
    trainer = start(tmp_path, "early", BEST_NAME)
    interrupt_forward(trainer.model, 1)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert load_checkpoint(tmp_path / LAST_NAME).step == best.step
    assert max(row["step"] for row in read_log(tmp_path)) == best.step
    start(tmp_path, "early").run()
    assert files(tmp_path) == whole("early")[3]


def test_a_best_file_of_another_run_is_replaced(tmp_path: Path) -> None:
    """Killed between its first last and its first best, a run resumes and writes its own best."""
    make_trainer(tmp_path, {"seed": 7}).run()
    foreign = (tmp_path / BEST_NAME).read_bytes()
    make_trainer(tmp_path, RUNS["plain"]).run(stop_after=6)
    (tmp_path / BEST_NAME).write_bytes(foreign)
    assert start(tmp_path, "plain").run() == "finished"
    assert files(tmp_path) == whole("plain")[3]


def test_another_folder_gets_all_that_is_needed(tmp_path: Path) -> None:
    """Resumed from one folder into another, the second is complete from its first instant."""
    make_trainer(tmp_path / "a", RUNS["plain"]).run(stop_after=6)
    checkpoint = load_checkpoint(tmp_path / "a" / LAST_NAME)
    trainer = make_trainer(tmp_path / "b", model=checkpoint.model, checkpoint=checkpoint)
    interrupt_forward(trainer.model, 1)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert files(tmp_path / "b") == files(tmp_path / "a")
    start(tmp_path / "b", "plain").run()
    assert files(tmp_path / "b") == whole("plain")[3]
    assert without_speed(read_log(tmp_path / "b")) == whole("plain")[2]


def test_a_trainer_that_was_cut_does_not_go_on(tmp_path: Path) -> None:
    """Half an update may be in its weights, in a notebook for example; the file is whole."""
    trainer = make_trainer(tmp_path, RUNS["plain"])
    trainer.run(stop_after=7)
    interrupt_forward(trainer.model, 2)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    message = rf"interrupted inside of step 10 .* make a new one.*{LAST_NAME} \(step 7\)"
    with pytest.raises(RuntimeError, match=message):
        trainer.run()
    start(tmp_path, "plain").run()
    assert files(tmp_path) == whole("plain")[3]


def test_a_log_of_another_run_is_told_of(tmp_path: Path) -> None:
    """The rows that are missing cannot come back; training goes on, and a warning says so."""
    make_trainer(tmp_path, RUNS["plain"]).run(stop_after=8)
    log = tmp_path / "mini_gpt_log.jsonl"
    log.write_bytes(log.read_bytes().split(b"\n", 1)[1])
    warnings: list[str] = []
    start(tmp_path, "plain", on_warning=warnings.append).run()
    assert warnings == [
        f"{log} does not hold the rows of this run until step 8; it goes on with the rows that "
        "are there"
    ]
    assert files(tmp_path)[LAST_NAME] != whole("plain")[3][LAST_NAME]  # its rows are others
    ours, theirs = everything(start(tmp_path, "plain")), whole("plain")[0]
    assert all(map(torch.equal, ours[:10], theirs[:10]))
