"""A misspelt word and the word that was meant, where hardly another one can be meant.

One slip in a short word, two in one of eight letters and more, never in its first letter. A slip
is a letter that is wrong, missing or too many, or two that changed places.
"""

from __future__ import annotations

from collections.abc import Collection

LETTERS_MIN, LETTERS_LONG = 5, 8  # shorter words are too near to one another: seed, need, feed

# ordinary words that one slip turns into a word of a symptom: files -> fails, false -> falls
_ORDINARY = (
    "a about absence accept accepted accepts accident account accounts again also an another are "
    "at away based bath been being between black blow bound bounded branch branches bug bugs by "
    "called charge choose chose choosing clash code coding contained contains continuous convert "
    "converted converts corpus count counting coverage crush curve deadline descent diff do does "
    "doing encode encoding encodings epoch epochs even expand fellow fellows file files fill "
    "fills fine followers for forge from general generally generator generators grades grass "
    "hands has have how hundred i in indicates indirect inference into is it iteration iterations "
    "its just latter leads like line lines loader loaders logged logs look looked looks loose "
    "made make makes many march master math me more most much multiple multiply my need needs of "
    "ones only or parse parsed parsing pass passes paste perimeter place plate points probes "
    "product production products promote rather read reading reads regular reported reporting "
    "respect respects same say saying says seem seemed seems sees sentence several shake shall "
    "share shared shares shot should sides simple single sites some sort sorted sorting sorts "
    "speeds stack stacks stale stars stat state stated states step stepped steps stick still "
    "stock string strings stripped struck such than that the their them then there these they "
    "thing things think this those thousand time times to token tokens two underline value values "
    "very vocab vocabulary was watch we were what when where which while white why will with word "
    "words would wrap wrapped you your"
)
ORDINARY = frozenset(_ORDINARY.split())


def closest(word: str, known: Collection[str]) -> str | None:
    """Return the known word that was meant, the nearest and then the first one; None without one.

    word, known: lower-case. A word of four letters is meant where one letter is missing inside it.
    """
    if word in ORDINARY or len(word) < LETTERS_MIN - 1:
        return None
    slips_max = 1 if len(word) < LETTERS_LONG else 2
    found: str | None = None
    fewest = slips_max + 1
    for meant in known:
        if meant[0] != word[0] or len(meant) < LETTERS_MIN:
            continue
        if len(word) < LETTERS_MIN and (len(meant) == len(word) or meant[-1] != word[-1]):
            continue
        slips = count_slips(word, meant, fewest)
        if slips < fewest:
            found, fewest = meant, slips
    return found


def count_slips(word: str, meant: str, enough: int) -> int:
    """Return the number of slips between two words, or `enough` where it is at least that."""
    if abs(len(word) - len(meant)) >= enough:
        return enough
    before: list[int] = []
    last = list(range(len(meant) + 1))
    for i, letter in enumerate(word, 1):
        row = [i]
        for j, other in enumerate(meant, 1):
            slips = min(last[j] + 1, row[-1] + 1, last[j - 1] + (letter != other))
            if i > 1 and j > 1 and letter == meant[j - 2] and word[i - 2] == other:
                slips = min(slips, before[j - 2] + 1)
            row.append(slips)
        before, last = last, row
    return min(last[-1], enough)
