"""Tensors to and from a `.safetensors` file at the speed of the disk, with a checksum of each.

The format is eight bytes with the length of a header, the header (JSON: for each tensor its dtype,
shape and place), and then the bytes of all tensors without a gap. The `safetensors` library stays
the judge of every file that is read: it compares all that the header claims with the size of the
file. Only the bytes travel another way. Written by the library they would be copied twice before
they reach the file, and a full disk would give an error that does not say so; read by it they
would stay mapped, so that overwriting the file would change, or crash, a program that has loaded
it, and Windows would not let it be replaced. Mapped tensors also start at any address, where some
matrix products round differently, which would end the bit-for-bit resume.

The checksum is CRC-32: it notices every flipped bit, every burst of up to 32 and all other damage
but one in 4 billion. That is enough against accidents; against a person no digest in the same file
can help. It costs half of a SHA-256 or less, and threads compute it while the bytes travel.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

import torch
from safetensors import safe_open
from torch import Tensor

# In the order of the library, which puts wide numbers first and then goes by name.
DTYPES = {
    torch.uint64: "U64",
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.uint32: "U32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.uint16: "U16",
    torch.int16: "I16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
THREADS_MOST = min(4, os.cpu_count() or 1)  # more do not help: memory is the limit by then
BYTES_PER_THREAD = 4_000_000  # about 3 ms of work; below it starting one is not worth its while


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> tuple[bytes, dict[str, int]]:
    """Write what `safetensors.torch.save(tensors, metadata)` gives, byte for byte.

    Tensors must lie on the CPU, contiguous; they are not copied. Returns everything before the
    first tensor, and the checksum of each tensor. Raises TypeError for a dtype that the format
    does not have, OSError as the file does, for a full disk for example.
    """
    for name, tensor in tensors.items():
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} must have a dtype of the format, got {tensor.dtype}")
    ranks = {dtype: rank for rank, dtype in enumerate(DTYPES)}
    names = sorted(tensors, key=lambda name: (ranks[tensors[name].dtype], name))
    start = _make_header(names, tensors, metadata)
    file.write(start)
    with ThreadPoolExecutor(1) as pool:  # it sums up while the disk is busy
        checksums = pool.map(lambda name: zlib.crc32(get_bytes(tensors[name])), names)
        try:
            for name in names:
                file.write(get_bytes(tensors[name]))
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
        return start, dict(zip(names, checksums, strict=True))


def read_tensors(
    path: str | os.PathLike[str],
) -> tuple[dict[str, Tensor], dict[str, str], dict[str, int]]:
    """Return the tensors, in memory of their own, the metadata, and the checksum of each tensor.

    No memory is taken before the library has accepted the header. All of it comes from one file,
    also where another one takes its place meanwhile. Raises SafetensorError (of the library) or
    ValueError for another kind of file, OSError for one that cannot be read.
    """
    while True:
        with Path(path).open("rb") as file:
            with safe_open(path, "pt") as judge:  # raises for a header that does not fit the file
                metadata = judge.metadata() or {}
            # The library opens by name: was that the same file? A replaced one never comes back.
            if os.path.samestat(os.fstat(file.fileno()), Path(path).stat()):
                tensors, starts = _make_empty(file)
                return tensors, metadata, _fill(file, tensors, starts)


def _make_empty(file: BinaryIO) -> tuple[dict[str, Tensor], dict[str, int]]:
    """Return the tensors, not filled yet, and where their bytes start in the file."""
    (length,) = struct.unpack("<Q", file.read(8))
    header = json.loads(file.read(length))
    header.pop("__metadata__", None)
    dtypes = {code: dtype for dtype, code in DTYPES.items()}
    tensors, starts = {}, {}
    for name, entry in header.items():
        if entry["dtype"] not in dtypes:
            raise ValueError(f"a tensor of the unknown dtype {entry['dtype']}")
        try:
            tensors[name] = torch.empty(entry["shape"], dtype=dtypes[entry["dtype"]])
        except TypeError:  # a length of 2**63 or more, which passes where another one is 0
            raise ValueError(f"a tensor of the impossible shape {entry['shape']}") from None
        starts[name] = 8 + length + entry["data_offsets"][0]
    return tensors, starts


def _fill(
    file: BinaryIO, tensors: Mapping[str, Tensor], starts: Mapping[str, int]
) -> dict[str, int]:
    """Read the bytes of all tensors; return their checksums, which several threads compute."""
    reading = Lock()  # there is one place in the file at a time

    def read(name: str) -> int:
        content = get_bytes(tensors[name])
        with reading:
            file.seek(starts[name])
            if file.readinto(content) != len(content):  # type: ignore[attr-defined]
                raise ValueError("the file became shorter while it was read")
        return zlib.crc32(content)  # now, while it is in the cache

    count = min(THREADS_MOST, 1 + sum(t.nbytes for t in tensors.values()) // BYTES_PER_THREAD)
    if count == 1:
        return {name: read(name) for name in tensors}
    with ThreadPoolExecutor(count) as pool:
        return dict(zip(tensors, pool.map(read, tensors), strict=True))


def get_bytes(tensor: Tensor) -> Any:
    """Return the memory of a contiguous CPU tensor as a flat array of bytes."""
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _make_header(
    names: list[str], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]
) -> bytes:
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name in names:
        begin, end = end, end + tensors[name].nbytes
        header[name] = {
            "dtype": DTYPES[tensors[name].dtype],
            "shape": list(tensors[name].shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # so that the first tensor starts at a multiple of 8
    return struct.pack("<Q", len(text)) + text
