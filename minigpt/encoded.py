"""Encoded text on disk: one file of ids per split, and a card that says what they belong to.

Ids are stored in the smallest unsigned type that holds the vocabulary and are int64 in use. A
`.npy` file carries its type and its length, so that a reader can neither mistake one for the
other nor take a truncated file for a short one.

Shapes: N ids, V vocabulary.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import pickle
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from minigpt._files import atomic_write

SPLITS = ("train", "val", "test")
META_NAME = "meta.json"
REMEDY = "create it with `python -m minigpt.prepare`"

Ids = Tensor | npt.NDArray[Any] | Sequence[int]


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncodedMeta:
    """What a folder of encoded ids belongs to; stored beside them as `meta.json`."""

    tokenizer_fingerprint: str
    corpus_fingerprint: str  # SHA-256 of the UTF-8 of the whole text
    vocab_size: int
    source: str
    dtype: str
    counts: dict[str, int]  # ids per split

    def to_json(self) -> str:
        """Return the card as indented JSON."""
        return json.dumps(dataclasses.asdict(self), ensure_ascii=False, indent=2) + "\n"


def ids_path(folder: str | os.PathLike[str], split: str) -> Path:
    """Return the file of a split (train, val, test): `.npy`, or `.pt` where only that exists.

    Raises `FileNotFoundError` with the command that creates it.
    """
    paths = [Path(folder) / f"{split}_ids{suffix}" for suffix in (".npy", ".pt")]
    for path in paths:
        if path.is_file():
            return path
    raise FileNotFoundError(f"no {split} ids at {paths[0]}; {REMEDY}")


def save_ids(path: str | os.PathLike[str], ids: Ids, *, vocab_size: int) -> None:
    """Write N ids to `path`: `.npy` in the smallest type for `vocab_size`, or `.pt` as int64.

    A failure leaves the old file as it was. Raises `ValueError` for ids that are not 1-D, not
    whole numbers, none at all or outside 0..V-1, and for another suffix.
    """
    suffix = Path(path).suffix
    if suffix not in (".npy", ".pt"):
        raise ValueError(f"path must end in .npy or .pt, got {path}")
    values = _require_ids(ids, "ids", vocab_size)
    with atomic_write(path) as file:
        if suffix == ".pt":
            torch.save(torch.from_numpy(values.astype(np.int64)), file)
        else:
            write_ids(file, values, vocab_size=vocab_size)


def write_ids(file: BinaryIO, ids: Ids, *, vocab_size: int) -> None:
    """Write N ids into an open binary file in the `.npy` form; errors as in `save_ids`."""
    values = _require_ids(ids, "ids", vocab_size)  # before narrowing: 256 as uint8 would become 0
    buffer = io.BytesIO()  # NumPy's own writing to a file hides why it failed, a full disk say
    np.save(buffer, values.astype(storage_dtype(vocab_size)), allow_pickle=False)
    file.write(buffer.getbuffer())


def storage_dtype(vocab_size: int) -> np.dtype[Any]:
    """Return the smallest unsigned type that holds the ids 0..V-1."""
    return np.min_scalar_type(max(vocab_size - 1, 0))


def load_ids(path: str | os.PathLike[str], *, vocab_size: int | None = None) -> Tensor:
    """Read a `.npy` or `.pt` file of ids as an int64 tensor of shape (N,), N >= 1.

    Never runs code from the file. Raises `FileNotFoundError` when it is missing and `ValueError`
    when it is empty, truncated, of another kind, or (with `vocab_size`) holds an id outside
    0..V-1. The messages name the path and the command that creates the file.
    """
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"no ids file at {path}; {REMEDY}")
    if path.is_file() and path.stat().st_size == 0:
        raise ValueError(f"{path} is empty (0 bytes); {REMEDY}")
    try:
        content = _load_pt(path) if path.suffix == ".pt" else _load_npy(path)
        values = _require_ids(content, str(path), vocab_size)
    except ValueError as error:
        raise ValueError(f"{error}; {REMEDY}") from None
    return torch.from_numpy(values.astype(np.int64))


def read_meta(folder: str | os.PathLike[str]) -> EncodedMeta:
    """Read the card of a folder of encoded ids.

    Raises `FileNotFoundError` when there is none (ids from elsewhere have no card) and
    `ValueError` when it is damaged.
    """
    path = Path(folder) / META_NAME
    try:
        content = json.loads(path.read_bytes())
        fields = {field.name: content[field.name] for field in dataclasses.fields(EncodedMeta)}
    except FileNotFoundError:
        raise FileNotFoundError(f"no card of the encoded ids at {path}; {REMEDY}") from None
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path} is damaged ({type(error).__name__}: {error}); {REMEDY}") from None
    return EncodedMeta(**fields)


def _load_npy(path: Path) -> npt.NDArray[Any]:
    try:
        # Mapped, so that a header that promises more than there is costs no memory.
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        reason = str(error)
        if "pickle" in reason or "Python objects" in reason:  # NumPy's advice is to load it anyway
            reason = "it holds no plain numbers; nothing in it was executed"
        raise ValueError(f"{path} is no readable .npy file, or truncated ({reason})") from None
    if not isinstance(values, np.memmap):  # an .npz archive under another name
        raise ValueError(f"{path} must hold one array, got an archive")
    excess = path.stat().st_size - values.offset - values.nbytes
    if excess != 0:
        raise ValueError(f"{path} must end with its last id, got {excess} bytes more")
    return values


def _load_pt(path: Path) -> Any:
    try:
        with warnings.catch_warnings(action="ignore"):  # about pickles that are refused below
            return torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError:  # torch's advice is to load it anyway
        reason = "its pickle is damaged or calls something; nothing in it was executed"
        raise ValueError(f"{path} is no readable .pt file of plain tensors ({reason})") from None
    except (RuntimeError, EOFError, ValueError, KeyError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"{path} is no readable .pt file of plain tensors ({reason})") from None


def _require_ids(ids: Any, name: str, vocab_size: int | None) -> npt.NDArray[np.integer[Any]]:
    """Return the ids as a 1-D NumPy array of whole numbers in range, or raise `ValueError`."""
    if isinstance(ids, Tensor):
        ids = ids.detach().cpu().numpy()
    elif not isinstance(ids, (np.ndarray, Sequence)) or isinstance(ids, (str, bytes)):
        raise ValueError(f"{name} must be a 1-D row of whole numbers, got {type(ids).__name__}")
    values = np.asarray(ids)
    if values.ndim != 1 or len(values) == 0:
        raise ValueError(f"{name} must have shape (N,) with N >= 1, got {values.shape}")
    if not np.issubdtype(values.dtype, np.integer):
        raise ValueError(f"{name} must hold whole numbers, got {values.dtype}")
    limit = np.iinfo(np.int64).max if vocab_size is None else vocab_size - 1
    smallest, largest = int(values.min()), int(values.max())
    if smallest < 0 or largest > limit:
        wanted = "be 0 or more" if vocab_size is None else f"lie in 0..{limit}"
        raise ValueError(f"{name} must {wanted}, got {smallest}..{largest}")
    return values
