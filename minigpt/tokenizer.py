"""The character tokenizer: every character of the corpus has a number, its id.

Ids are positions in the list of characters. `from_text` sorts that list by code point: the order
of a `set` changes from one Python process to the next, and a model loaded with another order
runs without an error and writes nonsense.

Long texts are not looped over. A string is a row of numbers already, its code points, so one
table with an id for every code point turns all of them into ids at once (and the other way round
when decoding).

Shapes: N characters of a text, V characters in the vocabulary.
"""

from __future__ import annotations

import codecs
import json
import os
from array import array
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt._files import atomic_write
from minigpt.fingerprint import tokenizer_fingerprint

IntArray = npt.NDArray[np.integer[Any]]

SHORT_LENGTH = 256  # below about this many characters a plain loop is faster than NumPy
BLOCK_LENGTH = 32_768  # characters at a time: what is in work fits the processor's cache
BYTE_IDS = 256  # a list of ids below it goes through `bytes`, the quickest way out of a list
CONTEXT_LENGTH = 10  # characters shown on each side of an unknown one


class UnknownCharacterError(KeyError):
    """A character that the tokenizer has no id for; the message says which one and where."""

    def __str__(self) -> str:  # KeyError shows the repr of its message, quotes included
        return str(self.args[0])


class CharTokenizer:
    """Turns text into ids and ids into text, one id per character, without any loss.

    `chars` are the characters in the order of their ids. Raises `ValueError` when there are none,
    when one appears twice, and for anything that is not exactly one Unicode character.
    """

    def __init__(self, chars: Iterable[str]) -> None:
        self._chars = tuple(chars)
        _require_distinct_characters(self._chars)
        self._id_of = {char: index for index, char in enumerate(self._chars)}
        self._id_table = _make_id_table(self._chars)  # indexed by code point
        # Latin-1 is the code points 0..255 in one byte each: a quarter of the memory to write.
        latin = max(self._chars) <= "\xff"
        self._codec, code_type = ("latin-1", "u1") if latin else ("utf-32-le", "<u4")
        # Python decodes bytes with a table of up to 256 characters: a list of ids, for example.
        few = len(self._chars) <= BYTE_IDS
        self._byte_table = "".join(self._chars) if few else None
        self._code_points = np.array([ord(char) for char in self._chars], dtype=code_type)  # (V,)

    @classmethod
    def from_text(cls, text: str) -> CharTokenizer:
        """Return the tokenizer of all characters that occur in `text`, sorted by code point."""
        if not text:
            raise ValueError("a vocabulary needs a text of at least one character, got none")
        return cls(sorted(set(text)))

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> CharTokenizer:
        """Read `{"chars": [...]}`, as `save` writes it; other keys are passed over.

        Raises `FileNotFoundError` when there is no such file, and `ValueError` when it is not
        that kind of file (empty, truncated, foreign). Both name the path and what to do.
        """
        remedy = "create it with `python -m minigpt.prepare`"
        try:
            raw = Path(path).read_bytes()
            if not raw:
                raise ValueError("it is empty")
            content = json.loads(raw)
        except FileNotFoundError:
            raise FileNotFoundError(f"no tokenizer file at {path}; {remedy}") from None
        except (ValueError, RecursionError) as error:  # not JSON, or not UTF-8
            raise ValueError(f"{path} is no readable tokenizer ({error}); {remedy}") from None
        chars = content.get("chars") if isinstance(content, dict) else None
        if not isinstance(chars, list):
            raise ValueError(f'{path} must hold {{"chars": [...]}}, got no such list; {remedy}')
        try:
            return cls(chars)
        except ValueError as error:
            raise ValueError(f"{path} is no usable tokenizer: {error}; {remedy}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write `{"chars": [...]}` as JSON in UTF-8; a failure leaves the old file as it was."""
        with atomic_write(path) as file:
            file.write(self.to_json().encode())

    def to_json(self) -> str:
        """Return what `save` writes."""
        return json.dumps({"chars": self.chars}, ensure_ascii=False) + "\n"

    def encode(self, text: str) -> list[int]:
        """Return the N ids of `text`; raises `UnknownCharacterError` (a `KeyError`).

        Nothing is skipped or replaced: `decode(encode(text)) == text`, always.
        """
        if isinstance(text, str) and len(text) <= SHORT_LENGTH:
            try:
                return list(map(self._id_of.__getitem__, text))  # faster than a comprehension
            except KeyError:
                raise self._unknown_character(text, start=0) from None
        ids = self._encode_array(text)
        if self.vocab_size <= BYTE_IDS:
            return list(ids.astype(np.uint8).tobytes())
        return ids.tolist()

    def encode_tensor(self, text: str) -> Tensor:
        """Return the ids of `text` as an int64 tensor of shape (N,): the way to take for a corpus.

        Raises `UnknownCharacterError` (a `KeyError`) as `encode` does.
        """
        return torch.from_numpy(self._encode_array(text))

    def decode(self, ids: Tensor | IntArray | Sequence[int]) -> str:
        """Return the text of N ids, given as a list, an integer tensor or an integer array.

        Raises `IndexError` for an id outside 0..V-1 (a negative one too: it would silently count
        from the end), `ValueError` for more than one dimension, `TypeError` for other types.
        """
        if isinstance(ids, list) and self._byte_table is not None:
            try:
                return codecs.charmap_decode(bytes(ids), "strict", self._byte_table)[0]
            except (ValueError, TypeError):  # an id out of range, or none
                pass  # the path below reports it
        return self._decode_array(_to_array(ids))

    @property
    def vocab_size(self) -> int:
        """How many characters there are: V. Ids run from 0 to V - 1."""
        return len(self._chars)

    @property
    def chars(self) -> list[str]:
        """The characters in the order of their ids (a fresh list)."""
        return list(self._chars)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the characters and their order, see `tokenizer_fingerprint`."""
        return tokenizer_fingerprint(self._chars)

    def __len__(self) -> int:
        return len(self._chars)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, CharTokenizer) and self._chars == other._chars

    def __hash__(self) -> int:
        return hash(self._chars)

    def __repr__(self) -> str:
        return f"CharTokenizer({len(self)} characters, fingerprint {self.fingerprint[:12]}...)"

    def _encode_array(self, text: str) -> npt.NDArray[np.int64]:
        _require_text(text)
        ids = np.empty(len(text), dtype=np.int64)  # (N,)
        for start in range(0, len(text), BLOCK_LENGTH):
            # Surrogates pass here so that they are reported as unknown, like any other stranger.
            encoded = text[start : start + BLOCK_LENGTH].encode("utf-32-le", "surrogatepass")
            code_points = np.frombuffer(encoded, dtype="<u4")
            block = ids[start : start + BLOCK_LENGTH]
            # Code points past the table are clipped to its last entry, which means "unknown".
            self._id_table.take(code_points, mode="clip", out=block)
            if block.min() < 0:
                raise self._unknown_character(text, start=start)
        return ids

    def _decode_array(self, ids: IntArray) -> str:
        pieces = []
        for start in range(0, len(ids), BLOCK_LENGTH):
            block = ids[start : start + BLOCK_LENGTH]
            if block.min() < 0 or block.max() >= self.vocab_size:
                raise self._id_out_of_range(block, start)
            code_points = self._code_points.take(block, mode="clip")
            pieces.append(code_points.tobytes().decode(self._codec))
        return "".join(pieces)

    def _unknown_character(self, text: str, start: int) -> UnknownCharacterError:
        """Describe the first unknown character of `text` at or after `start`."""
        position = next(i for i in range(start, len(text)) if text[i] not in self._id_of)
        char = text[position]
        around = text[max(0, position - CONTEXT_LENGTH) : position + CONTEXT_LENGTH + 1]
        return UnknownCharacterError(
            f"unknown character {char!r} (U+{ord(char):04X}) at position {position}, "
            f"in {around!r}; the tokenizer knows {self.vocab_size} others. Use the tokenizer "
            "that was built from this text, or build one with `python -m minigpt.prepare`"
        )

    def _id_out_of_range(self, block: IntArray, start: int) -> IndexError:
        offset = int(np.flatnonzero((block < 0) | (block >= self.vocab_size))[0])
        return IndexError(
            f"ids must lie in 0..{self.vocab_size - 1}, got {block[offset]} at position "
            f"{start + offset}; were they made with another tokenizer?"
        )


def _require_distinct_characters(chars: tuple[str, ...]) -> None:
    if not chars:
        raise ValueError("a vocabulary needs at least one character, got none")
    seen: dict[str, int] = {}
    for index, char in enumerate(chars):
        if not isinstance(char, str) or len(char) != 1:
            raise ValueError(f"chars must be single characters, got {char!r} at index {index}")
        if "\ud800" <= char <= "\udfff":
            raise ValueError(
                f"chars must be Unicode characters, got the surrogate U+{ord(char):04X} at index "
                f"{index}, which is half of a UTF-16 pair"
            )
        if char in seen:
            raise ValueError(
                f"chars must differ, got {char!r} (U+{ord(char):04X}) at index {seen[char]} "
                f"and again at index {index}"
            )
        seen[char] = index


def _make_id_table(chars: tuple[str, ...]) -> npt.NDArray[np.int64]:
    """Return the id of every code point, -1 where there is none; the last entry is always -1."""
    code_points = [ord(char) for char in chars]
    table = np.full(max(code_points) + 2, -1, dtype=np.int64)
    table[code_points] = np.arange(len(chars))
    return table


def _to_array(ids: Tensor | IntArray | Sequence[int]) -> IntArray:
    if isinstance(ids, Tensor):
        values: npt.NDArray[Any] = ids.detach().cpu().numpy()
    elif isinstance(ids, np.ndarray):
        values = ids
    else:
        try:
            values = np.asarray(array("q", ids))  # three times as fast as np.array(ids)
        except OverflowError:
            raise IndexError("ids must lie inside the vocabulary, got one beyond int64") from None
    if values.ndim != 1:
        raise ValueError(f"ids must have shape (N,), got {values.shape}; decode one row at a time")
    if not np.issubdtype(values.dtype, np.integer):
        raise TypeError(f"ids must be whole numbers, got dtype {values.dtype}")
    return values


def _require_text(text: object) -> None:
    if not isinstance(text, str):
        raise TypeError(f"text must be a str, got {type(text).__name__}")
