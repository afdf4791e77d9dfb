"""Break the round trip: lose characters on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from diagnostics import Pipeline
from exercises._exercise import Bug, Exercise
from exercises._lab import Lab
from exercises._run import run
from minigpt import CharTokenizer


def break_lowercased(lab: Lab) -> Pipeline:
    """Make the text easier before encoding it."""

    class Tokenizer(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            cleaned = text.lower()  # BROKEN: was cleaned = text
            return super().encode(cleaned)

    return lab.pipeline(tokenizer=Tokenizer(lab.tokenizer.chars))


def break_skipped(lab: Lab) -> Pipeline:
    """Pass over what an encoding does not have."""

    class Tokenizer(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            known = text.encode("ascii", "ignore").decode()  # BROKEN: was known = text
            return super().encode(known)

    return lab.pipeline(tokenizer=Tokenizer(lab.tokenizer.chars))


def break_two_tables(lab: Lab) -> Pipeline:
    """Decode with a table that was built in another order."""
    order = sorted(lab.tokenizer.chars, key=str.lower)  # BROKEN: was order = lab.tokenizer.chars

    class Tokenizer(CharTokenizer):
        def decode(self, ids: Any) -> str:
            return "".join(order[int(index)] for index in ids)

    return lab.pipeline(tokenizer=Tokenizer(lab.tokenizer.chars))


def break_stripped(lab: Lab) -> Pipeline:
    """Tidy up the ends of every piece of text."""

    class Tokenizer(CharTokenizer):
        def encode(self, text: str) -> list[int]:
            tidy = text.rstrip()  # BROKEN: was tidy = text
            return super().encode(tidy)

    return lab.pipeline(tokenizer=Tokenizer(lab.tokenizer.chars))


def show_round_trip(lab: Lab, pipeline: Pipeline) -> Mapping[str, str]:
    """Show a word, a sentence, and what comes back of them."""
    tokenizer = pipeline.tokenizer
    rare = next(place for place, char in enumerate(lab.text) if not char.isascii())
    samples = {
        "the word": "model",
        "a line of the guide": lab.text[:60],
        "a line with a rare character": lab.text[rare - 20 : rare + 20],
    }
    back = {
        f"what comes back of {name}": repr(tokenizer.decode(tokenizer.encode(sample)))
        for name, sample in samples.items()
    }
    return {**back, "ids of a prompt with a space at its end": str(tokenizer.encode("a "))}


EXERCISE = Exercise(
    name="break_roundtrip",
    question=(
        "decode(encode('model')) gives 'model'. Which texts would you try before you believe that "
        "nothing is lost?"
    ),
    bugs=(
        Bug(
            name="lowercased",
            break_it=break_lowercased,
            trips="roundtrip",
            reason="roundtrip.lowercased",
            note="There is less to predict now, so the loss looks better than before.",
            question=(
                "The word 'model' comes back whole. Will a heading of the guide come back whole "
                "too, and will the loss of a model that is trained on these ids be lower or "
                "higher than before?"
            ),
            hints=(
                (
                    "Look at the text just before it becomes ids, and at what encode does to it "
                    "on the way."
                ),
                (
                    "Print the text and decode(encode(text)) of ' = Debugging a small GPT = '. "
                    "Healthy is that they are equal, the capital D, G, P and T included."
                ),
                (
                    "encode must number the characters that it was given, and none that were made "
                    "from them."
                ),
            ),
            lesson=(
                "What is removed before encoding is removed from the task. A loss that fell "
                "because there is less to predict cannot be compared with the one before."
            ),
        ),
        Bug(
            name="skipped",
            break_it=break_skipped,
            trips="roundtrip",
            reason="roundtrip.characters_dropped",
            note="Nearly every line comes back whole; only what is not ASCII is gone.",
            question=(
                "Of the three texts that are shown, the word, the line of the guide and the line "
                "with a rare character, which one comes back shorter, and would you notice it in "
                "a page of it?"
            ),
            hints=(
                (
                    "Compare the number of ids with the number of characters, for a line that "
                    "holds more than plain English."
                ),
                (
                    "For the line around the dash print len(text) and len(encode(text)). In a "
                    "healthy tokenizer of characters they are equal."
                ),
                (
                    "The tokenizer has ids for all characters of the text, the accents and the "
                    "dash too. Nothing may be taken out before they are looked up."
                ),
            ),
            lesson=(
                "An option that ignores errors turns a loud failure into missing data. What a "
                "tokenizer does not know should be an error that names the character and its "
                "place."
            ),
            guide="Reading text without surprises",
        ),
        Bug(
            name="two_tables",
            break_it=break_two_tables,
            trips="roundtrip",
            reason="roundtrip.order_differs",
            note="Both tables hold the same characters.",
            question=(
                "No id is lost and every one is in range. Will the decoded text look like noise, "
                "or like a cipher in which each letter always stands for the same other one?"
            ),
            hints=(
                (
                    "The ids are not at fault: print encode('model') and look the five numbers up "
                    "in the tokenizer's list by hand."
                ),
                (
                    "For each i print decode([i]) beside the entry of the list at i. They should "
                    "be equal for all 87 ids; count those that are not."
                ),
                (
                    "Both directions must read one and the same list, in the order in which the "
                    "tokenizer holds it."
                ),
            ),
            lesson=(
                "Two tables that must agree will part one day. Keep one list, and derive the "
                "other direction from it."
            ),
        ),
        Bug(
            name="stripped",
            break_it=break_stripped,
            trips="roundtrip",
            reason="roundtrip.stripped",
            level=2,
            note="No word and no sentence shows it: only the end of a text does, as every prompt.",
            question=(
                "Every word and every sentence will come back whole. Where in a text would you "
                "have to look all the same, and why does many a prompt have such a place?"
            ),
            hints=(
                "Look at the ends of the text and not at its middle: how many ids does 'a ' get?",
                (
                    "Print encode('a') and encode('a '). The second must have one id more, the "
                    "one of the space."
                ),
                (
                    "White space at the end is part of the text. encode must not shorten what it "
                    "was given."
                ),
            ),
            lesson=(
                "A prompt that ends with a space asks for a word, and one without asks for the "
                "rest of one. Text that is cut into pieces loses something at every seam when its "
                "ends are tidied."
            ),
        ),
    ),
    hint="Print what comes back for a text of all known characters, with spaces at both ends.",
    lesson=(
        "Try every character that the tokenizer knows, doubled, at both ends and in a row. A "
        "tokenizer that loses something makes the task easier, never the model better."
    ),
    symptom=show_round_trip,
)

if __name__ == "__main__":
    raise SystemExit(run(EXERCISE))
