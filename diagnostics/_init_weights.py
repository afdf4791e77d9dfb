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

    Two draws never agree, so that one is a copy of the other. Constant matrices do not count.
    """
    by_role: dict[tuple[str, torch.Size], list[tuple[str, Tensor]]] = {}
    for name, parameter in _matrices(model):
        role = re.sub(r"\d+", "#", name)
        by_role.setdefault((role, parameter.shape), []).append((name, parameter))
    pairs = []
    for same in by_role.values():
        first_name, first = same[0]
        if _is_constant(first) or _is_sparse_pattern(first):
            continue
        pairs += [
            (first_name, name)
            for name, other in same[1:]
            if other.data_ptr() != first.data_ptr() and torch.equal(first, other)
        ]
    return pairs


def find_patterns(model: nn.Module) -> list[str]:
    """Return matrices that were filled by a rule: one number, equal rows, or a slow wave.

    All zeros is a design (heads, LoRA). Their units stay equal for ever, or nearly so.
    """
    found = []
    for name, parameter in _matrices(model):
        matrix = parameter.flatten(1)
        if min(matrix.shape) < PATTERN_SIZE_MIN or not bool(matrix.any()):
            continue
        corner = matrix[:CORNER, :CORNER].double().cpu()
        rank = int(torch.linalg.matrix_rank(corner, rtol=RANK_ROUNDING))
        if 0 < rank <= PATTERN_RANK_MAX:
            found.append(name)
    return found


def _matrices(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    for name, parameter in model.named_parameters():
        if parameter.ndim >= 2 and parameter.is_floating_point():
            yield name, parameter.detach()


def _is_constant(matrix: Tensor) -> bool:
    return bool((matrix == matrix.flatten()[0]).all())


def _is_sparse_pattern(matrix: Tensor) -> bool:
    """Identity matrices and the like are equal in every layer by design."""
    return int((matrix != 0).sum()) <= max(matrix.shape)
