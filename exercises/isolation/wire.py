"""The wire: values as plain bytes between two processes that do not trust each other.

A message is one JSON text and the raw bytes of its tensors. Nothing on it can name a class or run
code, its size is limited before it is read, and what arrives is built from scratch: None, bool,
int, float, str, list, tuple, dict with str keys, and torch.Tensor of the plain kind.

Layout: 8 bytes, big endian, length of the JSON; 8 bytes, length of the blob; JSON; blob.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

MESSAGE_BYTES_MAX = 256 * 1024 * 1024
JSON_BYTES_MAX = 16 * 1024 * 1024
DEPTH_MAX = 20
INT_DIGITS_MAX = 1000
HEAD = struct.Struct(">QQ")
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.bfloat16, torch.float32, torch.float64,
    )
}  # fmt: skip

Read = Callable[[int], bytes]  # exactly that many bytes, or an error


class WireError(Exception):
    """A value that has no place on the wire, or bytes that are no message."""


def encode(value: Any) -> bytes:
    """Return a value as one message. Raises WireError for what is not plain data."""
    blobs: list[bytes] = []
    text = json.dumps(_plain(value, blobs, 0), allow_nan=False, separators=(",", ":")).encode()
    blob = b"".join(blobs)
    if len(text) > JSON_BYTES_MAX or len(text) + len(blob) > MESSAGE_BYTES_MAX:
        raise WireError(f"the value takes {len(text) + len(blob)} bytes, too many for the wire")
    return HEAD.pack(len(text), len(blob)) + text + blob


def decode(read: Read) -> Any:
    """Read one message and return its value. Raises WireError, and what `read` raises."""
    text_length, blob_length = HEAD.unpack(read(HEAD.size))
    if text_length > JSON_BYTES_MAX or text_length + blob_length > MESSAGE_BYTES_MAX:
        raise WireError(f"a message of {text_length + blob_length} bytes is announced, too long")
    text, blob = read(text_length), read(blob_length)
    try:
        plain = json.loads(text, parse_constant=_refuse_constant)
        value, used = _built(plain, blob, 0, 0)
    except (ValueError, TypeError, KeyError, RuntimeError, OverflowError) as error:
        raise WireError("the bytes are no message of this wire") from error
    if used != len(blob):
        raise WireError(f"{len(blob) - used} bytes of the message belong to nothing")
    return value


def _plain(value: Any, blobs: list[bytes], depth: int) -> Any:
    """Return a JSON value; everything but null, bool, int and str is a list [kind, content]."""
    if depth > DEPTH_MAX:
        raise WireError(f"the value is nested more than {DEPTH_MAX} levels deep")
    if value is None or type(value) in (bool, str):
        return value
    if type(value) is int:
        return value if abs(value) < 2**63 else ["int", _digits(value)]
    if type(value) is float:
        return ["float", value if math.isfinite(value) else str(value)]
    if type(value) is Tensor or type(value) is torch.nn.Parameter:
        return _plain_tensor(value, blobs)
    if type(value) in (list, tuple):
        kind = "list" if type(value) is list else "tuple"
        return [kind, [_plain(item, blobs, depth + 1) for item in value]]
    if type(value) is dict:
        if not all(type(key) is str for key in value):
            raise WireError("a dictionary with keys that are no str has no place on the wire")
        return ["dict", [[key, _plain(item, blobs, depth + 1)] for key, item in value.items()]]
    raise WireError(f"a {type(value).__name__} has no place on the wire, only plain data has")


def _digits(value: int) -> str:
    if value.bit_length() > 4 * INT_DIGITS_MAX or len(str(value)) > INT_DIGITS_MAX:
        raise WireError(f"an int of {value.bit_length()} bits has no place on the wire")
    return str(value)


def _plain_tensor(value: Tensor, blobs: list[bytes]) -> Any:
    name = str(value.dtype).removeprefix("torch.")
    if name not in DTYPES or value.layout != torch.strided:
        raise WireError(f"a tensor of type {value.dtype}, {value.layout} has no place on the wire")
    if value.numel() * value.element_size() > MESSAGE_BYTES_MAX:  # before a view is written out
        size = value.numel() * value.element_size()
        raise WireError(f"the value takes {size} bytes, too many for the wire")
    flat = value.detach().cpu().contiguous().reshape(-1)
    blobs.append(flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b"")
    return ["tensor", [name, list(value.shape)]]


def _built(plain: Any, blob: bytes, used: int, depth: int) -> tuple[Any, int]:
    """Return the value of a JSON value, and how many bytes of the blob are used up."""
    if depth > 2 * DEPTH_MAX:
        raise ValueError("nested too deep")
    if plain is None or isinstance(plain, bool | int | str):
        return plain, used
    kind, content = plain
    if kind == "int":
        if len(content) > INT_DIGITS_MAX:
            raise ValueError("too many digits")
        return int(content), used
    if kind == "float":
        return float(content), used
    if kind == "tensor":
        return _built_tensor(content, blob, used)
    if kind in ("list", "tuple"):
        items = []
        for item in content:
            built, used = _built(item, blob, used, depth + 1)
            items.append(built)
        return (items if kind == "list" else tuple(items)), used
    if kind == "dict":
        pairs = {}
        for key, item in content:
            built, used = _built(item, blob, used, depth + 1)
            pairs[str(key)] = built
        return pairs, used
    raise ValueError(f"no kind {kind!r}")


def _built_tensor(content: Any, blob: bytes, used: int) -> tuple[Tensor, int]:
    name, shape = content
    dtype = DTYPES[name]
    if len(shape) > 8 or not all(type(size) is int and 0 <= size < 2**40 for size in shape):
        raise ValueError("no shape")
    end = used + math.prod(shape) * dtype.itemsize
    if end > len(blob):
        raise ValueError("a tensor is longer than its bytes")
    if end == used:
        return torch.empty(shape, dtype=dtype), used
    part = torch.frombuffer(bytearray(blob[used:end]), dtype=torch.uint8)
    if dtype is torch.bool:
        part = part.clamp_(max=1)  # a bool of 2 has no meaning
    return part.view(dtype).reshape(shape), end


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")
