"""Stored ids, decoded, and the text that they are said to come from, side by side.

Shapes: N ids of the stored row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from diagnostics._lost_text import essence
from diagnostics._tokenizer import TokenizerReader, is_special

Ids = npt.NDArray[np.int64]

FULL_MAX = 2**20  # ids that are decoded by the tokenizer itself; a table decodes 32 times as many
ENDS_LENGTH = 2**16  # ids at the head of a longer row that are decoded instead
PIECES = 64  # pieces that are looked for in the text
HEAD_LENGTH = 4_000  # characters that are encoded, or changed in every usual way
MARGIN = 16  # characters at a cut that another segmentation may have changed


class StoredText:
    """One row of ids beside one text. Everything is found out lazily and once."""

    def __init__(self, reader: TokenizerReader, ids: Any, text: str) -> None:
        self.reader = reader
        self.ids: Ids = torch.as_tensor(ids).flatten().cpu().long().numpy()  # (N,)
        self.raw_text = text

    @cached_property
    def specials(self) -> dict[int, str]:
        """Ids that mark a place instead of standing for text, and what decode makes of them."""
        reader, tokenizer = self.reader, self.reader.tokenizer
        found = {i for name, i in reader.special_ids.items() if not name.startswith("unk")}
        for name in ("all_special_ids", "special_tokens"):
            listed = getattr(tokenizer, name, None)
            listed = listed.values() if isinstance(listed, Mapping) else listed
            if isinstance(listed, (list, tuple, set)) or hasattr(listed, "__iter__"):
                found |= {i for i in listed or () if type(i) is int}
        found -= {getattr(tokenizer, "unk_token_id", None)}  # it does stand for text
        for name in ("get_added_tokens_decoder", "added_tokens_decoder"):  # Hugging Face
            added = getattr(tokenizer, name, None)
            added = added() if callable(added) else added
            if isinstance(added, Mapping):
                found |= {i for i, entry in added.items() if getattr(entry, "special", False)}
        for i, entry in enumerate(reader.entries or []):
            # "<div>" is text where the text has it; "<|endoftext|>" never is
            if is_special(entry) and (entry.startswith("<|") or entry not in self.raw_text):
                found.add(i)
        return {i: self._marker(i) for i in sorted(found) if i is not None}

    def count_marks(self) -> dict[int, int]:
        """Return how often each special id occurs."""
        found = self.ids[np.isin(self.ids, list(self.specials))]
        values, counts = np.unique(found, return_counts=True)
        marks = dict(zip(values.tolist(), counts.tolist(), strict=True))
        return {index: marks.get(index, 0) for index in self.specials}

    @cached_property
    def plain_ids(self) -> Ids:
        """The ids without the special ones (N or fewer)."""
        if not self.specials:
            return self.ids
        return self.ids[~np.isin(self.ids, list(self.specials))]

    @cached_property
    def is_whole(self) -> bool:
        """Whether all of the ids are decoded; else the head, and pieces of the rest."""
        return len(self.plain_ids) <= (FULL_MAX if self._codes is None else 32 * FULL_MAX)

    @cached_property
    def stored(self) -> str:
        """What the ids say, folded; only their head when there are too many."""
        told = self._told
        for index in self.spelled:
            told = told.replace(self.specials[index], "")
        told = self.fold(told)
        return told if self.is_whole else told[:-MARGIN]

    @cached_property
    def spelled(self) -> dict[int, int]:
        """How often each mark that train_text holds is spelled out in ids of plain text."""
        written = {i: m for i, m in self.specials.items() if len(m) > 1 and m in self.raw_text}
        counts = {i: self._told.count(marker) for i, marker in written.items()}
        return {i: count for i, count in counts.items() if count}

    @cached_property
    def _told(self) -> str:
        return self.decode(self.plain_ids if self.is_whole else self.plain_ids[:ENDS_LENGTH])

    @cached_property
    def bare_text(self) -> str:
        """train_text without the marks that special ids are written as."""
        text = self.raw_text
        for marker in self.specials.values():
            if len(marker) > 1:
                text = text.replace(marker, "")
        return text

    @cached_property
    def text(self) -> str:
        """The bare text, folded."""
        return self.fold(self.bare_text)

    def fold(self, text: str) -> str:
        """Take away what a healthy preparation may change: nothing for a table of characters.

        White space where subwords or marked documents were joined; letter case and accents too
        where the tokenizer itself gives them up.
        """
        if self.is_exact:
            return text
        return essence(text) if self.is_lossy else "".join(text.split())

    @cached_property
    def is_exact(self) -> bool:
        """Whether each character of the text must stand in the ids, white space included."""
        joined = len(self.plain_ids) < len(self.ids)  # special ids stand where white space was
        return self.reader.is_character_level and not joined

    @cached_property
    def is_lossy(self) -> bool:
        """Whether the tokenizer gives back another form of the text than it gets."""
        head = self.bare_text[:HEAD_LENGTH]
        ids = self.encode(head)
        again = self.decode(np.array(ids, dtype=np.int64)) if ids else head
        return "".join(again.split()) != "".join(head.split())

    @cached_property
    def true_head(self) -> list[int]:
        """The ids that the tokenizer gives for the head of the text, without the cut's own."""
        ids = self.encode(self.bare_text[:HEAD_LENGTH])
        return ids if self.reader.is_character_level else ids[:-8]

    def decode(self, ids: Ids) -> str:
        """Return the text of plain ids. Raises TypeError when decode gives something else."""
        if self._codes is not None:
            codes = self._codes[ids].tobytes()
            return codes.decode("utf-32-le", "surrogatepass")
        told = self.reader.decode(ids.tolist())
        if not isinstance(told, str):
            raise TypeError(f"decode must give a str, got {type(told).__name__}")
        return told

    def pieces(self, length: int) -> Iterator[str]:
        """Yield pieces of `length` characters from places spread over the stored ids."""
        if self.is_whole:
            told, count = self.stored, len(self.stored) - length
            for place in np.linspace(0, max(0, count), PIECES).astype(int).tolist():
                yield told[place : place + length]
            return
        reach = 2 * (length + MARGIN)  # ids; two of them make a character at least
        for place in np.linspace(0, len(self.plain_ids) - reach, PIECES).astype(int).tolist():
            told = self.fold(self.decode(self.plain_ids[place : place + reach]))
            yield told[MARGIN : MARGIN + length]

    @cached_property
    def _codes(self) -> npt.NDArray[np.uint32] | None:
        """Code points by id, where decode is a plain table of characters."""
        entries = self.reader.characters
        if entries is None or not all(len(entry) == 1 for entry in entries):
            return None
        codes = np.array([ord(entry) for entry in entries], dtype=np.uint32)
        head = self.plain_ids[:256].tolist()
        same = self.reader.decode(head) == "".join(entries[i] for i in head)
        return codes if same else None

    def encode(self, text: str) -> list[int]:
        """Return the plain ids of a text, none for one that cannot be encoded."""
        try:
            ids = self.reader.encode(text)
        except Exception:  # any: a text that it cannot encode is for `roundtrip`
            return []
        return [i for i in ids if i not in self.specials]

    def _marker(self, index: int) -> str:
        try:
            told = self.reader.decode([index])
        except Exception:  # any: the user's decode may know no special ids
            return ""
        return told if isinstance(told, str) else ""
