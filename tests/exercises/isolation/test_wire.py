"""The wire: plain data comes back as it was, everything else is refused, on both sides."""

from __future__ import annotations

import io
import json
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from exercises.isolation import wire
from exercises.isolation.wire import HEAD, WireError, decode, encode

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda items: st.lists(items) | st.lists(items).map(tuple) | st.dictionaries(st.text(), items),
    max_leaves=12,
)


def there_and_back(value: Any) -> Any:
    return decode(io.BytesIO(encode(value)).read)


def message(text: str, blob: bytes = b"") -> bytes:
    return HEAD.pack(len(text), len(blob)) + text.encode() + blob


@given(plain)
@settings(max_examples=200, deadline=None)
def test_plain_data_comes_back_with_its_types(value: Any) -> None:
    """NaN is not equal to itself, so the representation is compared: it shows types as well."""
    assert repr(there_and_back(value)) == repr(value)


@pytest.mark.parametrize("dtype", wire.DTYPES.values())
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 0, 4), (2, 3, 4)])
def test_tensors_come_back_bit_for_bit(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    tensor = (torch.randn(shape) * 3).to(dtype)
    back = there_and_back([tensor, {"again": tensor}])
    for found in (back[0], back[1]["again"]):
        assert type(found) is torch.Tensor
        assert (found.dtype, found.shape) == (dtype, tensor.shape)
        assert torch.equal(found, tensor)


def test_values_that_comparisons_trip_over_survive() -> None:
    back = there_and_back(torch.tensor([math.nan, math.inf, -math.inf, -0.0]))
    assert str(back) == "tensor([nan, inf, -inf, -0.])"


def test_a_view_arrives_as_what_it_shows() -> None:
    grid = torch.arange(12).reshape(3, 4)
    assert there_and_back(grid.t()[1:]).tolist() == grid.t()[1:].tolist()
    assert there_and_back(torch.zeros(1).expand(5)).tolist() == [0.0] * 5
    assert there_and_back(torch.ones(2, requires_grad=True)).requires_grad is False


class Forged(torch.Tensor):
    """Looks like a tensor, and may answer what it likes."""


@pytest.mark.parametrize(
    "value",
    [
        object(),
        len,
        b"bytes",
        {1, 2},
        {1: "a key that is a number"},
        Forged(torch.zeros(2)),
        torch.zeros(2).to_sparse(),
        torch.zeros(2, dtype=torch.complex64),
        type("Text", (str,), {})("a subclass"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_is_not_plain_is_refused_when_it_is_sent(value: Any) -> None:
    with pytest.raises(WireError, match="no place on the wire"):
        encode(value)


def test_a_value_in_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(WireError, match="levels deep"):
        encode(endless)


def test_a_tensor_that_is_too_large_is_refused_before_it_is_copied() -> None:
    with pytest.raises(WireError, match="bytes, too many"):
        encode(torch.zeros(1).expand(10**10))


@pytest.mark.parametrize(
    "text",
    [
        "no JSON",
        '["float", NaN]',
        '["unknown", 1]',
        '["tensor", ["float32", [-1]]]',
        '["tensor", ["float32", [1099511627776, 1099511627776]]]',
        '["tensor", ["float32", [2]]]',
        '["tensor", ["object", [1]]]',
        '["tensor", ["float32", [true]]]',
        '["tensor", ["float32", "ab"]]',
        '["list", 7]',
        '["dict", [["key"]]]',
        '{"a": 1}',
        "[" * 5000,
        '["int", "' + "9" * 5000 + '"]',
        '["float", [1]]',
        "1.5",
    ],
)
def test_bytes_that_are_no_message_raise_one_error(text: str) -> None:
    with pytest.raises(WireError):
        decode(io.BytesIO(message(text)).read)


def test_lengths_are_refused_before_anything_is_read() -> None:
    for lengths in ((1 << 60, 0), (0, 1 << 60), (1 << 63, 1 << 63)):
        with pytest.raises(WireError, match="too long"):
            decode(io.BytesIO(HEAD.pack(*lengths)).read)


def test_bytes_that_belong_to_nothing_are_refused() -> None:
    with pytest.raises(WireError, match="4 bytes of the message belong to nothing"):
        decode(io.BytesIO(message("null", b"1234")).read)


def test_a_pickle_is_no_message() -> None:
    with pytest.raises(WireError):
        decode(io.BytesIO(pickle.dumps({"a": print}) * 10).read)


@given(st.binary(max_size=60))
@settings(max_examples=200, deadline=None)
def test_any_bytes_give_a_value_or_the_error(blob: bytes) -> None:
    text = json.dumps(["list", [["tensor", ["uint8", [len(blob)]]]]])
    assert decode(io.BytesIO(message(text, blob)).read)[0].tolist() == list(blob)
    try:
        decode(io.BytesIO(HEAD.pack(len(blob), 0) + blob).read)
    except WireError:
        return
