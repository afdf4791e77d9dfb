"""HTML from plain values: whatever is a string is escaped, and only `Markup` is not.

A corpus, a module name or a message may hold anything: tags, control characters, direction
overrides, half of a surrogate pair. What could end an element, hide, or turn the reading direction
of its neighbours is shown as the escape that Python would write.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterable

from diagnostics._text import printable

# Elements without content, which HTML forbids to close. https://html.spec.whatwg.org/#void-elements
_VOID = frozenset({"br", "col", "hr", "img", "input", "link", "meta", "wbr"})
MARKS_MAX = 8  # combining marks on a letter; written languages have up to five
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]*")


class Markup(str):
    """Text that is HTML already; made by `element`, `escape` and `join` only."""

    __slots__ = ()


Child = str | int | float | Markup | None | Iterable["Child"]


def escape(value: object) -> Markup:
    r"""Return any value as HTML text: markup escaped, control and format characters spelt out.

    Line breaks and tabs stay; a character that is not printable becomes its escape, `\x1b`, and so
    does a combining mark of which a letter has too many.
    """
    lines = str(value).replace("\r\n", "\n").split("\n")
    shown = "\n".join("\t".join(printable(part) for part in line.split("\t")) for line in lines)
    return Markup(html.escape(_few_marks(shown), quote=True))


def element(name: str, /, *children: Child, **attributes: object) -> Markup:
    """Return one element; strings among the children are escaped, None is left out.

    attributes: `class_` and `for_` lose the underscore, any other underscore becomes a hyphen;
    True gives the bare name, False and None leave the attribute out.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(f"wanted the name of an element, got {name!r}")
    opening = name + "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        if children:
            raise ValueError(f"<{name}> has no content, got {len(children)} children")
        return Markup(f"<{opening}>")
    return Markup(f"<{opening}>{join(children)}</{name}>")


def join(children: Child) -> Markup:
    """Return the children one after another, strings escaped."""
    if children is None:
        return Markup("")
    if isinstance(children, Markup):
        return children
    if isinstance(children, (str, int, float)):
        return escape(children)
    return Markup("".join(join(child) for child in children))


def isolate(value: object) -> Markup:
    """Return text of the user's, kept apart from the reading direction of what surrounds it."""
    return element("bdi", str(value))


def _few_marks(text: str) -> str:
    """Spell out the marks above MARKS_MAX on a letter: they reach over lines, and cannot break."""
    if text.isascii():
        return text
    shown, marks = [], 0
    for character in text:
        marks = marks + 1 if unicodedata.category(character) in ("Mn", "Me") else 0
        escaped = marks > MARKS_MAX
        shown.append(character.encode("unicode_escape").decode() if escaped else character)
    return "".join(shown)


def isolate_name(name: str) -> Markup:
    """Return the name of a check, kept apart likewise, that may break after each underscore."""
    *heads, last = name.split("_")
    return element("bdi", [[head, "_", element("wbr")] for head in heads], last)


def _attribute(key: str, value: object) -> str:
    name = key.rstrip("_").replace("_", "-")
    if not _NAME.fullmatch(name):
        raise ValueError(f"wanted the name of an attribute, got {key!r}")
    if value is None or value is False:
        return ""
    return f" {name}" if value is True else f' {name}="{escape(value)}"'
