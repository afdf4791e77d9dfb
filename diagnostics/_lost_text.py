"""What became of a text: the usual ways to lose part of it, tried until one fits.

A fault is named only when it turns the whole sample into what came back, character by character.
"""

from __future__ import annotations

import itertools
import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from diagnostics._text import Text, say

_UNKNOWN_MARKS = re.compile(r"<\|?unk\|?>|\[UNK\]|\u2047|\ufffd", re.IGNORECASE)
SAMPLE_MAX = 400  # characters on which pairs of transforms are tried; longer ones cost time


@dataclass(frozen=True)
class Fault:
    """reason: such as "roundtrip.lowercased".    told: what happened.

    cause: what does such a thing.
    by_design: whether tokenizers of subwords are known to do this on purpose.
    """

    reason: str
    told: Text
    cause: Text | None = None
    by_design: bool = False


def name_fault(text: str, back: str, characters: list[str] | None = None) -> Fault:
    """Name what turned `text` into `back`. `characters`: the table of a character tokenizer."""
    for name in _READINGS:
        fault = name(text, back, characters)
        if fault is not None:
            return fault
    return Fault("roundtrip.changed", say("the text that comes back is another one"))


def first_difference(text: str, back: str) -> int:
    """Return the first position at which two texts differ."""
    pairs = zip(text, back, strict=False)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(text), len(back)))


def around(text: str, position: int, reach: int = 8) -> str:
    """Return the repr of the text's surroundings of a position, ASCII only."""
    return ascii(text[max(0, position - reach) : position + reach + 1])


def without_accents(text: str) -> str:
    """Return the text with every combining mark removed."""
    marks = unicodedata.normalize("NFD", text)
    return "".join(c for c in marks if not unicodedata.combining(c))


def essence(text: str) -> str:
    """Return the letters alone: no white space, no accents, no letter case."""
    plain = without_accents(unicodedata.normalize("NFKC", text)).casefold()
    return "".join(plain.split())


_NORMAL = "by a normaliser in front of the vocabulary"
_TRANSFORMS: tuple[tuple[str, str, str, Callable[[str], str]], ...] = (
    (
        "roundtrip.lowercased",
        "capital letters come back small",
        "text.lower() in encode",
        str.lower,
    ),
    (
        "roundtrip.uppercased",
        "small letters come back as capitals",
        "text.upper() in encode",
        str.upper,
    ),
    (
        "roundtrip.newline_changed",
        "line ends come back as other ones",
        "text mode or splitlines() translates \\r\\n to \\n",
        lambda text: text.replace("\r\n", "\n").replace("\r", "\n"),
    ),
    (
        "roundtrip.newline_changed",
        "line ends come back as other ones",
        "text mode writes \\n as \\r\\n",
        lambda text: text.replace("\n", "\r\n"),
    ),
    (
        "roundtrip.newline_changed",
        "line ends come back as spaces",
        "line ends are replaced before encoding",
        lambda text: re.sub(r"\r\n|\r|\n", " ", text),
    ),
    (
        "roundtrip.newline_changed",
        "line ends are gone",
        "splitlines() or a line-based vocabulary file cannot hold a line end",
        lambda text: text.replace("\n", "").replace("\r", ""),
    ),
    ("roundtrip.stripped", "white space at the ends is gone", "text.strip() in encode", str.strip),
    (
        "roundtrip.stripped",
        "white space at the start is gone",
        "text.lstrip() in encode",
        str.lstrip,
    ),
    ("roundtrip.stripped", "white space at the end is gone", "text.rstrip() in encode", str.rstrip),
    (
        "roundtrip.whitespace_collapsed",
        "runs of white space come back as one space",
        '" ".join(text.split()) in encode',
        lambda text: " ".join(text.split()),
    ),
    (
        "roundtrip.whitespace_collapsed",
        "runs of white space come back as one space",
        're.sub(r"\\s+", " ", text) in encode',
        lambda text: re.sub(r"\s+", " ", text),
    ),
    (
        "roundtrip.whitespace_collapsed",
        "several spaces come back as one",
        're.sub(" +", " ", text) in encode',
        lambda text: re.sub(" +", " ", text),
    ),
    (
        "roundtrip.tabs_changed",
        "tabs come back as spaces",
        "tabs are replaced before encoding",
        lambda text: text.replace("\t", " "),
    ),
    (
        "roundtrip.tabs_changed",
        "tabs come back as spaces",
        "text.expandtabs() in encode",
        str.expandtabs,
    ),
    (
        "roundtrip.spaces_lost",
        "the spaces are gone",
        "the text is split at spaces, and decode joins with nothing",
        lambda text: text.replace(" ", ""),
    ),
    (
        "roundtrip.spaces_added",
        "a space stands between all tokens",
        'decode joins with " " instead of ""',
        lambda text: " ".join(text),
    ),
    (
        "roundtrip.spaces_added",
        "a space stands in front of the text",
        "a tokenizer of words puts a space before the first one",
        lambda text: " " + text,
    ),
    ("roundtrip.accents_lost", "accents are gone", f"marks are removed {_NORMAL}", without_accents),
    (
        "roundtrip.reversed",
        "the text comes back from its end to its start",
        "",
        lambda text: text[::-1],
    ),
    *(
        (
            "roundtrip.normalised",
            f"accented characters come back in another form ({form})",
            f"Unicode {form} {_NORMAL}",
            lambda text, form=form: unicodedata.normalize(form, text),
        )
        for form in ("NFC", "NFD", "NFKC", "NFKD")
    ),
)
_BY_DESIGN = {
    "roundtrip.lowercased",
    "roundtrip.newline_changed",
    "roundtrip.stripped",
    "roundtrip.whitespace_collapsed",
    "roundtrip.tabs_changed",
    "roundtrip.spaces_added",
    "roundtrip.accents_lost",
    "roundtrip.normalised",
}


def _transformed(text: str, back: str, characters: list[str] | None) -> Fault | None:
    for reason, told, cause, transform in _TRANSFORMS:
        if transform(text) == back:
            return Fault(
                reason, Text(told, {}), _escaped(cause) if cause else None, reason in _BY_DESIGN
            )
    if len(text) <= SAMPLE_MAX:
        for first, second in itertools.permutations(_TRANSFORMS, 2):
            if second[3](first[3](text)) == back:
                told = say("{first}, and {second}", first=first[1], second=second[1])
                design = {first[0], second[0]} <= _BY_DESIGN
                return Fault(first[0], told, _escaped(first[2]), design)
    return None


def _in_essence(text: str, back: str, characters: list[str] | None) -> Fault | None:
    """The same letters, whatever became of case, accents, white space and unknown pieces."""
    whole, pieces = essence(text), [essence(piece) for piece in _UNKNOWN_MARKS.split(back)]
    if len(pieces) > 1:
        if not _has_pieces(whole, pieces):
            return None
        return _replaced(len(pieces) - 1, len(text), "what it does not know", _mark_in(back))
    if whole != pieces[0]:
        return None
    if "".join(text.split()) == "".join(back.split()):
        return Fault(
            "roundtrip.spaces_changed", say("white space comes back elsewhere"), by_design=True
        )
    if back.lower() == back and text.lower() != text:
        told = say("capital letters come back small, and white space elsewhere")
        return Fault("roundtrip.lowercased", told, by_design=True)
    told = say("letters come back in another form, and white space elsewhere")
    return Fault("roundtrip.normalised", told, by_design=True)


def _mark_in(back: str) -> str:
    found = _UNKNOWN_MARKS.search(back)
    return found.group() if found else ""


def _added(text: str, back: str, characters: list[str] | None) -> Fault | None:
    extra = len(back) - len(text)
    if not text or extra <= 0 or not (back.endswith(text) or back.startswith(text)):
        middle = back.find(text) if extra > 0 and text else -1
        if middle < 0:
            return None
    if back == " " + text:
        return None
    added = back.replace(text, " ... ", 1)
    return Fault(
        "roundtrip.text_added",
        say(
            "{extra:character is|characters are} added around the text: {added}",
            extra=extra,
            added=added[:40],
        ),
        say("encode adds start or end tokens to every piece of text"),
        by_design=True,
    )


def _recoded(text: str, back: str, characters: list[str] | None) -> Fault | None:
    if _joined_surrogates(back) == text:
        return Fault(
            "roundtrip.surrogates",
            say("a character beyond U+FFFF comes back as two halves"),
            say("the text passes through UTF-16, as the strings of other languages are stored"),
        )
    for codec in ("latin-1", "cp1252"):
        if text.encode("utf-8", "surrogatepass").decode(codec, "replace") == back:
            return Fault(
                "roundtrip.wrong_encoding",
                say("each character beyond ASCII comes back as several others"),
                say("the UTF-8 bytes are read one by one, as {codec}", codec=codec),
            )
    return None


def _shifted_in_table(text: str, back: str, characters: list[str] | None) -> Fault | None:
    """Every character comes back as its neighbour in the table."""
    if not characters or len(text) != len(back):
        return None
    place = {char: index for index, char in enumerate(characters)}
    if not all(char in place for char in text + back):
        return None
    for step in (-1, 1, -2, 2):
        moved = (characters[(place[char] + step) % len(characters)] for char in text)
        if all(a == b for a, b in zip(moved, back, strict=True)):
            return Fault(
                "roundtrip.off_by_one",
                say(
                    "each character comes back as the one {step:place|places} on in the table",
                    step=step,
                ),
                say("encode and decode count from different numbers, such as 0 and 1"),
            )
    return None


def _shortened(text: str, back: str, characters: list[str] | None) -> Fault | None:
    if len(back) >= len(text):
        return None
    if back and text.startswith(back):
        kept = len(back)
        return Fault(
            "roundtrip.truncated",
            say(
                "only the first {kept} of {all:character comes|characters come} back",
                kept=kept,
                all=len(text),
            ),
            say("encode cuts its text at a maximum length"),
        )
    lost = sorted(set(text) - set(back))
    if lost and "".join(c for c in text if c not in set(lost)) == back:
        return Fault(
            "roundtrip.characters_dropped",
            say("nothing comes back of {lost}", lost=_listed(lost)),
            say('unknown characters are skipped, or errors="ignore" is set'),
        )
    rest = iter(text)
    if all(char in rest for char in back):  # what came back is the text with gaps
        return Fault(
            "roundtrip.characters_dropped",
            say(
                "{gone} of {all:character is|characters are} gone",
                gone=len(text) - len(back),
                all=len(text),
            ),
        )
    return None


def _substituted(text: str, back: str, characters: list[str] | None) -> Fault | None:
    if len(text) != len(back):
        return None
    pairs = {(a, b) for a, b in zip(text, back, strict=True) if a != b}
    sources, images = {a for a, _ in pairs}, {b for _, b in pairs}
    wrong = sum(a != b for a, b in zip(text, back, strict=True))
    mapping = dict(zip(text, back, strict=True))
    consistent = all(mapping[a] == b for a, b in zip(text, back, strict=True))
    if len(images) == 1 and (len(sources) > 1 or images <= {"\ufffd", "?"}):
        return _replaced(wrong, len(text), _listed(sorted(sources)), images.pop())
    if consistent and len(set(mapping.values())) == len(mapping):
        return Fault(
            "roundtrip.order_differs",
            say(
                "{count:character comes|characters come} back as other ones, one for one",
                count=len(sources),
            ),
            say("encode and decode use two tables of different order, as set() gives them"),
        )
    if consistent:
        return Fault(
            "roundtrip.characters_merged",
            say("another character comes back for {lost}", lost=_listed(sorted(sources))),
            say("several characters share one id"),
        )
    return None


def _has_pieces(text: str, pieces: list[str]) -> bool:
    """Whether the text is these pieces in order; between two of them anything may stand."""
    first, *middle, last = pieces
    if not text.startswith(first) or not text.endswith(last):
        return False
    place = len(first)
    for piece in middle:
        place = text.find(piece, place)
        if place < 0:
            return False
        place += len(piece)
    return place <= len(text) - len(last)


def _replaced(count: int, total: int, lost: str, image: str) -> Fault:
    return Fault(
        "roundtrip.replaced_by_unknown",
        say(
            "{count} of {total:character|characters} ({lost}) come back as {image}",
            count=count,
            total=total,
            lost=lost,
            image=ascii(image),
        ),
        say("the vocabulary was built from another text, and what it lacks becomes one marker"),
        by_design=True,
    )


def _joined_surrogates(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _listed(characters: list[str]) -> str:
    shown = ", ".join(ascii(c) for c in characters[:5])
    return shown if len(characters) <= 5 else f"{shown} and {len(characters) - 5} more"


def _escaped(template: str) -> Text:
    return Text(template.replace("{", "{{").replace("}", "}}"), {})


_READINGS = (
    _added,
    _recoded,
    _transformed,
    _in_essence,
    _shifted_in_table,
    _shortened,
    _substituted,
)
