"""Two real processes against one: the same losses and weights, each its own rows, one writer.

The processes are started once for all tests; what they do stands in `parallel_ranks.py`.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from minigpt import parallel, prepare
from minigpt._cli import CommandError
from minigpt._launch import Launch
from minigpt.checkpoint import Checkpoint, load_checkpoint
from minigpt.parallel import ALONE, PeerError, Team, choose_device, team_of
from minigpt.train._flags import parse_flags
from minigpt.train._prepare import _resumed_settings
from minigpt.trainer import Trainer, TrainSettings
from minigpt.update import Update, update_weights
from tests.minigpt.parallel_ranks import (
    SCORED,
    TOKENIZER,
    TRAIN_IDS,
    T,
    flat,
    make_batches,
    make_model,
    make_trainer,
)

ROOT = Path(__file__).resolve().parents[2]
# Sums in another order: measured 2e-7 in losses and 1e-6 in weights after 12 steps of AdamW.
SUM_TOLERANCE = 1e-5


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def run_ranks(folder: Path) -> list[dict[str, Any]]:
    """Run `parallel_ranks.py` in two processes; return what each of them found."""
    command = [sys.executable, "-m", "tests.minigpt.parallel_ranks", str(folder)]
    command += [str(free_port()) for _ in range(3)]
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    started = [
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | common | {"RANK": str(rank)},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [process.communicate(timeout=300)[1] for process in started]
    finally:
        for process in started:
            process.kill()
    paths = [folder / name for name in ("rank0.pt", "rank1.pt", "lost_silent", "lost_dead")]
    assert all(path.exists() for path in paths), "\n".join(said)
    return [torch.load(path, weights_only=True) for path in paths[:2]]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def ranks(place: Path) -> list[dict[str, Any]]:
    """What rank 0 and rank 1 found."""
    return run_ranks(place)


def single_update(case: str, **options: Any) -> tuple[Update, Tensor]:
    """The update of one process over all rows of all ranks in one batch, and the weights."""
    model = make_model()
    parts = [batch for rank in range(2) for batch in make_batches(case, rank)]
    whole = tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))
    sgd = torch.optim.SGD(model.parameters(), lr=1.0)
    return update_weights(model, sgd, [(whole[0], whole[1])], **options), flat(model)


class TestUpdate:
    @pytest.mark.parametrize("case", ["uneven", "one rank has none", "clipped"])
    def test_is_that_of_all_rows_in_one_batch(self, ranks: list[dict[str, Any]], case: str) -> None:
        """SGD at rate 1 moves by the gradient: it is the mean over all scored tokens, on any rank.

        The ranks score 37 and 17 targets, or 9 and none, in micro-batches of unequal counts.
        """
        clip_norm = 0.01 if case == "clipped" else 0.0
        update, weights = single_update(case if case in SCORED else "uneven", clip_norm=clip_norm)
        for rank in ranks:
            found = rank["updates"][case]
            assert found["loss"] == pytest.approx(update.loss, abs=SUM_TOLERANCE)
            assert found["grad_norm"] == pytest.approx(update.grad_norm, abs=SUM_TOLERANCE)
            assert (found["made"], found["clipped"]) == (True, case == "clipped")
            torch.testing.assert_close(found["weights"], weights, atol=SUM_TOLERANCE, rtol=0)
            moved = (found["weights"] - flat(make_model())).norm().item()
            wanted = clip_norm or update.grad_norm
            assert moved == pytest.approx(wanted, rel=1e-3)

    def test_is_the_same_bits_on_every_rank(self, ranks: list[dict[str, Any]]) -> None:
        for case in SCORED:
            first, second = (rank["updates"][case]["weights"] for rank in ranks)
            assert torch.equal(first, second)

    @pytest.mark.parametrize("case", ["a NaN on rank 1", "no rank has any"])
    def test_with_a_nan_is_made_by_nobody(self, ranks: list[dict[str, Any]], case: str) -> None:
        """Rank 0 is healthy, and must not step either."""
        for rank in ranks:
            found = rank["updates"][case]
            assert (found["made"], found["clipped"]) == (False, False)
            assert math.isnan(found["grad_norm"])
            assert torch.equal(found["weights"], flat(make_model()))

    def test_carries_the_wish_to_stop(self, ranks: list[dict[str, Any]]) -> None:
        """Rank 1 alone asked; after the update both know, in the other cases neither does."""
        for rank in ranks:
            asked = {case for case, found in rank["updates"].items() if found["stop"]}
            assert asked == {"rank 1 wants to stop"}


class TestTrainer:
    def single(self, tmp_path: Path, parts: int) -> tuple[Trainer, list[float | None]]:
        """One process that accumulates as many parts as all ranks together have."""
        losses: list[float | None] = []
        trainer = make_trainer(
            tmp_path,
            accumulation_steps=parts,
            on_step=lambda report: losses.append(report.train_loss),
        )
        trainer.run()
        return trainer, losses

    @pytest.mark.parametrize(("name", "parts"), [("whole", 2), ("micro", 4)])
    def test_processes_equal_accumulation(
        self, ranks: list[dict[str, Any]], tmp_path: Path, name: str, parts: int
    ) -> None:
        """2 processes x A parts = 1 process x 2 A parts: losses, evaluations, weights."""
        trainer, losses = self.single(tmp_path, parts)
        for rank in ranks:
            found = rank["trainers"][name]
            assert found["losses"][1:] == pytest.approx(losses[1:], abs=SUM_TOLERANCE)
            assert len(found["losses"]) == 13
            torch.testing.assert_close(
                found["weights"], flat(trainer.model), atol=SUM_TOLERANCE, rtol=0
            )
            state = found["state"]
            assert state["validation_loss"] == pytest.approx(
                trainer.state.validation_loss, abs=SUM_TOLERANCE
            )
            assert state["training_loss"] == pytest.approx(
                trainer.state.training_loss, abs=SUM_TOLERANCE
            )
            assert (state["best_step"], state["step"]) == (trainer.state.best_step, 12)

    def test_all_ranks_know_the_same(self, ranks: list[dict[str, Any]]) -> None:
        """Losses, norms, counters and weights of both ranks agree bit for bit."""
        for name, first in ranks[0]["trainers"].items():
            second = ranks[1]["trainers"][name]
            assert torch.equal(first["weights"], second["weights"])
            for key in ("reason", "state", "losses", "norms"):
                assert first[key] == second[key]

    def test_each_rank_reads_its_own_rows(self, ranks: list[dict[str, Any]]) -> None:
        """Rank r reads part r of the update, which one process would read as its part r."""
        single = make_trainer(Path("unused"), accumulation_steps=2)
        rows = [rank["trainers"]["whole"]["row"] for rank in ranks]
        assert not torch.equal(rows[0], rows[1])
        for part, row in enumerate(rows):
            assert torch.equal(row, single._batch(part)[0][0])

    def test_only_rank_0_writes(self, ranks: list[dict[str, Any]], place: Path) -> None:
        """Each rank was given a folder of its own; those of rank 1 do not exist."""
        names = ranks[0]["trainers"].keys()
        assert all((place / f"{name}_0" / "mini_gpt_last.safetensors").exists() for name in names)
        assert not [name for name in names if (place / f"{name}_1").exists()]

    def test_the_checkpoint_is_a_plain_one(self, ranks: list[dict[str, Any]], place: Path) -> None:
        """Plain names, the weights of the ranks, and settings that tell of two processes."""
        checkpoint = load_checkpoint(place / "whole_0" / "mini_gpt_last.safetensors")
        assert torch.equal(flat(checkpoint.model), ranks[1]["trainers"]["whole"]["weights"])
        assert checkpoint.trainer_state is not None
        assert checkpoint.trainer_state["settings"]["processes"] == 2

    def test_dropout_differs_by_rank_and_resumes_exactly(self, ranks: list[dict[str, Any]]) -> None:
        """12 steps = 5, stop, resume, 7: the same bits, although only rank 0 saved its state."""
        for rank in ranks:
            found = rank["trainers"]
            assert torch.equal(
                found["dropout_resumed"]["weights"], found["dropout_whole"]["weights"]
            )
            assert found["dropout_resumed"]["losses"] == found["dropout_whole"]["losses"][6:]
        assert not torch.equal(ranks[0]["drawn"], ranks[1]["drawn"])

    def test_resumes_on_one_process(
        self, ranks: list[dict[str, Any]], place: Path, tmp_path: Path
    ) -> None:
        """Stopped at step 5 of 2 processes, one alone goes on with twice the accumulation."""
        shutil.copytree(place / "paused_0", tmp_path / "run")
        trainer = make_trainer(tmp_path / "run", resume=tmp_path / "run")
        assert trainer.settings.accumulation_steps == 2
        assert trainer.state.step == 5
        trainer.run()
        torch.testing.assert_close(
            flat(trainer.model),
            ranks[0]["trainers"]["whole"]["weights"],
            atol=SUM_TOLERANCE,
            rtol=0,
        )

    def test_stops_where_one_rank_asks(self, ranks: list[dict[str, Any]], place: Path) -> None:
        """Rank 1 asks in its fourth update: both end after it, and step 4 is saved."""
        for rank in ranks:
            found = rank["trainers"]["stopped"]
            assert (found["reason"], found["state"]["step"]) == ("interrupted", 4)
        assert load_checkpoint(place / "stopped_0" / "mini_gpt_last.safetensors").step == 4


class TestFailures:
    def test_a_nan_on_one_rank_ends_all_with_one_message(
        self, ranks: list[dict[str, Any]], place: Path
    ) -> None:
        first, second = (rank["failures"]["nan"] for rank in ranks)
        assert first == second
        assert first[0] == "NonFiniteError"
        assert "update 9 got loss 2." in first[1]
        assert "first in head.weight" in first[1]
        assert f"{place / 'nan' / 'mini_gpt_last.safetensors'} (step 6)" in first[1]

    def test_what_one_rank_cannot_write_ends_all(self, ranks: list[dict[str, Any]]) -> None:
        first, second = (rank["failures"]["unwritable"] for rank in ranks)
        assert first[0] == "SaveError"
        assert second == ["PeerError", f"process 0 ended with SaveError: {first[1]}"]

    def test_the_lowest_rank_that_failed_speaks(self, ranks: list[dict[str, Any]]) -> None:
        half, whole = (
            [rank["failures"][name] for rank in ranks] for name in ("half missing", "missing")
        )
        words = "process {} ended with ValueError: {}"
        assert half == [
            ["PeerError", words.format(1, "no data on this machine")],
            ["ValueError", "no data on this machine"],
        ]
        assert whole == [
            ["ValueError", "rank 0 has no data"],
            ["PeerError", words.format(0, "rank 0 has no data")],
        ]

    def test_different_facts_are_named(self, ranks: list[dict[str, Any]]) -> None:
        for rank in ranks:
            assert rank["failures"]["different"] == [
                "ValueError",
                "the step must be the same in all processes; process 1 has others than "
                "process 0. Give all machines the same files and flags",
            ]

    @pytest.mark.parametrize("how", ["dead", "silent"])
    def test_a_rank_that_is_gone_ends_the_other(
        self, ranks: list[dict[str, Any]], place: Path, how: str
    ) -> None:
        """A dead one is noticed by its connection, a silent one after the limit of 10 seconds."""
        message = (place / f"lost_{how}").read_text()
        assert message.startswith("process 0 of 2 lost the others and ended (")
        assert message.endswith("); the one that failed first says why, or was killed")
        assert len(message.splitlines()) == 1
        assert ("Timed out" in message) == (how == "silent")


def test_gather_and_total(ranks: list[dict[str, Any]]) -> None:
    """In order of rank; 1 + 1 and 10 + 11."""
    for rank in ranks:
        assert rank["gathered"].tolist() == [[5], [6]]
        assert rank["total"] == [2.0, 21.0]


class TestAlone:
    def test_nothing_is_wrapped_sent_or_drawn(self, tmp_path: Path) -> None:
        """One process has no group and steps the model itself."""
        with team_of(Launch(), torch.device("cpu")) as team:
            trainer = make_trainer(tmp_path, team)
            assert not dist.is_initialized()
        assert trainer._shared_model is trainer.model
        before = torch.get_rng_state()
        ALONE.reseed(1, 2)
        assert torch.equal(torch.get_rng_state(), before)
        assert ALONE.total([1.5]) == [1.5]
        assert [part.tolist() for part in ALONE.gather(torch.tensor([3]))] == [[3]]
        ALONE.require_same("anything", object())
        with pytest.raises(KeyError), ALONE.united():
            raise KeyError("its own error")

    def test_settings_of_another_number_are_refused(self, tmp_path: Path) -> None:
        """A trainer that is told of two processes and belongs to no team."""
        settings = TrainSettings(processes=2)
        with pytest.raises(ValueError, match="processes must be 1, got 2"):
            Trainer(make_model(), TOKENIZER, TRAIN_IDS, TRAIN_IDS, settings, folder=tmp_path)

    def test_an_own_error_is_no_lost_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Errors of the block pass as they are; those of torch's connections are explained."""
        monkeypatch.setattr(dist, "init_process_group", lambda *args, **kwargs: None)
        launch = Launch(rank=1, size=2, local_rank=1, local_size=2)
        own = RuntimeError("mat1 and mat2 shapes cannot be multiplied")
        with pytest.raises(RuntimeError) as caught, team_of(launch, torch.device("cpu")):
            raise own
        assert caught.value is own
        lost = RuntimeError("[/pytorch/gloo/pair.cc:81] Timed out waiting 2000ms for recv. More")
        with pytest.raises(PeerError) as explained, team_of(launch, torch.device("cpu")):
            raise lost
        assert str(explained.value) == (
            "process 1 of 2 lost the others and ended (Timed out waiting 2000ms for recv); "
            "the one that failed first says why, or was killed"
        )
        assert not explained.value.told

    def test_no_connection_says_how_to_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The variables of torchrun are only half there."""
        monkeypatch.delenv("MASTER_ADDR", raising=False)
        launch = Launch(rank=0, size=2, local_rank=0, local_size=2)
        with pytest.raises(ConnectionError) as caught, team_of(launch, torch.device("cpu")):
            pass
        assert str(caught.value).startswith("process 0 of 2 found no connection: ")
        assert "MASTER_ADDR" in str(caught.value)
        assert str(caught.value).endswith("; start them with torchrun")


class TestDevice:
    """Device choice with a pretended number of CUDA devices; nothing is computed."""

    @pytest.fixture(autouse=True)
    def cuda(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """Pretend two devices; the list collects what was made torch's default."""
        default: list[int] = []
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
        monkeypatch.setattr(torch.cuda, "set_device", default.append)
        monkeypatch.setattr(parallel, "find_device", lambda name: torch.device(name or "mps"))
        return default

    @pytest.mark.parametrize("name", [None, "cuda"])
    def test_each_local_rank_has_its_own(self, cuda: list[int], name: str | None) -> None:
        """Rank 3 is the second of the second machine."""
        launch = Launch(rank=3, size=4, local_rank=1, local_size=2)
        assert choose_device(launch, name) == torch.device("cuda:1")
        assert cuda == [1]

    def test_cpu_and_alone(self, cuda: list[int]) -> None:
        launch = Launch(rank=1, size=2, local_rank=1, local_size=2)
        assert choose_device(launch, "cpu") == torch.device("cpu")
        assert choose_device(Launch(), None) == torch.device("mps")
        assert cuda == []

    @pytest.mark.parametrize(
        ("size", "name", "message"),
        [
            (3, None, "device cuda is there 2 times for 3 processes; start at most 2, or try cpu"),
            (2, "mps", "device mps cannot serve 2 processes; try cpu or cuda"),
            (2, "cuda:1", "device cuda:1 cannot serve 2 processes; try cpu or cuda"),
        ],
    )
    def test_what_cannot_be_shared(self, size: int, name: str | None, message: str) -> None:
        launch = Launch(rank=0, size=size, local_rank=0, local_size=size)
        with pytest.raises(ValueError, match=message):
            choose_device(launch, name)


class TestResume:
    """What the command makes of a checkpoint of 1 process x 3 accumulation steps."""

    @pytest.fixture
    def checkpoint(self, tmp_path: Path) -> Checkpoint:
        make_trainer(tmp_path, accumulation_steps=3).run(stop_after=1)
        return load_checkpoint(tmp_path / "mini_gpt_last.safetensors")

    def test_deals_the_batches_out_anew(self, checkpoint: Checkpoint) -> None:
        """Three processes read one each; the flag that says so may be given."""
        for flags in ([], ["--accumulation-steps=1"]):
            settings = _resumed_settings(parse_flags(["--resume", *flags]), checkpoint, Team(0, 3))
            assert (settings.processes, settings.accumulation_steps) == (3, 1)

    @pytest.mark.parametrize(
        ("size", "flags", "message"),
        [
            (
                2,
                [],
                "--resume: processes must divide the 3 batches of an update, got 2; "
                "these fit: 1, 3",
            ),
            (
                3,
                ["--accumulation-steps=3"],
                "--resume goes on with --accumulation-steps 1, got 3; leave the flag out, or "
                "start a run without --resume",
            ),
        ],
    )
    def test_what_does_not_fit_is_said(
        self, checkpoint: Checkpoint, size: int, flags: list[str], message: str
    ) -> None:
        with pytest.raises(CommandError) as told:
            _resumed_settings(parse_flags(["--resume", *flags]), checkpoint, Team(0, size))
        assert str(told.value) == message

    def test_other_ranks_leave_wrong_flags_to_the_first(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        for quiet, lines in ((False, 1), (True, 0)):
            with pytest.raises(SystemExit):
                parse_flags(["--max-steps=many"], quiet=quiet)
            assert len(capsys.readouterr().err.splitlines()) == lines


def test_torchrun_from_the_header_to_a_saved_stop(tmp_path: Path) -> None:
    """The command with two processes: one header, one writer; SIGTERM to torchrun saves once.

    The log has each step once, and the saved step is the last that both made.
    """
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog.\n" * 80)
    prepare.main(["--text", str(tmp_path / "text.txt"), "--out-dir", str(tmp_path)])
    flags = "--no-preflight --block-size 8 --embedding-dim 16 --num-heads 2 --num-layers 1"
    flags += " --batch-size 4 --accumulation-steps 3 --max-steps 100000 --log-every 1"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", "2", "-m", "minigpt.train", *flags.split()]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    with (tmp_path / "out").open("w") as out, (tmp_path / "err").open("w") as err:
        process = subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=out, stderr=err)
        log = tmp_path / "checkpoints" / "mini_gpt_log.jsonl"
        try:
            limit = time.monotonic() + 240
            while not log.exists() or log.read_bytes().count(b"\n") < 60:
                assert process.poll() is None, (tmp_path / "err").read_text()
                assert time.monotonic() < limit
                time.sleep(0.05)
            process.send_signal(signal.SIGTERM)
            process.wait(timeout=120)
        finally:
            if process.poll() is None:  # its processes would outlive a torchrun that is killed
                process.terminate()
                process.wait(timeout=120)
    said = (tmp_path / "out").read_text().splitlines()
    assert "step        4 x 8 x 2 processes x 3 = 192 tokens; 100,000 steps are" in " ".join(said)
    assert sum(line.startswith("device ") for line in said) == 1
    samples = [line.split(maxsplit=1) for line in said if line.startswith("              ")]
    assert [rank for rank, _ in samples] == ["0", "1"]
    assert len(samples[0][1]) == len(samples[1][1]) == T + 2  # and quotation marks
    assert sum(line.startswith("interrupted at step") for line in said) == 1
    assert all(len(line) <= 88 for line in said)
    step = load_checkpoint(tmp_path / "checkpoints" / "mini_gpt_last.safetensors").step
    assert f"interrupted at step {step:,} of 100,000" in " ".join(said)
    steps = [json.loads(line)["step"] for line in log.read_text().splitlines()]
    assert steps == list(range(step + 1))
