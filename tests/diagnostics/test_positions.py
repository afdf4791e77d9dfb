"""Positions: which row each position reads, predicted by hand, and what is said of each fault."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from diagnostics import Pipeline, Status, check_positions
from diagnostics._position_tables import (
    closest_rows,
    find_tables,
    map_rows,
    names_relative_positions,
)
from diagnostics._probe import Probe
from diagnostics._structure import bench
from tests.diagnostics.architectures import Llama, OffsetGPT, SineGPT
from tests.diagnostics.tiny import Bigram, TinyGPT


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


class _Placed(TinyGPT):
    """Positions as told by a function of the ids (B, T)."""

    def __init__(self, places: Callable[[Tensor], Tensor], *, block: int = 12) -> None:
        super().__init__(block=block)
        self.places = places

    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids) + self.positions(self.places(ids))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _NotAdded(TinyGPT):
    def hidden(self, ids: Tensor) -> Tensor:
        assert self.positions is not None
        x = self.tokens(ids)
        self.positions(torch.arange(ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x)


class _LlamaWithTable(Llama):
    def __init__(self) -> None:
        super().__init__()
        self.position_embedding = nn.Embedding(12, 16)


def _fixed(table: Tensor) -> SineGPT:
    model = SineGPT()
    model.pe = table
    return model


def arange(ids: Tensor) -> Tensor:
    return torch.arange(ids.shape[1])


BROKEN: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "computed, not added": (_NotAdded, "unused_table"),
    "zeros for all": (lambda: _Placed(lambda ids: torch.zeros_like(arange(ids))), "constant"),
    "arange over the batch": (
        lambda: _Placed(lambda ids: torch.arange(len(ids))[:, None]),
        "constant",
    ),
    "last index for all": (
        lambda: _Placed(lambda ids: torch.full_like(arange(ids), 11)),
        "constant",
    ),
    "two by two": (lambda: _Placed(lambda ids: arange(ids) // 2), "shared_rows"),
    "modulo eight": (lambda: _Placed(lambda ids: arange(ids) % 8), "shared_rows"),
    "offset and clamped": (
        lambda: _Placed(lambda ids: (arange(ids) + 2).clamp(max=11)),
        "shared_rows",
    ),
    "from one, first twice": (
        lambda: _Placed(lambda ids: (arange(ids) - 1).clamp(min=0)),
        "shared_rows",
    ),
    "clamped far out": (
        lambda: _Placed(lambda ids: arange(ids).clamp(max=30), block=32),
        "shared_rows",
    ),
    "modulo half the block": (
        lambda: _Placed(lambda ids: arange(ids) % 16, block=32),
        "shared_rows",
    ),
    "read by token ids": (lambda: _Placed(lambda ids: ids, block=32), "read_by_token"),
    "slipped exponent": (lambda: SineGPT(exponent_divisor=1.0), "still_columns"),
    "never filled": (lambda: _fixed(torch.zeros(1, 64, 16)), "equal_rows"),
    "sines in odd columns too": (
        lambda: _fixed(SineGPT().pe[..., ::2].repeat_interleave(2, -1)),
        "twin_columns",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_fails_for_its_reason(name: str) -> None:
    make, reason = BROKEN[name]
    result = check_positions(make())
    assert result.status is Status.FAIL
    assert result.reason == f"positions.{reason}", str(result)
    assert result.causes
    assert result.measured
    assert result.next_step


def _turned(x: Tensor, angles: Tensor, *, pairs: str, sign: float = 1.0) -> Tensor:
    """Rotate halves by a table for halves, or by one for neighbours; sign -1 is a slip."""
    a, b = x.chunk(2, -1)
    table = torch.cat([angles, angles], -1)
    if pairs == "neighbours":
        table = angles.repeat_interleave(2, -1)
    return x * table.cos().to(x) + torch.cat([-sign * b, a], -1) * table.sin().to(x)


ROTATIONS: dict[str, tuple[Callable[[int, Tensor, Tensor], Tensor], Status, str]] = {
    "as it should be": (lambda n, x, a: _turned(x, a, pairs="halves"), Status.PASS, "ok"),
    "not applied": (lambda n, x, a: x, Status.FAIL, "rotary_unused"),
    "queries only": (
        lambda n, x, a: x if n % 2 else _turned(x, a, pairs="halves"),
        Status.WARN,
        "rotary_one_sided",
    ),
    "over the heads": (
        lambda n, x, a: _turned(x, torch.arange(4)[:, None, None] + 0 * a[:1], pairs="halves"),
        Status.FAIL,
        "rotary_unused",
    ),
    "pairs mixed": (
        lambda n, x, a: _turned(x, a, pairs="neighbours"),
        Status.WARN,
        "rotary_not_relative",
    ),
    "wrong sign": (
        lambda n, x, a: _turned(x, a, pairs="halves", sign=-1.0),
        Status.WARN,
        "rotary_not_relative",
    ),
    "normed afterwards": (
        lambda n, x, a: nn.functional.normalize(_turned(x, a, pairs="halves"), dim=-1),
        Status.PASS,
        "ok",
    ),
    "decaying with distance": (  # xPos: queries grow as keys shrink
        lambda n, x, a: (
            _turned(x, a, pairs="halves")
            * (0.98 if n % 2 else 1 / 0.98) ** torch.arange(len(a))[:, None].to(x)
        ),
        Status.PASS,
        "ok",
    ),
}


@pytest.mark.parametrize("name", ROTATIONS)
def test_rotations_are_seen_in_queries_and_keys(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """For one token repeated, scores of a sound rotation depend on the distance alone."""
    rotate, status, reason = ROTATIONS[name]
    calls = itertools.count()
    monkeypatch.setattr(
        "tests.diagnostics.architectures._rotate", lambda x, angles: rotate(next(calls), x, angles)
    )
    result = check_positions(Llama())
    assert (result.status, result.reason) == (status, f"positions.{reason}"), str(result)


def _map(model: nn.Module, T: int) -> dict[int, int]:
    probe = Probe(Pipeline(model))
    with bench(probe) as model_bench:
        path = find_tables(model)[0].path
        return map_rows(model_bench, path, probe.tokens(1, T), list(range(12)), 1e-9)[0].first


def test_row_t_is_read_by_position_t() -> None:
    assert _map(TinyGPT(), 5) == {0: 0, 1: 1, 2: 2, 3: 3, 4: 4}


def test_an_offset_of_two_and_a_flip_show_in_the_map() -> None:
    assert _map(_Placed(lambda ids: arange(ids) + 2), 3) == {2: 0, 3: 1, 4: 2}
    assert _map(_Placed(lambda ids: arange(ids).flip(0)), 3) == {2: 0, 1: 1, 0: 2}


def test_opts_two_extra_rows_are_a_design_and_none_are_a_short_table() -> None:
    assert check_positions(OffsetGPT(extra=2)).reason == "positions.ok"
    model = OffsetGPT(extra=0)
    model.config.block_size = 12
    result = check_positions(model, torch.arange(8)[None])
    assert result.reason == "positions.table_too_small"
    assert result.claim == (
        "positions.weight has 12 rows and is read from row 2: a block of 12 does not fit"
    )
    assert result.numbers == {"rows": 12, "offset": 2, "block": 12}


def test_positions_that_start_anew_at_a_separator_are_not_shared_by_mistake() -> None:
    """Packed rows: token 3 ends a document, and the next position is 0 again."""

    def places(ids: Tensor) -> Tensor:
        t = arange(ids).expand_as(ids)
        start = torch.where(ids == 3, t + 1, 0).cummax(1).values.roll(1, 1)
        start[:, 0] = 0
        return t - start

    tokens = torch.tensor([[5, 3, 7, 1, 3, 2, 8, 9]])
    assert check_positions(_Placed(places), tokens).reason == "positions.ok"


def test_unused_table_beside_rotary_positions_is_a_warning() -> None:
    model = _LlamaWithTable()
    assert names_relative_positions(model)
    result = check_positions(model)
    assert (result.status, result.reason) == (Status.WARN, "positions.unused_table")
    assert "rotary" in result.causes[-1]


def test_one_layer_without_positions_reads_a_bag_of_words() -> None:
    result = check_positions(TinyGPT(positions=False, L=1))
    assert (result.status, result.reason) == (Status.WARN, "positions.order_unused")
    assert result.numbers["trade"] <= result.numbers["limit"] < result.numbers["change"]


def test_without_a_table_the_order_is_measured() -> None:
    result = check_positions(TinyGPT(positions=False, L=2))
    assert result.reason == "positions.ok"
    assert result.numbers["tables"] == []
    assert result.numbers["repeated_token_spread"] <= result.numbers["limit"]
    assert result.numbers["trade"] > 1e-3


def test_a_bigram_table_has_no_order_to_keep() -> None:
    result = check_positions(Bigram())
    assert result.status is Status.PASS
    assert "no earlier token is read" in result.claim


def test_rotary_frequencies_in_sixteen_bits_are_named_with_their_error() -> None:
    """At 2048 positions bfloat16 turns an angle by radians; in float32 it does not."""
    model = Llama(C=128, H=2)
    assert check_positions(model, block_size=2048).reason == "positions.ok"
    result = check_positions(model.bfloat16(), block_size=2048)
    assert result.reason == "positions.rounded_frequencies"
    assert 0.5 < result.numbers["error"] < 8.0


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("wpe", True),
        ("pos_emb", True),
        ("position_embeddings", True),
        ("pe", True),
        ("speed", False),
        ("rotary_pos_emb", False),
        ("relative_position_bias", False),
        ("compose", False),
    ],
)
def test_tables_are_found_by_name(path: str, found: bool) -> None:
    model = nn.Module()
    model.register_module(path, nn.Embedding(4, 3))
    assert bool(find_tables(model)) is found


def test_a_linear_layer_named_after_positions_is_no_table() -> None:
    model = nn.Module()
    model.position_mixer = nn.Linear(4, 4)
    assert find_tables(model) == []


def test_a_slipped_exponent_makes_rows_44_apart_nearly_equal() -> None:
    """With one frequency of 1 left, 44 is nearly 7 turns of 2 pi."""
    a, b, distance = closest_rows(SineGPT(exponent_divisor=1.0).pe[0].double())
    assert abs(a - b) == 44
    assert distance < 0.01
    assert closest_rows(SineGPT().pe[0].double())[2] > 0.1


def test_nan_is_no_verdict_on_positions() -> None:
    model = TinyGPT()
    with torch.no_grad():
        model.head.weight[3] = torch.nan
    assert check_positions(model).reason == "positions.not_finite"


def test_two_tokens_are_refused() -> None:
    with pytest.raises(ValueError, match=r"T >= 3, got \(1, 2\)"):
        check_positions(TinyGPT(), torch.zeros(1, 2, dtype=torch.long))
