"""What fresh weights look like when something went wrong while drawing them."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from diagnostics._optimizer_step import as_optimizers
from diagnostics._probe import Probe
from diagnostics._trace import module_at

CORNER = 16  # rows and columns looked at: enough to tell a pattern from chance
PATTERN_RANK_MAX = 2  # sin(a * i + b) and rows or columns all equal have rank 1 or 2
RANK_ROUNDING = (
    1e-4  # float32 and bfloat16 round a wave; third singular value of random corners: 0.6 and more
)
PATTERN_SIZE_MIN = 8  # smaller matrices have a low rank anyway
SPREAD_SIZE_MIN = 512  # numbers in a matrix: its standard deviation is known to 3 %
SPREAD_GAP = 0.1  # relative; a square and a root are farther away than that below 0.9
TIE_NAMES = (
    "tie_word_embeddings",
    "tie_embeddings",
    "tied_embeddings",
    "tie_weights",
    "tied_weights",
    "weight_tying",
    "share_input_output_embed",
    "tied",
)
STD_NAMES = ("initializer_range", "init_std", "initializer_std", "weight_init_std", "std")
VARIANCE_NAMES = ("init_variance", "init_var", "initializer_variance", "variance")


def find_identical_layers(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of matrices of different layers that are equal bit for bit, yet not shared.

    Two draws never agree, so that one is a copy of the other. Matrices that a rule fills (one
    number, one row repeated: the decays of a state-space model) are alike without being copies.
    """
    by_role: dict[tuple[str, torch.Size], list[tuple[str, Tensor]]] = {}
    for name, parameter in _matrices(model):
        by_role.setdefault((_role(name), parameter.shape), []).append((name, parameter))
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
        owner = module_at(model, name.rpartition(".")[0])
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


# ---- sharing, and what the configuration declares --------------------------------------------


def find_shared_layers(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of names of one parameter that stands in two layers: blocks.0.x, blocks.1.x.

    One module that is called in a loop has one name, and is a design that says what it is.
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    return [
        (first, other)
        for first, *others in names.values()
        for other in others[:1]
        if _role(first) == _role(other)
    ]


def find_one_memory(model: nn.Module) -> list[tuple[str, str]]:
    """Return pairs of different trainable parameters that lie over the same numbers.

    `head.weight.data = embedding.weight.data` makes one: each keeps a gradient of its own.
    """
    spans: list[tuple[int, int, int, str]] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad and parameter.is_contiguous() and not parameter.is_meta:
            first = int(parameter.storage_offset())
            memory = parameter.untyped_storage().data_ptr()
            spans.append((memory, first, first + parameter.numel(), name))
    spans.sort()
    return [
        (a[3], b[3])
        for a, b in itertools.pairwise(spans)
        if a[0] == b[0] != 0 and b[1] < a[2] and b[1] < b[2]
    ]


def measure_double_step(probe: Probe, first: str, second: str) -> float | None:
    """Return how many times further a step moves two parameters of one memory than one of them.

    Both are given the same gradient, then only the first. None without an optimizer, or where the
    copy, or what the optimizer holds, has come apart.
    """
    make_optimizer = probe.pipeline.make_optimizer
    if make_optimizer is None:
        return None
    lengths = []
    for names in ((first, second), (first,)):
        with probe.model(train=True) as model, probe.seeded("one memory"):
            parameters = dict(model.named_parameters())
            if find_one_memory(model)[:1] != [(first, second)]:
                return None
            try:
                optimizers = as_optimizers(make_optimizer(model))
                before = parameters[first].detach().clone()
                for name in names:
                    parameters[name].grad = torch.ones_like(parameters[name])
                for optimizer in optimizers:
                    optimizer.step()
            except Exception:  # any: of the user's optimizer; `optimizer` reports it
                return None
            lengths.append(float((parameters[first].detach() - before).double().norm()))
    twice, once = lengths
    return twice / once if once > 0 and math.isfinite(twice) else None


@dataclass(frozen=True)
class Tie:
    """What the configuration says of head and embedding, and what they are."""

    setting: str  # the name in the configuration
    declared: bool
    shared: bool  # one storage
    table: str
    head: str


def read_tie(model: nn.Module, vocab_size: int) -> Tie | None:
    """Compare a declared tie with the tensors; None where nothing is declared, or no pair fits."""
    setting, declared = declared_value(model, TIE_NAMES)
    if not isinstance(declared, bool):
        return None
    # transformers declares a tie by default, and a model that cannot tie leaves it at that
    of_library = any(kind.__module__.startswith("transformers") for kind in type(model).__mro__)
    if of_library and not getattr(model, "_tied_weights_keys", None):
        return None
    tables = {n: m for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    heads = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    pairs = [
        (table, head)
        for table, embedding in tables.items()
        for head, linear in heads.items()
        if embedding.weight.shape == linear.weight.shape and linear.out_features >= vocab_size
    ]
    if not pairs:
        return None

    def share(pair: tuple[str, str]) -> bool:
        a, b = tables[pair[0]].weight, heads[pair[1]].weight
        return a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()

    together = next(filter(share, pairs), None)
    table, head = together or pairs[0]
    return Tie(setting, declared, together is not None, table, head)


def find_equal_head(model: nn.Module) -> tuple[str, str] | None:
    """Return an embedding and a head that hold the same numbers in two places, or None.

    Two draws never agree: one is a copy of the other, as a tie leaves them that was broken.
    """
    tables = {n: m.weight for n, m in model.named_modules() if isinstance(m, nn.Embedding)}
    heads = {n: m.weight for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    for table, rows in tables.items():
        for head, weight in heads.items():
            one = rows.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr()
            if one or rows.shape != weight.shape or _is_constant(rows):
                continue
            if torch.equal(rows, weight):
                return table, head
    return None


@dataclass(frozen=True)
class Spread:
    """A declared spread of the initial weights that was taken for its square or its root."""

    setting: str
    declared: float
    wanted: float  # standard deviation
    measured: float  # of the first table
    power: float  # measured = wanted ** power


def find_mistaken_spread(model: nn.Module) -> Spread | None:
    """Return a spread for which variance and standard deviation have changed places.

    Tables and most linear layers must agree: a declaration may be unused, and torch's own start
    of a linear layer may lie near any number, but not that of a table, N(0, 1), too.
    """
    setting, value = declared_value(model, (*STD_NAMES, *VARIANCE_NAMES))
    if isinstance(value, bool) or not isinstance(value, float) or not 0 < value < 1:
        return None
    wanted = math.sqrt(value) if setting in VARIANCE_NAMES else value
    tables = _spreads(model, nn.Embedding)
    layers = _spreads(model, nn.Linear)
    for power in (2.0, 0.5):
        expected = wanted**power

        def fits(std: float, expected: float = expected) -> bool:
            return abs(std / expected - 1) <= SPREAD_GAP

        if tables and all(map(fits, tables)) and 2 * sum(map(fits, layers)) >= len(layers):
            return Spread(setting, value, wanted, tables[0], power)
    return None


def declared_value(model: nn.Module, names: tuple[str, ...]) -> tuple[str, Any]:
    """Return the first of the names that the configuration knows, and its value, or ("", None)."""
    for holder in (getattr(model, name, None) for name in ("config", "cfg", "hparams", "args")):
        for name in names:
            found = holder.get(name) if isinstance(holder, dict) else getattr(holder, name, None)
            if found is not None:
                return name, found
    return "", None


def _spreads(model: nn.Module, kind: type[nn.Module]) -> list[float]:
    """Return the standard deviation of every weight of a kind of layer that is large enough."""
    weights = [module.weight for module in model.modules() if isinstance(module, kind)]
    return [
        float(weight.detach().float().std())
        for weight in weights
        if isinstance(weight, Tensor) and weight.numel() >= SPREAD_SIZE_MIN
    ]


def _role(name: str) -> str:
    return re.sub(r"\d+", "#", name)
