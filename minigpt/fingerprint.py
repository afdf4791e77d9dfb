"""Fingerprints: short proofs that two things are the same.

Two tokenizers of equal size can give the same id to different characters. A checkpoint used with
the wrong one runs without an error and writes nonsense, so every checkpoint carries the
fingerprint of its tokenizer.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path


def tokenizer_fingerprint(chars: Sequence[str]) -> str:
    """Return the SHA-256 (64 hex digits) of a vocabulary: its characters and their order.

    `chars` lists the characters in the order of their ids. What is hashed is the UTF-8 of their
    compact JSON, `["a","b"]`, so that any program can recompute it. Raises `TypeError` when an
    element is not a string and `ValueError` for a surrogate, which UTF-8 cannot hold.
    """
    characters = list(chars)
    for position, char in enumerate(characters):
        if not isinstance(char, str):
            raise TypeError(f"chars must hold strings, got {char!r} at position {position}")
    compact = json.dumps(characters, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(_to_utf8(compact, "chars")).hexdigest()


def text_fingerprint(text: str) -> str:
    """Return the SHA-256 (64 hex digits) of the UTF-8 of `text`; `ValueError` for a surrogate."""
    return hashlib.sha256(_to_utf8(text, "text")).hexdigest()


def file_fingerprint(path: str | os.PathLike[str]) -> str:
    """Return the SHA-256 (64 hex digits) of a file's bytes, read piece by piece."""
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _to_utf8(text: str, name: str) -> bytes:
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        code_point = ord(text[error.start])
        raise ValueError(
            f"{name} must be Unicode text, got the surrogate U+{code_point:04X}, which is half of "
            "a UTF-16 pair and no character; read the file with encoding='utf-8'"
        ) from None
