"""`python -m minigpt.train --html FILE`: the run as a page, which changes nothing of the run."""

import errno
import json
import os
import random
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from diagnostics.page import _run_writer
from minigpt import prepare, train, trainer
from minigpt._cli import run_command
from minigpt._run_files import RunFiles
from minigpt.checkpoint import load_checkpoint
from minigpt.parallel import Team
from minigpt.train import _page
from minigpt.train.__main__ import make_monitor, make_page

TEXT = "\n\nthe quick brown fox jumps over the lazy dog, and the dog sleeps on.\n" * 60
SMALL = ["--block-size=8", "--embedding-dim=16", "--num-heads=2", "--num-layers=1"]
SHORT = ["--max-steps=20", "--evaluate-every=6", "--log-every=4", "--batch-size=4"]
HUGE = ["--learning-rate=1e30", "--warmup-steps=0", "--clip-norm=0"]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tokenizer and encoded ids of one short text."""
    folder = tmp_path_factory.mktemp("prepared")
    words = random.Random(0).choices(TEXT.split(), k=600)
    (folder / "text.txt").write_text("\n\n" + " ".join(words))
    prepare.main(["--text", str(folder / "text.txt"), "--out-dir", str(folder)])
    return folder


@pytest.fixture(autouse=True)
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a user who has just prepared a text; samples are short."""
    shutil.copytree(prepared, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(_page, "SAMPLE_LENGTH", 12)
    monkeypatch.setattr(_page, "FREE_SECONDS", 60.0)  # however slow the machine
    return tmp_path


def run_train(*flags: str) -> int:
    """Run the command in this process, as `python -m minigpt.train` would but for the checks."""
    command = [*SMALL, *SHORT, *flags]
    return run_command(lambda: train.main(command, make_watcher=make_monitor, make_page=make_page))


def text_of(path: str | Path = "run.html") -> str:
    """The page without its tags."""
    return re.sub("<[^>]*>", "", Path(path).read_text(encoding="utf-8"))


def remembered(path: str | Path = "run.html") -> dict[str, Any]:
    """What the page holds for a run that goes on."""
    memory = _run_writer.read_memory(path)
    assert memory is not None
    return memory


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    [line] = capsys.readouterr().err.splitlines()
    return line


class TestTheSameTraining:
    @pytest.mark.parametrize(
        "flags", [[], ["--no-monitor"], ["--accumulation-steps=2", "--dtype=bfloat16"]]
    )
    def test_the_same_files_with_and_without(self, flags: list[str], place: Path) -> None:
        """Dropout draws from the global generator, so a number drawn for a sample would show.

        The checkpoints hold weights, moments, counters and random states, and a digest of the log.
        """
        arguments = ["--dropout=0.1", *flags]
        assert run_train("--checkpoints=shown", "--html=run.html", *arguments) == 0
        assert run_train("--checkpoints=alone", *arguments) == 0
        assert len(remembered()["samples"]) == 5
        for name in (trainer.LAST_NAME, trainer.BEST_NAME):
            assert (place / "shown" / name).read_bytes() == (place / "alone" / name).read_bytes()

    def test_sampling_leaves_modes_and_random_states(self, monkeypatch: pytest.MonkeyPatch) -> None:
        states = []
        write_text = _page.PageFeed._write_text

        def watched(feed: _page.PageFeed) -> tuple[str, str]:
            assert feed._trainer is not None
            model = feed._trainer.model
            before = torch.get_rng_state(), [module.training for module in model.modules()]
            written = write_text(feed)
            after = torch.get_rng_state(), [module.training for module in model.modules()]
            states.append((torch.equal(before[0], after[0]), before[1] == after[1]))
            return written

        monkeypatch.setattr(_page.PageFeed, "_write_text", watched)
        assert run_train("--html=run.html", "--dropout=0.1") == 0
        assert states == [(True, True)] * 5


class TestContent:
    def test_a_finished_run(self) -> None:
        assert run_train("--html=run.html") == 0
        page = text_of()
        state = load_checkpoint("checkpoints/mini_gpt_best.safetensors")
        for words in (
            "finished",
            "step 20 of 20",
            f"at step {state.step}, kept in checkpoints/mini_gpt_best.safetensors",
            "tokens per step32: 4 rows of 8; 20 steps are",
            "float32, matmul highest",
            "max_steps 20, batch_size 4",
            "of 20 updates, at 1",
        ):
            assert words in page, words
        assert 'http-equiv="refresh"' not in Path("run.html").read_text(encoding="utf-8")

    def test_every_update_and_both_losses_of_every_evaluation(self) -> None:
        run_train("--html=run.html")
        series = remembered()["series"]
        assert [step for step, _ in series["train_loss"]] == list(range(1, 21))
        assert [step for step, _ in series["validation_loss"]] == [0, 6, 12, 18, 20]
        lines = Path("checkpoints/mini_gpt_log.jsonl").read_text().splitlines()
        rows = [json.loads(line) for line in lines]
        for name in ("validation_loss", "training_loss"):
            logged = [[row["step"], row[name]] for row in rows if row[name] is not None]
            assert series[name] == logged

    def test_samples_go_on_from_the_validation_text(self) -> None:
        """White space at its beginning is passed over; the same draws give the same text again."""
        run_train("--html=run.html")
        samples = remembered()["samples"]
        assert [sample["step"] for sample in samples] == [0, 6, 12, 18, 20]
        prompts = {sample["prompt"] for sample in samples}
        assert len(prompts) == 1
        prompt = prompts.pop()
        assert len(prompt) == 16
        assert prompt.lstrip() == prompt
        assert prompt in Path("text.txt").read_text()
        assert {len(sample["text"]) for sample in samples} == {12}
        run_train("--html=again.html", "--checkpoints=again")
        assert remembered("again.html")["samples"] == samples

    def test_many_evaluations_share_few_samples(self) -> None:
        """21 evaluations, and about 10 samples: every third has one."""
        run_train("--html=run.html", "--evaluate-every=1", "--log-every=20", "--max-steps=21")
        steps = [sample["step"] for sample in remembered()["samples"]]
        assert steps == [*range(0, 22, 3)]

    def test_samples_that_cost_too_much_are_left_out_but_for_the_last(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(_page, "FREE_SECONDS", 0.0)
        monkeypatch.setattr(_page, "SHARE_MAX", 0.0)
        run_train("--html=run.html")
        assert [sample["step"] for sample in remembered()["samples"]] == [0, 20]

    def test_a_sample_that_fails_is_one_message(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def fail(*arguments: object, **options: object) -> None:
            raise FloatingPointError("logits must have a finite maximum")

        monkeypatch.setattr(_page, "generate", fail)
        assert run_train("--html=run.html") == 0
        assert text_of().count("there are no samples: FloatingPointError: logits must") == 1

    def test_hostile_text_stays_text(self) -> None:
        pieces = [
            "</pre><script>alert(1)</script>",
            "\u202e\u05d0\u05d1",
            "\x00\x1b[31m",
            "\U0001f600",
        ]
        text = "".join(random.Random(1).choices(pieces, k=300))
        Path("text.txt").write_text(text, encoding="utf-8")
        prepare.main(["--text", "text.txt"])
        assert run_train("--html=<b>&'.html", "--no-monitor") == 0
        page = Path("<b>&'.html").read_text(encoding="utf-8")
        assert "<script" not in page
        assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e]", page)
        assert len(remembered("<b>&'.html")["samples"]) == 5


class TestHowItEnds:
    def test_nan_names_the_postmortem_and_marks_the_update(self) -> None:
        assert run_train("--html=run.html", *HUGE) == 1
        page = text_of()
        assert "failed" in page
        assert "update 2 got loss nan" in page
        assert "What broke, and where: checkpoints/postmortem-step-00000002.json" in page
        assert "the training loss became nan at step 2" in page
        assert "blocks.0.attention_norm is the first module" in page
        assert remembered()["series"]["train_loss"][-1] == [2, "nan"]

    def test_without_a_monitor_nothing_is_named(self) -> None:
        assert run_train("--html=run.html", "--no-monitor", *HUGE) == 1
        assert "failed" in text_of()
        assert "postmortem" not in text_of()

    def test_ctrl_c(self, monkeypatch: pytest.MonkeyPatch) -> None:
        update = trainer.Trainer.update

        def interrupted_update(self: trainer.Trainer) -> trainer.StepReport:
            if self.state.step == 4:
                os.kill(os.getpid(), signal.SIGINT)
            return update(self)

        monkeypatch.setattr(trainer.Trainer, "update", interrupted_update)
        assert run_train("--html=run.html") == 130
        page = text_of()
        assert "interrupted" in page
        assert "step 5 of 20" in page
        assert "--resume goes on from here" in page

    def test_early(self) -> None:
        flags = ["--patience=1", "--learning-rate=30", "--max-steps=90"]
        assert run_train("--html=run.html", *flags) == 0
        assert "stopped early: no gain any more" in text_of()

    def test_a_full_disk_of_the_checkpoints(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(path: Path, *arguments: object, **options: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device", str(path))

        monkeypatch.setattr(trainer, "save_checkpoint", fail)
        assert run_train("--html=run.html", "--save-wait=0") == 2
        assert "cannot write checkpoints/mini_gpt_last" in error_line(capsys)
        assert "failed" in text_of()
        assert "No space left on device" in text_of()


class TestResume:
    def test_the_page_goes_on(self) -> None:
        """In two parts the page has the same curves and samples as in one go."""
        assert run_train("--html=whole.html", "--checkpoints=whole") == 0
        assert run_train("--html=run.html", "--stop-after=9") == 0
        assert "paused" in text_of()
        assert run_train("--html=run.html", "--resume") == 0
        whole, parts = remembered("whole.html"), remembered()
        for memory in (whole, parts):
            memory["series"].pop("tokens_per_second")
        assert [sample for sample in parts["samples"] if sample["step"] != 9] == whole["samples"]
        assert {**parts, "samples": []} == {**whole, "samples": []}
        assert "since it went on after step 9" in text_of()

    def test_the_first_page_of_a_killed_run_is_its_memory(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed within seconds, a run leaves its first page: that has the numbers of step 0."""
        pages: list[str] = []
        replace_text = _run_writer.replace_text

        def kept(path: Path, text: str) -> None:
            pages.append(text)
            replace_text(path, text)

        monkeypatch.setattr(_run_writer, "replace_text", kept)
        run_train("--html=run.html", "--stop-after=9")
        Path("run.html").write_text(pages[0], encoding="utf-8")
        assert list(remembered()["series"]) == ["validation_loss", "training_loss"]
        assert run_train("--html=run.html", "--resume") == 0
        steps = [step for step, _ in remembered()["series"]["validation_loss"]]
        assert steps == [0, 6, 12, 18, 20]
        assert "are not known:" not in text_of()

    def test_without_the_page_the_log_is_the_memory(self) -> None:
        assert run_train("--stop-after=9") == 0
        assert run_train("--html=run.html", "--resume") == 0
        memory = remembered()
        assert [step for step, _ in memory["series"]["train_loss"]] == [4, 6, 8, *range(10, 21)]
        assert [step for step, _ in memory["series"]["validation_loss"]] == [0, 6, 12, 18, 20]
        assert "Samples and messages from before step 9 are not known:" in text_of()
        assert memory["judged_updates"] == 20

    def test_a_warning_before_the_first_step_does_not_cost_the_page(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """It is shown once the page has taken up what was there."""
        run_train("--html=run.html", "--stop-after=9")
        start = RunFiles.start

        def warned(self: RunFiles, *arguments: Any) -> None:
            self.on_warning("the folder cannot be locked")
            start(self, *arguments)

        monkeypatch.setattr(RunFiles, "start", warned)
        assert run_train("--html=run.html", "--resume", "--stop-after=10") == 0
        memory = remembered()
        assert [step for step, _ in memory["series"]["train_loss"]] == list(range(1, 11))
        assert memory["events"] == [{"claim": "the folder cannot be locked"}]

    def test_a_log_that_lost_its_rows_makes_no_other_run_of_it(self) -> None:
        """Numbers of the log that are not those of the page: the page is of another run."""
        run_train("--html=run.html", "--stop-after=9")
        Path("checkpoints/mini_gpt_log.jsonl").write_text('{"step": 0, "validation_loss": 1.0}\n')
        assert run_train("--html=run.html", "--resume", "--stop-after=10") == 0
        assert "does not hold the rows of this run until step 9" in text_of()
        assert "Samples and messages from before step 9 are not known:" in text_of()

    def test_a_run_that_is_over_keeps_its_page(self) -> None:
        run_train("--html=run.html")
        before = remembered()
        assert run_train("--html=run.html", "--resume") == 0
        assert remembered() == before
        assert "finished" in text_of()

    def test_a_resume_that_fails_leaves_the_page(self, capsys: pytest.CaptureFixture[str]) -> None:
        run_train("--html=run.html", "--stop-after=9")
        before = Path("run.html").read_bytes()
        assert run_train("--html=run.html", "--resume", "--max-steps=30") == 2
        assert Path("run.html").read_bytes() == before


class TestFiles:
    @pytest.mark.parametrize(
        ("path", "words"),
        [
            ("checkpoints", "--html wants a file to write, got the folder checkpoints"),
            ("none/run.html", "there is no folder none; create it first"),
            ("text.txt/run.html", "there is no folder text.txt"),
            (os.devnull, "--html wants a file to write, got the device"),
        ],
    )
    def test_a_place_without_a_page_is_refused_at_once(
        self, path: str, words: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        Path("checkpoints").mkdir()
        assert run_train(f"--html={path}") == 2
        assert words in error_line(capsys)
        assert list(Path("checkpoints").iterdir()) == []

    def test_the_folder_of_the_checkpoints_need_not_be_there_yet(self) -> None:
        assert run_train("--html=checkpoints/run.html") == 0
        assert "finished" in text_of("checkpoints/run.html")

    def test_a_disk_that_fills_costs_one_message(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        def fail(path: Path, text: str) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        monkeypatch.setattr(_run_writer, "replace_text", fail)
        monkeypatch.setattr(_run_writer, "SHARE_MAX", 1e9)
        assert run_train("--html=run.html") == 0
        said = " ".join(capsys.readouterr().err.split())
        assert said == (
            "[WARN] the page run.html cannot be written (No space left on device); the training "
            "goes on, and the page with it as soon as that is mended"
        )
        assert load_checkpoint("checkpoints/mini_gpt_last.safetensors").step == 20

    def test_no_page_without_the_flag(self, place: Path) -> None:
        before = {path.name for path in place.iterdir()}
        assert run_train() == 0
        assert {path.name for path in place.iterdir()} - before == {"checkpoints"}


def test_a_process_that_is_gone_is_told_in_plain_words() -> None:
    """Without the words of the library that lost it, which name a line of C++."""
    told = train._of_others(
        RuntimeError("[pair.cc:537] gloo: Connection reset by peer"), Team(0, 2)
    )
    assert str(told) == "another process is gone: its own output says why, or it was killed"
    assert train._of_others(RuntimeError("shapes"), Team(0, 2)) is None
    assert train._of_others(RuntimeError("gloo"), Team()) is None


def test_of_several_processes_only_the_first_writes(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that is not the first trains along and leaves no page, nor asks for one."""
    monkeypatch.setattr(Team, "is_first", False)
    assert run_train("--html=none/run.html") == 0
    assert not list(place.rglob("*.html"))
