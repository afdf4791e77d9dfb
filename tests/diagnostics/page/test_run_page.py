"""The page of a run: whole, bounded, closed to hostile text, and true about its state."""

import json
import math
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from diagnostics.page import RunHistory, render_run_page
from diagnostics.page._run_history import RunState
from diagnostics.page._run_now import duration

HOSTILE = "</pre></main><script>alert(1)</script>\"' \u202e\u05d0\u2066 \x00\x1b[31m \U0001f600 {0}"
HOSTILE += "\ud800"


class Reader(HTMLParser):
    """Collects the text of a page, its elements, and the first attributes of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.attributes: dict[str, dict[str, str | None]] = {}
        self.open: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes.setdefault(tag, dict(attrs))
        if tag not in ("meta", "br", "hr", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def healthy() -> RunHistory:
    run = RunHistory(title="A run", total_steps=40, vocab_size=65, unigram_entropy=3.3)
    run.clip_norm, run.best_path, run.facts = 1.0, "best.safetensors", {"device": "cpu"}
    for step in range(31):
        run.add(step, {"loss": 4.0 - 0.05 * step, "grad_norm": 2.0, "clipped": True, "lr": 0.1})
    run.add(30, {"validation_loss": 2.75, "training_loss": 2.5, "tokens_per_second": 1234.0})
    run.add_sample(30, "and so it goes", "once upon a time ")
    run.state = RunState(seconds=30.0, written="2030-01-02 03:04:05 UTC")
    return run


def test_a_running_page_says_how_far_it_is_and_loads_itself_again() -> None:
    page = Reader(render_run_page(healthy(), refresh_seconds=10))
    assert page.open == []
    for words in (
        "75% - A run",
        "running",
        "step 30 of 40, 30 s since the start, about 10 s to go",
        "Best so far: validation loss 2.75 at step 30, kept in best.safetensors",
        "100 %",
        "of 31 updates, at 1",
        "validation loss 2.75 at step 30",
        "validation is 0.25 nats above training at step 30",
        "after step 30, validation loss 2.75",
        "once upon a time and so it goes",
        "Written at 2030-01-02 03:04:05 UTC.",
        "every 10 seconds",
    ):
        assert words in page.text, words
    assert page.tags.count("svg") == page.tags.count("figure") == 5


@pytest.mark.parametrize(
    "kind", ["finished", "early", "paused", "interrupted", "failed", "unknown"]
)
def test_a_run_that_is_over_loads_nothing_again(kind: str) -> None:
    run = healthy()
    run.state.kind, run.state.message, run.state.postmortem = kind, "of `this`", "post.json"
    page = render_run_page(run, refresh_seconds=10)
    assert 'http-equiv="refresh"' not in page
    assert "about 10 s" not in page
    assert "Best: validation loss" in page
    assert "of <code>this</code>" in page
    assert "<code><bdi>post.json</bdi></code>" in page


def test_the_same_history_gives_the_same_bytes() -> None:
    assert render_run_page(healthy()) == render_run_page(healthy())


def test_a_log_alone_is_enough(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    rows = [{"step": step, "train_loss": 4.0 - step / 100} for step in range(0, 100, 10)]
    log.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for path in (log, str(log)):
        page = Reader(render_run_page(path))
        assert "from its log, which does not say how it ended" in page.text
        assert "training loss 3.1 at step 90" in page.text
        assert page.tags.count("svg") == 1


def test_an_empty_history_is_a_page() -> None:
    page = Reader(render_run_page(RunHistory()))
    assert page.open == []
    assert "step 0" in page.text


def test_hostile_text_stays_text_wherever_it_comes_from() -> None:
    """Title, facts, paths, samples, messages, errors and names of numbers are the user's."""
    run = RunHistory(title=HOSTILE, facts={HOSTILE: HOSTILE}, best_path=HOSTILE)
    run.add(1, {"validation_loss": 2.0, HOSTILE: 1.0})
    run.add_sample(1, HOSTILE, HOSTILE)
    event = {"claim": HOSTILE, "cause": HOSTILE, "expected": HOSTILE, "reason": HOSTILE, "step": 1}
    run.events = [event, HOSTILE]
    run.state = RunState(kind="failed", message=HOSTILE, postmortem=HOSTILE)
    run.gaps = [HOSTILE]
    text = render_run_page(run)
    page = Reader(text)
    assert page.open == []
    assert "script" not in page.tags
    assert not re.search("[\x00-\x08\x0b-\x1f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", text)
    assert page.text.count("<script>alert(1)</script>") > 10


def test_a_message_has_its_count_by_now() -> None:
    run = healthy()
    event = {"reason": "monitor.loss_spike", "step": 7, "claim": "the loss jumped", "count": 1}
    run.events = [event, {"reason": "monitor.summary", "claim": "1 problem in all", "step": 30}]
    page = render_run_page(run)
    assert "seen" not in page
    assert "1 problem in all" not in Reader(page).text
    event |= {"count": 3, "last_step": 29}
    assert "seen 3 times, last at step 29" in render_run_page(run)


def test_the_page_of_a_long_run_is_not_longer() -> None:
    """A hundred times the updates, samples and messages: less than three times the bytes."""

    def size(count: int) -> int:
        run = RunHistory(total_steps=count)
        for step in range(count):
            run.add(step, {"loss": math.sin(step), "grad_norm": math.cos(step), "lr": 0.1})
            run.add_sample(step, "some text")
            run.events.append(f"message {step}")
        return len(render_run_page(run))

    assert size(30_000) < 3 * size(300) < 900_000


def test_large_and_small_losses_stand_on_a_logarithmic_axis() -> None:
    """700 and 3 on a linear axis would make one line of everything that matters."""
    run = RunHistory(vocab_size=65)
    run.add(1, {"loss": 700.0})
    run.add(2, {"loss": 3.0})
    ticks = set(re.findall(r'class="chart-tick"[^>]*>([^<]*)<', render_run_page(run)))
    assert "10" in ticks
    assert "100" in ticks


@pytest.mark.parametrize(
    ("seconds", "words"), [(0.4, "0 s"), (59.4, "59 s"), (125, "2 min 5 s"), (11_000, "3 h 3 min")]
)
def test_times_are_said_as_people_say_them(seconds: float, words: str) -> None:
    assert duration(seconds) == words


def test_numbers_of_very_many_names_are_listed_where_they_are_not_drawn() -> None:
    run = RunHistory()
    run.add(7, {f"number {place}<b>": place for place in range(14)})
    page = render_run_page(run)
    assert page.count("<figure") == 12
    for words in ("2 numbers without a chart", "number 13&lt;b&gt;", "13 at step 7"):
        assert words in page, words


def test_many_messages_do_not_push_the_curves_away() -> None:
    """Twelve in the open, the rest one click away, with the count of those that were let go."""
    run = RunHistory()
    for number in range(300):
        run.add_event(f"message {number}.")
    page = render_run_page(run)
    assert "288 later messages" in page
    head, _, rest = page.partition("<details>")
    assert "message 11." in head
    assert "message 12." not in head
    assert "and 200 messages more between these" in rest
    assert "message 299." in rest


def test_a_loss_below_0_is_drawn_on_an_even_axis() -> None:
    """A logarithm has no place for it."""
    run = RunHistory()
    for step, loss in enumerate((5.0, 0.001, -3.0)):
        run.add(step, {"loss": loss})
    assert "at 0 or below" not in render_run_page(run)
    assert "training loss -3 at step 2" in render_run_page(run)
