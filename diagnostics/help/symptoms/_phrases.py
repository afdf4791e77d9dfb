"""What somebody wrote, as a set of meanings: case, order, endings, synonyms and typos fall away."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from functools import cache, lru_cache

from diagnostics.help.symptoms._meanings import (
    DENIABLE,
    MEANINGS,
    NEGATED,
    NEGATIONS,
    SEVERAL_WORDS,
    STOPPED,
)
from diagnostics.help.symptoms._number_meanings import read_number_meanings
from diagnostics.help.symptoms._spelling import ORDINARY, closest

CHARACTERS_MAX, WORDS_MAX = 1000, 120  # of what somebody writes; a symptom is a sentence
REACH = 3  # words between "not" and what it denies: "is not really going down"
BREAK = "|"  # between two clauses, where "not" ends
_NEGATIONS, _DENIABLE = frozenset(NEGATIONS.split()), frozenset(DENIABLE.split())
_SEVERAL_WORDS = tuple((re.compile(pattern), f" {word} ") for pattern, word in SEVERAL_WORDS)
# a sample of text that repeats itself, pasted in: "the the the the", "eeeeeeee"
_SAME_WORD = re.compile(
    r"\b(?!nan|inf|very|so|no|too|really|please|help|why)([a-z]+)(?:\W+\1\b){2,}"
)
_SAME_LETTER = re.compile(r"\b([a-z])\1{4,199}\b")
_CAMEL_CASE = re.compile(r"(?<=[a-z])(?<!\bNa)(?=[A-Z][a-z])")  # OutOfMemoryError
_CLAUSE_END = re.compile(r"[,;:!?]|\.(?=\s|$)|\b(?:but|and|then|however|though|although|yet)\b")


@lru_cache(maxsize=1024)
def read_meanings(text: str) -> frozenset[str]:
    """Return the meanings in free words; what a number means counts too, such as "low"."""
    text = unicodedata.normalize("NFKC", text[:CHARACTERS_MAX])
    text = _CAMEL_CASE.sub(" ", text).casefold()
    found = frozenset(_meanings_of(_words(text)))
    return found | read_number_meanings(text, found)


def _words(text: str) -> list[str]:
    """Return the words in order, with a mark between clauses."""
    text = re.sub(r"['\u2018\u2019\u00b4`]", "", text)  # isn't -> isnt
    text = re.sub(r"[-_/]", " ", text)
    text = _SAME_WORD.sub(" repeats ", text)
    text = _SAME_LETTER.sub(" repeats ", text)
    for pattern, word in _SEVERAL_WORDS:
        text = pattern.sub(word, text)
    text = _CLAUSE_END.sub(f" {BREAK} ", text)
    return re.findall(r"[^\W\d_]+1?|[|]", text)[:WORDS_MAX]


def _meanings_of(words: Sequence[str]) -> list[str]:
    """Turn words into meanings, and let "not" and "stop" change the one that follows them."""
    meanings: list[str] = []
    denied, stopped = 0, 0  # words for which they still hold
    for word in words:
        denied, stopped = max(0, denied - 1), max(0, stopped - 1)
        if word == BREAK:
            denied, stopped = 0, 0
            continue
        if word in _NEGATIONS:
            denied = REACH + 1
            if word in ("cannot", "cant"):
                meanings.append("fail")
            continue
        meaning = _meaning_of(word)
        if meaning is None or (denied and meaning in _DENIABLE):
            continue
        if denied and meaning in NEGATED:
            meanings += NEGATED[meaning].split()
            denied = 0
            continue
        if stopped and meaning in STOPPED:
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
    if word in ORDINARY or _stem(word) in ORDINARY:
        return None
    for form in (word, _stem(word)):
        meant = closest(form, known)
        if meant is not None:
            return known[meant]
    return None


@cache
def _known_words() -> dict[str, str]:
    known: dict[str, str] = {}
    for meaning, words in MEANINGS.items():
        for word in words.split():
            known[word] = meaning
    for word, meaning in list(known.items()):  # a stem never hides a word
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
