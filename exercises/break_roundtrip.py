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
        ),
        Bug(
            name="skipped",
            break_it=break_skipped,
            trips="roundtrip",
            reason="roundtrip.characters_dropped",
            note="Nearly every line comes back whole; only what is not ASCII is gone.",
        ),
        Bug(
            name="two_tables",
            break_it=break_two_tables,
            trips="roundtrip",
            reason="roundtrip.order_differs",
            note="Both tables hold the same characters.",
        ),
        Bug(
            name="stripped",
            break_it=break_stripped,
            trips="roundtrip",
            reason="roundtrip.stripped",
            level=2,
            note="No word and no sentence shows it: only the end of a text does, as every prompt.",
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
