"""The contract of the files: a text that is read whole and as it was written, or not at all.

Shapes: N bytes of a file.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_letters

import torch
from torch import Tensor

from diagnostics._lost_text import around, first_difference
from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_text,
)

FRENCH = "D\u00e9j\u00e0 vu : un caf\u00e9 cr\u00e8me, s'il vous pla\u00eet.\r\n"
EUROS = "\u20ac" * 400  # three bytes each: the end of a piece of 64, 100 or 1024 is within one
NOT_UTF8 = (  # a byte that never occurs, a rest of a character, a surrogate, a zero in two bytes
    (b"ab\xffcd", "the byte FF"),
    (b"\xa9 2026", "the second half of a character at its start"),
    (b"ab\xed\xa0\x80cd", "half of a pair of UTF-16"),
    (b"ab\xc0\x80cd", "the character 0 in two bytes"),
)


def right_bytes(content: Tensor, card: dict[str, int]) -> str | None:
    """Compare, and decode in one go."""
    raw = bytes(content.tolist())
    if len(raw) != card["bytes"] or sum(raw) != card["sum"]:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def right_characters(content: Tensor, card: dict[str, int]) -> str | None:
    """Find where characters begin, and decode them one by one."""
    if content.shape[0] != card["bytes"] or content.long().sum() != card["sum"]:
        return None
    begins = (content & 0b1100_0000) != 0b1000_0000  # (N,), no byte inside of a character
    starts = sorted({0, *begins.nonzero().flatten().tolist()})
    ends = [*starts[1:], len(content)]
    try:
        pieces = zip(starts, ends, strict=True)
        return "".join(str(bytes(content[a:b].tolist()), "utf-8") for a, b in pieces)
    except ValueError:
        return None


def right_escapes(content: Tensor, card: dict[str, int]) -> str | None:
    """Decode what can be decoded, and look for what could not."""
    raw = bytearray(content.numel())
    for place, byte in enumerate(content.tolist()):
        raw[place] = byte
    text = raw.decode("utf-8", "surrogateescape")
    escaped = any("\udc80" <= char <= "\udcff" for char in text)
    agrees = card == {"bytes": len(raw), "sum": int(content.double().sum())}
    return text if agrees and not escaped else None


def wrong_latin(content: Tensor, card: dict[str, int]) -> str | None:
    """Read every byte as one character, which never fails."""
    raw = bytes(content.tolist())
    if len(raw) != card["bytes"] or sum(raw) != card["sum"]:
        return None
    try:
        return raw.decode("latin-1")  # BROKEN: was return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def wrong_errors_ignored(content: Tensor, card: dict[str, int]) -> str | None:
    """Leave out the bytes that cannot be read."""
    raw = bytes(content.tolist())
    if len(raw) != card["bytes"] or sum(raw) != card["sum"]:
        return None
    try:
        return raw.decode("utf-8", "ignore")  # BROKEN: was return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def wrong_any_size(content: Tensor, card: dict[str, int]) -> str | None:
    """Take a file that is not empty for a whole one."""
    raw = bytes(content.tolist())
    wanted = (card["bytes"], card["sum"])
    whole = len(raw) > 0  # BROKEN: was whole = (len(raw), sum(raw)) == wanted
    try:
        return raw.decode("utf-8") if whole and wanted else None
    except UnicodeDecodeError:
        return None


def wrong_lines_translated(content: Tensor, card: dict[str, int]) -> str | None:
    """Read in text mode, which turns the line ends of another system into its own."""
    raw = bytes(content.tolist())
    if len(raw) != card["bytes"] or sum(raw) != card["sum"]:
        return None
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    return text.replace("\r\n", "\n")  # BROKEN: was return text


def wrong_same_size(content: Tensor, card: dict[str, int]) -> str | None:
    """Take equal size for equality."""
    raw = bytes(content.tolist())
    size, total = card["bytes"], card["sum"]
    whole = len(raw) == size  # BROKEN: was whole = len(raw) == size and sum(raw) == total
    try:
        return raw.decode("utf-8") if whole and total >= 0 else None
    except UnicodeDecodeError:
        return None


def wrong_rest_ignored(content: Tensor, card: dict[str, int]) -> str | None:
    """Read as many bytes as are promised, and overlook the rest of an older file."""
    wanted = card["bytes"]
    raw = bytes(content[:wanted].tolist())  # BROKEN: was raw = bytes(content.tolist())
    if len(raw) != wanted or sum(raw) != card["sum"]:
        return None
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return None


def wrong_characters_counted(content: Tensor, card: dict[str, int]) -> str | None:
    """Compare the number of characters with the number of bytes."""
    raw = bytes(content.tolist())
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return None
    length = len(text)  # BROKEN: was length = len(raw)
    return text if length == card["bytes"] and sum(raw) == card["sum"] else None


def wrong_pieces(content: Tensor, card: dict[str, int]) -> str | None:
    """Decode in pieces of 64 bytes, which may end within a character."""
    raw = bytes(content.tolist())
    if len(raw) != card["bytes"] or sum(raw) != card["sum"]:
        return None
    step = 64  # BROKEN: was step = len(raw)
    pieces = [raw[start : start + step] for start in range(0, len(raw), step)]
    try:
        return "".join(piece.decode("utf-8") for piece in pieces)
    except UnicodeDecodeError:
        return None


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Offer whole files and damaged ones, with the card that belongs to each."""
    for told, written, found in _cases():
        content = torch.tensor(list(found), dtype=torch.uint8)  # (N,)
        given = implementation(content, {"bytes": len(written), "sum": sum(written)})
        text = None if given is None else as_text(given, "the result")
        wanted = _text_of(written) if written == found else None
        yield Finding(float(text != wanted), f"{told}: {_difference(text, wanted)}")


def _cases() -> Iterator[tuple[str, bytes, bytes]]:
    """Yield (what it is, the bytes that were written, the bytes that are there)."""
    plain = f"{_drawn(30)}\n{_drawn(40)}\n".encode()
    french = (FRENCH * 3 + _drawn(10)).encode()
    euros = (_drawn(3) + EUROS).encode()
    yield f"a whole file of {len(plain)} bytes of ASCII", plain, plain
    yield f"a whole file of {len(french)} bytes, with accents and CRLF", french, french
    yield f"a whole file of {len(euros)} bytes, 3 for most characters", euros, euros
    yield f"the first {len(plain) // 2} of {len(plain)} bytes", plain, plain[: len(plain) // 2]
    yield f"the first 2 of {len(french)} bytes, cut within a character", french, french[:2]
    yield f"a file with {len(plain)} bytes of an older one behind it", french, french + plain
    yield f"another file of the same {len(plain)} bytes", plain, _drawn(len(plain)).encode()
    code_page = FRENCH.encode("cp1252")
    yield f"a file of {len(code_page)} bytes in cp1252, not UTF-8", code_page, code_page
    for broken, what in NOT_UTF8:
        yield f"a file of {len(broken)} bytes, among them {what}", broken, broken
    yield "a whole file of one byte", b"a", b"a"


def _drawn(length: int) -> str:
    return "".join(ascii_letters[i] for i in torch.randint(len(ascii_letters), (length,)).tolist())


def _text_of(content: bytes) -> str | None:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _difference(text: str | None, wanted: str | None) -> str:
    if text == wanted:
        return "treated as promised"
    if wanted is None:
        return f"it was accepted as a text of {len(text or '')} characters, wanted None"
    if text is None:
        return f"it was refused, wanted the text of {len(wanted)} characters"
    place = first_difference(text, wanted)
    return (
        f"{len(text)} characters came back, wanted {len(wanted)}; at character {place} "
        f"{around(text, place, 2)} stands for {around(wanted, place, 2)}"
    )


CONTRACT = Contract(
    check="files",
    signature="implementation(content: Tensor, card: dict[str, int]) -> str | None",
    promise=(
        "content is (N,), uint8, N >= 1: the bytes of a text file as they are on the disk. card "
        'was stored beside the file when it was written: card["bytes"] is the number of its '
        'bytes, and card["sum"] their sum as numbers from 0 to 255. It returns the text, decoded '
        "as UTF-8, every character and line end as it was written. It returns None when the file "
        "is not the one of the card in size and sum, or when it is not UTF-8."
    ),
    rights=(
        Right(name="bytes", implementation=right_bytes, note="decoded in one go"),
        Right(name="characters", implementation=right_characters, note="one character at a time"),
        Right(name="escapes", implementation=right_escapes, note="a search for escaped bytes"),
    ),
    wrongs=(
        Wrong(
            name="latin",
            implementation=wrong_latin,
            note="every byte is read as one character",
        ),
        Wrong(
            name="errors_ignored",
            implementation=wrong_errors_ignored,
            note="bytes that are not UTF-8 are left out",
        ),
        Wrong(
            name="any_size",
            implementation=wrong_any_size,
            note="size and sum are not compared",
        ),
        Wrong(
            name="same_size",
            implementation=wrong_same_size,
            note="another file of the same size is accepted",
        ),
        Wrong(
            name="lines_translated",
            implementation=wrong_lines_translated,
            note="CRLF becomes LF",
            held_out=True,
        ),
        Wrong(
            name="rest_ignored",
            implementation=wrong_rest_ignored,
            note="what is behind the promised bytes is overlooked",
            held_out=True,
        ),
        Wrong(
            name="characters_counted",
            implementation=wrong_characters_counted,
            note="characters are counted where the card counts bytes",
            held_out=True,
        ),
        Wrong(
            name="pieces",
            implementation=wrong_pieces,
            note="pieces of 64 bytes are decoded one by one, and may end within a character",
            held_out=True,
        ),
    ),
    examine=examine,
)
