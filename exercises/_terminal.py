"""Speaking to a student: what others have written made safe to show, code as it stands, questions.

Words before colour, and no colour. Nothing is asked, and no bar moves, without a terminal.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable

from diagnostics._text import printable
from exercises._console import ask, columns, in_ascii, on_terminal, tell

TRIES = 3  # for an answer that names nothing
OUTPUT_LINES = 8


def put(text: str, *, indent: int = 0, hanging: int = 0) -> None:
    """Print one paragraph, folded; hanging: more columns before every line but the first."""
    tell(printable(text), indent=" " * indent, hanging=hanging)


def put_code(prefix: str, code: str) -> None:
    """Print one line of code as it is, its inner spaces too; folded only where it is too long."""
    room = columns() - len(prefix)
    rest, start = in_ascii(printable(code)), prefix
    while len(rest) > room:
        space = rest.rfind(" ", room // 2, room + 1)
        cut = space if space > 0 else room
        print(start + rest[:cut].rstrip())
        rest, start = rest[cut:].lstrip(), " " * len(prefix)
    print(start + rest)


def show_output(text: str) -> None:
    """Print the first lines of what a student's code has printed."""
    lines = text.strip().splitlines()
    if lines:
        print("  it printed")
    for line in lines[:OUTPUT_LINES]:
        put_code("    ", line)


def ask_for_one(question: str, known: Iterable[str]) -> str:
    """Ask a person for one of the known words; "" when they pass, or when nobody is there.

    A wrong spelling gets the closest words, and another try.
    """
    if not on_terminal():
        return ""
    words = list(known)
    for _ in range(TRIES):
        answer = (ask(f"  {question} ") or "").lower()
        if not answer or answer in words:
            return answer
        put(no_such("check", answer, words), indent=2)
    return ""


def no_such(kind: str, word: str, known: Iterable[str]) -> str:
    """Return a sentence about a word that names nothing, with the closest ones that do."""
    names = list(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if close:
        return f"there is no {kind} {word!r}; did you mean {' or '.join(close)}?"
    return f"there is no {kind} {word!r}; there are {', '.join(names)}"


def number_to(largest: int) -> Callable[[str], int]:
    """Return a type for argparse, which would list all the numbers: one from 1 to the largest."""

    def read(text: str) -> int:
        if text.isdecimal() and 1 <= int(text) <= largest:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {largest}")

    return read
