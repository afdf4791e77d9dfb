"""The text of single ids: what decode gives, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from diagnostics._pieces import PIECE_LENGTH_MAX, pieces_of


class _Bytes:
    """A byte-level vocabulary: half a character decodes to a replacement character."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode("utf-8", "replace")


class _Odd(_Bytes):
    """A decode that gives what it likes."""

    def __init__(self, gives: Any) -> None:
        self.gives = gives

    def decode(self, ids: list[int]) -> Any:
        if isinstance(self.gives, Exception):
            raise self.gives
        return self.gives


def test_each_id_is_decoded_alone_and_once_in_rising_order() -> None:
    pieces = pieces_of(_Bytes(), [98, 97, 98, 0xC3])
    assert list(pieces.items()) == [("97", "a"), ("98", "b"), ("195", "�")]


def test_a_negative_id_has_no_text() -> None:
    """A table would read it from its end."""
    assert pieces_of(_Bytes(), [-1, 97]) == {"97": "a"}


@pytest.mark.parametrize("gives", [None, b"a", 3, KeyError(7), RuntimeError("broken")])
def test_what_is_no_text_is_left_out(gives: Any) -> None:
    assert pieces_of(_Odd(gives), [1]) == {}


def test_hostile_text_is_passed_on_as_it_is_and_cut() -> None:
    """The renderer makes it harmless; the report says what the tokenizer says."""
    hostile = "<script>\u202e\x1b[2J\ud800"
    assert pieces_of(_Odd(hostile), [1]) == {"1": hostile}
    assert pieces_of(_Odd("x" * 1000), [1]) == {"1": "x" * PIECE_LENGTH_MAX}


@pytest.mark.parametrize("tokenizer", [None, object(), "text"])
def test_what_is_no_tokenizer_gives_no_pieces(tokenizer: Any) -> None:
    assert pieces_of(tokenizer, [1]) == {}
