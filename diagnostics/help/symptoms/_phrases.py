"""What somebody wrote, as a set of meanings: case, order, endings, synonyms and typos fall away."""

from __future__ import annotations

import difflib
import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

from diagnostics.help.symptoms._meanings import (
    MEANINGS,
    NEGATED,
    NEGATIONS,
    ORDINARY,
    SEVERAL_WORDS,
    STOPPED,
)
from diagnostics.help.symptoms._numbers import read_numbers

CHARACTERS_MAX, WORDS_MAX = 1000, 80  # of what somebody writes; a symptom is a sentence
LN_MAX = 13.0  # ln 442,413: no vocabulary in use is larger
CLOSE = 0.8  # difflib's ratio: one wrong letter in five, two in ten
_NEGATIONS, _ORDINARY = frozenset(NEGATIONS.split()), frozenset(ORDINARY.split())
REACH = 3  # words between "not" and what it denies: "is not really going down"


@lru_cache(maxsize=1024)
def read_meanings(text: str) -> frozenset[str]:
    """Return the meanings in free words; the loss values in them count as "value" or "low"."""
    text = unicodedata.normalize("NFKC", text[:CHARACTERS_MAX]).casefold()
    values = read_numbers(text).values
    found = set(_meanings_of(_words(text)))
    if any(1 <= value.number <= LN_MAX for value in values):
        found.add("value")
    if "loss" in found and any(value.number < 1 for value in values):
        found.add("low")
    if "loss" in found and any(value.number > LN_MAX for value in values):
        found.add("high")
    return frozenset(found)


def _words(text: str) -> list[str]:
    text = re.sub(r"['\u2019`]", "", text)  # isn't -> isnt
    text = re.sub(r"[-_/]", " ", text)
    for pattern, word in SEVERAL_WORDS:
        text = re.sub(pattern, f" {word} ", text)
    return re.findall(r"[^\W\d_]+1?", text)[:WORDS_MAX]


def _meanings_of(words: Sequence[str]) -> list[str]:
    """Turn words into meanings, and let "not" and "stop" change the one that follows them."""
    meanings: list[str] = []
    denied, stopped = 0, 0  # words for which they still hold
    for word in words:
        denied, stopped = max(0, denied - 1), max(0, stopped - 1)
        if word in _NEGATIONS:
            denied = REACH + 1
            if word not in ("cannot", "cant"):
                continue
        meaning = _meaning_of(word)
        if meaning is None:
            continue
        if denied and meaning in NEGATED:
            meaning, denied = NEGATED[meaning], 0
        elif stopped and meaning in STOPPED:
            meanings.remove("end")
            meaning, stopped = STOPPED[meaning], 0
        if meaning == "end":
            stopped = REACH + 1
        meanings.append(meaning)
    return meanings


@lru_cache(maxsize=4096)
def _meaning_of(word: str) -> str | None:
    known = _known_words()
    for form in (word, _stem(word)):
        if form in known:
            return known[form]
    if word in _ORDINARY or len(word) < 4:
        return None
    for form in (word, _stem(word)):
        close = difflib.get_close_matches(form, known, n=1, cutoff=CLOSE)
        if close:
            return known[close[0]]
    return None


@cache
def _known_words() -> dict[str, str]:
    known: dict[str, str] = {}
    for meaning, words in MEANINGS.items():
        for word in words.split():
            known[word] = meaning
            known.setdefault(_stem(word), meaning)
    return known


def _stem(word: str) -> str:
    """Take an ending off: plateaus, exploding, clipped; what is left need not be a word."""
    for ending in ("ing", "ed", "es", "s"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "sl":
        word = word[:-1]  # stopp, clipp
    return word.removesuffix("e") if len(word) > 4 else word
