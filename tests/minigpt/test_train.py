"""The command: what a person reads, exit codes, resuming, and bad input in one line."""

import errno
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

from minigpt import _generate_command, prepare, train, trainer
from minigpt._cli import run_command
from minigpt._lock import FolderLock
from minigpt._train_data import load_train_data
from minigpt._train_report import TrainReport
from minigpt.checkpoint import load_checkpoint
from minigpt.evaluate import evaluate
from minigpt.tokenizer import CharTokenizer
from minigpt.train.__main__ import _announced, make_monitor, preflight

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 60
VARIED = " ".join(random.Random(0).choices(TEXT.split(), k=1000))  # no passage stands in it twice
SMALL = ["--block-size=8", "--embedding-dim=16", "--num-heads=2", "--num-layers=1"]
SHORT = ["--max-steps=20", "--evaluate-every=6", "--log-every=4", "--batch-size=4"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and encoded ids of one short text."""
    folder = tmp_path_factory.mktemp("prepared")
    (folder / "text.txt").write_text(TEXT)
    prepare.main(["--text", str(folder / "text.txt"), "--out-dir", str(folder)])
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user who has just prepared a text."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_train(*flags: str) -> int:
    """Run the command in this process, as `python -m minigpt.train` would."""
    return run_command(lambda: train.main([*SMALL, *SHORT, *flags]))


def run_generate(*flags: str) -> int:
    """Run `python -m minigpt.generate` in this process."""
    return run_command(lambda: _generate_command.main(flags))


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """Return what stderr holds, which must be exactly one line."""
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1, lines
    assert lines[0].startswith("error: ")
    return lines[0]


def weights(path: Path) -> list[torch.Tensor]:
    """Return the weights in a checkpoint."""
    return list(load_checkpoint(path).model.state_dict().values())


class TestRun:
    def test_says_what_it_does(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Sizes, baseline beside initial loss, evaluations, best, gap and clipping are printed."""
        assert run_train() == 0
        out = capsys.readouterr().out
        V = CharTokenizer.from_file("tokenizer/char_tokenizer.json").vocab_size
        assert f"vocabulary {V}" in out
        assert "model       block 8, dim 16, 2 heads, 1 layers" in out
        assert "step        4 x 8 = 32 tokens; 20 steps" in out
        assert f"a blind guess has ln {V} =" in out
        assert "[OK]" in out
        assert [int(line.split()[1]) for line in out.splitlines() if line.startswith("step  ")][
            1:
        ] == [6, 12, 18, 20]
        for word in ("finished    at step 20", "best        step", "gap         validation -"):
            assert word in out
        assert "clipping    " in out
        assert all(len(line) <= 88 for line in out.splitlines())

    def test_a_model_that_learnt_nothing_is_not_said_to_fit(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """At a rate of 1e-12 the losses stay those of fresh weights, near ln V."""
        run_train("--learning-rate=1e-12", "--min-learning-rate=0")
        out = capsys.readouterr().out
        assert "\n            nothing is learnt yet: a blind guess has " in out
        assert "underfitting" not in out

    def test_the_best_loss_printed_is_the_one_of_the_file(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The whole-split loss of the last lines is what the best file gives when measured."""
        run_train("--checkpoints=elsewhere")
        out = capsys.readouterr().out
        printed = float(out.partition("whole       validation loss ")[2].split()[0])
        model = load_checkpoint("elsewhere/mini_gpt_best.safetensors").model
        ids = torch.tensor(read_validation_ids(place))
        assert printed == pytest.approx(evaluate(model, ids), abs=1e-4)

    def test_the_same_seed_gives_the_same_weights(self, place: Path) -> None:
        """Two runs agree bit for bit, with dropout; another seed does not."""
        for name, seed in (("a", "1"), ("b", "1"), ("c", "2")):
            run_train(f"--checkpoints={name}", f"--seed={seed}", "--dropout=0.2")
        a, b, c = (weights(place / name / "mini_gpt_last.safetensors") for name in "abc")
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))
        assert not all(torch.equal(x, y) for x, y in zip(a, c, strict=True))

    def test_presets_give_way_to_flags(self, place: Path) -> None:
        """A size given as a flag stands; the others come from the preset."""
        flags = ["--preset=cpu", "--max-steps=1", "--embedding-dim=16"]
        assert run_command(lambda: train.main(flags)) == 0
        checkpoint = load_checkpoint("checkpoints/mini_gpt_last.safetensors")
        config = checkpoint.config
        assert (config.block_size, config.num_layers, config.embedding_dim) == (64, 4, 16)
        assert checkpoint.trainer_state is not None
        assert checkpoint.trainer_state["settings"]["batch_size"] == 12


class TestResume:
    def test_in_two_parts_gives_the_same_weights(self, place: Path) -> None:
        """Pause after 7, resume with nothing but --resume: the same bits as 20 in one go."""
        assert run_train("--checkpoints=whole", "--dropout=0.1") == 0
        assert run_train("--checkpoints=parts", "--dropout=0.1", "--stop-after=7") == 0
        assert load_checkpoint("parts/mini_gpt_last.safetensors").step == 7
        assert run_command(lambda: train.main(["--checkpoints=parts", "--resume"])) == 0
        for name in ("mini_gpt_last.safetensors", "mini_gpt_best.safetensors"):
            whole, parts = weights(place / "whole" / name), weights(place / "parts" / name)
            assert all(torch.equal(x, y) for x, y in zip(whole, parts, strict=True))

    def test_ctrl_c_saves_and_exits_130(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A signal during update 5 lets it end, saves step 5 and says how to go on."""
        import signal

        update = trainer.Trainer.update

        def interrupted_update(self: trainer.Trainer) -> trainer.StepReport:
            if self.state.step == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return update(self)

        monkeypatch.setattr(trainer.Trainer, "update", interrupted_update)
        assert run_train() == 130
        assert "go on with --resume" in capsys.readouterr().out
        assert load_checkpoint("checkpoints/mini_gpt_last.safetensors").step == 5
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler

    def test_another_setting_is_refused(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A flag that contradicts the checkpoint ends the command; an equal one does not."""
        run_train("--stop-after=7")
        capsys.readouterr()
        assert run_train("--resume", "--max-steps=30") == 2
        assert "--max-steps 20, got 30" in error_line(capsys)
        assert run_train("--resume", "--max-steps=20") == 0

    def test_another_corpus_is_refused(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The same characters in another order are another corpus."""
        run_train("--stop-after=7")
        Path("text.txt").write_text(TEXT[::-1])
        prepare.main(["--text", "text.txt"])
        capsys.readouterr()
        assert run_train("--resume") == 2
        assert "was trained on corpus" in error_line(capsys)

    def test_nothing_to_resume(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Without a checkpoint --resume says so and what to do."""
        assert run_train("--resume") == 2
        assert "nothing to resume at checkpoints" in error_line(capsys)

    @pytest.mark.parametrize("damage", ["removed", "cut short"])
    def test_without_the_last_the_best_is_offered(
        self, place: Path, capsys: pytest.CaptureFixture[str], damage: str
    ) -> None:
        """A last file that is gone or damaged is no end; the command in the message works."""
        assert run_train("--checkpoints=whole") == 0
        run_train("--stop-after=7")
        last = place / "checkpoints" / "mini_gpt_last.safetensors"
        if damage == "removed":
            last.unlink()
        else:
            last.write_bytes(last.read_bytes()[:-100])
        capsys.readouterr()
        assert run_train("--resume") == 2
        best = "checkpoints/mini_gpt_best.safetensors"
        assert f"--resume {best} goes on from the best one" in error_line(capsys)
        assert run_train("--resume", best) == 0
        assert last.read_bytes() == (place / "whole" / last.name).read_bytes()

    def test_a_longer_run_is_another_run(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The reason is given: the rates of a longer schedule differ from the first step on."""
        run_train("--stop-after=7")
        capsys.readouterr()
        assert run_train("--resume", "--max-steps=30") == 2
        assert (
            "got 30: the learning rate falls from the first step to the last, so that a run of "
            "another length is another run; leave the flag out, or start a run without --resume"
        ) in error_line(capsys)


class TestBadInput:
    def test_nan_exits_1_and_names_the_last_good_checkpoint(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """At a rate of 1e30 the weights explode in one step; nothing of that is saved."""
        assert run_train("--stop-after=3") == 0
        before = weights(place / "checkpoints" / "mini_gpt_last.safetensors")
        capsys.readouterr()
        assert run_train("--learning-rate=1e30", "--warmup-steps=0") == 1
        assert "Last finite step: " in error_line(capsys)
        after = weights(place / "checkpoints" / "mini_gpt_last.safetensors")
        assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--block-size=9999"], "a block of 9999 needs 10000 train ids or more, got"),
            (["--num-heads=3"], "--embedding-dim must be a multiple of --num-heads, got 16 and 3"),
            (["--learning-rate=-1"], "--learning-rate must be > 0, got -1.0"),
            (["--warmup-steps=21"], "--warmup-steps must be in 0..--max-steps = 20, got 21"),
            (["--dtype=float8"], "--dtype must be float32 or bfloat16, got float8"),
            (["--device=nonsense"], "--device nonsense cannot be used"),
            (["--threads=0"], "--threads must be in 1..256, got 0"),
            (["--threads=99999999999"], "--threads must be in 1..256, got 99999999999"),
            (["--stop-after=0"], "--stop-after must be >= 1, got 0"),
            (["--checkpoints=text.txt"], "wanted a folder, got a file (text.txt). There is no"),
            (["--data=nowhere"], "python -m minigpt.prepare"),
            (["--tokenizer=nowhere.json"], "no tokenizer file at nowhere.json"),
            (["--checkpoints=text.txt/x"], "cannot write text.txt/x/mini_gpt_log.jsonl"),
        ],
    )
    def test_one_line_and_exit_2(
        self, place: Path, capsys: pytest.CaptureFixture[str], flags: Sequence[str], message: str
    ) -> None:
        """Each kind of bad input is one line that says what was wanted and what came."""
        assert run_train(*flags) == 2
        assert message in error_line(capsys)

    @pytest.mark.parametrize("value", ["-1", "nan", "inf", "soon"])
    def test_a_wait_that_is_none(self, capsys: pytest.CaptureFixture[str], value: str) -> None:
        """Neither a word nor a number that never ends."""
        with pytest.raises(SystemExit, match="2"):
            run_train(f"--save-wait={value}")
        assert f"--save-wait: must be a number of seconds >= 0, got {value};" in error_line(capsys)

    def test_a_tokenizer_of_another_text(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Equal size is not enough: ids and tokenizer must have been made together."""
        path = Path("tokenizer/char_tokenizer.json")
        chars = CharTokenizer.from_file(path).chars
        CharTokenizer(chars[::-1]).save(path)
        assert run_train() == 2
        line = error_line(capsys)
        assert "were made with tokenizer" in line
        assert "python -m minigpt.prepare" in line

    def test_a_truncated_ids_file(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """Half a file is refused by its name."""
        path = Path("data/encoded/train_ids.npy")
        path.write_bytes(path.read_bytes()[:1000])
        assert run_train() == 2
        assert "train_ids.npy" in error_line(capsys)

    def test_a_full_disk_in_the_middle(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The run ends with exit 2 and the checkpoint of step 6, whole."""
        save, calls = trainer.save_checkpoint, []

        def save_or_fail(path: Path, *args: object, **kwargs: object) -> None:
            calls.append(path)
            if len(calls) > 2:
                raise OSError(28, "No space left on device")
            save(path, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(trainer, "save_checkpoint", save_or_fail)
        assert run_train("--save-wait=0") == 2
        line = error_line(capsys)
        assert "No space left on device" in line
        assert "(step 6)" in line
        assert load_checkpoint("checkpoints/mini_gpt_last.safetensors").step == 6


class TestFolder:
    def test_a_second_trainer_is_refused_before_it_reads_anything(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Exit code 2 and one line with the other process; new run and --resume alike."""
        run_train("--stop-after=7")
        with FolderLock("checkpoints"):
            for flags in ([], ["--resume"]):
                capsys.readouterr()
                assert run_train("--data=nowhere", *flags) == 2
                line = error_line(capsys)
                assert line.startswith(f"error: the trainer with process id {os.getpid()} (this")
                assert line.endswith(
                    "writes into checkpoints; wait until it ends, or give another folder with "
                    "--checkpoints"
                )
        assert run_train("--resume") == 0

    def test_a_run_whose_output_nobody_takes_is_saved_before_it_ends(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`| head` ends, or a terminal is closed, after step 6: one error line with the step."""
        show = TrainReport._show_step

        def show_until(self: TrainReport, report: trainer.StepReport) -> None:
            if report.step == 7:
                raise BrokenPipeError(errno.EPIPE, "Broken pipe")
            show(self, report)

        monkeypatch.setattr(TrainReport, "_show_step", show_until)
        assert run_train() == 2
        assert error_line(capsys) == (
            "error: the output cannot be written (Broken pipe); the run is saved at step 7, "
            "--resume goes on"
        )
        assert load_checkpoint(place / "checkpoints/mini_gpt_last.safetensors").step == 7
        monkeypatch.undo()
        monkeypatch.chdir(place)
        assert run_train("--resume") == 0

    def test_leftovers_of_a_killed_run_are_cleaned(self, place: Path) -> None:
        """The next start removes half-written files of all three names, and the stale lock."""
        folder = place / "checkpoints"
        folder.mkdir()
        for name in (trainer.LAST_NAME, trainer.BEST_NAME, trainer.LOG_NAME):
            (folder / f".{name}.0123abcd.tmp").write_bytes(b"half")
        (folder / ".mini_gpt.lock").write_text('{"process": 1}')
        assert run_train() == 0
        assert {path.name for path in folder.iterdir()} == {
            trainer.LAST_NAME,
            trainer.BEST_NAME,
            trainer.LOG_NAME,
        }

    def test_a_warning_goes_to_the_terminal_in_short_lines(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A disk that is full at the first try: the warning, and the run ends well."""
        save, failures = trainer.save_checkpoint, [OSError(28, "No space left on device")]

        def save_or_fail(path: Path, *args: object, **kwargs: object) -> None:
            if failures:
                raise failures.pop()
            save(path, *args, **kwargs)  # type: ignore[arg-type]

        monkeypatch.setattr(trainer, "save_checkpoint", save_or_fail)
        monkeypatch.setattr("minigpt._saving.RETRY_SECONDS", 0.0)
        assert run_train() == 0
        lines = capsys.readouterr().err.splitlines()
        assert lines[0].startswith("[WARN] cannot write checkpoints/mini_gpt_last.safetensors at")
        assert max(map(len, lines)) <= 88
        assert " ".join(line.strip() for line in lines).endswith(
            "for 300 s [WARN] checkpoints/mini_gpt_last.safetensors is written, after 0 s; the run "
            "goes on"
        )

    def test_a_best_file_that_is_gone_is_not_measured(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Nothing is claimed about a file that holds another step, or is not there."""
        assert run_train() == 0
        best = place / "checkpoints" / trainer.BEST_NAME
        step = load_checkpoint(best).step
        report = TrainReport.__new__(TrainReport)
        report.model = load_checkpoint(best).model
        report.data = load_train_data(
            place / "data/encoded", place / "tokenizer/char_tokenizer.json"
        )
        capsys.readouterr()
        report._print_whole_split(best, step)
        assert capsys.readouterr().out.startswith("whole       validation loss")
        for path, wanted in ((best, step + 1), (place / "none.safetensors", step)):
            report._print_whole_split(path, wanted)
            assert capsys.readouterr().out == (
                f"            which does not hold step {wanted} (removed, or in another folder)\n"
            )


class TestGenerate:
    @pytest.fixture(autouse=True)
    def trained(self, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """A checkpoint in its usual place."""
        run_train()
        capsys.readouterr()

    def test_text_to_stdout_settings_to_stderr(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The prompt leads 30 new characters; the preset's numbers and the measures are shown."""
        assert run_generate("--prompt", "the dog", "--max-new-tokens=30") == 0
        out, err = capsys.readouterr()
        assert out.startswith("the dog")
        assert len(out) == len("the dog") + 30 + 1
        assert "temperature 0.8, top-k 20, top-p 0.9, repetition penalty 1.05, seed 42" in err
        assert "tokens/s" in err
        assert "8-character runs repeat" in err

    def test_a_seed_decides(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The same seed twice gives the same text, another one another."""
        texts = []
        for seed in ("1", "1", "2"):
            run_generate(f"--seed={seed}", "--max-new-tokens=60", "--temperature=2")
            texts.append(capsys.readouterr().out)
        assert texts[0] == texts[1] != texts[2]

    def test_flags_change_the_preset(self, capsys: pytest.CaptureFixture[str]) -> None:
        """The strict preset with another top-k keeps its other numbers."""
        run_generate("--preset=strict", "--top-k=3", "--max-new-tokens=1")
        assert "temperature 0.6, top-k 3, top-p 0.9, repetition penalty 1," in (
            capsys.readouterr().err
        )

    def test_compare_prompts(self, capsys: pytest.CaptureFixture[str]) -> None:
        """A prompt against itself changes nothing: 0 nats, 0 places, and it says ignored."""
        assert run_generate("--compare-prompts", "dog", "dog") == 0
        out = capsys.readouterr().out
        assert "0.000 nats at the first token, mean 0.000 over 4" in out
        assert "differs at 0 of 4 places" in out
        assert "the prompt is ignored" in out
        run_generate("--compare-prompts", "z", "the quick brown fox")
        assert "the prompt is used" in capsys.readouterr().out

    @pytest.mark.parametrize(
        ("flags", "message"),
        [
            (["--prompt", "caf\u00e9"], "the prompt holds an unknown character"),
            (["--prompt", ""], "--prompt must hold at least one character"),
            (["--checkpoint", "none.safetensors"], "no checkpoint at none.safetensors"),
            (["--checkpoint", "text.txt"], "must end in .safetensors or .pt"),
            (["--top-k=999"], "top_k must be in 1.."),
            (["--temperature=-1"], "temperature must be a finite number >= 0, got -1.0"),
            (["--max-new-tokens=-1"], "--max-new-tokens must be >= 0, got -1"),
            (["--device=nonsense"], "--device nonsense cannot be used here"),
            (["--seed=-1"], "--seed must be in 0..2**32 - 1, got -1"),
            (["--seed=99999999999999999999999"], "--seed must be in 0..2**32 - 1"),
            (["--compare-prompts", "", "dog"], "wants two prompts, got an empty one"),
        ],
    )
    def test_bad_input(
        self, capsys: pytest.CaptureFixture[str], flags: Sequence[str], message: str
    ) -> None:
        """One line and exit 2, whatever is wrong."""
        assert run_generate(*flags) == 2
        assert message in error_line(capsys)

    def test_a_damaged_checkpoint(self, capsys: pytest.CaptureFixture[str]) -> None:
        """One flipped bit is noticed."""
        path = Path("checkpoints/mini_gpt_best.safetensors")
        content = bytearray(path.read_bytes())
        content[-100] ^= 1
        path.write_bytes(content)
        assert run_generate() == 2
        assert "mini_gpt_best.safetensors" in error_line(capsys)


def read_validation_ids(place: Path) -> list[int]:
    """Return the validation ids from the text itself, not through the file."""
    tokenizer = CharTokenizer.from_file(place / "tokenizer" / "char_tokenizer.json")
    counts = json.loads((place / "data" / "encoded" / "meta.json").read_text())["counts"]
    start = counts["train"]
    return tokenizer.encode(TEXT[start : start + counts["val"]])


@pytest.mark.parametrize("command", ["train", "generate"])
def test_help_does_not_wait_for_torch(command: str) -> None:
    """Help is printed without importing torch."""
    program = (
        "import runpy, sys; sys.argv = ['x', '--help']\n"
        f"try: runpy.run_module('minigpt.{command}', run_name='__main__')\n"
        "except SystemExit as end: code = end.code\n"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "0 False", done.stderr


class TestPreflight:
    """The command checks everything before its first step; `main` alone does not."""

    @pytest.fixture(autouse=True)
    def varied(self, place: Path) -> None:
        """Work on a text that does not repeat itself: the checks would have something to say."""
        (place / "text.txt").write_text(VARIED)
        prepare.main(["--text", "text.txt"])

    def test_one_line_and_the_same_training(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The checks cost no draw: with and without them the weights are the same, bit for bit."""
        for folder, flags in (("checked", []), ("bare", ["--no-preflight"])):
            arguments = [*SMALL, *SHORT, "--checkpoints", folder, *flags]
            assert run_command(lambda: train.main(arguments, preflight=preflight)) == 0  # noqa: B023
            said = [line for line in capsys.readouterr().out.splitlines() if "preflight" in line]
            assert len(said) == (folder == "checked")
        checked, bare = (weights(place / name / trainer.LAST_NAME) for name in ("checked", "bare"))
        assert all(map(torch.equal, checked, bare))

    def test_a_failed_check_stops_the_run_before_it_writes(
        self, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Targets two ahead train well; the command refuses, with exit code 1 and the reason."""

        def two_ahead(data: torch.Tensor, B: int, T: int) -> tuple[torch.Tensor, torch.Tensor]:
            rows = torch.randint(len(data) - T - 1, (B, 1)) + torch.arange(T)
            return data[rows], data[rows + 2]

        monkeypatch.setattr("minigpt._parts.get_batch", two_ahead)
        code = run_command(lambda: train.main([*SMALL, *SHORT], preflight=preflight))
        said = capsys.readouterr()
        assert code == 1
        assert "[FAIL] shift" in said.out
        assert said.err.startswith("error: shift failed before the first step")
        assert not (place / "checkpoints").exists()

    def test_a_resumed_run_is_not_checked_again(
        self, place: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """It was checked before its step 0, and its files have fingerprints."""
        run_train("--stop-after=6")
        capsys.readouterr()
        arguments = [*SMALL, *SHORT, "--resume"]
        assert run_command(lambda: train.main(arguments, preflight=preflight)) == 0
        assert "preflight" not in capsys.readouterr().out

    def test_a_terminal_shows_that_something_happens(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """The line goes again, also where Ctrl-C ends the checks; a file gets nothing."""
        with _announced("checks ..."):
            pass
        assert capsys.readouterr().out == ""
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
        with pytest.raises(KeyboardInterrupt), _announced("checks ..."):
            raise KeyboardInterrupt
        assert capsys.readouterr().out == "checks ...\r          \r"


class TestMonitor:
    """The command hands over the monitor of the checks, which looks on and changes nothing."""

    def run(self, *flags: str) -> int:
        command = [*SMALL, *SHORT, "--dropout=0.1", *flags]
        return run_command(lambda: train.main(command, make_watcher=make_monitor))

    @pytest.mark.parametrize("parts", [[], ["--accumulation-steps=2"], ["--dtype=bfloat16"]])
    def test_the_same_training_with_and_without(
        self, place: Path, parts: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """Dropout draws from the global generator, so a number drawn by the monitor would show."""
        assert self.run("--checkpoints=watched", *parts) == 0
        watched = capsys.readouterr()
        assert self.run("--checkpoints=alone", "--no-monitor", *parts) == 0
        alone = capsys.readouterr()
        for name in ("mini_gpt_last.safetensors", "mini_gpt_best.safetensors"):
            with_monitor, without = weights(Path("watched", name)), weights(Path("alone", name))
            assert all(map(torch.equal, with_monitor, without))
        assert "[monitor]" not in watched.err + alone.err

    def test_a_disk_leaves_no_postmortem(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """A full disk is no fault of the model: one line says what to do, and nothing else."""

        def fail(path: Path, *args: object, **kwargs: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(trainer, "save_checkpoint", fail)
        assert self.run("--save-wait=0") == 2
        assert error_line(capsys).startswith("error: cannot write checkpoints/mini_gpt_last.")
        assert not list(Path("checkpoints").glob("postmortem-*"))

    @pytest.mark.parametrize("flags", [[], ["--no-monitor"]])
    def test_nan_leaves_a_postmortem(
        self, place: Path, flags: list[str], capsys: pytest.CaptureFixture[str]
    ) -> None:
        """At a rate of 1e30 the second forward pass overflows in the first norm."""
        huge = ["--learning-rate=1e30", "--warmup-steps=0", "--clip-norm=0", "--dropout=0"]
        assert self.run(*huge, *flags) == 1
        found = list(Path("checkpoints").glob("postmortem-*.json"))
        err = capsys.readouterr().err
        assert "error: update 2 got loss nan" in err
        if flags:
            assert found == []
            assert "[monitor]" not in err
            return
        assert [path.name for path in found] == ["postmortem-step-00000002.json"]
        record = json.loads(found[0].read_text())
        assert record["where"]["module"] == "blocks.0.attention_norm"
        assert (record["step"], record["reason"]) == (2, "monitor.loss_not_finite")
        assert err.startswith("[monitor] step 2: the loss is nan;")

    def test_a_header_that_nobody_reads_is_saved_and_no_fault_of_the_model(
        self, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        """`| head -3` may be gone before the last line of the header."""

        def gone(report: TrainReport, *arguments: object) -> None:
            raise BrokenPipeError(32, "Broken pipe")

        monkeypatch.setattr(TrainReport, "_show_header", gone)
        assert self.run() == 2
        assert "is saved at step 0, --resume goes on" in error_line(capsys)
        assert (place / "checkpoints" / trainer.LAST_NAME).exists()
        assert not list(place.rglob("postmortem-*"))
