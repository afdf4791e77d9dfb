"""What a report is about: digests predicted by hand, equal for equal content and for no other."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Report, _subject, diagnose
from diagnostics._stored import load_report
from diagnostics._subject import digest_ids, digest_weights, measure_subject
from tests.diagnostics.tiny import Bigram

HOSTILE = "\x1b[31m\u202eevil\ud800 <b>"


class Held(nn.Module):
    """A model whose state is the buffers that are given."""

    def __init__(self, **buffers: Tensor) -> None:
        super().__init__()
        for name, buffer in buffers.items():
            self.register_buffer(name, buffer)


def held(**buffers: Tensor) -> str | None:
    return digest_weights(Held(**buffers))


def field(content: bytes) -> bytes:
    return len(content).to_bytes(8, "little") + content


# ---- weights ---------------------------------------------------------------------------------


def test_the_digest_is_that_of_name_type_shape_and_bytes_each_with_its_length() -> None:
    """1.0 as float32 is 0x3f800000, 2.0 is 0x40000000; the least significant byte comes first."""
    weights = bytes.fromhex("0000803f00000040")
    b = field(b"b") + field(b"torch.float32") + field(b"(2,)") + field(weights)
    a = field(b"a") + field(b"torch.uint8") + field(b"(1, 2)") + field(b"\x03\x04")
    found = held(b=torch.tensor([1.0, 2.0]), a=torch.tensor([[3, 4]], dtype=torch.uint8))
    assert found == hashlib.sha256(a + b).hexdigest()


def bits(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": bits(1, 2), "b": bits(3)}, {"a": bits(1), "b": bits(2, 3)}),
        ({"a": bits(1, 2)}, {"a": bits(1), "b": bits(2)}),
        ({"a": bits(1)}, {"b": bits(1)}),
        ({"a": bits(1), "b": bits(2)}, {"b": bits(1), "a": bits(2)}),
        ({"a": bits(1)}, {"a": bits(1).view(torch.int8)}),
        ({"a": bits(0, 0)}, {"a": bits(0, 0).view(torch.bfloat16)}),
        ({"a": bits(1, 2)}, {"a": bits(1, 2)[None]}),
        ({"a": torch.ones(2, 3)}, {"a": torch.ones(3, 2)}),
        ({"a": bits()}, {"b": bits()}),
        ({"a": torch.tensor(0.0)}, {"a": torch.tensor(-0.0)}),
        ({"a": torch.tensor(1.0)}, {"a": torch.tensor([1.0])}),
        (
            {"a": torch.tensor(0x7FC00000, dtype=torch.int32).view(torch.float32)},
            {"a": torch.tensor(0x7FC00001, dtype=torch.int32).view(torch.float32)},
        ),
    ],
)
def test_no_two_states_have_one_digest(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    digests = {held(**one), held(**other)}
    assert None not in digests
    assert len(digests) == 2


@pytest.mark.parametrize(
    "dtype",
    [
        *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
        *(torch.float8_e4m3fn, torch.float8_e5m2, torch.bool, torch.int64, torch.uint16),
    ],
)
@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3)])
def test_every_type_and_shape_has_a_digest_that_repeats(
    dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    first, second = (held(a=torch.ones(shape).to(dtype)) for _ in range(2))
    assert first == second != held(a=torch.zeros(2, 2, 2))
    assert first is not None


def test_how_the_values_lie_in_memory_does_not_matter() -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    assert held(a=whole.T) == held(a=whole.T.contiguous())
    assert held(a=whole[:, 1:3]) == held(a=whole[:, 1:3].clone())
    assert held(a=torch.ones(1).expand(5)) == held(a=torch.ones(5))
    turned = torch.tensor([1 + 2j, 3 - 4j])
    assert held(a=turned.conj()) == held(a=turned.conj().resolve_conj()) != held(a=turned)
    negative = turned.conj().imag  # noted as negated, and not written so
    assert negative.is_neg()
    assert held(a=negative) == held(a=torch.tensor([-2.0, 4.0]))


def test_the_order_of_registration_does_not_matter() -> None:
    assert held(a=bits(1), b=bits(2)) == held(b=bits(2), a=bits(1))


def test_buffers_that_are_saved_are_part_of_it_and_others_are_not() -> None:
    model = Held(a=bits(1))
    before = digest_weights(model)
    model.register_buffer("table", bits(2), persistent=False)
    assert digest_weights(model) == before
    model.register_buffer("count", bits(3))
    assert digest_weights(model) != before


def test_tied_weights_are_told_under_both_names_and_counted_once() -> None:
    tied = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    tied[1].weight = tied[0].weight
    state = {"0.weight": tied[0].weight, "1.weight": tied[0].weight}
    apart = nn.Sequential(nn.Embedding(3, 2), nn.Linear(2, 3, bias=False))
    apart.load_state_dict(state)
    assert digest_weights(tied) == digest_weights(apart)
    assert (measure(tied)["parameters"], measure(apart)["parameters"]) == (6, 12)


def test_a_weight_of_inference_mode_and_one_with_a_gradient_are_read() -> None:
    with torch.inference_mode():
        made = torch.ones(2)
    assert held(a=made) == held(a=torch.ones(2))
    model = nn.Linear(1, 1)
    before = digest_weights(model)
    model(torch.ones(1)).sum().backward()
    assert digest_weights(model) == before
    with torch.inference_mode():
        assert digest_weights(model) == before


@pytest.mark.parametrize("name", [HOSTILE, "a\x00b", "\U0001f600", " ", "_extra"])
def test_hostile_names_are_names(name: str) -> None:
    assert held(**{name: bits(1)}) not in (None, held(a=bits(1)), held(**{name + "x": bits(1)}))


class Odd(Tensor):
    """A subclass, which may mean other values than its memory holds."""


class Extra(nn.Linear):
    def get_extra_state(self) -> Any:
        return {"scale": 3}

    def set_extra_state(self, state: Any) -> None:
        pass


class Raises(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(HOSTILE)


class Mixed(nn.Linear):
    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        return {"a": torch.ones(1), 3: torch.ones(1)}


def quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(2, 2, device="meta"),
        lambda: Held(a=torch.ones(2), b=quantised()),
        lambda: Held(a=torch.eye(2).to_sparse()),
        lambda: Held(a=torch.ones(2).as_subclass(Odd)),
        lambda: nn.LazyLinear(3),
        lambda: Extra(2, 2),
        lambda: Raises(2, 2),
        lambda: Mixed(2, 2),
        lambda: nn.Identity(),
    ],
)
def test_what_has_no_plain_bytes_has_no_digest(make: Callable[[], nn.Module]) -> None:
    assert digest_weights(make()) is None


# ---- ids -------------------------------------------------------------------------------------


def test_the_digest_of_ids_is_that_of_their_shape_and_int64_values() -> None:
    ids = [1, 256, -1]
    content = b"".join(number.to_bytes(8, "little", signed=True) for number in ids)
    expected = hashlib.sha256(field(b"(3,)") + content).hexdigest()
    assert digest_ids(torch.tensor(ids)) == expected
    assert digest_ids(torch.tensor(ids, dtype=torch.int32)) == expected


@pytest.mark.parametrize(
    "dtype",
    [torch.int8, torch.int16, torch.int32, torch.uint8, torch.uint16, torch.uint32],
)
def test_the_same_ids_in_another_type_are_the_same(dtype: torch.dtype) -> None:
    ids = torch.tensor([0, 5, 127])
    assert digest_ids(ids.to(dtype)) == digest_ids(ids) is not None


def test_another_id_place_length_or_shape_is_another_digest() -> None:
    cases = [[1, 2], [2, 1], [1, 2, 0], [[1, 2]], [], [[]]]
    found = {digest_ids(torch.tensor(case, dtype=torch.int64)) for case in cases}
    assert None not in found
    assert len(found) == len(cases)


@pytest.mark.parametrize("block", [1, 3, 4, 12, 100])
def test_blocks_do_not_matter(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    ids = torch.arange(24).reshape(4, 6)
    views = [ids, ids.T, ids[:, ::2], ids.flatten()]
    whole = [digest_ids(view) for view in views]
    monkeypatch.setattr(_subject, "BLOCK", block)
    assert [digest_ids(view) for view in views] == whole
    assert len(set(whole)) == 4


@pytest.mark.parametrize(
    "ids",
    [
        *(None, [1, 2], "ids", torch.ones(2), torch.ones(2, dtype=torch.bool)),
        torch.ones(2, dtype=torch.int64, device="meta"),
        torch.tensor([1, 2]).as_subclass(Odd),
        torch.eye(2, dtype=torch.int64).to_sparse(),
    ],
)
def test_what_is_no_tensor_of_integers_has_no_digest(ids: Any) -> None:
    assert digest_ids(ids) is None


# ---- the subject of a report -----------------------------------------------------------------


def measure(model: nn.Module, **options: Any) -> dict[str, Any]:
    return measure_subject(Pipeline(model), **options)


def test_counts_types_and_class_of_a_model() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1).bfloat16())
    model[0].weight.requires_grad_(False)
    found = measure(model)
    assert (found["model"], found["parameters"], found["trainable"]) == ("Sequential", 11, 5)
    assert found["dtype"] == "bfloat16, float32"
    assert found["options"] == {"only": None, "skip": [], "fast": False, "overfit_steps": 300}


def test_a_model_that_tells_nothing_has_a_subject() -> None:
    found = measure(nn.LazyLinear(3))
    assert (found["model"], found["parameters"], found["weights_sha256"]) == (
        "LazyLinear",
        None,
        None,
    )
    assert (measure(nn.Identity())["parameters"], measure(nn.Identity())["dtype"]) == (0, None)
    name = HOSTILE.replace("\ud800", "")  # which no class can be called
    assert measure(type(name, (nn.Identity,), {})())["model"] == name


def named(names: Iterable[str]) -> Iterable[str]:
    yield from names


def test_a_report_holds_the_options_in_order_however_they_were_given() -> None:
    def options(**how: Any) -> Any:
        return diagnose(Pipeline(Bigram()), **how).subject["options"]

    expected = {"only": ["environment", "shapes"], "skip": ["loss"], "fast": True}
    expected |= {"overfit_steps": 7}
    for only in (["shapes", "environment"], ["environment", "shapes", "shapes"]):
        given = options(only=named(only), skip=named(["loss"]), fast=True, overfit_steps=7)
        assert given == expected
    assert options(only="environment")["only"] == ["environment"]
    assert options(only="environment", skip="loss")["skip"] == ["loss"]


class Counts(Bigram):
    """A model that counts its calls in a buffer, so that checks change its state."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        self.calls += 1
        return super().forward(ids, targets)


def test_the_digest_is_of_the_model_as_it_was_handed_in() -> None:
    model = Counts()
    ids = torch.arange(200, dtype=torch.int32) % 11
    before = digest_weights(model)
    report = diagnose(Pipeline(model, train_ids=ids), only=["shapes", "modes", "range"])
    assert report.subject["weights_sha256"] == before == digest_weights(model)
    assert report.subject["train_ids_sha256"] == digest_ids(ids.long())
    assert report.subject["val_ids_sha256"] is None


class Draws(Bigram):
    """A model whose state dict draws, and which cannot give it twice."""

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        torch.rand(1)
        random.random()
        raise RuntimeError("no")


def test_a_state_dict_that_draws_and_raises_changes_no_result() -> None:
    torch.manual_seed(3)
    model = Draws()
    torch.manual_seed(3)
    plain = Bigram()
    torch.manual_seed(4)
    state = torch.get_rng_state(), random.getstate()
    report = diagnose(Pipeline(model), only=["shapes", "causal_independence"])
    assert torch.equal(torch.get_rng_state(), state[0])
    assert random.getstate() == state[1]
    assert report.subject["weights_sha256"] is None
    expected = diagnose(Pipeline(plain), only=["shapes", "causal_independence"])
    assert report.to_dict()["results"] == expected.to_dict()["results"]


def test_one_seed_gives_one_digest_and_no_seed_gives_another() -> None:
    def digest(seed: int) -> Any:
        torch.manual_seed(seed)
        return diagnose(Pipeline(Bigram()), only=["environment"]).subject["weights_sha256"]

    assert digest(1) == digest(1) != digest(2)


def test_a_report_of_version_1_has_no_subject_and_comes_back() -> None:
    old = diagnose(Pipeline(Bigram()), only=["environment"]).to_dict()
    del old["kind"], old["subject"]
    old["schema_version"] = 1
    report = Report.from_dict(old)
    assert report.subject == {}
    assert "which weights and ids it is about" in report.to_html()
    assert load_report(report.to_json())["subject"] == {}


def test_a_stored_subject_comes_back() -> None:
    report = diagnose(Pipeline(Bigram(), train_ids=torch.arange(11)), only=["environment"])
    read = Report.from_dict(load_report(report.to_json()))
    assert read.subject == report.subject
    assert read.to_html() == report.to_html()
    assert f"{report.subject['weights_sha256'][:12]}..." in report.to_html()
