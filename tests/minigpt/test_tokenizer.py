"""The character tokenizer: lossless, and clear about what it does not know."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minigpt.fingerprint import tokenizer_fingerprint
from minigpt.tokenizer import BLOCK_LENGTH, SHORT_LENGTH, CharTokenizer, UnknownCharacterError

# Long enough to leave the short path, and to cross the border between two blocks.
LENGTHS = (1, SHORT_LENGTH, SHORT_LENGTH + 1, BLOCK_LENGTH + 7)
unicode_text = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=200, deadline=None)
@given(text=unicode_text, repeats=st.sampled_from([1, 300]))
def test_every_unicode_text_round_trips(text: str, repeats: int) -> None:
    """Any text without surrogates comes back exactly, by the short and by the long path."""
    tokenizer, text = CharTokenizer.from_text(text), text * repeats
    index = {char: i for i, char in enumerate(sorted(set(text)))}
    expected = [index[char] for char in text]
    assert tokenizer.encode(text) == expected
    assert tokenizer.encode_tensor(text).tolist() == expected
    assert tokenizer.decode(expected) == text
    assert tokenizer.decode(torch.tensor(expected)) == text


@settings(max_examples=50, deadline=None)
@given(text=unicode_text)
def test_saved_tokenizer_loads_equal(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Saving and loading keeps characters, order and fingerprint, whatever the characters."""
    path = tmp_path_factory.mktemp("tokenizer") / "char_tokenizer.json"
    tokenizer = CharTokenizer.from_text(text)
    tokenizer.save(path)
    loaded = CharTokenizer.from_file(path)
    assert loaded == tokenizer
    assert loaded.chars == sorted(set(text))
    assert loaded.fingerprint == tokenizer_fingerprint(sorted(set(text)))


def test_small_vocabulary_by_hand() -> None:
    """`from_text` sorts by code point, the constructor keeps the order it is given."""
    assert CharTokenizer.from_text("hello").chars == ["e", "h", "l", "o"]
    assert CharTokenizer.from_text("hello").encode("hello") == [1, 0, 2, 2, 3]
    tokenizer = CharTokenizer(["b", "a"])
    assert (tokenizer.encode("ab"), tokenizer.vocab_size, len(tokenizer)) == ([1, 0], 2, 2)
    assert tokenizer != CharTokenizer(["a", "b"])
    assert "2 characters" in repr(tokenizer)


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("alphabet", ["ab\n", "a\x00\r\n", "aé\u0301", "a\u20ac", "a😀\U0010ffff"])
def test_lengths_and_kinds_of_text(alphabet: str, length: int) -> None:
    """Latin, NUL, CR, combining, BMP and astral characters pass at every length."""
    text = (alphabet * (length // len(alphabet) + 1))[:length]
    tokenizer = CharTokenizer.from_text(alphabet)
    ids = tokenizer.encode_tensor(text)
    assert ids.dtype == torch.int64
    assert ids.shape == (length,)
    assert tokenizer.encode(text) == ids.tolist()
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text
    assert tokenizer.decode(ids.numpy().astype(np.uint8)) == text


@pytest.mark.parametrize("count", [255, 256, 257, 1000])
@pytest.mark.parametrize("length", [5, SHORT_LENGTH + 1000])
def test_lists_around_the_size_of_a_byte(count: int, length: int) -> None:
    """Vocabularies up to 256 take a shorter way; U+FFFE is what Python's tables call undefined."""
    chars = ["\ufffe", "\uffff", "\x00", "\U0001f600", *map(chr, range(0x4E00, 0x4E00 + count - 4))]
    tokenizer = CharTokenizer(chars)
    ids = [(7 * i) % count for i in range(length)]
    text = "".join(chars[index] for index in ids)
    assert tokenizer.encode(text) == ids
    assert {type(index) for index in tokenizer.encode(text)} == {int}
    for form in (ids, tuple(ids), torch.tensor(ids), [np.int64(index) for index in ids]):
        assert tokenizer.decode(form) == text
    for bad in (count, 256 + count, -1):
        with pytest.raises(IndexError, match=rf"0\.\.{count - 1}, got {bad} at position {length}"):
            tokenizer.decode([*ids, bad])
    with pytest.raises(TypeError):
        tokenizer.decode([1.0])  # type: ignore[list-item]


def test_empty_text_has_no_ids() -> None:
    """Nothing in, nothing out, with the same types."""
    tokenizer = CharTokenizer("ab")
    assert tokenizer.encode("") == []
    assert tokenizer.encode_tensor("").shape == (0,)
    assert tokenizer.encode_tensor("").dtype == torch.int64
    assert tokenizer.decode([]) == tokenizer.decode(torch.empty(0, dtype=torch.int64)) == ""


@pytest.mark.parametrize("before", [3, SHORT_LENGTH + 3, BLOCK_LENGTH + 3])
@pytest.mark.parametrize("char", ["é", "\u20ac", "😀", "\ud800", "b"])
def test_unknown_character_is_named(char: str, before: int) -> None:
    """The error is a `KeyError` with repr, code point, position and surroundings."""
    text = "a" * before + char + "a" * 30
    with pytest.raises(KeyError) as caught:
        CharTokenizer("ac").encode(text)
    around = repr(text[before - min(before, 10) : before + 11])
    for part in (repr(char), f"U+{ord(char):04X}", f"position {before}", around):
        assert part in str(caught.value)
    with pytest.raises(UnknownCharacterError):
        CharTokenizer("ac").encode_tensor(text)


@pytest.mark.parametrize("bad", [-1, 2, 255, -(2**40)])
@pytest.mark.parametrize("before", [1, SHORT_LENGTH, BLOCK_LENGTH])
def test_id_out_of_range_never_wraps(bad: int, before: int) -> None:
    """A negative or too large id is an `IndexError` with the limit and the position."""
    ids = [0] * before + [bad, 0]
    for form in (ids, torch.tensor(ids), np.array(ids)):
        with pytest.raises(IndexError, match=rf"0\.\.1, got {bad} at position {before}"):
            CharTokenizer("ab").decode(form)


def test_ids_of_other_forms_are_refused() -> None:
    """Two dimensions, fractions and numbers beyond int64 each get their own error."""
    tokenizer = CharTokenizer("ab")
    with pytest.raises(ValueError, match=r"\(N,\), got \(1, 2\)"):
        tokenizer.decode(torch.zeros(1, 2, dtype=torch.int64))
    with pytest.raises(TypeError, match="float32"):
        tokenizer.decode(torch.zeros(2))
    with pytest.raises(IndexError, match="int64"):
        tokenizer.decode([2**70])
    with pytest.raises(TypeError, match="bytes"):
        tokenizer.encode(b"a")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("chars", "message"),
    [
        ([], "at least one character"),
        (["a", "b", "a"], r"'a' \(U\+0061\) at index 0 and again at index 2"),
        (["a", "bc"], "single characters, got 'bc' at index 1"),
        (["a", ""], "single characters, got '' at index 1"),
        (["a", 1], "single characters, got 1 at index 1"),
        (["a", "\ud800"], r"surrogate U\+D800 at index 1"),
    ],
)
def test_bad_vocabulary_is_refused(chars: list[str], message: str) -> None:
    """Each way of being wrong is named, with its place."""
    with pytest.raises(ValueError, match=message):
        CharTokenizer(chars)
    with pytest.raises(ValueError, match="at least one character"):
        CharTokenizer.from_text("")


def test_file_is_exactly_the_documented_form(tmp_path: Path) -> None:
    """The file holds `{"chars": [...]}` in UTF-8; a reader needs no more, and may find more."""
    path = tmp_path / "new folder" / "char_tokenizer.json"
    CharTokenizer(["é", "\n"]).save(path)
    assert path.read_bytes() == '{"chars": ["é", "\\n"]}\n'.encode()
    path.write_text('{"chars": ["x", "\\u00e9"], "made by": "hand"}', encoding="utf-8")
    assert CharTokenizer.from_file(path).chars == ["x", "é"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b'{"chars": ["a"',
        b"\xff\xfe\x00",
        b"[]",
        b"[" * 9999,
        b'{"chars": "ab"}',
        *(json.dumps({"chars": chars}).encode() for chars in ([], ["a", "a"], ["ab"], ["\ud800"])),
    ],
)
def test_damaged_file_names_path_and_remedy(content: bytes, tmp_path: Path) -> None:
    """Empty, truncated, foreign and unusable files give a `ValueError` that says what to do."""
    path = tmp_path / "char_tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"char_tokenizer\.json .*`python -m minigpt\.prepare`"):
        CharTokenizer.from_file(path)


def test_missing_file_names_path_and_remedy(tmp_path: Path) -> None:
    """A missing tokenizer is a `FileNotFoundError` with the command that creates it."""
    with pytest.raises(FileNotFoundError, match=r"nowhere\.json; .*minigpt\.prepare"):
        CharTokenizer.from_file(tmp_path / "nowhere.json")
