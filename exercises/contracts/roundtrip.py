"""The contract of the round trip: text becomes ids and the same text again, nothing lost.

Shapes: V characters that the tokenizer knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_letters
from typing import Any

import torch

from diagnostics._lost_text import around, first_difference, name_fault
from exercises.contracts._contract import (
    BrokenPromiseError,
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_parts,
    as_text,
)

OTHERS = " \n\r\t.,-12\u00e9\u00c9\u0301\u2014\u20ac\U0001f600"  # accents, a dash, an emoji
TEXTS = (  # every one is made of letters and of the characters above
    " a  bad  call, made  twice ",
    "\n\nTwo lines\r\nand\ta tab\r\n",
    "Fade, a caf\u00e9, a cafe\u0301, \u20ac 12 \u2014 \U0001f600",
)


def right_table(chars: str, text: str) -> tuple[list[int], str]:
    """Look both directions up in a dictionary."""
    number = {char: index for index, char in enumerate(chars)}
    char_of = dict(enumerate(chars))
    ids = [number[char] for char in text]
    return ids, "".join(char_of[index] for index in ids)


def right_search(chars: str, text: str) -> list[Any]:
    """Search the characters anew for each one of the text."""
    ids: list[int] = []
    back = ""
    for char in text:
        ids.append(chars.index(char))
        back += chars[ids[-1]]
    return [tuple(ids), back]


def right_code_points(chars: str, text: str) -> tuple[tuple[int, ...], str]:
    """Sort the code points, and find those of the text by bisection."""
    known = torch.tensor([ord(char) for char in chars])  # (V,)
    ordered, places = known.sort()
    found = torch.searchsorted(ordered, torch.tensor([ord(char) for char in text]).long())
    ids = places[found.long()]
    return tuple(ids.tolist()), "".join(map(chr, known[ids].tolist()))


def wrong_lowercased(chars: str, text: str) -> tuple[list[int], str]:
    """Make the text easier before encoding it."""
    table = {char: index for index, char in enumerate(chars)}
    cleaned = text.lower()  # BROKEN: was cleaned = text
    ids = [table[char] for char in cleaned]
    return ids, "".join(chars[index] for index in ids)


def wrong_stripped(chars: str, text: str) -> tuple[list[int], str]:
    """Tidy up the ends of the text."""
    table = {char: index for index, char in enumerate(chars)}
    tidy = text.strip()  # BROKEN: was tidy = text
    ids = [table[char] for char in tidy]
    return ids, "".join(chars[index] for index in ids)


def wrong_skipped(chars: str, text: str) -> tuple[list[int], str]:
    """Pass over what a narrow encoding does not have."""
    table = {char: index for index, char in enumerate(chars)}
    known = text.encode("ascii", "ignore").decode()  # BROKEN: was known = text
    ids = [table[char] for char in known]
    return ids, "".join(chars[index] for index in ids)


def wrong_two_tables(chars: str, text: str) -> tuple[list[int], str]:
    """Decode with a table that is in another order."""
    table = {char: index for index, char in enumerate(chars)}
    order = sorted(chars)  # BROKEN: was order = list(chars)
    ids = [table[char] for char in text]
    return ids, "".join(order[index] for index in ids)


def wrong_zero_is_padding(chars: str, text: str) -> tuple[list[int], str]:
    """Take the first character for padding when decoding."""
    table = {char: index for index, char in enumerate(chars)}
    ids = [table[char] for char in text]
    kept = [index for index in ids if index]  # BROKEN: was kept = ids
    return ids, "".join(chars[index] for index in kept)


def wrong_lines_joined(chars: str, text: str) -> tuple[list[int], str]:
    """Split the text at all line ends, and join it with one kind of them."""
    table = {char: index for index, char in enumerate(chars)}
    lines = text.splitlines()  # BROKEN: was lines = text.split("\n")
    ids = [table[char] for char in "\n".join(lines)]
    return ids, "".join(chars[index] for index in ids)


def wrong_single_spaces(chars: str, text: str) -> tuple[list[int], str]:
    """Drop the empty words between two spaces."""
    table = {char: index for index, char in enumerate(chars)}
    words = text.split(" ")
    kept = [word for word in words if word]  # BROKEN: was kept = words
    ids = [table[char] for char in " ".join(kept)]
    return ids, "".join(chars[index] for index in ids)


def wrong_numbered_anew(chars: str, text: str) -> tuple[list[int], str]:
    """Sort the characters in both directions: the text comes back, and the ids are others."""
    order = sorted(chars)  # BROKEN: was order = list(chars)
    table = {char: index for index, char in enumerate(order)}
    ids = [table[char] for char in text]
    return ids, "".join(order[index] for index in ids)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Send every character through, doubled, at both ends and beside all kinds of spaces."""
    for chars, text in _cases():
        parts = as_parts(implementation(chars, text), "ids", "text")
        back = as_text(parts[1], "text")
        yield Finding(float(back != text), _describe_text(chars, text, back))
        ids = _as_ids(parts[0])
        wanted = [chars.index(char) for char in text]
        differ = [i for i, (a, b) in enumerate(zip(ids, wanted, strict=False)) if a != b]
        yield Finding(
            float(len(differ) + abs(len(ids) - len(wanted))),
            _describe_ids(chars, ids, wanted, differ),
        )


def _cases() -> Iterator[tuple[str, str]]:
    chars = _shuffled(ascii_letters + OTHERS)
    yield chars, "".join(char * 2 for char in chars)
    for text in TEXTS:
        chars = _shuffled(ascii_letters + OTHERS)
        yield chars, text
        yield chars, chars[0] + text + chars[0] + chars[-1]
    drawn = torch.randint(len(chars), (300,)).tolist()
    yield chars, "".join(chars[index] for index in drawn)
    yield chars, ""


def _shuffled(chars: str) -> str:
    return "".join(chars[index] for index in torch.randperm(len(chars)).tolist())


def _as_ids(value: Any) -> list[int]:
    """Return a list or tuple of whole numbers as a list."""
    if not isinstance(value, list | tuple):
        raise BrokenPromiseError(f"ids is a {type(value).__name__}, wanted a list of int")
    other = next((item for item in value if type(item) is not int), None)
    if other is not None:
        raise BrokenPromiseError(f"ids hold a {type(other).__name__}, wanted int only")
    return list(value)


def _describe_text(chars: str, text: str, back: str) -> str:
    if back == text:
        return "the text comes back as it was"
    place = first_difference(text, back)
    told = str(name_fault(text, back, list(chars)).told)[:80]
    if back == text.replace(chars[0], ""):
        told = "the character with the id 0 is gone, and no other one"
    return (
        f"a text of {len(text)} characters comes back with {len(back)}; at character {place} "
        f"{around(text, place, 2)} became {around(back, place, 2)}: {told}"
    )


def _describe_ids(chars: str, ids: list[int], wanted: list[int], differ: list[int]) -> str:
    if len(ids) != len(wanted):
        return f"{len(ids)} ids were made of {len(wanted)} characters, expected one id each"
    if not differ:
        return "the ids are the places of the characters"
    place = differ[0]
    return (
        f"{len(differ)} of {len(ids)} ids are not the place of their character in chars: "
        f"{chars[wanted[place]]!a} got {ids[place]}, and stands at {wanted[place]}"
    )


CONTRACT = Contract(
    check="roundtrip",
    signature="implementation(chars: str, text: str) -> tuple[list[int], str]",
    promise=(
        "chars holds every character that the tokenizer knows, each once, in the order of their "
        "ids; text is made of these characters only, and may be empty. It returns (ids, back): "
        "ids is a list or tuple of int, one for each character of text, which is the "
        "character's place in chars; back is the str that is decoded from ids, equal to text."
    ),
    rights=(
        Right(name="table", implementation=right_table, note="two dictionaries"),
        Right(name="search", implementation=right_search, note="a search for each character"),
        Right(name="code_points", implementation=right_code_points, note="sorted code points"),
    ),
    wrongs=(
        Wrong(
            name="lowercased",
            implementation=wrong_lowercased,
            note="capital letters come back small",
            crashes=True,
        ),
        Wrong(
            name="stripped",
            implementation=wrong_stripped,
            note="white space at both ends is lost",
        ),
        Wrong(
            name="skipped",
            implementation=wrong_skipped,
            note="characters beyond ASCII are left out",
        ),
        Wrong(
            name="two_tables",
            implementation=wrong_two_tables,
            note="decoding uses a table in another order",
        ),
        Wrong(
            name="zero_is_padding",
            implementation=wrong_zero_is_padding,
            note="the character with the id 0 is dropped when decoding",
            held_out=True,
        ),
        Wrong(
            name="lines_joined",
            implementation=wrong_lines_joined,
            note="line ends become one kind, and the last one is lost",
            held_out=True,
            crashes=True,
        ),
        Wrong(
            name="single_spaces",
            implementation=wrong_single_spaces,
            note="several spaces in a row become one, and those at the ends are lost",
            held_out=True,
        ),
        Wrong(
            name="numbered_anew",
            implementation=wrong_numbered_anew,
            note="the text comes back, but the ids are those of the sorted characters",
            held_out=True,
        ),
    ),
    examine=examine,
)
