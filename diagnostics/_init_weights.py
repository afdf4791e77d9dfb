"""What fresh weights look like when something went wrong while drawing them."""

from __future__ import annotations

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn

CORNER = 16  # rows and columns looked at: enough to tell a pattern from chance
PATTERN_RANK_MAX = 2  # sin(a * i + b) and rows or columns all equal have rank 1 or 2
RANK_ROUNDING = (
    1e-4  # float32 and bfloat16 round a wave; third singular value of random corners: 0.6 and more
)
PATTERN_SIZE_MIN = 8  # smaller matrices have a low rank anyway


def find_identical_layers(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of matrices of different layers that are equal bit for bit, yet not shared.

    Two draws never agree, so that one is a copy of the other. Matrices that a rule fills (one
    number, one row repeated: the decays of a state-space model) are alike without being copies.
    """
    by_role: dict[tuple[str, torch.Size], list[tuple[str, Tensor]]] = {}
    for name, parameter in _matrices(model):
        role = re.sub(r"\d+", "#", name)
        by_role.setdefault((role, parameter.shape), []).append((name, parameter))
    pairs = []
    for same in by_role.values():
        first_name, first = same[0]
        if _is_constant(first) or _is_sparse_pattern(first) or _rows_repeat(first):
            continue
        pairs += [
            (first_name, name)
            for name, other in same[1:]
            if other.data_ptr() != first.data_ptr() and torch.equal(first, other)
        ]
    return pairs


def find_patterns(model: nn.Module) -> list[str]:
    """Return matrices that were filled by a rule: one number, equal rows, or a slow wave.

    All zeros is a design (heads, LoRA). Their units stay equal for ever, or nearly so. A parameter
    that belongs to no layer of torch may be no projection at all (the decays of Mamba repeat one
    row), so that it counts only where it is named as a weight.
    """
    found = []
    for name, parameter in _matrices(model):
        owner = model.get_submodule(name.rpartition(".")[0])
        if not _is_torch_layer(owner) and "weight" not in name.rpartition(".")[2]:
            continue
        matrix = parameter.flatten(1)
        if min(matrix.shape) < PATTERN_SIZE_MIN or not bool(matrix.any()):
            continue
        corner = matrix[:CORNER, :CORNER].double().cpu()
        if not bool(corner.isfinite().all()):
            continue  # `forward_hooks` names it; a rank of NaN does not exist
        rank = int(torch.linalg.matrix_rank(corner, rtol=RANK_ROUNDING))
        if 0 < rank <= PATTERN_RANK_MAX:
            found.append(name)
    return found


def _matrices(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            yield name, parameter.detach()


def _is_torch_layer(module: nn.Module) -> bool:
    return type(module).__module__.startswith("torch.")


def _is_constant(matrix: Tensor) -> bool:
    return bool((matrix == matrix.flatten()[0]).all())


def _is_sparse_pattern(matrix: Tensor) -> bool:
    """Identity matrices and the like are equal in every layer by design."""
    return int((matrix != 0).sum()) <= max(matrix.shape)


def _rows_repeat(matrix: Tensor) -> bool:
    """Every row, or every column, is the same: filled by a rule, not drawn."""
    flat = matrix.flatten(1)
    return bool((flat == flat[:1]).all()) or bool((flat == flat[:, :1]).all())
