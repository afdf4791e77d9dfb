"""Numbers in free words: which of them may be a loss, which one is the vocabulary's size."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from diagnostics._text import Text, say

_NUMBER = re.compile(r"(?<![\w.])(\d{1,12}(?:\.\d{1,12})?(?:e[+-]?\d{1,2})?)(?![\w])(\s*%)?")
# words before or after a number that make it something else than a loss
_OTHER_BEFORE = re.compile(
    r"(?:steps?|epochs?|rate|lr|dropout|temperature|top.?[kp]|penalty|seed|batch|size|accuracy|acc|"
    r"layers?|heads?|dim|after|for|beta\d?|decay|clip|norm)\s*(?:of|is|=|:|to|than|below|above)?\s*$"
)
_OTHER_AFTER = re.compile(
    r"^\s*(?:more\s+)?(?:steps?|epochs?|iterations?|updates?|times?|layers?|heads?|gpus?|"
    r"process\w*|batch\w*|sequences?|examples?|rows?|minutes?|hours?|seconds?|accuracy|gb|gib|mb)\b"
)
_VOCAB_BEFORE = re.compile(
    r"(?:\bv|vocab\w*|vocabulary size|ln|log)\s*(?:size)?\s*(?:of|is|=|:|\()?\s*$"
)
_VOCAB_AFTER = re.compile(
    r"^\s*(?:different\s+|distinct\s+)?(?:characters?|chars?|tokens?|entries|letters?|classes|"
    r"vocab\w*|symbols?)\b"
)
# a number of tokens that is a length and no vocabulary
_LENGTH_BEFORE = re.compile(
    r"\b(?:after|for|beyond|past|first|last|every|block\w*|length|context|prompt|than)\W*"
    r"(?:about|around)?\W*$"
)
_SPLIT = re.compile(r"\b(train\w*|val|valid\w*|dev|eval\w*|test)\b")
_AROUND = 40  # characters looked at on either side


@dataclass(frozen=True)
class Value:
    """A number as it was written.

    half_digit: half of the last digit that was given.
    split: "train" or "validation" where the words before it say so, else "".
    """

    number: float
    half_digit: float
    split: str = ""


@dataclass(frozen=True)
class Numbers:
    """values: what may be a loss, in nats.    vocab_size: number of tokens, where it is said."""

    values: tuple[Value, ...] = ()
    vocab_size: int | None = None


def read_numbers(text: str) -> Numbers:
    """Find the numbers in lower-case text; one with another unit, such as steps, is left out."""
    values, vocab_size = [], None
    for match in _NUMBER.finditer(text):
        before = text[max(0, match.start() - _AROUND) : match.start()]
        after = text[match.end() : match.end() + _AROUND]
        number = float(match[1])
        if _VOCAB_BEFORE.search(before) or (
            _VOCAB_AFTER.search(after) and not _LENGTH_BEFORE.search(before)
        ):
            vocab_size = int(number) if 2 <= number <= 10**7 else vocab_size
        elif not (match[2] or _OTHER_BEFORE.search(before) or _OTHER_AFTER.search(after)):
            digits = len(match[1].partition("e")[0].partition(".")[2])
            values.append(Value(number, 0.5 * 10.0**-digits, _split_of(before)))
    return Numbers(tuple(values), vocab_size)


def _split_of(before: str) -> str:
    """Return the split that is named last before a number, with no other number between."""
    words = _SPLIT.findall(re.split(r"\d", before)[-1])
    return "" if not words else "train" if words[-1].startswith("train") else "validation"


def explain_values(numbers: Numbers, about: str, vocab_size: int | None = None) -> tuple[Text, ...]:
    """Say what losses mean, where it fits: ln V for a standing one, a probability for a low one.

    about: as in `Symptom.about`. vocab_size: where the words do not say it. A number that says
    nothing for certain is left out.
    """
    vocab_size = numbers.vocab_size or vocab_size
    said = (_explain(value, vocab_size, about) for value in numbers.values)
    return tuple(text for text in said if text is not None)


def _explain(value: Value, vocab_size: int | None, about: str) -> Text | None:
    if about == "low" and 0 < value.number < 1:
        return say(
            "{loss} nats: the right token gets {share:%} on average. A batch that is learnt by "
            "heart allows that, new text does not.",
            loss=value.number,
            share=math.exp(-value.number),
        )
    if about != "uniform" or value.half_digit > 0.05 or not 0.6 < value.number < 15:
        return None
    if vocab_size is not None:
        return _compare(value, vocab_size)
    low = math.ceil(math.exp(value.number - value.half_digit))
    high = math.floor(math.exp(value.number + value.half_digit))
    if low > high:
        return None
    sizes = say("{low}", low=low) if low == high else say("{low} to {high}", low=low, high=high)
    return say(
        "{loss} nats is ln V, what a blind guess scores, if your vocabulary has {sizes} tokens.",
        loss=value.number,
        sizes=sizes,
    )


def _compare(value: Value, vocab_size: int) -> Text | None:
    uniform = math.log(vocab_size)
    if abs(value.number - uniform) > max(value.half_digit, 0.02):
        return None
    return say(
        "{loss} is ln {V} = {uniform}: what a blind guess over {V} tokens scores.",
        loss=value.number,
        V=vocab_size,
        uniform=uniform,
    )
