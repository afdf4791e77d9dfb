"""Speed is a setting of the run: chosen once, said, stored, and the same bits after a resume."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from minigpt import _train_speed, attention, speed
from minigpt._train_speed import choose_speed, keep_speed
from minigpt._training_state import TrainSettings
from minigpt.checkpoint import load_checkpoint
from minigpt.model import MiniGPTConfig
from minigpt.parallel import ALONE, Team
from minigpt.speed import MatmulTrial
from tests.minigpt.test_train import error_line, place, prepared, run_train, weights
from tests.minigpt.test_trainer import everything, make_trainer, resume

__all__ = ["place", "prepared"]  # fixtures
CONFIG = MiniGPTConfig.debug(11)
LAST = "checkpoints/mini_gpt_last.safetensors"
CARD = "mini_gpt_last.safetensors"
compile_eagerly = torch.compile


@pytest.fixture(autouse=True)
def _precision_as_before() -> Any:
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


def choose(settings: TrainSettings | None = None, **changes: Any) -> TrainSettings:
    asked: dict[str, Any] = {"matmul_precision": "highest", "compiled": False} | changes
    return choose_speed(settings or TrainSettings(), CONFIG, ALONE, **asked)


def measure(monkeypatch: pytest.MonkeyPatch, **values: Any) -> None:
    """Make the trial of float32 products end like that."""
    usual: dict[str, Any] = {"precision": "medium", "changes_bits": True}
    usual |= {"seconds_ratio": 0.61, "error_ratio": 2.6}
    trial = MatmulTrial(**usual | values)
    monkeypatch.setattr(_train_speed, "try_matmul_precision", lambda config, rows: trial)


def without_inductor(monkeypatch: pytest.MonkeyPatch) -> list[nn.Module]:
    """Trace without compiling, which takes a minute; return the modules that were traced."""
    compiled: list[nn.Module] = []

    def trace(model: Any, **options: Any) -> Any:
        if isinstance(model, nn.Module):
            compiled.append(model)
        return compile_eagerly(model, backend="eager", **options)

    monkeypatch.setattr(torch, "compile", trace)
    return compiled


class TestChoice:
    def test_what_is_measured_is_said_set_and_stored(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measure(monkeypatch)
        settings = choose(matmul_precision="auto")
        assert settings == TrainSettings(matmul_precision="medium")
        assert torch.get_float32_matmul_precision() == "medium"
        first, second = capsys.readouterr().out.splitlines()
        assert first == (
            "speed       matmul medium; medium takes 0.61 of the time of highest, "
            "with 2.6 times its"
        )
        assert second == "            rounding error"

    def test_a_chip_on_which_it_changes_nothing(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        measure(monkeypatch, precision="highest", changes_bits=False)
        assert choose(matmul_precision="auto") == TrainSettings()
        assert capsys.readouterr().out == (
            "speed       matmul highest; medium changes no bit of a product on this chip\n"
        )

    def test_other_devices_are_not_measured(self, capsys: pytest.CaptureFixture[str]) -> None:
        team = Team(rank=0, size=1, device=torch.device("meta"))
        settings = choose_speed(
            TrainSettings(), CONFIG, team, matmul_precision="auto", compiled=False
        )
        assert settings.matmul_precision == "highest"
        assert "auto is for CPUs, got meta" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("ratio", "warned"), [(11.3, True), (float("nan"), True), (0.4, False)]
    )
    def test_slow_bfloat16_is_told(
        self,
        ratio: float,
        warned: bool,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        """With its factor; the run trains as it was asked to."""
        monkeypatch.setattr(_train_speed, "bfloat16_seconds_ratio", lambda config, rows: ratio)
        assert choose(TrainSettings(dtype="bfloat16")).dtype == "bfloat16"
        words = f"[WARN] bfloat16 takes {ratio:.1f} times as long as float32 on this CPU"
        assert (words in " ".join(capsys.readouterr().out.split())) == warned

    def test_where_nothing_can_be_compiled_the_run_is_not(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(_train_speed, "compile_problem", lambda device: "no g++ was found")
        assert choose(compiled=True) == TrainSettings()
        assert keep_speed(TrainSettings(compiled=True), ALONE) == TrainSettings()
        words = "speed       not compiled, torch.compile does not work here: no g++ was found\n"
        assert capsys.readouterr().out == words * 2

    def test_where_it_can_be_the_wait_is_announced(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Minutes of silence before the first update would look like a run that hangs."""
        monkeypatch.setattr(_train_speed, "compile_problem", lambda device: None)
        assert choose(compiled=True) == TrainSettings(compiled=True)
        assert capsys.readouterr().out == (
            "speed       torch.compile works here; the first update waits for it, for minutes "
            "perhaps\n"
        )

    def test_settings_of_older_checkpoints_are_plain(self) -> None:
        with pytest.raises(ValueError, match="matmul_precision must be highest, high or medium"):
            TrainSettings(matmul_precision="auto")
        with pytest.raises(ValueError, match="compiled must be True or False, got 1"):
            TrainSettings(compiled=cast("bool", 1))
        assert (TrainSettings().matmul_precision, TrainSettings().compiled) == ("highest", False)


class TestBits:
    @pytest.mark.parametrize(
        "changes",
        [
            {"dtype": "bfloat16"},
            {"dtype": "bfloat16", "accumulation_steps": 2},
            {"matmul_precision": "medium"},
            {"compiled": True},
            {"compiled": True, "dtype": "bfloat16"},
        ],
        ids=str,
    )
    @pytest.mark.parametrize("stop", [6, 7])
    def test_in_two_parts_gives_the_same_bits(
        self, stop: int, changes: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In each mode, with attention written out as chips with AVX-512 have it, and dropout."""
        monkeypatch.setattr(attention, "HAS_AVX512", True)
        without_inductor(monkeypatch)
        whole = make_trainer(tmp_path / "whole", changes)
        assert whole.run() == "finished"
        expected = everything(whole)
        assert make_trainer(tmp_path / "parts", changes).run(stop_after=stop) == "paused"
        resumed = resume(tmp_path / "parts", changes)
        assert resumed.run() == "finished"
        for ours, theirs in zip(everything(resumed), expected, strict=True):
            assert torch.equal(ours, theirs)
        assert resumed.state == whole.state

    def test_the_precision_holds_for_the_run_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Updates and evaluations run under it; afterwards torch is as it was."""
        before = torch.get_float32_matmul_precision()
        seen: set[str] = set()
        attend = attention.attend_written_out
        monkeypatch.setattr(attention, "HAS_AVX512", True)

        def note(*parts: Tensor, dropout: float) -> Tensor:
            seen.add(torch.get_float32_matmul_precision())
            return attend(*parts, dropout=dropout)

        monkeypatch.setattr(attention, "attend_written_out", note)
        make_trainer(tmp_path, {"matmul_precision": "medium"}).run(stop_after=1)
        assert seen == {"medium"}
        assert torch.get_float32_matmul_precision() == before

    def test_a_compiled_run_saves_the_plain_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Only updates go through what is compiled; names in the file are the model's own."""
        compiled = without_inductor(monkeypatch)
        trainer = make_trainer(tmp_path, {"compiled": True})
        trainer.run(stop_after=2)
        assert compiled == [trainer.model]
        loaded = load_checkpoint(tmp_path / CARD)
        assert loaded.model.state_dict().keys() == trainer.model.state_dict().keys()
        assert all("_orig_mod" not in name for name in trainer.model.state_dict())

    def test_a_compiled_update_is_the_plain_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Traced and run operator by operator, three updates give the same weights."""
        without_inductor(monkeypatch)
        trainers = []
        for compiled in (False, True):  # each made right before it runs: making one sets the seed
            trainers.append(make_trainer(tmp_path / str(compiled), {"compiled": compiled}))
            trainers[-1].run(stop_after=3)
        for ours, theirs in zip(*(t.model.parameters() for t in trainers), strict=True):
            torch.testing.assert_close(ours, theirs)


class TestCommand:
    def test_a_resumed_run_keeps_what_was_measured(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Measured anew it might come out differently; so it is not measured at all."""
        measure(monkeypatch)
        assert run_train("--matmul-precision=auto") == 0
        whole = weights(place / LAST)
        assert run_train("--matmul-precision=auto", "--stop-after=7") == 0
        assert "float32, matmul medium" in capsys.readouterr().out
        measure(monkeypatch, precision="highest")
        assert run_train("--resume", "--matmul-precision=auto") == 0
        assert "float32, matmul medium" in capsys.readouterr().out
        for ours, theirs in zip(weights(place / LAST), whole, strict=True):
            assert torch.equal(ours, theirs)

    def test_another_precision_or_compiling_is_another_run(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run_train("--stop-after=7") == 0
        capsys.readouterr()
        assert run_train("--resume", "--matmul-precision=medium") == 2
        assert "goes on with --matmul-precision highest, got medium" in error_line(capsys)
        assert run_train("--resume", "--compile") == 2
        assert "a run that was not compiled; leave --compile out" in error_line(capsys)

    def test_compiled_is_said_and_kept(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Two runs in a row that pause and go on; a machine without a compiler goes on plainly."""
        without_inductor(monkeypatch)
        assert run_train("--compile", "--stop-after=7") == 0
        assert "float32, matmul highest, compiled\n" in capsys.readouterr().out
        assert run_train("--resume", "--stop-after=9") == 0
        assert "float32, matmul highest, compiled\n" in capsys.readouterr().out
        monkeypatch.setattr(speed, "_double_and_add", lambda x: 1 / 0)
        assert run_train("--resume") == 0
        out = capsys.readouterr().out
        assert "not compiled, torch.compile does not work here: division by zero" in out
        assert "float32, matmul highest\n" in out
