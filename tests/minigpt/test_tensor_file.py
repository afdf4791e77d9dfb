"""The fast path to a `.safetensors` file against the library, which is the truth."""

from __future__ import annotations

import io
import os
import zlib
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from torch import Tensor

import minigpt._tensor_file as tensor_file
from minigpt._tensor_file import DTYPES, get_bytes, read_tensors, write_tensors

SHAPES = [(), (0,), (1,), (3,), (2, 3), (4, 0, 2), (1, 1, 5)]


def make(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return a tensor of bytes that count up, under that shape and dtype."""
    count = torch.empty(shape, dtype=torch.uint8).numel() * torch.empty((), dtype=dtype).itemsize
    raw = torch.arange(count, dtype=torch.int64).to(torch.uint8)
    if dtype == torch.bool:  # only 0 and 1 are values of it
        return (raw % 2).to(torch.bool).view(shape)
    return raw.view(dtype).view(shape)


def written(tensors: dict[str, Tensor], metadata: dict[str, str]) -> tuple[bytes, dict[str, int]]:
    """Return the bytes of the file and the checksums."""
    file = io.BytesIO()
    start, checksums = write_tensors(file, tensors, metadata)
    assert file.getvalue().startswith(start)
    return file.getvalue(), checksums


def test_every_dtype_in_one_file_is_what_the_library_writes() -> None:
    """Order, offsets, padding and bytes are the library's, for all dtypes and odd shapes."""
    tensors = {
        f"{index % 3}.{index}.{code}": make(SHAPES[index % len(SHAPES)], dtype)
        for index, (dtype, code) in enumerate(DTYPES.items())
    }
    tensors |= {f"second.{code}": make((3,), dtype) for dtype, code in DTYPES.items()}
    metadata = {"card": '{"a": "\\u00e9 \\" \\\\ \\n \u4e2d\U0001f600"}'}
    content, checksums = written(tensors, metadata)
    assert content == safetensors.torch.save(tensors, metadata)
    assert checksums == {name: zlib.crc32(bytes(get_bytes(t))) for name, t in tensors.items()}


@given(
    tensors=st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8).filter(
            lambda name: name != "__metadata__"
        ),
        st.tuples(st.sampled_from(SHAPES), st.sampled_from(list(DTYPES))),
        max_size=6,
    ),
    card=st.text(st.characters(exclude_categories=["Cs"]), max_size=30),
)
@settings(max_examples=100, deadline=None)
def test_any_names_and_metadata_are_what_the_library_writes(
    tensors: dict[str, tuple[tuple[int, ...], torch.dtype]],
    card: str,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Control characters, quotes and astral characters too; and all of it is read back."""
    made = {name: make(*form) for name, form in tensors.items()}
    content, checksums = written(made, {"card": card})
    assert content == safetensors.torch.save(made, {"card": card})
    path = tmp_path_factory.mktemp("any") / "a.safetensors"
    path.write_bytes(content)
    found, metadata, found_checksums = read_tensors(path)
    assert found.keys() == made.keys()
    for name, tensor in made.items():
        assert (found[name].dtype, found[name].shape) == (tensor.dtype, tensor.shape)
        assert bytes(get_bytes(found[name])) == bytes(get_bytes(tensor))
    assert (metadata, found_checksums) == ({"card": card}, checksums)


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_threads_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    """However many read, more than there are tensors included, each gets its own bytes."""
    tensors = {str(i): torch.full((50 + i,), float(i)) for i in range(5)}
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file(tensors, path)
    monkeypatch.setattr(tensor_file, "THREADS_MOST", threads)
    monkeypatch.setattr(tensor_file, "BYTES_PER_THREAD", 1)
    found, metadata, checksums = read_tensors(path)
    assert metadata == {}
    for name, tensor in tensors.items():
        assert torch.equal(found[name], tensor)
        assert checksums[name] == zlib.crc32(bytes(get_bytes(tensor)))


def test_what_is_read_depends_on_the_file_no_longer(tmp_path: Path) -> None:
    """Overwritten in place and shortened, the file changes no tensor; each has its own memory."""
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(4), "b": torch.ones(1000)}, path)
    found, _, _ = read_tensors(path)
    os.truncate(path, 0)
    assert torch.equal(found["b"], torch.ones(1000))
    assert found["b"].untyped_storage().nbytes() == 4000
    assert found["a"].untyped_storage().data_ptr() != found["b"].untyped_storage().data_ptr()


def test_a_file_that_shrinks_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut after the library has judged it, the file is an error and not half a tensor."""
    path = tmp_path / "a.safetensors"
    safetensors.torch.save_file({"a": torch.ones(100)}, path)

    def cut(file: Any) -> Any:
        os.truncate(path, path.stat().st_size - 4)
        return original(file)

    original = tensor_file._make_empty
    monkeypatch.setattr(tensor_file, "_make_empty", cut)
    with pytest.raises(ValueError, match="became shorter while it was read"):
        read_tensors(path)


@pytest.mark.parametrize("moment", ["safe_open", "_make_empty", "_fill"])
def test_a_file_that_is_replaced_while_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """As training does it under a reader: header and bytes are those of one of the two files."""
    path, other = tmp_path / "a.safetensors", tmp_path / "new.safetensors"
    safetensors.torch.save_file({"a": torch.zeros(1000)}, path, {"card": "old"})
    safetensors.torch.save_file({"b": torch.ones(3, 4)}, other, {"card": "new"})
    original = getattr(tensor_file, moment)

    def replace_first(*arguments: Any) -> Any:
        if other.exists():
            other.replace(path)
        return original(*arguments)

    monkeypatch.setattr(tensor_file, moment, replace_first)
    found, metadata, checksums = read_tensors(path)
    name, value = ("b", torch.ones(3, 4)) if moment == "safe_open" else ("a", torch.zeros(1000))
    assert metadata == {"card": "new" if moment == "safe_open" else "old"}
    assert found.keys() == checksums.keys() == {name}
    assert torch.equal(found[name], value)


def test_a_claim_beyond_the_file_takes_no_memory(tmp_path: Path) -> None:
    """The library's judgement comes before any tensor is made."""
    path = tmp_path / "a.safetensors"
    text = b'{"a":{"dtype":"F32","shape":[1000000000000],"data_offsets":[0,4000000000000]}}'
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"\0" * 8)
    with pytest.raises(SafetensorError):
        read_tensors(path)


@pytest.mark.parametrize("shape", ["[9223372036854775808,0]", "[0,18446744073709551615]"])
def test_a_length_beyond_64_bits_is_refused(tmp_path: Path, shape: str) -> None:
    """Of a tensor without numbers the library lets any length pass; torch counts to 2**63 - 1."""
    path = tmp_path / "a.safetensors"
    text = b'{"a":{"dtype":"F32","shape":%s,"data_offsets":[0,0]}}' % shape.encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(ValueError, match="a tensor of the impossible shape"):
        read_tensors(path)


def test_a_failed_write_ends_at_once() -> None:
    """The error of the file comes through, and no thread is left summing."""

    class Full(io.BytesIO):
        def write(self, content: object) -> int:
            raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space left"):
        write_tensors(Full(), {"a": torch.ones(3)}, {})
    with pytest.raises(TypeError, match=r"a must have a dtype of the format, got torch\.complex64"):
        write_tensors(io.BytesIO(), {"a": torch.ones(1, dtype=torch.complex64)}, {})
