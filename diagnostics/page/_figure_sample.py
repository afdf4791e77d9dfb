"""Inputs above their targets, as text, so that the shift by one can be seen."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from diagnostics._text import Text, printable, say
from diagnostics.page._chart_parts import Table, numbers
from diagnostics.page._figure_parts import Figure, Found, find, listed, mapped, whole
from diagnostics.page._markup import Child, Markup, element, isolate, join

ROWS_MAX, LENGTH_MAX = 2, 64
UNEQUAL, DOT = "\N{NOT EQUAL TO}", "\N{MIDDLE DOT}"
PIECE_MAX = 14  # characters of a token that a column shows
IGNORED = -100  # torch's own sign for a target that is not scored
NAME, CHECK = "figure-sample", "shift"
_SPACES = {" ": "\N{OPEN BOX}", "\n": "\N{DOWNWARDS ARROW WITH CORNER LEFTWARDS}", "\t": "\u21e5"}


@dataclass(frozen=True)
class _Place:
    """One column: the input, the target below it, and what the target is compared with."""

    position: int
    input: int
    target: int
    wanted: int | None  # the input that the target should be; None: outside the row
    wrong: bool = False  # the check found it out in another way

    @property
    def mark(self) -> str:
        """Return = or the sign for unequal; nothing where there is nothing to compare."""
        if self.wrong:
            return UNEQUAL
        if self.wanted is None or self.target == IGNORED:
            return ""
        return "=" if self.target == self.wanted else UNEQUAL


def draw_sample(content: Mapping[str, Any]) -> Figure | None:
    """Draw the rows that a check has kept: each column is a position."""
    check, found = _find_sample(content)
    sample = mapped(found.numbers.get("sample"))
    distance = 0 if whole(found.numbers.get("wanted")) == 0 else 1
    first = whole(sample.get("first_column")) or 0
    inputs, targets = listed(sample.get("inputs")), listed(sample.get("targets"))
    rows = [
        _places(listed(above), listed(below), distance, first)
        for above, below in zip(inputs[:ROWS_MAX], targets[:ROWS_MAX], strict=False)
    ]
    names = [whole(name) for name in listed(sample.get("rows"))]
    rows = [
        _with_wrong_last(row, found, first == 0, names[index] if index < len(names) else None)
        for index, row in enumerate(rows)
        if row
    ]
    if not rows:
        return None
    pieces = {
        str(key): text
        for key, text in mapped(sample.get("pieces")).items()
        if isinstance(text, str)
    }
    finding = _finding(rows, distance)
    markup = element(
        "figure",
        element("figcaption", finding, class_="chart-finding"),
        [
            _row(row, pieces, names[index] if index < len(names) else index)
            for index, row in enumerate(rows)
        ],
        element("p", _note(sample, distance, rows, bool(pieces)), class_="chart-note"),
        numbers(_table(rows, pieces)),
        class_="chart chart-wide",
        id=NAME,
    )
    return Figure(NAME, check, markup)


def visible(piece: str) -> str:
    """Return the text of a token with its white space as signs, cut to a few characters."""
    shown = "".join(_SPACES.get(character, character) for character in piece)
    if shown and unicodedata.combining(shown[0]):
        shown = "\N{DOTTED CIRCLE}" + shown
    shown = printable(shown)
    if len(shown) > PIECE_MAX:
        shown = shown[: PIECE_MAX - 1] + "\N{HORIZONTAL ELLIPSIS}"
    return shown


def _find_sample(content: Mapping[str, Any]) -> tuple[str, Found]:
    own = find(content, CHECK)
    if "sample" in own.numbers:
        return CHECK, own
    for result in listed(content.get("results")):
        if isinstance(result, Mapping) and "sample" in mapped(result.get("numbers")):
            check = str(result.get("check", ""))
            return check, find(content, check)
    return CHECK, own


def _places(
    inputs: Sequence[Any], targets: Sequence[Any], distance: int, first: int
) -> list[_Place]:
    above, below = [whole(value) for value in inputs], [whole(value) for value in targets]
    places: list[_Place] = []
    for t, (read, target) in enumerate(zip(above[:LENGTH_MAX], below[:LENGTH_MAX], strict=False)):
        if read is None or target is None:
            return []
        wanted = above[t + distance] if t + distance < len(above) else None
        places.append(_Place(first + t, read, target, wanted))
    return places


def _with_wrong_last(
    row: list[_Place], found: Found, whole_row: bool, name: int | None
) -> list[_Place]:
    """Mark the last target, which no input shows, where it is the mistake that the check named."""
    last = row[-1]
    wrong = {
        "shift.wrapped_last": whole_row and last.target == row[0].input,
        "shift.repeated_last": last.target == last.input,
        "shift.wrong_last": name is not None and name == found.numbers.get("first_row"),
    }.get(found.reason, False)
    return [*row[:-1], replace(last, wrong=True)] if wrong else row


def _row(row: Sequence[_Place], pieces: Mapping[str, str], name: int | None) -> Markup:
    columns = [
        element(
            "li",
            element("span", place.position, class_="pair-position"),
            element("span", isolate(_shown(place.input, pieces)), class_="pair-input"),
            element("span", isolate(_shown(place.target, pieces)), class_="pair-target"),
            element("span", place.mark or DOT, class_="pair-mark"),
            class_="pair-wrong" if place.mark == UNEQUAL else None,
        )
        for place in row
    ]
    heads: Child = [
        element("span", text) for text in ("position", "input", "target", "target = next?")
    ]
    told = say("row {name}", name=name) if name is not None else ""
    return join(
        [
            element("p", told, class_="chart-note") if told else None,
            element(
                "div",
                element("div", heads, class_="pair-heads", aria_hidden="true"),
                element("ol", columns, class_="pairs", start=row[0].position),
                class_="pair-row",
            ),
        ]
    )


def _shown(token_id: int, pieces: Mapping[str, str]) -> str:
    if token_id == IGNORED:
        return "ignored"
    piece = pieces.get(str(token_id))
    if piece is None:
        return str(token_id)
    return visible(piece) if _can_be_read(piece) else f"[{token_id}]"


def _can_be_read(piece: str) -> bool:
    """Return whether a piece is text by itself, as a part of a character is not."""
    return bool(piece.strip("\N{REPLACEMENT CHARACTER}"))


def _finding(rows: Sequence[Sequence[_Place]], distance: int) -> Text:
    compared = [place for row in rows for place in row if place.mark]
    unequal = sum(place.mark == UNEQUAL and not place.wrong for place in compared)
    last = sum(place.wrong for place in compared)
    n = len(compared) - last
    where = say("the input at the next position") if distance else say("the input above it")
    if not compared:
        return say("Inputs above their targets; none of them can be compared")
    if unequal:
        return say("{wrong} of {n} targets shown are not {where}", wrong=unequal, n=n, where=where)
    if last:
        return say(
            "The last target is not the token after its row; the others are {where}", where=where
        )
    return say("Each target shown is {where} ({n} of {n})", n=n, where=where)


def _note(
    sample: Mapping[str, Any], distance: int, rows: Sequence[Sequence[_Place]], decoded: bool
) -> Text:
    pieces = mapped(sample.get("pieces"))
    known = [
        pieces.get(str(i)) for row in rows for place in row for i in (place.input, place.target)
    ]
    bracketed = any(isinstance(piece, str) and not _can_be_read(piece) for piece in known)
    told = f"= where the target is the input at the next position, {UNEQUAL} where it is not"
    if distance == 0:
        told = (
            "= where the target is the input above it, as a model that shifts inside wants it; "
            f"{UNEQUAL} where it is not"
        )
    told += f", {DOT} where nothing can be compared."
    if decoded:
        told += " \N{OPEN BOX} space, \N{DOWNWARDS ARROW WITH CORNER LEFTWARDS} new line, "
        told += "\u21e5 tab."
        if bracketed:
            told += " A number in brackets is an id that is no text by itself."
    elif sample.get("source") == "counting":
        told += " The data are 0, 1, 2, ...: each id is its own position."
    else:
        told += " Numbers are token ids; with a tokenizer, text would stand here."
    return say(told)


def _table(rows: Sequence[Sequence[_Place]], pieces: Mapping[str, str]) -> Table:
    lines = [
        [
            f"{place.position}",
            _told(place.input, pieces),
            _told(place.target, pieces),
            "-" if place.wanted is None else _told(place.wanted, pieces),
            {"=": "yes", "": "-"}.get(place.mark, "no"),
        ]
        for row in rows
        for place in row
    ]
    return Table(["position", "input", "target", "compared with", "equal"], lines)


def _told(token_id: int, pieces: Mapping[str, str]) -> str:
    piece = pieces.get(str(token_id))
    return f"{token_id}" if piece is None else f"{token_id} {visible(piece)}"
