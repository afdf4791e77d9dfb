"""Tensors in one `.safetensors` file, with a digest that covers every bit of it.

The format is the one of the `safetensors` library, which reads these files too: 8 bytes with the
length of the header, the header in JSON (name -> dtype, shape, where in the data; and strings
under `__metadata__`), then the tensors' bytes without gaps. Nothing in it can be executed.

Three things are added here. A digest: one flipped bit in a weight gives a model that loads, runs
and is slightly wrong. Memory of our own: the library maps the file, so that overwriting the file
changes, or crashes, a program that has loaded it. And tensors that start at multiples of 64
bytes, as torch's own do: some matrix products round differently at other addresses, which would
end the bit-for-bit resume.

The digest is SHA-256 over the SHA-256 of each piece: the header (with zeros where the digest
stands), then every tensor in file order, cut every 4 MiB. In pieces, two threads can share the
work while a third moves the bytes.
"""

from __future__ import annotations

import hashlib
import json
import math
import mmap
import os
import struct
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import torch
from torch import Tensor

from minigpt._checkpoint_errors import corrupt

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "U8": torch.uint8,
}
DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
DIGEST_KEY = "sha256"
NO_DIGEST = "0" * 64
HEADER_LIMIT = 100_000_000  # bytes; the safetensors library has the same limit
PIECE_SIZE = 4 * 2**20
INLINE_SIZE = 2**17  # below this, handing a piece to a thread costs more than hashing it
ALIGNMENT = 64
HUGE_PAGE_SIZE = 2**21
MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class TensorPlace:
    """Where one tensor lies in the data part of a file."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def aligned_size(self) -> int:
        """Bytes it takes in memory when the next tensor starts at a multiple of ALIGNMENT."""
        return -(-(self.stop - self.start) // ALIGNMENT) * ALIGNMENT


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> None:
    """Write contiguous CPU tensors and metadata strings to a new seekable file.

    Raises TypeError for a dtype that the format (or this module) does not know, and for a
    tensor without elements.
    """
    # Wide numbers first, so that each starts at a multiple of its size, for readers that map.
    names = sorted(tensors, key=lambda name: -tensors[name].element_size())
    header = _make_header({name: tensors[name] for name in names}, metadata)
    with _Digest() as digest:
        digest.add(memoryview(header))
        file.write(struct.pack("<Q", len(header)))
        file.write(header)
        for name in names:
            content = _bytes_of(tensors[name])
            digest.add(content)
            file.write(content)
        result = digest.hexdigest()
    file.seek(8 + header.index(NO_DIGEST.encode()))
    file.write(result.encode())


def read_tensors(path: str | os.PathLike[str]) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Return the tensors, in memory of their own, and the metadata of a file made by us.

    Everything that the header claims is compared with the size of the file before any memory is
    taken, and nothing is returned unless the digest fits. Raises CheckpointCorruptError for
    whatever is not such a file, and OSError where it cannot be read.
    """
    with Path(path).open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        header = _read_header(file, path, size)
        places, metadata = _parse_header(header, path, data_size=size - 8 - len(header))
        stored = metadata.pop(DIGEST_KEY, None)
        if stored is None:
            found = "a .safetensors file without a digest: made by another program, or damaged"
            raise corrupt(path, wanted="a checkpoint of minigpt", found=found)
        with _Digest() as digest:
            digest.add(memoryview(header.replace(stored.encode(), NO_DIGEST.encode(), 1)))
            tensors = _allocate(places)
            for place in places:
                content = _bytes_of(tensors[place.name])
                if file.readinto(content) != len(content):
                    raise corrupt(path, wanted=f"all of {place.name}", found="the end of the file")
                digest.add(content)
            computed = digest.hexdigest()
    if computed != stored:
        raise corrupt(
            path,
            wanted=f"content with the digest {stored[:12]}... of its header",
            found=f"{computed[:12]}...: at least one bit has changed since it was written",
        )
    return tensors, metadata


class _Digest:
    """SHA-256 over the SHA-256 of each piece; large pieces are hashed by two threads."""

    def __init__(self) -> None:
        self._pieces: list[Future[bytes] | bytes] = []
        self._pool = ThreadPoolExecutor(2)  # no thread is started before the first large piece

    def add(self, content: memoryview) -> None:
        """Add bytes, which must not change before `hexdigest` returns."""
        for start in range(0, len(content), PIECE_SIZE):
            piece = content[start : start + PIECE_SIZE]
            small = len(piece) < INLINE_SIZE
            self._pieces.append(_sha256(piece) if small else self._pool.submit(_sha256, piece))

    def hexdigest(self) -> str:
        """Wait for all pieces and return the digest of their digests."""
        results = [p if isinstance(p, bytes) else p.result() for p in self._pieces]
        return hashlib.sha256(b"".join(results)).hexdigest()

    def __enter__(self) -> _Digest:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.shutdown(cancel_futures=True)


def _sha256(content: memoryview) -> bytes:
    return hashlib.sha256(content).digest()


def _make_header(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> bytes:
    # The digest comes first: its zeros are the first 64 zeros in the header.
    entries: dict[str, Any] = {"__metadata__": {DIGEST_KEY: NO_DIGEST, **metadata}}
    start = 0
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPE_NAMES or tensor.numel() == 0 or tensor.ndim > MAX_DIMENSIONS:
            raise TypeError(
                f"{name} must hold numbers of {', '.join(DTYPES)} in at most {MAX_DIMENSIONS} "
                f"dimensions, got {tensor.dtype} of shape {tuple(tensor.shape)}"
            )
        stop = start + tensor.numel() * tensor.element_size()
        entries[name] = {
            "dtype": DTYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, stop],
        }
        start = stop
    text = json.dumps(entries, separators=(",", ":")).encode()
    return text + b" " * (-len(text) % 8)  # the data starts at a multiple of 8


def _read_header(file: BufferedReader, path: str | os.PathLike[str], size: int) -> bytes:
    wanted = "a .safetensors file"
    if size == 0:
        raise corrupt(path, wanted=wanted, found="an empty file")
    start = file.read(8)
    if len(start) < 8:
        raise corrupt(path, wanted=wanted, found=f"only {size} bytes")
    if start[:4] == b"PK\x03\x04":  # a zip archive, the container of torch.save
        remedy = "if torch.save made it, rename it to .pt"
        raise corrupt(path, wanted=wanted, found="a zip archive", remedy=remedy)
    (length,) = struct.unpack("<Q", start)
    if length > min(size - 8, HEADER_LIMIT):
        found = f"a header of {length:,} bytes in a file of {size:,}: truncated, or of another kind"
        raise corrupt(path, wanted=wanted, found=found)
    header = file.read(length)
    if len(header) != length:
        raise corrupt(path, wanted=wanted, found="a file that shrinks while it is read")
    return header


def _parse_header(
    header: bytes, path: str | os.PathLike[str], *, data_size: int
) -> tuple[list[TensorPlace], dict[str, str]]:
    """Return where every tensor lies, in file order, and the metadata; check all of it."""
    try:
        entries = json.loads(header)
        metadata = entries.pop("__metadata__", {})
        if not all(isinstance(value, str) for value in metadata.values()):
            raise ValueError("metadata that is not text")
        places = [_parse_place(name, entry) for name, entry in entries.items()]
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        found = f"a header that does not parse ({type(error).__name__}: {str(error)[:80]})"
        raise corrupt(path, wanted="a .safetensors file", found=found) from None
    places.sort(key=lambda place: (place.start, place.stop))
    end = 0
    for place in places:
        if place.start != end:
            found = f"{place.name} at byte {place.start}"
            raise corrupt(path, wanted=f"tensors without gaps or overlaps, at {end}", found=found)
        end = place.stop
    if end != data_size:
        found = f"{data_size:,}: the file is truncated, or something was appended"
        raise corrupt(path, wanted=f"{end:,} bytes of tensors", found=found)
    return places, metadata


def _parse_place(name: str, entry: Any) -> TensorPlace:
    dtype, shape = DTYPES[entry["dtype"]], tuple(entry["shape"])
    start, stop = entry["data_offsets"]
    if any(type(number) is not int or number < 0 for number in (*shape, start, stop)):
        raise ValueError(f"{name} has a size or a place that is no whole number >= 0")
    if not 0 < stop - start == math.prod(shape) * dtype.itemsize or len(shape) > MAX_DIMENSIONS:
        raise ValueError(f"{name} of shape {shape} does not take {stop - start} bytes")
    return TensorPlace(name, dtype, shape, start, stop)


def _allocate(places: list[TensorPlace]) -> dict[str, Tensor]:
    """Return an empty tensor for each place, each with a storage of its own.

    Tensors of one section (the name up to its first dot) share one block of memory where that
    pays, so that dropping the optimizer's state frees it and leaves the weights.
    """
    sections: dict[str, list[TensorPlace]] = {}
    for place in places:
        sections.setdefault(place.name.partition(".")[0], []).append(place)
    tensors: dict[str, Tensor] = {}
    for members in sections.values():
        size = sum(place.aligned_size for place in members)
        block = _huge_pages(size) if size >= 4 * HUGE_PAGE_SIZE else None
        offset = 0
        for place in members:
            if block is None:
                tensors[place.name] = torch.empty(place.shape, dtype=place.dtype)
                continue
            count = math.prod(place.shape)
            flat = torch.frombuffer(block, dtype=place.dtype, count=count, offset=offset)
            tensors[place.name] = flat.view(place.shape)
            offset += place.aligned_size
    return tensors


def _huge_pages(size: int) -> mmap.mmap | None:
    """Return anonymous memory in pages of 2 MiB, or None where the system has none.

    Taking fresh memory from the system in pages of 4 KiB takes three times as long as reading
    the whole file into it. The memory is freed with the last tensor in it.
    """
    if not hasattr(mmap, "MADV_HUGEPAGE"):  # Linux only
        return None
    block = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        block.madvise(mmap.MADV_HUGEPAGE)
    except OSError:  # a kernel built without them
        return None
    return block


def _bytes_of(tensor: Tensor) -> memoryview:
    """Return the bytes of a contiguous CPU tensor, without a copy."""
    array: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    return memoryview(array)
