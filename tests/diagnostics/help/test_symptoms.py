"""The table of symptoms names only what exists, free words find it, and a report walks it."""

from __future__ import annotations

import importlib.util
import json
import math
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from diagnostics import CATALOG
from diagnostics.help._evidence import Standing, read_results, weigh
from diagnostics.help.symptoms import answer_symptom, find_symptoms, guide, walk
from diagnostics.help.symptoms._meanings import (
    DENIABLE,
    MEANINGS,
    NEGATED,
    SEVERAL_WORDS,
    STOPPED,
)
from diagnostics.help.symptoms._numbers import explain_values, read_numbers
from diagnostics.help.symptoms._phrases import read_meanings
from diagnostics.help.symptoms._symptom import Suspect, Symptom
from diagnostics.help.symptoms._symptom_table import SUSPECTS, SYMPTOMS, TOPICS

ROOT = Path(__file__).resolve().parents[3]
SUSPECT_LIST = list(SUSPECTS.values())
SYMPTOM_LIST = list(SYMPTOMS.values())
HOSTILE = "\x1b[31m\u202e<script>\ud800\n[OK] all is well \U0001f600"


def name_of(value: object) -> str:
    return value.name if isinstance(value, (Suspect, Symptom)) else str(value)


def names(text: str) -> list[str]:
    return [symptom.name for symptom in find_symptoms(text)]


def report(**results: dict[str, Any]) -> dict[str, Any]:
    """A report in which every check passed, but for those that are given."""
    rows = []
    for check in CATALOG:
        row = {"check": check, "status": "pass", "reason": f"{check}.ok", "claim": f"{check} holds"}
        rows.append(row | results.get(check, {}))
    return {"kind": "diagnostics.report", "schema_version": 2, "results": rows}


def failed(reason: str, **more: Any) -> dict[str, Any]:
    return {"status": "fail", "reason": reason, "claim": f"claim of {reason}", **more}


def commands() -> Iterator[str]:
    """Every command that the table shows, the ones inside of sentences too."""
    for suspect in SUSPECT_LIST:
        texts = [suspect.command, *suspect.look, suspect.action]
        yield from filter(None, texts[:1])
        for text in texts[1:]:
            yield from commands_in(text)
        if suspect.exercise:
            yield f"python -m exercises.{suspect.exercise}"
    for symptom in SYMPTOM_LIST:
        for text in (symptom.note, symptom.looks, *(lead.evidence for lead in symptom.leads)):
            yield from commands_in(text)


def commands_in(text: str) -> Iterator[str]:
    if text.startswith("python "):
        yield text
    yield from (part for part in text.split("`")[1::2] if part.startswith("python "))


def require_command(command: str) -> None:
    """Parse a command with the parser that would get it; fails where a flag does not exist."""
    python, flag, module, *arguments = shlex.split(command)
    assert (python, flag) == ("python", "-m")
    if module.startswith("exercises."):
        assert importlib.util.find_spec(module) is not None
        assert not arguments
        return
    from diagnostics.__main__ import _parse as parse_diagnostics
    from minigpt._generate_command import _parse as parse_generate
    from minigpt._memory_command import _parse as parse_memory
    from minigpt.train._flags import parse_flags as parse_train

    if module == "minigpt.prepare":
        from minigpt.prepare import _parse as parse_prepare

        parse_prepare(arguments)
        return
    parsers: dict[str, Any] = {
        "diagnostics": parse_diagnostics,
        "minigpt.generate": parse_generate,
        "minigpt.memory": parse_memory,
        "minigpt.train": parse_train,
    }
    options = parsers[module](arguments)
    if module == "diagnostics":
        assert set(options.only or ()) <= set(CATALOG)


class TestTable:
    def test_every_suspect_is_named_by_a_symptom_and_every_lead_names_a_suspect(self) -> None:
        named = {lead.suspect for symptom in SYMPTOM_LIST for lead in symptom.leads}
        assert named == set(SUSPECTS)

    def test_names_are_unique(self) -> None:
        assert sum(map(len, TOPICS.values())) == len(SYMPTOMS)
        assert list(SYMPTOMS) == [s.name for topic in TOPICS.values() for s in topic]

    @pytest.mark.parametrize("symptom", SYMPTOM_LIST, ids=name_of)
    def test_a_symptom_has_suspects_each_once_and_something_to_look_at(
        self, symptom: Symptom
    ) -> None:
        suspects = [lead.suspect for lead in symptom.leads]
        assert len(suspects) == len(set(suspects)) >= 3
        assert symptom.phrases
        assert symptom.looks.endswith(".")
        assert symptom.about in ("", "uniform", "low")

    @pytest.mark.parametrize("suspect", SUSPECT_LIST, ids=name_of)
    def test_checks_and_exercises_exist(self, suspect: Suspect) -> None:
        assert set(suspect.checks) <= set(CATALOG)
        assert suspect.checks or suspect.look  # somebody can find out
        if suspect.exercise:
            assert (ROOT / "exercises" / f"{suspect.exercise}.py").is_file()
        if suspect.checks:
            assert suspect.exercise.startswith("break_")

    @pytest.mark.parametrize("suspect", SUSPECT_LIST, ids=name_of)
    def test_reasons_are_words_of_its_own_checks(self, suspect: Suspect, source: str) -> None:
        for reason in suspect.reasons:
            assert reason.partition(".")[0] in suspect.checks
            assert f'"{reason}"' in source
        for reason in suspect.also:
            assert reason.partition(".")[0] in set(CATALOG) - set(suspect.checks)
            assert f'"{reason}"' in source

    @pytest.mark.parametrize("command", sorted(set(commands())))
    def test_every_command_and_flag_exists(self, command: str) -> None:
        require_command(command)

    def test_every_bug_of_the_exercises_is_named_by_a_suspect(self) -> None:
        files = (ROOT / "exercises").glob("break_*.py")
        found = [
            re.findall(r'reason="([a-z_.0-9]+)"', f.read_text(encoding="utf-8")) for f in files
        ]
        assert len(found) == len(CATALOG)
        for reason in {reason for reasons in found for reason in reasons}:
            assert any(
                reason in (*s.reasons, *s.also)
                or (not s.reasons and reason.partition(".")[0] in s.checks)
                for s in SUSPECT_LIST
            ), reason

    def test_meanings_are_reached_by_words_that_exist(self) -> None:
        assert {*STOPPED} <= set(MEANINGS)
        assert {*NEGATED} <= set(MEANINGS)
        words = [word for listed in MEANINGS.values() for word in listed.split()]
        assert len(words) == len(set(words))
        for pattern, word in SEVERAL_WORDS:
            assert pattern.isascii()
            assert word.isascii()
        assert {*DENIABLE.split()} <= {*MEANINGS, "unrepeatable"}
        assert not {*DENIABLE.split()} & set(NEGATED)

    def test_a_loss_that_does_not_fall_is_followed_from_data_to_capacity(self) -> None:
        """The order is data, model, loss, gradients, optimizer, capacity."""
        order = [lead.suspect for lead in SYMPTOMS["loss_stuck"].leads]
        path = [
            "text_noise",
            "context_hidden",
            "loss_other",
            "frozen",
            "rate_too_low",
            "capacity",
        ]
        assert sorted(path, key=order.index) == path

    def test_the_settings_for_text_stand_there_as_numbers(self) -> None:
        assert SUSPECTS["settings_cold"].action.endswith(
            "temperature 0.8, top-k 20, top-p 0.9, repetition penalty 1.05"
        )
        assert SUSPECTS["settings_hot"].action.endswith("temperature 0.6, top-k 10, top-p 0.9")

    def test_they_are_those_of_the_presets(self) -> None:
        from minigpt._generate_command import PRESETS

        assert str(PRESETS["balanced"]) in SUSPECTS["settings_cold"].action
        assert str(PRESETS["strict"]).startswith("temperature 0.6, top-k 10, top-p 0.9")


@pytest.fixture(scope="module")
def source() -> str:
    """The code of all checks: reason ids stand in full where a verdict is given."""
    files = [*(ROOT / "diagnostics").glob("*.py")]
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


class TestFind:
    @pytest.mark.parametrize(
        ("phrase", "name"), [(p, s.name) for s in SYMPTOM_LIST for p in s.phrases]
    )
    def test_every_phrase_finds_its_symptom(self, phrase: str, name: str) -> None:
        assert name in names(phrase)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("my loss isn't going down", ["loss_stuck"]),
            ("my loss isn\u2019t going down", ["loss_stuck"]),
            ("LOSS STUCK", ["loss_stuck"]),
            ("stuck loss", ["loss_stuck"]),
            ("stuck at 4.17", ["loss_stuck"]),
            ("the loss is not really decreasing", ["loss_stuck"]),
            ("perplexity does not drop", ["loss_stuck"]),
            ("loss nan", ["loss_nan"]),
            ("loss becomes NaN after 200 steps", ["loss_nan"]),
            ("repeats the same word", ["text_repeats"]),
            ("val loss goes up", ["overfitting"]),
            ("train loss goes down but val loss goes up", ["overfitting"]),
            ("loss 0.02 after 50 steps but samples are garbage", ["good_loss_bad_text"]),
            ("the loss falls so slowly", ["loss_slow"]),
            ("loss explodes at step 500", ["loss_explodes"]),
            ("loss starts at 80 instead of 4.17", ["initial_too_high"]),
            ("initial loss 0.5", ["initial_too_low"]),
            ("can't overfit one batch", ["overfit_stuck"]),
            ("CUDA out of memory", ["out_of_memory"]),
            ("CUDA error: device-side assert triggered", ["index_error"]),
            ("IndexError: index out of range in self", ["index_error"]),
            ("missing key(s) in state_dict", ["load_fails"]),
            ("gradients are all zero", ["gradient_missing"]),
            ("accuracy is 99% but the generated text is garbage", ["good_loss_bad_text"]),
            ("resumed training has higher loss than before", ["resume_worse"]),
            ("the prompt does not matter", ["prompt_ignored"]),
            ("text falls apart after 256 tokens", ["text_breaks_at_block"]),
            ("overfit", ["overfitting"]),
        ],
    )
    def test_free_words(self, text: str, expected: list[str]) -> None:
        assert names(text) == expected

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("losss stuk", "loss_stuck"),
            ("validaton loss incresing", "overfitting"),
            ("gibbrish output", "text_chaotic"),
            ("repitition", "text_repeats"),
        ],
    )
    def test_typos(self, text: str, expected: str) -> None:
        assert names(text) == [expected]

    @pytest.mark.parametrize("name", SYMPTOMS)
    def test_a_name_finds_itself_alone(self, name: str) -> None:
        assert names(name) == [name]
        assert names(name.replace("_", " ").upper()) == [name]

    @pytest.mark.parametrize(
        "text",
        ["", "  ", "hello", "loss", "12 34", "?!", "the loss curve looks like a stick", HOSTILE],
    )
    def test_words_that_describe_no_symptom_find_none(self, text: str) -> None:
        assert find_symptoms(text) == ()

    def test_one_that_fits_a_part_only_is_left_out(self) -> None:
        """`validation loss rises` holds `loss rises`, which is another symptom."""
        assert names("loss rises") == ["loss_explodes"]
        assert names("validation loss rises") == ["overfitting"]

    def test_a_thousand_words_are_read_up_to_a_limit(self) -> None:
        assert names("x" * 100_000) == []
        assert names("loss nan " * 10_000) == ["loss_nan"]

    def test_a_number_with_another_unit_is_no_loss(self) -> None:
        assert "low" not in read_meanings("loss with dropout 0.2 and rate 0.1")
        assert "low" in read_meanings("loss of 0.2 with dropout 0.2")


class TestNumbers:
    def test_a_value_and_a_vocabulary(self) -> None:
        found = read_numbers("stuck at 4.17 after 300 steps with 65 characters")
        assert [value.number for value in found.values] == [4.17]
        assert found.vocab_size == 65

    def test_ln_of_the_vocabulary_is_named(self) -> None:
        (said,) = explain_values(read_numbers("loss 4.17, 65 characters"), "uniform")
        assert said == "4.17 is ln 65 = 4.174: what a blind guess over 65 tokens scores."

    def test_without_a_vocabulary_it_says_for_which_one_it_would_be(self) -> None:
        """The bounds: e ** 4.165 = 64.4 and e ** 4.175 = 65.04: only 65 lies between."""
        (said,) = explain_values(read_numbers("stuck at 4.17"), "uniform")
        assert "if your vocabulary has 65 tokens" in said

    def test_the_report_may_know_the_vocabulary(self) -> None:
        (said,) = explain_values(read_numbers("stuck at 4.17"), "uniform", 65)
        assert said.startswith("4.17 is ln 65")

    @pytest.mark.parametrize(
        ("text", "about"),
        [
            ("stuck at 2.5 with 65 characters", "uniform"),
            ("stuck at 4", "uniform"),
            ("stuck at 4.17 with 65 characters", ""),
            ("stuck at 4.17", "low"),
            ("stuck at 99.25", "uniform"),
            ("loss 0.02", "uniform"),
        ],
    )
    def test_where_it_does_not_fit_nothing_is_said(self, text: str, about: str) -> None:
        assert explain_values(read_numbers(text), about) == ()

    def test_a_low_loss_is_a_probability(self) -> None:
        (said,) = explain_values(read_numbers("loss 0.02"), "low")
        assert "98.02 %" in said
        assert math.exp(-0.02) == pytest.approx(0.9802, abs=1e-4)


class TestGuide:
    @pytest.mark.parametrize("symptom", SYMPTOM_LIST, ids=name_of)
    def test_it_fits_a_terminal_and_is_ascii(self, symptom: Symptom) -> None:
        text = guide(symptom)
        assert text.isascii()
        assert max(map(len, text.splitlines())) <= 80

    @pytest.mark.parametrize("symptom", SYMPTOM_LIST, ids=name_of)
    def test_every_suspect_has_its_evidence_its_check_and_its_action(
        self, symptom: Symptom
    ) -> None:
        flat = " ".join(guide(symptom).split())
        for lead in symptom.leads:
            suspect = SUSPECTS[lead.suspect]
            for part in (suspect.what, lead.evidence, suspect.command, suspect.action):
                assert " ".join(part.split()) in flat

    def test_a_training_run_is_tried_and_is_no_check(self) -> None:
        text = guide("loss_stuck")
        assert "    try      python -m minigpt.train --learning-rate 3e-3" in text
        assert "check    python -m minigpt" not in text

    def test_no_command_and_no_percentage_is_broken_over_two_lines(self) -> None:
        for symptom in SYMPTOM_LIST:
            for line in guide(symptom).splitlines():
                assert line.count("`") % 2 == 0
                assert not line.lstrip().startswith("%")

    def test_commands_stay_on_one_line(self) -> None:
        lines = [line.strip() for line in guide("good_loss_bad_text").splitlines()]
        assert "check    python -m diagnostics --only shift" in lines
        assert "see it   python -m exercises.break_shift" in lines

    @pytest.mark.parametrize("symptom", SYMPTOM_LIST, ids=name_of)
    def test_the_commands_that_walk_it_exist(self, symptom: Symptom) -> None:
        for command in map(str.strip, guide(symptom).splitlines()[-2:]):
            require_command(command)

    def test_the_number_of_the_person_is_explained(self) -> None:
        assert "4.17 is ln 65 = 4.174" in answer_symptom("loss stuck at 4.17 with 65 characters")

    def test_an_unknown_name_says_which_ones_there_are(self) -> None:
        with pytest.raises(ValueError, match="no symptom named 'lost'; known: loss_stuck"):
            guide("lost")

    def test_it_does_not_wait_for_torch(self) -> None:
        code = (
            "import sys; from diagnostics.help.symptoms import answer_symptom; "
            "answer_symptom('loss stuck'); sys.exit('torch' in sys.modules)"
        )
        assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


class TestAnswer:
    @pytest.mark.parametrize("text", ["list", " LIST ", "no such thing"])
    def test_the_list_holds_every_symptom(self, text: str) -> None:
        answer = answer_symptom(text)
        for symptom in SYMPTOM_LIST:
            assert f"  {symptom.name} " in answer
        assert max(map(len, answer.splitlines())) <= 80

    def test_several_are_offered_with_what_they_look_like(self) -> None:
        answer = answer_symptom("the loss stopped falling")
        assert answer.startswith("2 symptoms fit these words. Which one do you see?")
        assert "python -m diagnostics --symptom loss_stuck" in answer
        assert "python -m diagnostics --symptom loss_slow" in answer
        assert "The loss is below that of a constant predictor" in answer

    def test_words_that_fit_nothing_are_shown_harmlessly(self) -> None:
        first = answer_symptom(HOSTILE).splitlines()[0]
        assert first.startswith(r'No symptom of the list fits "\x1b[31m\u202e<script>\ud800\n[OK]')
        assert "\x1b" not in first
        assert "\u202e" not in first

    def test_a_report_is_walked(self) -> None:
        assert "[-]" in answer_symptom("loss stuck", report())


class TestWalk:
    def test_passing_checks_strike_their_suspects(self) -> None:
        text = walk("text_ends_early", report())
        assert text.count("[-] ") == 1 + 3  # the legend, and all three suspects
        assert "generation passes: generation holds" in text
        assert "The report strikes every suspect of this list." in text

    def test_the_first_that_stands_is_named_with_the_next_step_of_its_check(self) -> None:
        broken = report(shift=failed("shift.identical", next_step="cut T + 1 tokens"))
        text = walk("good_loss_bad_text", broken)
        assert "[!]  1. targets that are the inputs themselves" in text
        assert "first that stands: 1. targets that are the inputs themselves" in text
        assert "    next    cut T + 1 tokens" in text
        assert "    see it  python -m exercises.break_shift" in text

    def test_another_reason_of_the_same_check_decides_nothing(self) -> None:
        text = walk("good_loss_bad_text", report(shift=failed("shift.wrapped_last")))
        assert "[?]  1. targets that are the inputs themselves" in text
        assert "first that stands" not in text
        assert "The report fails at shift, for a reason that is none of these" in text

    def test_a_skip_is_not_measured_and_says_what_unlocks_it(self) -> None:
        skipped = {
            "status": "skip",
            "reason": "resume.missing_part",
            "claim": "not measured: no run",
        }
        trained = {"numbers": {"judged_as": "trained"}}
        content = report(resume=skipped | {"next_step": "give save_state"}, initial_loss=trained)
        text = walk("resume_worse", content)
        assert "[ ]  3. a resumed run without its optimizer state" in text
        assert "        resume: not measured: no run" in text
        assert "    next    give save_state" in text

    def test_a_check_that_was_not_run_is_not_measured(self) -> None:
        text = walk("text_ends_early", {"results": []})
        assert text.count("is not in the report") == 3
        assert "0 of 3 are struck" in text

    def test_a_warning_is_for_a_person_to_judge(self) -> None:
        warned = {"status": "warn", "reason": "context.window", "claim": "reads 4 tokens back"}
        text = walk("underfitting", report(context=warned))
        assert "[?]  1. context that is hidden" in text
        assert "context warns, for you to judge: reads 4 tokens back" in text

    def test_an_error_decides_nothing(self) -> None:
        raised = {"status": "error", "reason": "context.error", "claim": "it raised"}
        assert "context raised: it raised" in walk("underfitting", report(context=raised))

    def test_five_steps_that_went_well_do_not_settle_the_rate_of_a_run(self) -> None:
        text = walk("loss_explodes", report())
        assert "[?]  2. a learning rate that is too high" in text
        assert "optimizer passes, which does not settle it" in text

    def test_they_settle_that_the_weights_move_at_all(self) -> None:
        """The evidence for it, in this symptom, is what the check has measured."""
        text = walk("loss_stuck", report())
        assert "[-] 11. a learning rate that is too low, or 0" in text
        assert "[?]" not in text.partition("not measured\n")[2]

    def test_trained_weights_do_not_show_how_fresh_ones_start(self) -> None:
        trained = report(initial_loss={"numbers": {"judged_as": "trained"}})
        assert "did not judge fresh weights" in walk("initial_too_high", trained)
        fresh = report(initial_loss={"numbers": {"judged_as": "fresh"}})
        assert "initial_loss passes" in walk("initial_too_high", fresh)

    def test_fresh_weights_do_not_show_that_trained_ones_were_loaded(self) -> None:
        fresh = report(initial_loss={"numbers": {"judged_as": "fresh"}})
        assert "did not judge trained weights" in walk("text_chaotic", fresh)

    def test_a_consequence_points_at_what_explains_it(self) -> None:
        broken = report(
            shift=failed("shift.wrapped_last", next_step="roll nothing"),
            overfit=failed("overfit.no_progress", consequence_of="shift"),
        )
        text = walk("loss_stuck", broken)
        assert "    but     likely a consequence of shift: mend that first" in text
        assert "It comes first in the report" in text
        assert "    next    roll nothing" in text

    def test_what_is_no_consequence_is_named_before_what_is(self) -> None:
        broken = report(
            gradients=failed("gradients.all_frozen"),
            context=failed("context.unused", consequence_of="shapes"),
        )
        text = walk("loss_stuck", broken)
        assert "parameters that are frozen" in text.partition("first that stands: ")[2]
        assert "1 further suspect stands." in text

    @pytest.mark.parametrize(
        ("symptom", "suspect", "reason"),
        [
            ("overfitting", "training steps in eval mode", "evaluation.left_in_eval"),
            ("loss_too_good", "a model that reads the token", "padding.causal_mask_lost"),
            ("loss_too_good", "a model that reads the token", "honesty.sees_the_future"),
            ("good_loss_bad_text", "a model that reads the token", "modes.targets_leak"),
            ("good_loss_bad_text", "targets that are the inputs", "honesty.targets_are_known"),
            ("good_loss_bad_text", "a shift that is made twice", "training_step.shifted_again"),
            ("loss_explodes", "gradients that are not cleared", "accumulation.not_cleared"),
            ("always_clipped", "a loss in other units", "training_step.sum"),
            ("characters_wrong", "another tokenizer than the one", "text.other_tokenizer"),
        ],
    )
    def test_a_suspect_is_not_struck_where_another_check_names_it(
        self, symptom: str, suspect: str, reason: str
    ) -> None:
        text = walk(symptom, report(**{reason.partition(".")[0]: failed(reason)}))
        (line,) = [line for line in text.splitlines() if f". {suspect}" in line and "[" in line[:1]]
        assert line.startswith("[!]")

    def test_a_lost_causal_mask_is_no_pad_that_is_read(self) -> None:
        text = walk("batch_matters", report(padding=failed("padding.causal_mask_lost")))
        assert "[?]  3. pads that are read as tokens" in text

    def test_nan_is_no_evidence_of_a_leak(self) -> None:
        broken = report(causal_independence=failed("causal_independence.not_finite"))
        assert "[!]" not in walk("loss_too_good", broken).partition("measured\n")[2]

    def test_a_failure_outside_of_the_symptom_is_named(self) -> None:
        text = walk("text_ends_early", report(sampling=failed("sampling.top_k")))
        assert "The report fails at sampling," in text

    def test_a_failure_beside_the_suspects_has_the_only_next_step(self) -> None:
        """One thing to do: what failed is mended before anything else is measured."""
        broken = report(shapes=failed("shapes.fixed_length", next_step="call it by hand"))
        text = walk("loss_explodes", broken)
        assert "The report fails at shapes, for a reason that is none of these" in text
        assert text.count("    next    ") == 1
        assert "    next    call it by hand" in text

    def test_the_vocabulary_of_the_report_explains_the_number(self) -> None:
        content = report(shapes={"numbers": {"vocab_size": 65}})
        assert "4.17 is ln 65 = 4.174" in answer_symptom("loss stuck at 4.17", content)

    @pytest.mark.parametrize("symptom", SYMPTOM_LIST, ids=name_of)
    def test_every_symptom_can_be_walked_within_80_columns(self, symptom: Symptom) -> None:
        hostile = failed("shift.identical") | {"claim": HOSTILE + "y" * 500, "next_step": HOSTILE}
        text = walk(symptom, report(shift=hostile, files=hostile | {"reason": "files.missing"}))
        assert max(map(len, text.splitlines())) <= 80
        assert text.replace("\U0001f600", "").isascii()

    @pytest.mark.parametrize(
        "content", [{}, {"results": "x"}, {"results": None}, [], None, "report", 3]
    )
    def test_what_is_no_report_is_refused(self, content: Any) -> None:
        with pytest.raises(ValueError, match="wanted a report of diagnostics"):
            walk("loss_stuck", content)

    @pytest.mark.parametrize(
        "row", [None, 3, [], {}, {"check": 3}, {"check": "shift", "status": [], "numbers": 3}]
    )
    def test_a_row_that_is_no_result_measures_nothing(self, row: Any) -> None:
        assert "struck" in walk("loss_stuck", {"results": [row]})

    def test_the_word_cause_is_never_used(self) -> None:
        for symptom in SYMPTOM_LIST:
            assert "cause" not in walk(symptom, report()).replace("because", "")


class TestRealReport:
    def test_targets_that_are_inputs_are_named_from_a_report_of_the_check_itself(self) -> None:
        import torch

        from diagnostics import Report, check_shift

        ids = torch.arange(24).reshape(2, 12)
        content = Report(results=(check_shift(ids, ids),)).to_dict()
        text = walk("good_loss_bad_text", content)
        assert "first that stands: 1. targets that are the inputs themselves" in text
        assert " ".join(content["results"][0]["next_step"].split()) in " ".join(text.split())


class TestWeigh:
    def test_a_pass_of_all_checks_refutes(self) -> None:
        results = read_results(report())
        assert weigh(results, ("shift", "loss")).standing is Standing.REFUTED

    def test_one_failure_for_its_reason_is_enough(self) -> None:
        results = read_results(report(loss=failed("loss.shifted_twice")))
        finding = weigh(results, ("shift", "loss"), ("loss.shifted_twice",))
        assert finding.standing is Standing.STANDS
        assert finding.sentence == "loss fails: claim of loss.shifted_twice"

    def test_nothing_to_weigh_is_not_measured(self) -> None:
        assert weigh({}, ()).standing is Standing.UNMEASURED

    def test_a_stored_report_gives_the_same(self) -> None:
        content = report(shift=failed("shift.identical", numbers={"x": math.inf}))
        stored = json.loads(json.dumps(content))
        assert walk("loss_too_good", stored) == walk("loss_too_good", content)
