"""Tables of positions inside a model: which are there, and which row each position reads.

Shapes: B batch, T time, R rows of the table, C width.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from diagnostics._structure import Bench, moved
from diagnostics._trace import module_at

_TABLE = re.compile(r"(^|[._])((wpe|pe|pos)([._\d]|$)|posi|pos_?(e|tab))")
# rotations, relative distances and biases are not looked up by position
_OTHER = re.compile(r"rot|rope|freq|rel|alibi|bias|proj|(^|[._])(cos|sin)([._]|$)")
_RELATIVE = re.compile(r"rot(ary|ate)|rope|freq|relative|alibi|(^|[._])(cos|sin)([._]|$)")
_ROTARY = re.compile(r"rotary|rope|inv_?freq|(^|[._\s])(cos|sin)(_cached)?([._\s]|$)")


@dataclass(frozen=True)
class PositionTable:
    """A table whose name speaks of positions."""

    path: str
    rows: int  # R
    trainable: bool


@dataclass(frozen=True)
class RowMap:
    """Which position each row reaches first: with causal masking, the one that reads it."""

    first: dict[int, int]  # {row: first position that moves}; rows that move nothing are left out
    T: int

    @property
    def is_clear(self) -> bool:
        """Whether no two rows reach the same position first, as in a table of positions."""
        return len(set(self.first.values())) == len(self.first)

    @property
    def without_row(self) -> list[int]:
        """Positions that have no row of their own: they read one that an earlier one reads."""
        owned = set(self.first.values())
        return [t for t in range(self.T) if t not in owned]

    def row_of(self, position: int) -> int | None:
        """Return the row that reaches this position first."""
        return next((row for row, first in self.first.items() if first == position), None)


def find_tables(model: nn.Module) -> list[PositionTable]:
    """Return parameters and buffers (R, C) named after positions, also inside (1, R, C)."""
    found = []
    for path, tensor in [*model.named_parameters(), *model.named_buffers()]:
        name = path.lower()
        owner = module_at(model, path.rpartition(".")[0])
        foreign = type(owner).__module__.startswith("torch.nn") and not isinstance(
            owner, (nn.Embedding, nn.ParameterList, nn.ParameterDict)
        )
        table = tensor.squeeze()
        if foreign or not tensor.is_floating_point() or table.ndim != 2 or len(table) < 2:
            continue
        if _TABLE.search(name) and not _OTHER.search(name):
            found.append(PositionTable(path, len(table), tensor.requires_grad))
    return found


def names_rotary_positions(model: nn.Module) -> bool:
    """Whether something is named after rotary positions, and nothing after other relative ones."""
    names = [path for path, _ in (*model.named_parameters(), *model.named_buffers())]
    names += [f"{path} {type(module).__name__}" for path, module in model.named_modules()]
    text = "\n".join(names).lower()
    return bool(_ROTARY.search(text)) and not re.search(r"alibi|relative|rel_pos|bias_table", text)


def names_relative_positions(model: nn.Module) -> bool:
    """Whether a module, buffer or class is named after rotary, relative or ALiBi positions."""
    names = [path for path, _ in (*model.named_parameters(), *model.named_buffers())]
    names += [f"{path} {type(module).__name__}" for path, module in model.named_modules()]
    return any(_RELATIVE.search(name.lower()) for name in names)


def map_rows(
    bench: Bench, path: str, tokens: Tensor, rows: list[int], limit: float
) -> list[RowMap]:
    """Add noise to one row of the table after the other, and note where logits move first.

    tokens: (B, T).    Returns one map for each row of tokens.
    Raises RuntimeError for a table that cannot be written to.
    """
    table = tensor_at(bench.model, path)
    before = bench.call(tokens)
    generator = bench.probe.generator("position rows")
    first: list[dict[int, int]] = [{} for _ in tokens]
    for row in rows:
        noise = torch.randn(table.shape[1], generator=generator)
        kept = table[row].clone()
        with torch.no_grad():
            table[row] += noise.to(table)
            arrives = moved(before, bench.call(tokens)) > limit  # (B, T)
            table[row] = kept
        for found, here in zip(first, arrives, strict=True):
            if here.any():
                found[row] = int(torch.nonzero(here)[0])
    return [RowMap(found, tokens.shape[1]) for found in first]


def tensor_at(model: nn.Module, path: str) -> Tensor:
    """Return the table (R, C) at the path: a view, so that writing to it changes the model."""
    tensors = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return tensors[path].detach().squeeze()


def closest_rows(table: Tensor) -> tuple[int, int, float]:
    """Return the two rows of (R, C) that differ least, and how much, relative to their size."""
    distances = torch.cdist(table, table)  # (R, R)
    distances.fill_diagonal_(torch.inf)
    a, b = divmod(int(distances.argmin()), len(table))
    size = float(table.norm(dim=1).mean())
    return a, b, float(distances[a, b]) / size if size else 0.0


def still_columns(table: Tensor) -> float | None:
    """Return the share of columns of a sine table that never change; None: it is no sine table.

    A sine table starts with sin 0 and cos 0 in its first row, and with no whole numbers after it.
    """
    start, rest = table[0], table[1:]
    is_sine = bool(((start == 0) | (start == 1)).all()) and bool((table.abs() <= 1).all())
    if not is_sine or not bool((rest != rest.round()).any()):
        return None
    # the slowest sine of a sound table, 1e-4 radians a token, moves its cosine by 5e-9 a token
    still = (table.amax(dim=0) - table.amin(dim=0)) < 1e-8  # (C,)
    return float(still.double().mean())


def twin_columns(table: Tensor) -> float:
    """Return the share of columns that say what another one says already."""
    moving = table[:, (table.amax(dim=0) - table.amin(dim=0)) > 1e-3]  # (R, C)
    if not moving.shape[1]:
        return 0.0
    return 1 - len(torch.unique(moving, dim=1).T) / moving.shape[1]


def rounded_frequencies(model: nn.Module, T: int) -> tuple[str, float] | None:
    """Return (path, radians): the phase error at position T - 1 of 16-bit rotary frequencies.

    The frequencies are base ** (-i / n); the base is read from them by a straight line through
    their logarithms. None: there are none, or they are no such series.
    """
    for path, buffer in model.named_buffers():
        if not re.search(r"inv_?freq|freqs?$", path) or buffer.ndim != 1 or len(buffer) < 3:
            continue
        if not buffer.is_floating_point() or buffer.element_size() > 2 or bool((buffer <= 0).any()):
            continue
        values = buffer.detach().cpu().double()
        steps = torch.arange(len(values), dtype=torch.float64)
        logs = values.log()
        steps_centred = steps - steps.mean()
        slope = (steps_centred * logs).sum() / steps_centred.square().sum()
        exact = (slope * steps).exp()  # the first one is base ** 0 = 1
        if bool(((values / exact - 1).abs() < 0.02).all()):  # bfloat16 rounds by up to 0.004
            return path, float((values - exact).abs().max() * (T - 1))
    return None
