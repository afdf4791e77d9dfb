"""What the numbers in free words mean, where they leave no doubt: a loss below 1 is low.

Compared are two losses whose splits are said, a first loss with ln V, an accuracy with 1, and the
losses of a row of numbers, or of "from 1.5 to 4", with one another.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection

from diagnostics.help.symptoms._numbers import Numbers, read_numbers

LN_MAX = 13.0  # ln 442,413: no vocabulary in use is larger
FIRST_LOSS_NATS = 0.5  # as far from ln V as `initial_loss` calls too high or too low
SAME_LOSS_NATS, GAP_NATS = 0.02, 0.1  # between validation and training
STUCK_NATS = 0.1  # as `loss_stuck` has it
ROW_MAX = 1000.0  # larger numbers of a row are steps, tokens or bytes
_NUMBER = r"\d{1,6}(?:\.\d{1,12})?"
_FROM_TO = re.compile(rf"\bfrom {_NUMBER} to {_NUMBER}\b(?!\s*(?:steps?|epochs?|gpus?|layers?|%))")
_ROW = re.compile(rf"(?<![\w.]){_NUMBER}(?:(?:\s*(?:,|->|\|)\s*|\s+){_NUMBER}){{2,}}(?![\w.]*\w)")
_ACCURACY = re.compile(
    r"\b(?:accuracy|acc)\b[^\d|,;]{0,12}(\d+(?:\.\d+)?)\s*(%|percent)?"
    r"|(\d+(?:\.\d+)?)\s*(%|percent)?\s*(?:accuracy|acc)\b"
)


def read_number_meanings(text: str, words: Collection[str]) -> frozenset[str]:
    """Return the meanings of the numbers in lower-case text; words: the meanings of its words."""
    numbers = read_numbers(text)
    values = [value.number for value in numbers.values]
    found = {"value"} if any(1 <= value <= LN_MAX for value in values) else set()
    if "loss" in words and any(value < 1 for value in values):
        found.add("high" if "unreached" in words else "low")
    if "loss" in words and any(value > LN_MAX for value in values):
        found.add("high")
    found |= _compare_splits(numbers) | _compare_accuracy(text)
    if "loss" in words:
        found |= _compare_row(text)
    if "loss" in words and "start" in words:
        found |= _compare_first(numbers)
    return frozenset(found)


def _compare_splits(numbers: Numbers) -> set[str]:
    """Two losses, one of each split, and no third number that might be the one that counts."""
    training = [value.number for value in numbers.values if value.split == "train"]
    validation = [value.number for value in numbers.values if value.split == "validation"]
    if len(training) != 1 or len(validation) != 1:
        return set()
    gap = validation[0] - training[0]
    if gap < -SAME_LOSS_NATS:
        return {"below"}
    return {"gap"} if gap > GAP_NATS else set()


def _compare_first(numbers: Numbers) -> set[str]:
    if numbers.vocab_size is None:
        return set()
    away = [value.number - math.log(numbers.vocab_size) for value in numbers.values]
    away = [distance for distance in away if abs(distance) > FIRST_LOSS_NATS]
    if len(away) != 1:
        return set()
    return {"high"} if away[0] > 0 else {"low"}


def _compare_row(text: str) -> set[str]:
    """A row of at least three numbers, or two with "from" and "to", and where it goes."""
    match = _FROM_TO.search(text) or _ROW.search(text)
    if match is None:
        return set()
    row = [float(number) for number in re.findall(r"\d+(?:\.\d+)?", match[0])]
    if max(row) > ROW_MAX:
        return set()
    if max(row) - min(row) < STUCK_NATS:
        return {"stuck"}
    return {"rise"} if row == sorted(row) else set()


def _compare_accuracy(text: str) -> set[str]:
    shares = []
    for match in _ACCURACY.finditer(text):
        number, sign = float(match[1] or match[3]), match[2] or match[4]
        shares.append(number / 100 if sign or number > 1 else number)
    if len(shares) != 1:
        return set()
    return {"allright"} if shares[0] == 1 else {"below"} if 0.5 <= shares[0] < 1 else set()
