"""Sentences: filled once, remembered, translatable, and safe to print."""

from __future__ import annotations

import math
import pickle
from typing import Any

import pytest

from diagnostics._text import Text, printable, say, show


def test_say_fills_and_remembers() -> None:
    """The sentence is an ordinary string that knows its template and its facts."""
    text = say("{count} of {total} leak", count=13, total=28)
    assert text == "13 of 28 leak"
    assert isinstance(text, str)
    assert text.template == "{count} of {total} leak"
    assert text.facts == {"count": 13, "total": 28}


def test_translation_uses_the_same_facts_and_keeps_what_it_does_not_know() -> None:
    """A Spanish catalogue needs templates only."""
    text = say("{count} of {total} leak", count=13, total=28)
    spanish = text.translate_with({"{count} of {total} leak": "{total} pares, {count} con fuga"})
    assert spanish == "28 pares, 13 con fuga"
    assert text.translate_with({}) == text


def test_pickling_keeps_template_and_facts() -> None:
    """Results travel between processes."""
    text = pickle.loads(pickle.dumps(say("{x} here", x=0.5)))  # noqa: S301  # our own bytes
    assert isinstance(text, Text)
    assert (text, text.template, text.facts) == ("0.5 here", "{x} here", {"x": 0.5})


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 rows are"), (1, "1 row is"), (2, "2 rows are")]
)
def test_words_agree_with_their_number(count: int, shown: str) -> None:
    """Both forms stand in the template, so that a translation brings its own."""
    text = say("{count:row is|rows are} empty", count=count)
    assert text == f"{shown} empty"
    spanish = text.translate_with({text.template: "vac\u00edas: {count:fila|filas}"})
    assert spanish == f"vac\u00edas: {count} {'fila' if count == 1 else 'filas'}"


@pytest.mark.parametrize(
    ("share", "shown"), [(0.0, "0 %"), (1.0, "100 %"), (0.0625, "6.25 %"), (math.nan, "nan %")]
)
def test_shares_are_told_in_percent(share: float, shown: str) -> None:
    """Four significant digits, as everywhere."""
    assert say("{share:%} of targets", share=share) == f"{shown} of targets"


def test_missing_fact_is_an_error() -> None:
    """A template never prints its own braces by accident."""
    with pytest.raises(KeyError):
        say("{count} leak")


def test_braces_in_facts_and_doubled_braces_are_text() -> None:
    """A user's text may hold braces; a template doubles its own."""
    assert say("{{k: v}} and {name}", name="{x}") == "{k: v} and {x}"


@pytest.mark.parametrize(
    ("fact", "shown"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (1.0, "1"),
        (0.123456, "0.1235"),
        (123.456, "123.5"),
        (1234.56, "1234.6"),
        (99999.0, "99999.0"),
        (100000.0, "1.00e+05"),
        (0.001, "0.001"),
        (0.000999, "9.99e-04"),
        (-2.5e-7, "-2.50e-07"),
        (math.inf, "inf"),
        (math.nan, "nan"),
        (True, "True"),
        (None, "None"),
        (12345678, "12345678"),
        ((2, 3), "(2, 3)"),
    ],
)
def test_numbers_get_four_significant_digits(fact: Any, shown: str) -> None:
    """One rendering for every message."""
    assert show(fact) == shown


def test_control_and_format_characters_are_escaped() -> None:
    """No fact moves the cursor, colours a line, or turns the writing direction."""
    assert printable("caf\u00e9 ok") == "caf\u00e9 ok"
    assert printable("a\x1b[31mb\n\u202ec") == "a\\x1b[31mb\\n\\u202ec"
    assert say("{name}", name="tab\there") == "tab\\there"
    assert say("{items}", items=["\x1b"]) == "['\\x1b']"
