"""The checklists tick what was measured, refuse what is wrong, and leave the rest to a person."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from diagnostics import CATALOG
from diagnostics.help.checklists import tick, tick_items
from diagnostics.help.checklists._item import Item, absence_of
from diagnostics.help.checklists._items import CHECKLISTS, TITLES
from diagnostics.help.checklists._mark import OPEN, RIGHT, WRONG, Mark
from diagnostics.help.checklists._marks import MEASURES
from diagnostics.help.checklists._run_log import as_number, read_log
from tests.diagnostics.help.test_symptoms import (
    HOSTILE,
    commands_in,
    failed,
    report,
    require_command,
)

ROOT = Path(__file__).resolve().parents[3]
ITEMS = [item for items in CHECKLISTS.values() for item in items]
# what a person should be able to tick while text is generated, and a word of each item
GENERATION_WORDS = (
    "best one by validation",
    "tokenizer is the one of the checkpoint",
    "eval mode",
    "cropped to the last block",
    "only the last position is sampled",
    "temperature is above 0",
    "top-k is at most V",
    "repetition is measured as a rate",
)


def row(step: int, train: Any, validation: Any = None, **more: Any) -> dict[str, Any]:
    fields = {"learning_rate": 1e-3, "grad_norm": 0.5, "clipped": False}
    return {"step": step, "train_loss": train, "validation_loss": validation, **fields, **more}


START = {"step": 0, "train_loss": None, "validation_loss": 4.18, "learning_rate": None}
GOOD_LOG = [START, *(row(10 * n, 4.0 - 0.2 * n, 4.05 - 0.2 * n) for n in range(1, 7))]


def marks(checklist: str, content: Any = None, **known: Any) -> dict[str, Mark]:
    """Marks by the text of the item."""
    return {item.text: mark for item, mark in tick_items(checklist, content, **known)}


def mark_of(word: str, checklist: str, content: Any = None, **known: Any) -> Mark:
    (mark,) = (m for text, m in marks(checklist, content, **known).items() if word in text)
    return mark


class TestItems:
    def test_checks_measurements_and_titles_exist(self) -> None:
        assert list(CHECKLISTS) == list(TITLES) == ["before", "training", "generation"]
        for item in ITEMS:
            assert set(item.checks) <= set(CATALOG)
            assert not item.measure or item.measure in MEASURES
            assert not (item.measure and item.checks)
            assert item.look
        assert {item.measure for item in ITEMS} - {""} == set(MEASURES)

    def test_texts_are_unique_within_a_list(self) -> None:
        for items in CHECKLISTS.values():
            assert len({item.text for item in items}) == len(items)

    @pytest.mark.parametrize("item", ITEMS, ids=lambda item: item.text)
    def test_reasons_are_words_of_its_own_checks(self, item: Item) -> None:
        files = [path.read_text(encoding="utf-8") for path in (ROOT / "diagnostics").glob("*.py")]
        for reason in item.reasons:
            assert reason.partition(".")[0] in item.checks
            assert any(f'"{reason}"' in text for text in files)
        for reason in item.also:
            assert reason.partition(".")[0] in set(CATALOG) - set(item.checks)
            assert any(f'"{reason}"' in text for text in files)

    def test_an_item_is_not_ticked_where_another_check_speaks_against_it(self) -> None:
        """The mask is right by itself and lost beside a padding mask: the future is seen."""
        content = report(padding=failed("padding.causal_mask_lost"))
        assert mark_of("sees its own future", "before", content).box == WRONG
        assert mark_of("sees its own future", "before", report()).box == RIGHT

    @pytest.mark.parametrize("command", sorted({c for i in ITEMS for c in commands_in(i.look)}))
    def test_every_command_and_flag_exists(self, command: str) -> None:
        require_command(command)

    @pytest.mark.parametrize("word", GENERATION_WORDS)
    def test_generation_has_all_that_a_person_should_tick(self, word: str) -> None:
        assert sum(word in item.text for item in CHECKLISTS["generation"]) == 1

    def test_before_training_follows_the_order_of_the_report(self) -> None:
        order = [item.checks[0] for item in CHECKLISTS["before"] if item.checks]
        assert order == sorted(order, key=list(CATALOG).index) or "causal_independence" in order


class TestNothingMeasured:
    @pytest.mark.parametrize("checklist", CHECKLISTS)
    def test_nothing_is_ticked_without_a_measurement(self, checklist: str) -> None:
        assert {mark.box for mark in marks(checklist).values()} == {OPEN}
        assert {m.box for m in marks(checklist, {"results": []}).values()} == {OPEN}

    @pytest.mark.parametrize("checklist", CHECKLISTS)
    def test_each_item_says_how_a_person_finds_out(self, checklist: str) -> None:
        text = tick(checklist)
        assert text.count("how: ") == len(CHECKLISTS[checklist])
        assert f"{len(CHECKLISTS[checklist])} for you" in text
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 80

    def test_another_name_is_refused(self) -> None:
        with pytest.raises(ValueError, match="one of before, training, generation, got 'after'"):
            tick("after")

    @pytest.mark.parametrize("content", [{}, [], {"results": 3}, "x"])
    def test_what_is_no_report_is_refused(self, content: Any) -> None:
        with pytest.raises(ValueError, match="wanted a report of diagnostics"):
            tick("before", content)

    def test_it_does_not_wait_for_torch(self) -> None:
        code = (
            "import sys; from diagnostics.help.checklists import tick; "
            "tick('before'); sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


class TestBefore:
    def test_a_passing_report_ticks_all_but_what_a_person_must(self) -> None:
        found = marks("before", report())
        left = [text for text, mark in found.items() if mark.box == OPEN]
        assert left == [
            "the baselines are known: a blind guess, and a constant predictor",
            "fresh weights start near ln V",
            "the model of that test is thrown away: the run begins with fresh weights",
            "the sizes fit the memory",
            "one change since the last run, and a baseline run without it",
        ]
        assert all(mark.box in (RIGHT, OPEN) for mark in found.values())

    def test_a_failed_check_is_wrong_with_its_claim(self) -> None:
        mark = mark_of("next token", "before", report(shift=failed("shift.identical")))
        assert mark == Mark(WRONG, "shift fails: claim of shift.identical")

    @pytest.mark.parametrize("status", ["warn", "skip", "error"])
    def test_what_is_no_clear_pass_is_left_to_a_person(self, status: str) -> None:
        content = report(gradients={"status": status, "reason": "gradients.x"})
        assert mark_of("finite gradient", "before", content).box == OPEN

    def test_fresh_weights_are_ticked_where_they_were_judged(self) -> None:
        numbers = {"judged_as": "fresh", "own_batch": {"uniform": 4.174, "unigram": 3.309}}
        found = marks("before", report(initial_loss={"numbers": numbers, "claim": "at ln V"}))
        assert found["fresh weights start near ln V"].box == RIGHT
        thrown = found["the model of that test is thrown away: the run begins with fresh weights"]
        assert thrown == Mark(RIGHT, "initial_loss: at ln V")
        baselines = found["the baselines are known: a blind guess, and a constant predictor"]
        assert baselines.box == RIGHT
        assert "4.174 nats, a constant predictor 3.309" in baselines.sentence

    def test_baselines_of_trained_weights_stand_beside_the_loss(self) -> None:
        numbers = {"judged_as": "trained", "uniform": 4.0, "unigram": 3.0}
        content = report(initial_loss={"numbers": numbers})
        assert mark_of("baselines", "before", content).box == RIGHT
        assert mark_of("fresh weights start", "before", content).box == OPEN


class TestTraining:
    def test_a_healthy_log_is_ticked(self) -> None:
        found = marks("training", run_log=GOOD_LOG)
        right = [text for text, mark in found.items() if mark.box == RIGHT]
        assert right == [
            "the learning rate is logged beside the loss",
            "the gradient norm before clipping is logged",
            "clipping is the exception",
            "losses and norms in the log are finite",
            "the loss falls",
            "the gap between validation and training does not open",
            "the run ends when validation no longer improves",
        ]
        assert all(mark.box != WRONG for mark in found.values())

    def test_rates_that_are_missing_in_some_rows_are_wrong(self) -> None:
        log = [row(1, 3.0), row(2, 2.9, learning_rate=None)]
        assert mark_of("learning rate", "training", run_log=log) == Mark(
            WRONG, "1 of 2 rows of the log hold a rate"
        )

    def test_constant_clipping_is_wrong_from_95_percent_on(self) -> None:
        """19 of 20 are 95 %; 18 of 20 are not."""
        log = [row(n, 3.0, clipped=n > 1) for n in range(1, 21)]
        assert mark_of("the exception", "training", run_log=log).box == WRONG
        assert "a cure" in tick("training", run_log=log)
        log[2]["clipped"] = False
        assert mark_of("the exception", "training", run_log=log).box == RIGHT
        assert "a cure" not in tick("training", run_log=log)

    def test_four_rows_say_nothing_about_clipping(self) -> None:
        log = [row(n, 3.0, clipped=True) for n in range(1, 5)]
        assert mark_of("the exception", "training", run_log=log).box == OPEN

    @pytest.mark.parametrize("value", ["nan", "inf", math.nan, math.inf])
    def test_a_loss_that_is_not_finite_is_named_with_its_step(self, value: Any) -> None:
        log = [row(1, 3.0), row(2, value)]
        mark = mark_of("finite", "training", run_log=log)
        assert mark == Mark(WRONG, f"train_loss is {float(value)} at step 2")

    def test_a_post_mortem_is_told(self) -> None:
        record = {
            "schema": "diagnostics.monitor.postmortem",
            "step": 7,
            "reason": "monitor.loss_not_finite",
            "sentence": "the loss is nan at step 7",
        }
        mark = mark_of("finite", "training", run_log=[*GOOD_LOG, record])
        assert mark == Mark(WRONG, "a post-mortem says: the loss is nan at step 7")

    def test_an_event_of_the_monitor_is_told(self) -> None:
        event = {"reason": "monitor.loss_spike", "step": 9, "claim": "the loss jumps"}
        mark = mark_of("monitor", "training", run_log=[event])
        assert mark == Mark(WRONG, "it said: the loss jumps (step 9)")
        assert mark_of("monitor", "training", run_log=GOOD_LOG).box == OPEN

    def test_a_gap_that_opens_while_validation_rises_is_wrong(self) -> None:
        """2.5 - 1.9 = 0.6 nats, and 2.5 is 0.2 above the best."""
        log = [row(10, 2.4, 2.3), row(20, 1.9, 2.5, training_loss=1.9)]
        mark = mark_of("gap", "training", run_log=log)
        assert mark.box == WRONG
        assert "2.5 - 1.9 = 0.6 nats; validation is 0.2 above its best" in mark.sentence

    def test_a_gap_while_validation_still_falls_is_not(self) -> None:
        log = [row(10, 2.4, 2.6), row(20, 1.9, 2.5)]
        assert mark_of("gap", "training", run_log=log).box == RIGHT
        assert "(training on one batch)" in mark_of("gap", "training", run_log=log).sentence

    def test_a_loss_that_does_not_fall_is_wrong(self) -> None:
        assert mark_of("loss falls", "training", run_log=[row(1, 3.0), row(2, 3.0)]).box == WRONG
        assert mark_of("loss falls", "training", run_log=[row(1, 3.0)]).box == OPEN

    @pytest.mark.parametrize(("late", "box"), [(0, RIGHT), (1, OPEN), (4, OPEN), (5, WRONG)])
    def test_evaluations_since_the_best_one(self, late: int, box: str) -> None:
        log = [row(1, 2.0, 2.0), *(row(2 + n, 2.0, 2.1) for n in range(late))]
        assert mark_of("no longer improves", "training", run_log=log).box == box

    @pytest.mark.parametrize(("step", "box"), [(20, RIGHT), (30, WRONG), (None, OPEN)])
    def test_the_checkpoint_is_compared_with_the_best_step(self, step: Any, box: str) -> None:
        log = [row(10, 2.0, 2.4), row(20, 2.0, 2.2), row(30, 2.0, 2.3)]
        known = {"run_log": log, "generation_settings": {"checkpoint_step": step}}
        assert mark_of("best one by validation", "training", **known).box == box
        assert mark_of("best one by validation", "generation", **known).box == box

    def test_the_evaluation_before_the_first_step_is_no_candidate(self) -> None:
        assert read_log([START | {"validation_loss": 1.0}, row(10, 2.0, 2.4)]).best == (10, 2.4)

    def test_the_order_of_rows_does_not_matter(self) -> None:
        assert tick("training", run_log=GOOD_LOG[::-1]) == tick("training", run_log=GOOD_LOG)


class TestGeneration:
    def test_settings_are_measured_as_numbers(self) -> None:
        settings = {"temperature": 0.8, "top_k": 20, "vocab_size": 65, "repetition_rate": 0.05}
        found = marks("generation", generation_settings={**settings, "prompt_nats": 0.4})
        right = [text for text, mark in found.items() if mark.box == RIGHT]
        assert right == [
            "the temperature is above 0",
            "top-k is at most V",
            "the prompt is used",
            "repetition is measured as a rate, and not only seen",
        ]

    @pytest.mark.parametrize(
        ("word", "settings"),
        [
            ("temperature is", {"temperature": 0}),
            ("temperature is", {"temperature": -1.0}),
            ("temperature is", {"temperature": math.nan}),
            ("temperature is", {"temperature": "inf"}),
            ("top-k is", {"top_k": 66, "vocab_size": 65}),
            ("top-k is", {"top_k": 0, "vocab_size": 65}),
            ("prompt is used", {"prompt_nats": 0.001}),
            ("prompt is used", {"prompt_nats": "nan"}),
            ("repetition", {"repetition_rate": 0.5}),
        ],
    )
    def test_what_is_out_of_range_is_wrong(self, word: str, settings: dict[str, Any]) -> None:
        assert mark_of(word, "generation", generation_settings=settings).box == WRONG

    @pytest.mark.parametrize(
        ("word", "settings"),
        [
            ("temperature is", {"temperature": True}),
            ("temperature is", {"temperature": "0.8"}),
            ("top-k is", {"top_k": 20}),
            ("top-k is", {"top_k": HOSTILE, "vocab_size": 65}),
            ("repetition", {"repetition_rate": 7}),
            ("repetition", {"repetition_rate": "nan"}),
        ],
    )
    def test_what_is_no_measurement_is_left(self, word: str, settings: dict[str, Any]) -> None:
        assert mark_of(word, "generation", generation_settings=settings).box == OPEN

    def test_top_k_that_is_off_fits_every_vocabulary(self) -> None:
        content = report(shapes={"numbers": {"vocab_size": 65}})
        mark = mark_of("top-k is", "generation", content, generation_settings={"top_k": None})
        assert mark == Mark(RIGHT, "top-k is off; V is 65")

    def test_a_wrong_position_is_no_word_about_the_crop(self) -> None:
        content = report(generation=failed("generation.first_position"))
        assert mark_of("last position", "generation", content).box == WRONG
        crop = mark_of("cropped", "generation", content)
        assert crop.box == OPEN
        assert crop.sentence.startswith("generation says something else: ")

    def test_fresh_weights_do_not_tick_that_weights_were_loaded(self) -> None:
        for judged, box in (("fresh", OPEN), ("trained", RIGHT)):
            content = report(initial_loss={"numbers": {"judged_as": judged}})
            assert mark_of("really loaded", "generation", content).box == box


class TestShown:
    def test_right_wrong_and_open_each_have_their_box(self) -> None:
        content = report(shift=failed("shift.identical"), padding={"status": "skip"})
        text = tick("before", content)
        lines = text.splitlines()
        assert lines[0] == (
            "checklist before training: 15 of 21 measured and right, 1 wrong, 5 for you"
        )
        at = lines.index("[!] every target is the next token, the last one too")
        assert lines[at + 1] == "      shift fails: claim of shift.identical"
        assert lines[at + 2] == "      how: python -m diagnostics --only shift"

    def test_habits_are_told_only_where_the_numbers_show_them(self) -> None:
        assert "habits" not in tick("before", report())
        assert "habits" not in tick("before")
        skipped = tick("before", report(overfit={"status": "skip"}))
        assert "skipped small tests: overfit was not run" in skipped
        warned = tick("before", report(context={"status": "warn"}, split={"status": "warn"}))
        assert "warnings that are left open: split, context; judge or declare them" in warned

    @pytest.mark.parametrize("checklist", CHECKLISTS)
    def test_hostile_content_breaks_nothing(self, checklist: str) -> None:
        bad = {name: failed(f"{name}.x", claim=HOSTILE + "z" * 400) for name in CATALOG}
        bad["initial_loss"]["numbers"] = {"judged_as": [], "own_batch": 3, "uniform": HOSTILE}
        log: list[Any] = [None, HOSTILE, {"step": HOSTILE}, {"step": True}, {"step": 10**400}]
        log += [row(3, HOSTILE, [], clipped="yes"), {"reason": "monitor.x", "sentence": HOSTILE}]
        text = tick(
            checklist,
            report(**bad),
            run_log=log,
            generation_settings={"checkpoint_step": "nan", "top_k": [], "vocab_size": "inf"},
        )
        assert text.replace("\U0001f600", "").isascii()
        assert max(map(len, text.splitlines())) <= 80

    def test_a_stored_report_and_log_give_the_same(self) -> None:
        content = report(shift=failed("shift.identical"))
        stored = json.loads(json.dumps(content)), json.loads(json.dumps(GOOD_LOG))
        assert tick("training", stored[0], run_log=stored[1]) == tick(
            "training", content, run_log=GOOD_LOG
        )


class TestNumbers:
    @pytest.mark.parametrize(
        ("value", "number"),
        [(3, 3.0), (2.5, 2.5), ("inf", math.inf), ("-inf", -math.inf), (10**400, math.inf)],
    )
    def test_json_numbers(self, value: Any, number: float) -> None:
        assert as_number(value) == number

    @pytest.mark.parametrize("value", [None, True, "3", "NaN", [], {}])
    def test_everything_else_is_none(self, value: Any) -> None:
        assert as_number(value) is None


def test_an_item_of_suspects_has_their_checks_and_reasons() -> None:
    """The checklists and the symptoms cannot drift apart where they mean the same."""
    item = absence_of("sees_future", "rows_mix", text="a", look="b")
    assert item.checks == ("causal_independence", "batch_independence")
    assert item.reasons == ()
    assert {"honesty.sees_the_future", "generation.rows_mixed"} <= set(item.also)
    with pytest.raises(ValueError, match="only some have reasons"):
        absence_of("sees_future", "weights_not_loaded", text="a", look="b")


def test_a_prompt_that_changes_one_choice_is_used_however_few_nats_that_is() -> None:
    """The rule of `minigpt.generate --compare-prompts`."""
    found = {
        changed: next(
            mark
            for item, mark in tick_items(
                "generation",
                generation_settings={"prompt_nats": 0.004, "prompt_changed": changed},
            )
            if item.measure == "prompt"
        )
        for changed in (0, 1)
    }
    assert found[0].box == WRONG
    assert found[1].box == RIGHT
    assert str(found[1].sentence).endswith(
        "0.004 nats on average, and the most probable token 1 time"
    )
