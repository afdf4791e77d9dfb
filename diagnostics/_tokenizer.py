"""How to ask a tokenizer that we did not write for ids, text, its size and its entries.

Understood: encode that gives a list, a tensor, an array, an object with `.ids` (Hugging Face
tokenizers) or a mapping with `input_ids` (transformers); tiktoken; and plain character tables.

Shapes: N ids of a text, V entries of the vocabulary.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from diagnostics._probe import tokenizer_vocab_size

_CHARACTER_TABLES = ("chars", "itos", "stoi", "id_to_char", "char_to_id", "idx2char", "char2idx")
_ENTRY_TABLES = (*_CHARACTER_TABLES, "get_vocab", "vocab", "id_to_token", "token_to_id")
_SPECIAL_NAMES = ("bos", "eos", "pad", "unk", "sep", "cls", "mask", "eot", "sot")
_SPECIAL_ENTRY = re.compile(r"(<.+>|\[.+\])", re.DOTALL)
CHARACTER_RATIO_MIN = 0.8  # ids per character; subwords of English text measure 0.2 to 0.6


class TokenizerReader:
    """One way to speak to any tokenizer. Raises TypeError when it has no encode or no decode."""

    def __init__(self, tokenizer: Any) -> None:
        for name in ("encode", "decode"):
            if not callable(getattr(tokenizer, name, None)):
                raise TypeError(
                    f"a tokenizer must have encode(text) -> ids and decode(ids) -> text, "
                    f"got {type(tokenizer).__name__} without {name}"
                )
        self.tokenizer = tokenizer
        # special tokens belong to the row, not to the text; nothing may be tidied up either
        self._encode_options = _accepted(
            tokenizer.encode, {"add_special_tokens": False, "disallowed_special": ()}
        )
        self._decode_options = _accepted(
            tokenizer.decode, {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
        )

    def encode(self, text: str) -> list[int]:
        """Return the N ids of a text, without special tokens where that can be asked for."""
        return ids_of(self.tokenizer.encode(text, **self._encode_options))

    def decode(self, ids: Sequence[int]) -> Any:
        """Return what decode gives for N ids: a str when all is well."""
        try:
            return self.tokenizer.decode(list(ids), **self._decode_options)
        except (TypeError, AttributeError):  # a decode that reads tensors only
            return self.tokenizer.decode(torch.tensor(list(ids)), **self._decode_options)

    @cached_property
    def size(self) -> int | None:
        """V as the tokenizer says it, or as many as its entries; None when it tells neither."""
        said = tokenizer_vocab_size(self.tokenizer)
        return said if said is not None or self.entries is None else len(self.entries)

    @cached_property
    def entries(self) -> list[str] | None:
        """The entries in the order of their ids, or None when they cannot be read."""
        return self._table[1]

    @cached_property
    def characters(self) -> list[str] | None:
        """The entries of a character tokenizer, special ones included; None for any other kind."""
        name, entries = self._table
        if entries is None or name not in (*_CHARACTER_TABLES, "get_vocab", "vocab"):
            return None
        if not all(len(entry) == 1 or is_special(entry) for entry in entries):
            return None
        if name not in _CHARACTER_TABLES and not self._entries_are_text(entries):
            return None  # byte-level tables write a space as another character
        return entries

    @cached_property
    def is_character_level(self) -> bool:
        """Whether an id stands for a character or a byte: such a tokenizer has no excuse to lose.

        Read from the entries; measured on a sentence where they cannot be read.
        """
        if self.characters is not None:
            return True
        if self.entries is not None and any(_is_long(entry) for entry in self.entries):
            return False
        sentence = "the quick brown fox jumps over the lazy dog and runs away from it"
        try:
            return len(self.encode(sentence)) >= CHARACTER_RATIO_MIN * len(sentence)
        except Exception:  # any: letters it does not know; a table that small holds characters
            return True

    @cached_property
    def fingerprint(self) -> str | None:
        """SHA-256 of the entries and their order, or the tokenizer's own; None without both."""
        if self.entries is not None:
            return fingerprint_of(self.entries)
        own = getattr(self.tokenizer, "fingerprint", None)
        return own if isinstance(own, str) else None

    @cached_property
    def special_ids(self) -> dict[str, int]:
        """Ids of special tokens under their usual names, such as eos_token_id or pad_id."""
        found: dict[str, int] = {}
        for name in _SPECIAL_NAMES:
            for attribute in (f"{name}_token_id", f"{name}_id", f"{name}_token"):
                value = getattr(self.tokenizer, attribute, None)
                if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
                    found[attribute] = value
                    break
        return found

    @cached_property
    def _table(self) -> tuple[str, list[str] | None]:
        for name in _ENTRY_TABLES:
            raw = getattr(self.tokenizer, name, None)
            if callable(raw) and name == "get_vocab":
                raw = raw()
            entries = _ordered_entries(raw)
            if entries:
                return name, entries
        return "", None

    def _entries_are_text(self, entries: list[str]) -> bool:
        try:
            equal = [bool(self.decode([index]) == entry) for index, entry in enumerate(entries)]
        except Exception:  # any: the user's decode
            return False
        return sum(equal) > len(equal) / 2


def fingerprint_of(entries: Iterable[str]) -> str:
    """Return SHA-256 (64 hex digits) of the entries as compact JSON in UTF-8, in id order."""
    compact = json.dumps(list(entries), ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(compact.encode("utf-8", "surrogatepass")).hexdigest()


def ids_of(raw: Any) -> list[int]:
    """Read ids (N,) out of whatever an encode returned; one batch row is unwrapped.

    Raises TypeError saying what came.
    """
    if isinstance(raw, Mapping) or hasattr(raw, "input_ids"):
        raw = raw["input_ids"] if isinstance(raw, Mapping) else raw.input_ids
    elif hasattr(raw, "ids"):
        raw = raw.ids
    if isinstance(raw, (Tensor, np.ndarray)):
        raw = raw.tolist()
    if isinstance(raw, (list, tuple)) and len(raw) == 1 and isinstance(raw[0], (list, tuple)):
        raw = raw[0]
    if isinstance(raw, (list, tuple)) and set(map(type, raw)) <= {int}:
        return list(raw)  # the usual case, without a loop in Python
    if not isinstance(raw, (str, bytes)) and isinstance(raw, Iterable):
        ids = [int(i) if isinstance(i, (np.integer, Tensor)) else i for i in raw]
        if all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            return ids
        raw = next(i for i in ids if not isinstance(i, int) or isinstance(i, bool))
    raise TypeError(f"encode must give whole numbers, got {type(raw).__name__}: {raw!r:.40}")


def is_special(entry: str) -> bool:
    """Whether an entry is written like a special token, such as <unk> or [PAD]."""
    return len(entry) > 1 and _SPECIAL_ENTRY.fullmatch(entry) is not None


def _is_long(entry: str) -> bool:
    return len(entry) > 1 and not is_special(entry)


def _accepted(function: Callable[..., Any], options: dict[str, Any]) -> dict[str, Any]:
    """Keep the options that the function names; **kwargs alone promises nothing."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # compiled functions may have no signature
        return {}
    return {name: value for name, value in options.items() if name in parameters}


def _ordered_entries(raw: Any) -> list[str] | None:
    """Bring a list, an id -> entry table or an entry -> id table into the order of the ids."""
    pairs: list[tuple[Any, Any]]
    if isinstance(raw, (list, tuple, str)):
        pairs = list(enumerate(raw))
    elif isinstance(raw, Mapping):
        pairs = [(k, v) if isinstance(k, int) else (v, k) for k, v in raw.items()]
    else:
        return None
    if not all(isinstance(i, int) and isinstance(entry, (str, bytes)) for i, entry in pairs):
        return None
    pairs.sort(key=lambda pair: pair[0])
    if [i for i, _ in pairs] != list(range(len(pairs))):
        return None
    return [e if isinstance(e, str) else e.decode("utf-8", "backslashreplace") for _, e in pairs]
