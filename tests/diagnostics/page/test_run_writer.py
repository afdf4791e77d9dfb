"""The page that is written while a loop trains: in one piece, seldom, and never in its way."""

import math
import os
import re
import stat
import threading
from pathlib import Path

import pytest
import torch

from diagnostics import TrainingMonitor
from diagnostics.page import RunPage, _run_writer
from diagnostics.page._replace_text import replace_text, require_replaceable
from diagnostics.page._run_memory import read_memory
from tests.diagnostics.monitor import loops


class Clock:
    """A clock that a test sets."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(_run_writer, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.html"


def text_of(path: Path) -> str:
    """The page without its tags."""
    return re.sub("<[^>]*>", "", path.read_text(encoding="utf-8"))


class TestWriting:
    def test_at_most_every_few_seconds(self, path: Path, clock: Clock) -> None:
        page = RunPage(path, every_seconds=5.0)
        assert not path.exists()
        page.log(1, loss=4.0)
        assert "step 1" in text_of(path)
        clock.now += 4.9
        page.log(2, loss=3.0)
        assert "step 2" not in text_of(path)
        clock.now += 0.2
        page.log(3, loss=2.0)
        assert "step 3" in text_of(path)

    def test_messages_and_the_end_come_sooner(self, path: Path, clock: Clock) -> None:
        page = RunPage(path)
        page.log(1, loss=4.0)
        clock.now += 1.1
        page.event("something is odd")
        assert "something is odd" in text_of(path)
        page.log(2, loss=3.0)
        page.finish()
        assert "step 2" in text_of(path)
        assert "refresh" not in path.read_text(encoding="utf-8")

    def test_a_page_that_takes_long_is_written_more_seldom(
        self, path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Two seconds for a page: not before 100 seconds have passed, a share of 2 %."""

        def slow(run: object, refresh_seconds: int) -> str:
            clock.now += 2.0
            return str(clock.now)

        monkeypatch.setattr(_run_writer, "render_run_page", slow)
        page = RunPage(path)
        page.log(1, loss=4.0)
        first = path.read_text()
        clock.now += 99.0
        page.log(2, loss=4.0)
        page.event("not even for this")
        assert path.read_text() == first
        clock.now += 2.0
        page.log(3, loss=4.0)
        assert path.read_text() != first

    def test_a_browser_never_sees_half_a_page(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """While the new page is written the old one stands; nothing is left over."""
        replace_text(path, "old")
        seen: list[str] = []
        write = Path.write_bytes

        def watched(self: Path, data: bytes) -> int:
            count = write(self, data[: len(data) // 2])
            seen.append(path.read_text())
            raise OSError(28, "No space left on device")
            return count

        monkeypatch.setattr(Path, "write_bytes", watched)
        with pytest.raises(OSError, match="No space left"):
            replace_text(path, "new " * 1000)
        assert seen == ["old"]
        assert list(path.parent.iterdir()) == [path]

    def test_half_of_a_surrogate_pair_is_written_as_an_escape(self, path: Path) -> None:
        replace_text(path, "a\ud800b")
        assert path.read_text() == "a\\ud800b"

    def test_a_link_stays_and_its_file_is_replaced(self, path: Path, tmp_path: Path) -> None:
        path.symlink_to(tmp_path / "real.html")
        RunPage(path).finish()
        assert path.is_symlink()
        assert (tmp_path / "real.html").is_file()


class TestTrouble:
    def test_one_message_and_the_run_goes_on(self, tmp_path: Path, clock: Clock) -> None:
        """The folder is removed in the middle; when it is back, so is the page."""
        said: list[str] = []
        page = RunPage(tmp_path / "pages" / "run.html", on_warning=said.append)
        (tmp_path / "pages").rmdir()
        for step in (1, 2):
            clock.now += 60.0
            page.log(step, loss=4.0)
        assert len(said) == 1
        assert said[0].startswith("the page ")
        assert "No such file or directory); the training goes on" in said[0]
        (tmp_path / "pages").mkdir()
        page.finish()
        assert "step 2" in text_of(page.path)

    def test_a_fault_of_the_page_itself_is_a_message_too(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(run: object, refresh_seconds: int) -> str:
            raise ZeroDivisionError("a fault of ours")

        said: list[str] = []
        monkeypatch.setattr(_run_writer, "render_run_page", broken)
        RunPage(path, on_warning=said.append).log(1, loss=4.0)
        assert len(said) == 1
        assert "(ZeroDivisionError: a fault of ours)" in said[0]

    def test_no_value_ends_the_run(self, path: Path) -> None:
        """Nothing is raised, whatever is logged; the first refusal is told, and only once."""

        class Silent:
            shape = 3  # of no array

            def __str__(self) -> str:
                raise RuntimeError("has no words")

        said: list[str] = []
        page = RunPage(path, every_seconds=0.0, on_warning=said.append)
        page.log(1, loss=torch.ones(2), mine=3.0)
        page.log(None, loss=1.0)  # type: ignore[arg-type]
        page.log(2, clipped=torch.ones(2), other=Silent())
        page.event(Silent())
        page.sample(3, Silent())  # type: ignore[arg-type]
        assert said == [
            "the page leaves out a value: loss must be a number, got Tensor of shape (2,)"
        ]
        assert page.run.series == {"mine": [(1, 3.0)]}

    def test_a_listener_that_fails_is_no_reason_to_stop(self, path: Path) -> None:
        def broken(sentence: str) -> None:
            raise RuntimeError(sentence)

        RunPage(path, on_warning=broken).log(1, loss="low")

    def test_threads_may_share_a_page(self, path: Path) -> None:
        said: list[str] = []
        page = RunPage(path, every_seconds=0.0, on_warning=said.append)

        def tell(name: str) -> None:
            for step in range(10):
                page.log(step, **{f"{name}{step}": 1.0})

        threads = [threading.Thread(target=tell, args=(name,)) for name in "ab"]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert (len(page.run.series), said) == (20, [])

    def test_ctrl_c_while_it_is_written_is_let_through(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupted(run: object, refresh_seconds: int) -> str:
            raise KeyboardInterrupt

        page = RunPage(path)
        monkeypatch.setattr(_run_writer, "render_run_page", interrupted)
        with pytest.raises(KeyboardInterrupt):
            page.log(1, loss=4.0)

    def test_where_no_file_can_be_written_it_says_so_at_once(self, tmp_path: Path) -> None:
        with pytest.raises(IsADirectoryError):
            RunPage(tmp_path)
        with pytest.raises(OSError, match="got a device"):
            RunPage(os.devnull)
        (tmp_path / "file").write_text("")
        with pytest.raises(OSError, match=r"exists|directory"):
            RunPage(tmp_path / "file" / "run.html")
        with pytest.raises(ValueError, match="every_seconds"):
            RunPage(tmp_path / "run.html", every_seconds=math.nan)
        for total in (0, -1, math.nan, math.inf):
            with pytest.raises(ValueError, match="total_steps must be a whole number >= 1"):
                RunPage(tmp_path / "run.html", total_steps=total)  # type: ignore[arg-type]

    @pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write")
    def test_a_protected_file_stays(self, path: Path) -> None:
        path.write_text("mine")
        path.chmod(stat.S_IREAD)
        with pytest.raises(PermissionError):
            require_replaceable(path)


class TestTheEnd:
    def test_the_block_says_how_it_ended(self, path: Path) -> None:
        with RunPage(path) as page:
            page.log(1, loss=4.0)
        assert page.run.state.kind == "finished"

    def test_an_error_is_named_and_goes_on(self, path: Path) -> None:
        with pytest.raises(RuntimeError), RunPage(path):
            raise RuntimeError("shapes do not fit")
        assert "failed" in text_of(path)
        assert "RuntimeError: shapes do not fit" in text_of(path)

    def test_ctrl_c_is_an_interruption(self, path: Path) -> None:
        with pytest.raises(KeyboardInterrupt), RunPage(path):
            raise KeyboardInterrupt
        assert "interrupted" in text_of(path)

    @pytest.mark.parametrize(("code", "kind"), [(0, "interrupted"), (2, "failed")])
    def test_a_program_that_ends_itself(self, path: Path, code: int, kind: str) -> None:
        with pytest.raises(SystemExit), RunPage(path) as page:
            raise SystemExit(code)
        assert page.run.state.kind == kind

    def test_nan_is_not_shown_as_well(self, path: Path) -> None:
        with RunPage(path) as page:
            page.log(1, loss=math.nan)
        assert "finished, with a loss that is no number" in text_of(path)

    def test_a_loop_that_was_left_is_not_called_finished(self, path: Path) -> None:
        """A `break` ends the block as its last step does."""
        with RunPage(path, total_steps=10) as page:
            page.log(4, loss=3.0)
        assert "ended before its last step" in text_of(path)

    def test_another_word_is_shown_as_it_is(self, path: Path) -> None:
        RunPage(path).finish("out of <time>")
        assert "out of &lt;time&gt;" in text_of(path)

    def test_a_later_step_opens_the_page_again(self, path: Path) -> None:
        """A second call of a fit; an evaluation at the end does not."""
        page = RunPage(path, every_seconds=0.0)
        page.log(1, loss=4.0)
        page.finish("failed", "why")
        page.log(1, validation_loss=3.0)
        assert page.run.state.kind == "failed"
        page.log(2, loss=3.0)
        assert (page.run.state.kind, page.run.state.message) == ("running", "")
        assert "running" in text_of(path)

    def test_the_time_to_go_is_reckoned_from_the_first_numbers(
        self, path: Path, clock: Clock
    ) -> None:
        """Made long before the loop, which begins at 500: 100 steps in 10 s, 400 more to go."""
        page = RunPage(path, total_steps=1000)
        clock.now += 3600
        page.log(500, loss=4.0)
        clock.now += 10
        page.log(600, loss=4.0)
        assert "about 40 s to go" in text_of(path)

    def test_the_first_word_counts(self, path: Path) -> None:
        with RunPage(path) as page:
            page.finish("early", "no gain in 3 evaluations")
        assert page.run.state.kind == "early"
        assert "no gain in 3 evaluations" in text_of(path)


class TestGoingOn:
    def first_part(self, path: Path, log: Path | None = None) -> None:
        page = RunPage(path, clip_norm=1.0)
        for step in range(1, 31):
            page.log(step, loss=4.0 - step / 100, clipped=step <= 10, grad_norm=2.0)
        page.sample(10, "early text", prompt="so ")
        page.sample(30, "late text")
        page.event({"claim": "at ten", "step": 10})
        page.event({"claim": "at thirty", "step": 30})
        page.finish("interrupted")
        if log is not None:
            log.write_text('{"step": 10, "train_loss": 3.9}\n{"step": 20, "train_loss": 3.8}\n')

    def test_the_page_is_its_own_memory(self, path: Path) -> None:
        """What came after the step is made once more, so it goes; the rest stays."""
        self.first_part(path)
        page = RunPage(path)
        page.go_on(20)
        assert [step for step, _ in page.run.points("train_loss")] == list(range(1, 21))
        assert [(s.text, s.prompt) for s in page.run.samples] == [("early text", "so ")]
        assert [event["claim"] for event in page.run.events] == ["at ten"]
        assert (page.run.step, page.run.gaps) == (20, [])
        page.finish()
        assert "since it went on after step 20" in text_of(path)

    def test_the_count_of_clipped_updates_is_known_at_its_end(self, path: Path) -> None:
        """In the middle it is not, unless the caller says it."""
        self.first_part(path)
        for step, share in ((30, 1 / 3), (20, None)):
            page = RunPage(path)
            page.go_on(step)
            assert page.run.clipped_share == share

    def test_beside_a_log_it_must_have_the_same_numbers(self, path: Path, tmp_path: Path) -> None:
        log = tmp_path / "log.jsonl"
        self.first_part(path, log)
        page = RunPage(path, clip_norm=1.0)
        page.go_on(20, log=log, clipped_updates=10)
        assert len(page.run.points("train_loss")) == 20
        assert (page.run.clipped_share, page.run.gaps) == (0.5, [])

    def test_the_page_of_another_run_is_not_believed(self, path: Path, tmp_path: Path) -> None:
        """Then the rows of the log are all there is, and the page says so."""
        log = tmp_path / "log.jsonl"
        self.first_part(path, log)
        log.write_text(log.read_text().replace("3.9", "3.7") + '{"step": 30, "train_loss": 3.0}\n')
        page = RunPage(path)
        page.go_on(20, log=log)
        assert page.run.points("train_loss") == [(10, 3.7), (20, 3.8)]
        assert page.run.samples == []
        assert page.run.gaps[0].startswith("Samples and messages from before step 20 are not known")

    def test_rows_of_a_part_without_a_page_come_from_the_log(
        self, path: Path, tmp_path: Path
    ) -> None:
        log = tmp_path / "log.jsonl"
        self.first_part(path, log)
        log.write_text(log.read_text() + '{"step": 50, "train_loss": 3.0}\n')
        page = RunPage(path)
        page.go_on(60, log=log)
        assert page.run.points("train_loss")[-2:] == [(30, 3.7), (50, 3.0)]

    @pytest.mark.parametrize(
        "value",
        [
            "",
            "{",
            "[]",
            '{"version": 2}',
            '{"version": 1, "series": [1], "samples": [[]], "events": {}}',
            '{"version": 1, "series": {"a": [[1], ["x", 2], [2, null], 3]}}',
            '{"version": 1, "samples": [{"step": 1}, {"step": "x", "text": 1, "prompt": 2}]}',
        ],
    )
    def test_a_damaged_memory_is_no_error(self, path: Path, value: str) -> None:
        escaped = value.replace('"', "&quot;")
        path.write_text(f'<p>x</p><data id="run-memory" value="{escaped}"></data>')
        page = RunPage(path)
        page.go_on(5)
        assert page.run.samples == []

    def test_another_file_at_the_path_is_no_memory(self, path: Path) -> None:
        path.write_bytes(b"\xff\xfe not text")
        assert read_memory(path) is None

    def test_numbers_and_texts_survive_the_page_exactly(self, path: Path) -> None:
        hostile = "</data>\"'&quot;\x00\u202e\U0001f600\ud800"
        page = RunPage(path)
        page.log(1, loss=0.1 + 0.2, mine=math.nan)
        page.sample(1, hostile)
        page.finish()
        again = RunPage(path)
        again.go_on(1)
        assert again.run.points("train_loss") == [(1, 0.1 + 0.2)]
        assert math.isnan(again.run.points("mine")[0][1])
        assert again.run.samples[0].text == hostile


class TestMonitor:
    def test_it_shows_what_the_monitor_sees(self, path: Path) -> None:
        page = RunPage(path, clip_norm=1.0)
        monitor = loops.train(30, page=page, clip=1.0)
        assert [step for step, _ in page.run.points("train_loss")] == list(range(1, 31))
        assert page.run.points("learning_rate")[0] == (1, 1e-3)
        assert page.run.clipped_share == monitor.clipped_share
        assert page.run.state.kind == "finished"

    def test_an_evaluation_and_a_failure_are_shown(self, path: Path, tmp_path: Path) -> None:
        page = RunPage(path)
        monitor = TrainingMonitor(page=page, on_event=None, folder=tmp_path)
        monitor.step(3.0)
        monitor.evaluation(2.5, 2.25)
        monitor.step(math.nan)
        with pytest.raises(ArithmeticError), monitor:
            raise ArithmeticError("loss is nan")
        assert page.run.gap() == [(1, 0.25)]
        assert page.run.state.kind == "failed"
        assert "the loss is nan" in text_of(path)
        assert str(monitor.postmortem_path) in text_of(path)

    def test_a_run_that_went_on_after_nan_names_the_postmortem(
        self, path: Path, tmp_path: Path
    ) -> None:
        page = RunPage(path)
        with TrainingMonitor(page=page, on_event=None, folder=tmp_path) as monitor:
            monitor.step(math.nan)
            monitor.step(2.0)
        assert page.run.state.kind == "finished"
        assert f"What broke, and where: {monitor.postmortem_path}" in text_of(path)

    def test_the_training_is_the_same_with_and_without(self, path: Path) -> None:
        """Dropout draws from the global generator, so a number drawn for the page would show."""

        def weights(page: RunPage | None) -> list[torch.Tensor]:
            torch.manual_seed(1)
            monitor = loops.train(20, page=page)
            assert monitor.model is not None
            return [*monitor.model.state_dict().values(), torch.get_rng_state()]

        shown, alone = weights(RunPage(path, every_seconds=0.0)), weights(None)
        assert all(map(torch.equal, shown, alone))
