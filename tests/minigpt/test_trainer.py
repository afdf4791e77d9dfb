"""The loop: exact resume, honest clipping, refusal of NaN, files that survive a full disk."""

import dataclasses
import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minigpt import trainer as trainer_module
from minigpt.checkpoint import Checkpoint, load_checkpoint
from minigpt.model import MiniGPT, MiniGPTConfig
from minigpt.seed import set_seed
from minigpt.tokenizer import CharTokenizer
from minigpt.trainer import (
    NonFiniteError,
    SaveError,
    StepReport,
    Trainer,
    TrainSettings,
)

V = 11
TOKENIZER = CharTokenizer(map(chr, range(65, 65 + V)))
TRAIN_IDS = torch.arange(600) ** 2 % V  # quadratic residues: a pattern that can be learnt
VALIDATION_IDS = torch.arange(600, 760) ** 2 % V
SETTINGS = TrainSettings(
    max_steps=20,
    batch_size=4,
    warmup_steps=3,
    log_every=4,
    evaluate_every=6,
    evaluation_windows=4,
)


def make_trainer(
    folder: Path,
    changes: dict[str, Any] | None = None,
    *,
    model: MiniGPT | None = None,
    **options: Any,
) -> Trainer:
    """Return a trainer whose model, with dropout, is the same in every call."""
    if model is None:
        set_seed(5)
        config = MiniGPTConfig(V, 8, 16, num_heads=2, num_layers=2, dropout=0.1)
        model = MiniGPT(config)
    settings = dataclasses.replace(SETTINGS, **(changes or {}))
    return Trainer(model, TOKENIZER, TRAIN_IDS, VALIDATION_IDS, settings, folder=folder, **options)


def resume(folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> Trainer:
    """Return a trainer as another process would make it: from the file, random states unknown."""
    set_seed(random.randrange(1000))
    checkpoint = load_checkpoint(folder / "mini_gpt_last.safetensors")
    return make_trainer(folder, changes, model=checkpoint.model, checkpoint=checkpoint, **options)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """Return the rows of the log."""
    lines = (folder / "mini_gpt_log.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def without_speed(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the one value that depends on the machine."""
    return [{key: row[key] for key in row if key != "tokens_per_second"} for row in rows]


def everything(trainer: Trainer) -> list[Tensor]:
    """Return weights, moments and random states."""
    moments = trainer.optimizer.state_dict()["state"]
    return [
        *trainer.model.state_dict().values(),
        *(moments[index][key] for index in moments for key in sorted(moments[index])),
        torch.get_rng_state(),
        torch.from_numpy(np.random.get_state()[1].astype(np.int64)),
    ]


class TestResume:
    @pytest.mark.parametrize("stop", [1, 6, 7, 19])
    def test_in_two_parts_gives_the_same_bits(self, tmp_path: Path, stop: int) -> None:
        """Train 20 = train `stop`, stop, resume, train the rest: weights, moments, counters, log.

        With dropout, so that the random states count, and with several evaluations on both sides.
        """
        whole = make_trainer(tmp_path / "whole")
        assert whole.run() == "finished"
        expected = everything(whole)
        assert make_trainer(tmp_path / "parts").run(stop_after=stop) == "paused"
        resumed = resume(tmp_path / "parts")
        assert resumed.state.step == stop
        assert resumed.run() == "finished"
        for ours, theirs in zip(everything(resumed), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert resumed.state == whole.state
        assert without_speed(read_log(tmp_path / "parts")) == without_speed(
            read_log(tmp_path / "whole")
        )

    def test_patience_goes_on_where_it_was(self, tmp_path: Path) -> None:
        """At a rate too high to learn, both runs stop early, at the same step."""
        changes = {"learning_rate": 3.0, "min_learning_rate": 3.0, "patience": 2, "max_steps": 90}
        whole = make_trainer(tmp_path / "whole", changes)
        assert whole.run() == "early"
        assert whole.state.step < 90
        assert whole.state.evaluations_without_gain == 2
        stop = whole.state.best_step + 7  # one evaluation without a gain lies behind
        assert make_trainer(tmp_path / "parts", changes).run(stop_after=stop) == "paused"
        resumed = resume(tmp_path / "parts", changes)
        assert resumed.state.evaluations_without_gain == 1
        assert resumed.run() == "early"
        assert resumed.state == whole.state

    def test_the_log_forgets_what_will_be_written_again(self, tmp_path: Path) -> None:
        """Rows after the checkpoint, and a row cut short, are dropped on resume."""
        make_trainer(tmp_path).run(stop_after=8)
        with (tmp_path / "mini_gpt_log.jsonl").open("a") as file:
            file.write('{"step": 12, "train_loss": 9.9}\n{"step": 8, "tra')
        resume(tmp_path).run()
        assert [row["step"] for row in read_log(tmp_path)] == [0, 4, 6, 8, 12, 16, 18, 20]
        assert all(row["train_loss"] != 9.9 for row in read_log(tmp_path))

    def test_a_finished_run_has_nothing_left_to_do(self, tmp_path: Path) -> None:
        """Resuming at max_steps makes no update."""
        first = make_trainer(tmp_path)
        first.run()
        before = everything(first)[0].clone()
        resumed = resume(tmp_path)
        assert resumed.run() == "finished"
        assert torch.equal(everything(resumed)[0], before)

    def test_a_checkpoint_without_training_state_is_refused(self, tmp_path: Path) -> None:
        """Weights alone cannot be resumed, and the message names the file."""
        make_trainer(tmp_path).run(stop_after=2)
        checkpoint = load_checkpoint(tmp_path / "mini_gpt_last.safetensors")
        bare = dataclasses.replace(checkpoint, trainer_state=None)
        with pytest.raises(ValueError, match=r"mini_gpt_last.*no training state"):
            make_trainer(tmp_path, model=bare.model, checkpoint=bare)


class TestStopping:
    def test_should_stop_saves_what_was_done(self, tmp_path: Path) -> None:
        """Asked to stop after step 3, the run ends there and its checkpoint is of step 3."""
        reports: list[StepReport] = []
        trainer = make_trainer(
            tmp_path, on_step=reports.append, should_stop=lambda: len(reports) == 4
        )
        assert trainer.run() == "interrupted"
        assert [report.step for report in reports] == [0, 1, 2, 3]
        assert load_checkpoint(tmp_path / "mini_gpt_last.safetensors").step == 3

    def test_best_is_the_best_evaluation_and_last_the_last(self, tmp_path: Path) -> None:
        """The best file holds the lowest validation loss of the log; the last file step 20."""
        trainer = make_trainer(tmp_path, {"learning_rate": 0.05, "evaluate_every": 2})
        trainer.run()
        losses = {
            row["step"]: row["validation_loss"]
            for row in read_log(tmp_path)
            if row["validation_loss"] is not None and row["step"] > 0
        }
        best = load_checkpoint(tmp_path / "mini_gpt_best.safetensors")
        assert best.step == min(losses, key=lambda step: losses[step])
        assert best.validation_loss == best.best_validation_loss == losses[best.step]
        last = load_checkpoint(tmp_path / "mini_gpt_last.safetensors")
        assert (last.step, last.best_validation_loss) == (20, losses[best.step])


class TestUpdate:
    def test_is_the_textbook_step(self, tmp_path: Path) -> None:
        """Zero, forward, backward, clip, step at the scheduled rate: the same as written out."""
        changes = {"warmup_steps": 4, "clip_norm": 0.5, "weight_decay": 0.0}
        trainer = make_trainer(tmp_path, changes)
        trainer.model.eval()  # dropout off: the two models draw nothing
        other = MiniGPT(trainer.model.config).eval()
        other.load_state_dict(trainer.model.state_dict())
        optimizer = torch.optim.AdamW(other.parameters(), betas=(0.9, 0.99), weight_decay=0.0)
        for step in range(3):
            inputs, targets = trainer._batch(0)
            report = trainer.update()
            optimizer.param_groups[0]["lr"] = 1e-3 * (step + 1) / 4
            optimizer.zero_grad()
            loss = other(inputs, targets)[1]
            assert loss is not None
            loss.backward()
            norm = torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
            optimizer.step()
            assert report.train_loss == pytest.approx(loss.item(), abs=1e-6)
            assert report.grad_norm == pytest.approx(norm.item(), rel=1e-5)
            assert report.clipped is (norm.item() > 0.5)
            assert report.learning_rate == 1e-3 * (step + 1) / 4
        for ours, theirs in zip(trainer.model.parameters(), other.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)

    def test_clipped_share(self, tmp_path: Path) -> None:
        """A limit below every norm clips all updates, one above clips none, 0 is off."""
        for limit, share in ((1e-6, 1.0), (1e6, 0.0), (0.0, 0.0)):
            trainer = make_trainer(tmp_path / str(limit), {"clip_norm": limit})
            trainer.run()
            assert trainer.clipped_share == share

    def test_the_batch_depends_on_seed_and_step_only(self, tmp_path: Path) -> None:
        """Whatever was drawn before, the batch of a step is the same; other steps have others."""
        first, second = make_trainer(tmp_path), make_trainer(tmp_path)
        expected = [first._batch(0)[0]]
        first.state.step = second.state.step = 3
        expected.append(first._batch(0)[0])
        torch.randn(5)
        assert torch.equal(second._batch(0)[0], expected[1])
        assert not torch.equal(expected[0], expected[1])
        assert not torch.equal(first._batch(1)[0], expected[1])

    def test_bfloat16_trains_float32_weights(self, tmp_path: Path) -> None:
        """Under autocast the weights stay float32 and the loss falls, near the float32 run's."""
        losses = {}
        for dtype in ("float32", "bfloat16"):
            trainer = make_trainer(tmp_path / dtype, {"dtype": dtype, "learning_rate": 0.01})
            trainer.run()
            assert {p.dtype for p in trainer.model.parameters()} == {torch.float32}
            losses[dtype] = trainer.state.validation_loss
        assert losses["bfloat16"] == pytest.approx(losses["float32"], abs=0.05)
        assert losses["bfloat16"] < math.log(V)


class TestNonFinite:
    def poison(self, trainer: Trainer, at_step: int, value: float) -> None:
        """From update `at_step` + 1 on, one gradient is not finite although the loss is."""

        def hook(gradient: Tensor) -> Tensor:
            if trainer.state.step < at_step:
                return gradient
            gradient = gradient.clone()
            gradient[0] = value
            return gradient

        trainer.model.blocks[1].feed_forward.expand.bias.register_hook(hook)

    @pytest.mark.parametrize("value", [math.nan, math.inf])
    def test_a_bad_gradient_is_never_stepped(self, tmp_path: Path, value: float) -> None:
        """The run stops with the weights of step 8; the message names step, place and file."""
        healthy = make_trainer(tmp_path / "healthy")
        healthy.run(stop_after=8)
        trainer = make_trainer(tmp_path / "sick")
        self.poison(trainer, at_step=8, value=value)
        with pytest.raises(NonFiniteError) as caught:
            trainer.run()
        message = str(caught.value)
        assert "update 9 got loss 2." in message
        assert "first in blocks.1.feed_forward.expand.bias" in message
        assert "Last finite step: 8." in message
        assert "mini_gpt_last.safetensors (step 6)" in message
        for ours, theirs in zip(
            trainer.model.parameters(), healthy.model.parameters(), strict=True
        ):
            assert torch.equal(ours, theirs)
        assert load_checkpoint(tmp_path / "sick" / "mini_gpt_last.safetensors").step == 6

    def test_a_bad_loss_before_any_checkpoint(self, tmp_path: Path) -> None:
        """With NaN in a weight from the start the evaluation stops the run; no file appears."""
        trainer = make_trainer(tmp_path)
        with torch.no_grad():
            trainer.model.head.weight[0, 0] = math.nan
        with pytest.raises(NonFiniteError, match=r"evaluation at step 0.*no checkpoint of this"):
            trainer.run()
        assert not list(tmp_path.glob("*.safetensors"))

    def test_weights_that_are_not_finite_are_not_saved(self, tmp_path: Path) -> None:
        """Infinite weights replace no good file, also when stopped between evaluations."""
        trainer = make_trainer(tmp_path)
        trainer.run(stop_after=7)
        with torch.no_grad():
            trainer.model.head.weight[0, 0] = math.inf
        with pytest.raises(NonFiniteError, match=r"weights after step 7.*\(step 7\)"):
            trainer._save(best=False)
        assert load_checkpoint(tmp_path / "mini_gpt_last.safetensors").step == 7


class TestFiles:
    def test_a_full_disk_leaves_the_last_good_checkpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """When the second checkpoint cannot be written, the first is whole and is named."""
        trainer = make_trainer(tmp_path, save_wait_seconds=0)
        trainer.run(stop_after=6)

        def full(*args: object, **kwargs: object) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(trainer_module, "save_checkpoint", full)
        with pytest.raises(SaveError) as caught:
            trainer.run()
        assert "No space left on device" in str(caught.value)
        assert "mini_gpt_last.safetensors (step 6)" in str(caught.value)
        assert load_checkpoint(tmp_path / "mini_gpt_last.safetensors").step == 6

    def test_a_folder_that_cannot_be_made(self, tmp_path: Path) -> None:
        """A file where the folder should be stops the run before the first update."""
        (tmp_path / "file").write_text("")
        trainer = make_trainer(tmp_path / "file" / "checkpoints")
        with pytest.raises(SaveError, match=r"cannot write .*mini_gpt_log\.jsonl at step 0"):
            trainer.run()
        assert trainer.state.step == 0

    def test_every_row_has_the_same_keys(self, tmp_path: Path) -> None:
        """One JSON object per logged step, numbers finite, the last at max_steps."""
        make_trainer(tmp_path).run()
        rows = read_log(tmp_path)
        assert [row["step"] for row in rows] == [0, 4, 6, 8, 12, 16, 18, 20]
        keys = [
            "step",
            "train_loss",
            "validation_loss",
            "training_loss",
            "learning_rate",
            "grad_norm",
            "clipped",
            "tokens_per_second",
        ]
        assert all(list(row) == keys for row in rows)
        assert all(row["validation_loss"] is not None for row in rows if row["step"] % 6 == 0)
        assert rows[1]["validation_loss"] is None


def test_a_new_run_replaces_the_old_log(tmp_path: Path) -> None:
    """Two runs in one folder leave the log of the second."""
    make_trainer(tmp_path).run()
    make_trainer(tmp_path).run(stop_after=4)
    assert [row["step"] for row in read_log(tmp_path)] == [0, 4]


def test_checkpoint_holds_everything(tmp_path: Path) -> None:
    """Settings, counters, tokenizer and corpus travel in the one file."""
    make_trainer(tmp_path, corpus_fingerprint="abc").run(stop_after=7)
    checkpoint: Checkpoint = load_checkpoint(tmp_path / "mini_gpt_last.safetensors")
    assert checkpoint.tokenizer == TOKENIZER
    assert checkpoint.corpus_fingerprint == "abc"
    assert checkpoint.trainer_state is not None
    assert TrainSettings(**checkpoint.trainer_state["settings"]) == SETTINGS
    assert checkpoint.trainer_state["state"]["step"] == 7


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 0}, "max_steps must be >= 1, got 0"),
        ({"learning_rate": math.nan}, "learning_rate must be > 0, got nan"),
        ({"min_learning_rate": 1.0}, r"min_learning_rate must be in 0..learning_rate = 0.001"),
        ({"warmup_steps": 21}, r"warmup_steps must be in 0..max_steps = 20, got 21"),
        ({"beta2": 1.0}, r"beta2 must be in \[0, 1\), got 1.0"),
        ({"clip_norm": -1.0}, "clip_norm must be >= 0, got -1.0"),
        ({"seed": -1}, "seed must be in"),
        ({"dtype": "float16"}, "dtype must be float32 or bfloat16, got float16"),
    ],
)
def test_settings_out_of_range(changes: dict[str, Any], message: str) -> None:
    """Each setting that does not fit is refused by name, with its value."""
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SETTINGS, **changes)
