"""Sentences for people: a template with named facts, rendered once, still translatable.

`say("{count} of {total} leak", count=13, total=28)` is a string that remembers its template and
its facts, so that a report can be told again in another language without running a check.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any


class Text(str):
    """A rendered sentence that remembers the template and the facts it was made from."""

    template: str
    facts: Mapping[str, Any]

    def __new__(cls, template: str, facts: Mapping[str, Any]) -> Text:
        shown = {name: _Shown(fact) for name, fact in facts.items()}
        text = super().__new__(cls, template.format(**shown))
        text.template = template
        text.facts = dict(facts)
        return text

    def __reduce__(self) -> tuple[type[Text], tuple[str, Mapping[str, Any]]]:
        return Text, (self.template, self.facts)

    def translate_with(self, catalogue: Mapping[str, str]) -> Text:
        """Return the sentence in another language; a template without translation stays."""
        return Text(catalogue.get(self.template, self.template), self.facts)


def say(template: str, **facts: Any) -> Text:
    """Fill the template's {names}; numbers get four significant digits, text is made printable.

    {count:row|rows} agrees with its number, "1 row", "2 rows"; {share:%} is a share in percent.
    """
    return Text(template, facts)


class _Shown(str):
    """A fact as text, which a template may also count with or turn into percent."""

    fact: Any

    def __new__(cls, fact: Any) -> _Shown:
        text = super().__new__(cls, show(fact))
        text.fact = fact
        return text

    def __format__(self, form: str) -> str:
        if form == "%":
            return f"{show(100.0 * self.fact)} %"
        if "|" in form:
            one, many = form.split("|")
            return f"{self} {one if self.fact == 1 else many}"
        return super().__format__(form)


def show(fact: Any) -> str:
    """Render one fact the way every message shows it."""
    if isinstance(fact, bool) or fact is None:
        return str(fact)
    if isinstance(fact, float):
        return _show_float(fact)
    if isinstance(fact, str):
        return printable(fact)
    return printable(str(fact))


def printable(text: str) -> str:
    """Escape what could move a terminal's cursor or hide: control and format characters."""
    if text.isprintable():
        return text
    return "".join(
        character
        if character.isprintable() or character == " "
        else character.encode("unicode_escape").decode("ascii")
        for character in text
    )


def _show_float(number: float) -> str:
    if not math.isfinite(number):
        return str(number)
    if number == 0:
        return "0"
    if 1e-3 <= abs(number) < 1e5:
        return f"{number:.4g}" if abs(number) < 1000 else f"{number:.1f}"
    return f"{number:.2e}"
