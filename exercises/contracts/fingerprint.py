"""The contract of the fingerprint: equal for equal vocabularies, and for no others.

Shapes: N numbers that spell a vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase, digits
from typing import Any

import torch

from exercises.contracts._contract import (
    BrokenPromiseError,
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
)

# no capital letter and no other entry that the variants below put in
ENTRIES = (
    *ascii_lowercase,
    *digits,
    *" \n.,:;!?()[]+-*/=<>#\"'\u2014\u20ac",
    *("<|end|>", "ing", "caf\u00e9", "the"),
)
PAIR, SAME_LETTERS = ("un", "der"), ("und", "er")


def right_spelled(chars: list[str]) -> str:
    """Spell the list out, with the length of each entry before it."""
    return "".join(f"{len(char)}:{char}" for char in chars)


def right_polynomial(chars: list[str]) -> int:
    """Read code points, and a stop after each entry, as the digits of one number."""
    number = len(chars)
    for char in chars:
        for digit in (*map(ord, char), 1_114_112):  # one more than any code point
            number = (number * 1_114_129 + digit + 1) % (2**61 - 1)
    return number


def right_projection(chars: list[str]) -> str:
    """Weigh each place with a random number of a generator of its own, and add up."""
    spelled = [number for char in chars for number in (*map(ord, char), 1_114_112)]
    numbers = torch.tensor([len(chars), *spelled])  # (N,)
    generator = torch.Generator().manual_seed(1234)
    weights = torch.randint(2**62, numbers.shape, generator=generator)
    return f"{int((numbers * weights).sum()):x}"  # products and sums wrap round at 2**64


def wrong_size(chars: list[str]) -> str:
    """Take equal size for equality."""
    text = str(len(chars))  # BROKEN: was text = "".join(f"{len(char)}:{char}" for char in chars)
    state = 14_695_981_039_346_656_037
    for byte in text.encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_sorted(chars: list[str]) -> str:
    """Put the entries in order first, so that their own order has no say."""
    entries = sorted(chars)  # BROKEN: was entries = list(chars)
    text = "".join(f"{len(char)}:{char}" for char in entries)
    state = 14_695_981_039_346_656_037
    for byte in text.encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_salted(chars: list[str]) -> str:
    """Start from a number that is drawn at each call."""
    text = "".join(f"{len(char)}:{char}" for char in chars)
    state = int(torch.randint(2**62, ()))  # BROKEN: was state = 14_695_981_039_346_656_037
    for byte in text.encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_lowercased(chars: list[str]) -> str:
    """Read capital letters as small ones."""
    text = "".join(f"{len(char)}:{char}" for char in chars)
    read = text.lower()  # BROKEN: was read = text
    state = 14_695_981_039_346_656_037
    for byte in read.encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_joined(chars: list[str]) -> str:
    """Join the entries without a trace of where one ends."""
    text = "".join(chars)  # BROKEN: was text = "".join(f"{len(char)}:{char}" for char in chars)
    state = 14_695_981_039_346_656_037
    for byte in f"{len(chars)} {text}".encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_replaced(chars: list[str]) -> str:
    """Write what is not ASCII as question marks."""
    text = "".join(f"{len(char)}:{char}" for char in chars)
    data = text.encode("ascii", "replace")  # BROKEN: was data = text.encode("utf-8")
    state = 14_695_981_039_346_656_037
    for byte in data:
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_beginning(chars: list[str]) -> str:
    """Hash the first 32 entries, and the number of all."""
    head = chars[:32]  # BROKEN: was head = chars[:]
    text = f"{len(chars)} " + "".join(f"{len(char)}:{char}" for char in head)
    state = 14_695_981_039_346_656_037
    for byte in text.encode():
        state = (state ^ byte) * 1_099_511_628_211 % 2**64
    return f"{state:016x}"


def wrong_added_up(chars: list[str]) -> int:
    """Add up a number for each entry: exchanging two changes nothing."""
    state = len(chars)
    for char in chars:
        number = 0
        for digit in (*map(ord, char), 1_114_112):
            number = (number * 1_114_129 + digit + 1) % (2**61 - 1)
        state += number  # BROKEN: was state = (state * 1_114_129 + number) % (2**127 - 1)
    return state


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare the fingerprint of one list with those of lists that differ in one way each."""
    base = [ENTRIES[index] for index in torch.randperm(len(ENTRIES)).tolist()]
    base[40:40] = PAIR
    first = _as_fingerprint(implementation(list(base)))
    variants = dict(_variants(base))
    prints = {told: _as_fingerprint(implementation(other)) for told, other in variants.items()}
    again = _as_fingerprint(implementation(list(base)))
    yield Finding(
        float(again != first),
        f"the same list of {len(base)} entries got {_shown(first)} at the first call and "
        f"{_shown(again)} at the last one",
    )
    blind = [told for told, fingerprint in prints.items() if fingerprint == first]
    yield Finding(
        float(len(blind)),
        f"the fingerprint of {len(base)} entries stays the same when {(*blind, 'nothing')[0]}: "
        f"{len(blind)} of {len(prints)} changes of the list do not show",
    )


def _variants(base: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield (what was changed, the changed list)."""
    place = int(torch.randint(1, len(base) - 2, ()))
    for a, b in ((0, 1), (place, place + 1), (-2, -1), (0, -1)):
        other = list(base)
        other[a], other[b] = other[b], other[a]
        i, j = a % len(base), b % len(base)
        yield f"the entries {i} and {j} change places", other
    yield "the whole list is turned round", base[::-1]
    for place in (0, len(base) - 1):
        other = list(base)
        other[place] = "~"
        yield f"another character stands at place {place}", other
    yield "one more entry stands at the end", [*base, "~"]
    yield "the last entry is left out", base[:-1]
    yield "'k' becomes the capital 'K'", _replaced(base, "k", "K")
    yield f"the entries {PAIR} become {SAME_LETTERS}", [*base[:40], *SAME_LETTERS, *base[42:]]
    yield "U+20AC becomes U+20AD", _replaced(base, "\u20ac", "\u20ad")
    yield "U+0061 becomes U+0161", _replaced(base, "a", "\u0161")
    yield "an accent of its own replaces U+00E9", _replaced(base, "caf\u00e9", "cafe\u0301")


def _replaced(base: list[str], old: str, new: str) -> list[str]:
    return [new if entry == old else entry for entry in base]


def _as_fingerprint(value: Any) -> str | int:
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise BrokenPromiseError(
            f"the fingerprint is a {type(value).__name__}, wanted a str or an int"
        )
    return value


def _shown(fingerprint: str | int) -> str:
    text = fingerprint if isinstance(fingerprint, str) else f"{fingerprint:#x}"  # of any length
    return ascii(text[:24])


CONTRACT = Contract(
    check="fingerprint",
    signature="implementation(chars: list[str]) -> str | int",
    promise=(
        "chars holds the entries of a tokenizer in the order of their ids: at least two, each a "
        "str of one or more characters and each once. It returns a fingerprint, a str or an int. "
        "The same list gets the same fingerprint at every call. Lists that differ get different "
        "ones: in an entry, in the order, in their length, or in where one entry ends and the "
        "next begins."
    ),
    rights=(
        Right(name="spelled", implementation=right_spelled, note="the list itself, spelled out"),
        Right(name="polynomial", implementation=right_polynomial, note="digits of one number"),
        Right(name="projection", implementation=right_projection, note="a sum of random weights"),
    ),
    wrongs=(
        Wrong(
            name="size",
            implementation=wrong_size,
            note="only the number of entries is hashed",
        ),
        Wrong(
            name="sorted",
            implementation=wrong_sorted,
            note="the entries are sorted before they are hashed",
        ),
        Wrong(
            name="salted",
            implementation=wrong_salted,
            note="each call starts from another random number",
        ),
        Wrong(
            name="lowercased",
            implementation=wrong_lowercased,
            note="capital and small letters are the same to it",
        ),
        Wrong(
            name="joined",
            implementation=wrong_joined,
            note="where one entry ends and the next begins is lost",
            held_out=True,
        ),
        Wrong(
            name="replaced",
            implementation=wrong_replaced,
            note="all characters beyond ASCII count as question marks",
            held_out=True,
        ),
        Wrong(
            name="beginning",
            implementation=wrong_beginning,
            note="only the first 32 entries are hashed",
            held_out=True,
        ),
        Wrong(
            name="added_up",
            implementation=wrong_added_up,
            note="numbers of the entries are added up, so that their order is lost",
            held_out=True,
        ),
    ),
    examine=examine,
)
