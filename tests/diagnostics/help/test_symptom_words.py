"""Free words find their symptom by kind: denials, clauses, comparisons, pasted text, typos."""

from __future__ import annotations

import pytest

from diagnostics.help.symptoms import answer_symptom, find_symptoms, near_symptoms
from diagnostics.help.symptoms._meanings import MEANINGS
from diagnostics.help.symptoms._phrases import read_meanings
from diagnostics.help.symptoms._spelling import ORDINARY, closest, count_slips
from diagnostics.help.symptoms._symptom_table import SYMPTOMS


def names(text: str) -> list[str]:
    return [symptom.name for symptom in find_symptoms(text)]


class TestDenials:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("loss is not nan but it never decreases", ["loss_stuck"]),
            ("no nans, but the loss keeps increasing", ["loss_explodes"]),
            ("loss does not explode anymore but now it is flat", ["loss_stuck"]),
            ("I dont get nan, loss just explodes", ["loss_explodes"]),
            ("it's not overfitting, it just doesn't learn at all", ["loss_stuck"]),
            ("my model refuses to learn", ["loss_stuck"]),
            ("outputs nothing but garbage", ["text_chaotic"]),
            ("the text does not only repeat, it repeats forever", ["text_repeats"]),
            ("acc doesn't go above 0.17", ["accuracy_stuck"]),
            ("does not generalize", ["overfitting"]),
        ],
    )
    def test_not_reaches_to_the_end_of_its_clause(self, text: str, expected: list[str]) -> None:
        assert names(text) == expected

    @pytest.mark.parametrize(
        "text",
        [
            "loss is not too high and not stuck, all good",
            "no nan, no inf, loss falls, text is good",
            "nothing is wrong, everything works",
            "is 1.5 loss good for shakespeare?",
        ],
    )
    def test_what_is_denied_is_no_symptom(self, text: str) -> None:
        assert names(text) == []


class TestOrdinaryWords:
    @pytest.mark.parametrize(
        "text",
        [
            "my training loop crashes with a syntax error",
            "the loader reads the files in the folder",
            "I shared my code with a friend",
            "does the seed matter",
            "what device should I use",
            "how do i resume training from a checkpoint",
            "where are the files saved",
            "is it normal that training takes an hour",
            "I used dropout 0.1 and a small model",
            "validation accuracy after 3 epochs",
        ],
    )
    def test_a_question_is_no_symptom(self, text: str) -> None:
        assert names(text) == []

    def test_a_size_is_not_the_size_of_the_loss(self) -> None:
        assert "low" not in read_meanings("the loss of a small model")
        assert "low" in read_meanings("a small loss")

    def test_a_rate_is_not_the_size_of_the_loss(self) -> None:
        assert "low" not in read_meanings("loss nan with small lr")


class TestNumbers:
    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("val loss 1.2 but train loss 1.9", ["validation_below"]),
            ("training loss 0.9, val loss 2.4", ["overfitting", "validation_high"]),
            ("loss goes 4.17 4.17 4.17 4.17", ["loss_stuck"]),
            ("loss moved from 4.18 to 4.16", ["loss_stuck"]),
            ("loss from 1.5 to 4", ["loss_explodes"]),
            ("at init my loss is 1.1 though ln(65)=4.17", ["initial_too_low"]),
            ("loss at init around 7 but ln(65)=4.17", ["initial_too_high"]),
            ("one-batch run ends at 0.9 accuracy, not more", ["overfit_incomplete"]),
            ("100% accuracy after one epoch", ["loss_too_good"]),
            ("dev loss < train loss", ["validation_below"]),
        ],
    )
    def test_they_are_compared_where_they_say_of_what_they_are(
        self, text: str, expected: list[str]
    ) -> None:
        assert sorted(names(text)) == sorted(expected)

    @pytest.mark.parametrize(
        "text",
        ["loss 4 3 2 1", "train loss from 4 to 1, val loss from 4 to 2", "steps 100 200 300"],
    )
    def test_what_is_no_symptom_or_not_certain_says_nothing(self, text: str) -> None:
        assert not {"stuck", "rise", "gap", "below"} & read_meanings(text)

    def test_tokens_of_a_text_are_no_vocabulary(self) -> None:
        from diagnostics.help.symptoms._numbers import read_numbers

        assert read_numbers("breaks after 256 tokens").vocab_size is None
        assert read_numbers("a text with 65 characters").vocab_size == 65


class TestPastedText:
    @pytest.mark.parametrize(
        "text", ['outputs only " the the the the"', "eeeeeeeeee", "gets stuck in a loop"]
    )
    def test_a_sample_that_repeats_itself_is_recognised(self, text: str) -> None:
        assert names(text) == ["text_repeats"]

    @pytest.mark.parametrize("text", ["nan nan nan", "very very very slow", "loss 3 3 3 steps"])
    def test_words_that_people_repeat_are_none(self, text: str) -> None:
        assert "text_repeats" not in names(text)

    @pytest.mark.parametrize(
        ("text", "expected"),
        [
            ("torch.cuda.OutOfMemoryError", ["out_of_memory"]),
            ("IndexError in nn.Embedding", ["index_error"]),
            ("RuntimeError: mat1 and mat2 shapes cannot be multiplied", ["shape_error"]),
            ("Expected scalar type Long but found Float", ["shape_error"]),
        ],
    )
    def test_names_of_errors_are_read_as_words(self, text: str, expected: list[str]) -> None:
        assert names(text) == expected


class TestSpelling:
    @pytest.mark.parametrize(
        ("word", "meant"),
        [
            ("stuk", "stuck"),
            ("smaples", "samples"),
            ("validaton", "validation"),
            ("oscilate", None),
        ],
    )
    def test_a_slip_or_two(self, word: str, meant: str | None) -> None:
        known = [w for words in MEANINGS.values() for w in words.split()]
        assert closest(word, known) == (meant or "oscillate")

    @pytest.mark.parametrize(
        "word",
        ["files", "false", "known", "needs", "save", "says", "stack", "clear", "need", "fine"],
    )
    def test_ordinary_words_are_not_misspelt_symptoms(self, word: str) -> None:
        known = [w for words in MEANINGS.values() for w in words.split()]
        assert closest(word, [k for k in known if k != word]) is None

    def test_slips_are_counted_by_hand(self) -> None:
        assert count_slips("form", "from", 3) == 1  # two letters changed places
        assert count_slips("los", "loss", 3) == 1
        assert count_slips("abc", "xyz", 3) == 3
        assert count_slips("a", "abcdef", 2) == 2  # it stops there

    def test_an_ordinary_word_hides_no_word_of_a_symptom(self) -> None:
        words = {w for listed in MEANINGS.values() for w in listed.split()}
        assert not ORDINARY & words


class TestNear:
    def test_what_lacks_one_meaning_is_named_above_the_list(self) -> None:
        text = "the model stops too soon"
        assert names(text) == []
        assert "text_ends_early" in [s.name for s in near_symptoms(text)]
        answer = answer_symptom(text)
        assert answer.index("near it:") < answer.index("the training loss\n")

    def test_common_words_alone_are_near_nothing(self) -> None:
        assert near_symptoms("the training loss of a run") == ()

    def test_every_symptom_is_reached_by_a_phrase_that_finds_it_first(self) -> None:
        for symptom in SYMPTOMS.values():
            assert any(names(phrase)[:1] == [symptom.name] for phrase in symptom.phrases)
