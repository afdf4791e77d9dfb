"""The contract of the text: the ids of a whole text, which is encoded page by page.

Shapes: N characters of the text.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_letters

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
)

CHARS = ascii_letters + " \n.,"


def right_whole(text: str, chars: str, page: int) -> Tensor:
    """Encode the text in one go, whatever the pages are."""
    table = {char: index for index, char in enumerate(chars)}
    return torch.tensor([table[char] for char in text])


def right_filled(text: str, chars: str, page: int) -> Tensor:
    """Fill a row of the right length page by page, the last page first."""
    ids = torch.full((len(text),), -1)
    for start in reversed(range(0, len(text), page)):
        piece = text[start : start + page]
        ids[start : start + len(piece)] = torch.tensor([chars.index(char) for char in piece])
    return ids


def right_code_points(text: str, chars: str, page: int) -> Tensor:
    """Turn each page into code points, and look those up in a table of all of them."""
    table = torch.zeros(max(map(ord, chars)) + 1, dtype=torch.int64)
    table[[ord(char) for char in chars]] = torch.arange(len(chars))
    points = torch.tensor([*map(ord, text)])  # (N,)
    return torch.cat([table[piece] for piece in points.split(page)])


def wrong_remainder_dropped(text: str, chars: str, page: int) -> Tensor:
    """Encode whole pages only."""
    table = {char: index for index, char in enumerate(chars)}
    end = len(text) // page * page  # BROKEN: was end = len(text)
    pages = [text[start : start + page] for start in range(0, end, page)]
    return torch.tensor([table[char] for piece in pages for char in piece], dtype=torch.int64)


def wrong_thinned(text: str, chars: str, page: int) -> Tensor:
    """Read the row with a step that was meant for pairs of bytes."""
    table = {char: index for index, char in enumerate(chars)}
    pages = [text[start : start + page] for start in range(0, len(text), page)]
    ids = torch.tensor([table[char] for piece in pages for char in piece])
    return ids[::2]  # BROKEN: was return ids


def wrong_shuffled(text: str, chars: str, page: int) -> Tensor:
    """Shuffle tokens where pages were meant."""
    table = {char: index for index, char in enumerate(chars)}
    pages = [text[start : start + page] for start in range(0, len(text), page)]
    ids = torch.tensor([table[char] for piece in pages for char in piece])
    order = torch.randperm(len(ids))  # BROKEN: was order = torch.arange(len(ids))
    return ids[order]


def wrong_by_name(text: str, chars: str, page: int) -> Tensor:
    """Join the pages in the order of their names, in which 10 comes before 2."""
    table = {char: index for index, char in enumerate(chars)}
    pages = [text[start : start + page] for start in range(0, len(text), page)]
    numbers = range(len(pages))
    order = sorted(numbers, key=str)  # BROKEN: was order = sorted(numbers)
    return torch.tensor([table[char] for number in order for char in pages[number]])


def wrong_tidied(text: str, chars: str, page: int) -> Tensor:
    """Strip the pages, which takes away the white space where two of them meet."""
    table = {char: index for index, char in enumerate(chars)}
    pages = [text[start : start + page] for start in range(0, len(text), page)]
    chosen = [piece.strip() for piece in pages]  # BROKEN: was chosen = pages
    return torch.tensor([table[char] for piece in chosen for char in piece], dtype=torch.int64)


def wrong_copies_dropped(text: str, chars: str, page: int) -> Tensor:
    """Leave out a page that was there before."""
    table = {char: index for index, char in enumerate(chars)}
    pages = [text[start : start + page] for start in range(0, len(text), page)]
    chosen = list(dict.fromkeys(pages))  # BROKEN: was chosen = pages
    return torch.tensor([table[char] for piece in chosen for char in piece])


def wrong_one_buffer(text: str, chars: str, page: int) -> Tensor:
    """Collect views of one buffer, in which the last page is left."""
    buffer = torch.zeros(page, dtype=torch.int64)
    parts = []
    for start in range(0, len(text), page):
        piece = [chars.index(char) for char in text[start : start + page]]
        part = buffer[: len(piece)]  # BROKEN: was part = torch.zeros(len(piece), dtype=torch.int64)
        part[:] = torch.tensor(piece)
        parts.append(part)
    return torch.cat(parts)


def wrong_whole_buffer(text: str, chars: str, page: int) -> Tensor:
    """Write the whole buffer after a short page, with the rest of the page before in it."""
    buffer = torch.zeros(page, dtype=torch.int64)
    parts = []
    for start in range(0, len(text), page):
        piece = [chars.index(char) for char in text[start : start + page]]
        buffer[: len(piece)] = torch.tensor(piece)
        filled = len(buffer)  # BROKEN: was filled = len(piece)
        parts.append(buffer[:filled].clone())
    return torch.cat(parts)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare every id, of texts that end within a page, repeat one, or have spaces at seams."""
    for text, page in _cases():
        chars = "".join(CHARS[index] for index in torch.randperm(len(CHARS)).tolist())
        wanted = torch.tensor([chars.index(char) for char in text])  # (N,)
        ids = as_tensor(implementation(text, chars, page), "the result", dtype=torch.int64)
        if ids.ndim != 1:
            yield Finding(float("inf"), f"the ids have shape {tuple(ids.shape)}, wanted (N,)")
            return
        length = min(len(ids), len(wanted))
        differ = (ids[:length] != wanted[:length]).nonzero().flatten()
        wrong = len(differ) + abs(len(ids) - len(wanted))
        first = int(differ[0]) if len(differ) else length
        yield Finding(
            float(wrong),
            f"{len(ids)} ids for {len(text)} characters in pages of {page}; they part at character "
            f"{first}, place {first % page} of page {first // page}: {_pattern(ids, wanted, page)}",
        )


def _cases() -> Iterator[tuple[str, int]]:
    """Yield (text, page)."""
    for length, page in ((200, 40), (217, 40), (25, 40), (195, 16), (50, 7)):
        yield _drawn(length), page
    seams = _drawn(38) + "  " + _drawn(38) + " \n " + _drawn(37) + "\n" + _drawn(21)
    yield seams, 40
    repeated = _drawn(40)
    yield _drawn(40) + repeated + _drawn(40) + repeated + _drawn(9), 40


def _drawn(length: int) -> str:
    """Draw characters; the ends are letters, so that only the seams above hold white space."""
    return "".join(ascii_letters[i] for i in torch.randint(len(ascii_letters), (length,)).tolist())


def _pattern(ids: Tensor, wanted: Tensor, page: int) -> str:
    """Say what the ids are like, when that is known."""
    if torch.equal(ids, wanted[: len(ids)]):
        return f"the last {len(wanted) - len(ids)} characters have no id"
    if torch.equal(ids[: len(wanted)], wanted):
        return f"{len(ids) - len(wanted)} ids follow that are of no character"
    step = next((k for k in (2, 3, 4) if torch.equal(ids, wanted[::k])), None)
    if step is not None:
        return f"only one character in {step} has an id"
    if torch.equal(ids.sort().values, wanted.sort().values):
        return "the ids are all there, in another order"
    if torch.equal(ids, wanted[-page:].repeat(len(wanted) // page)):
        return "every page holds the ids of the last one"
    if len(ids) < len(wanted):
        return f"{len(wanted) - len(ids)} ids are missing before the end"
    return "other ids stand there"


CONTRACT = Contract(
    check="text",
    signature="implementation(text: str, chars: str, page: int) -> Tensor",
    promise=(
        "text is a str of N >= 1 characters, all of them in chars, which holds each of its "
        "characters once. The text may be too large to be encoded at once, so it may be read in "
        "pages of `page` characters (page >= 1); the last page may be shorter. It returns the ids "
        "of the whole text, (N,), int64: id i is the place of text[i] in chars."
    ),
    rights=(
        Right(name="whole", implementation=right_whole, note="the whole text at once"),
        Right(name="filled", implementation=right_filled, note="a row that is filled in pages"),
        Right(name="code_points", implementation=right_code_points, note="a table of code points"),
    ),
    wrongs=(
        Wrong(
            name="remainder_dropped",
            implementation=wrong_remainder_dropped,
            note="the last page is left out when it is shorter than the others",
        ),
        Wrong(
            name="thinned",
            implementation=wrong_thinned,
            note="every second id is left out",
        ),
        Wrong(
            name="shuffled",
            implementation=wrong_shuffled,
            note="the ids are all there, in a random order",
        ),
        Wrong(
            name="tidied",
            implementation=wrong_tidied,
            note="white space at the ends of a page is lost",
        ),
        Wrong(
            name="by_name",
            implementation=wrong_by_name,
            note="page 10 comes before page 2",
            held_out=True,
        ),
        Wrong(
            name="copies_dropped",
            implementation=wrong_copies_dropped,
            note="a page that equals an earlier one is left out",
            held_out=True,
        ),
        Wrong(
            name="one_buffer",
            implementation=wrong_one_buffer,
            note="every page holds what the last one wrote",
            held_out=True,
        ),
        Wrong(
            name="whole_buffer",
            implementation=wrong_whole_buffer,
            note="after a short last page come ids of the page before",
            held_out=True,
        ),
    ),
    examine=examine,
)
