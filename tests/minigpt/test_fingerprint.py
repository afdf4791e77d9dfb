"""Fingerprints: byte for byte what is documented."""

import hashlib
from pathlib import Path

import pytest

from minigpt.fingerprint import file_fingerprint, text_fingerprint, tokenizer_fingerprint


def test_fingerprint_is_the_sha256_of_the_compact_json() -> None:
    """`["a","b"]`, without spaces, is hashed."""
    assert tokenizer_fingerprint(["a", "b"]) == hashlib.sha256(b'["a","b"]').hexdigest()


def test_fingerprint_hashes_utf8_not_escapes() -> None:
    """Newline and quote are escaped as JSON does, other characters stay as they are."""
    expected = hashlib.sha256('["\\n","\\"","é","😀"]'.encode()).hexdigest()
    assert tokenizer_fingerprint(["\n", '"', "é", "😀"]) == expected


@pytest.mark.parametrize("chars", [["a", "b"], ("a", "b"), "ab"])
def test_list_tuple_and_string_agree(chars: list[str] | tuple[str, ...] | str) -> None:
    """What holds the characters does not matter."""
    assert tokenizer_fingerprint(chars) == tokenizer_fingerprint(["a", "b"])


def test_order_changes_the_fingerprint() -> None:
    """Equal size and equal characters are not enough: ids are positions."""
    assert tokenizer_fingerprint("ab") != tokenizer_fingerprint("ba")


def test_surrogate_is_refused_by_name() -> None:
    """A surrogate has no UTF-8; the message says which one it was."""
    with pytest.raises(ValueError, match=r"chars .* surrogate U\+D800"):
        tokenizer_fingerprint(["a", "\ud800"])
    with pytest.raises(ValueError, match=r"text .* surrogate U\+DFFF"):
        text_fingerprint("a\udfff")


def test_element_that_is_no_string_is_refused() -> None:
    """The number 1 and the character "1" must not be taken for one another."""
    with pytest.raises(TypeError, match="got 1 at position 1"):
        tokenizer_fingerprint(["a", 1])  # type: ignore[list-item]


def test_text_and_file_fingerprints_agree(tmp_path: Path) -> None:
    """A file that holds the UTF-8 of a text has the fingerprint of the text."""
    text = "line\r\né😀" * 100_000
    (tmp_path / "text").write_bytes(text.encode())
    assert text_fingerprint(text) == file_fingerprint(tmp_path / "text")
    assert text_fingerprint("") == hashlib.sha256(b"").hexdigest()
