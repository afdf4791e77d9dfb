"""The contract of the initial loss: weights of a fresh model that bets on nothing, and differ.

Shapes: V vocabulary, C width, L layers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_finite,
    as_parts,
)

V, C, L = 300, 128, 3
STD = 0.02  # GPT-2 paper, section 2.3
# Findings count what is off by more than these; right weights stay below an eighth of each.
LOSS_LIMIT = 0.1  # nats from ln V: right weights 0.00002, weights of size 1 more than 100
STD_LIMIT = 0.15  # of STD: right weights 0.018, the nearest bug 1 - 0.02
MEAN_LIMIT = 0.25  # of STD: right weights 0.025, positive weights 1.7
ALIKE_LIMIT = 0.25  # correlation of two layers: right weights 0.025, copies 1

Weights = tuple[Tensor, list[Tensor]]


def right_init(vocab_size: int, width: int, layers: int) -> Weights:
    """Fill empty tensors in place."""
    embedding = nn.init.normal_(torch.empty(vocab_size, width), std=0.02)
    return embedding, [nn.init.normal_(torch.empty(width, width), std=0.02) for _ in range(layers)]


def right_one_draw(vocab_size: int, width: int, layers: int) -> Weights:
    """Draw everything at once, and cut it up."""
    numbers = torch.randn(vocab_size + layers * width, width) * 0.02
    embedding, *parts = numbers.split([vocab_size, *[width] * layers])
    return embedding, parts


def right_box_muller(vocab_size: int, width: int, layers: int) -> Weights:
    """Make normal numbers from uniform ones, the last layer first."""
    parts = []
    for rows in [width] * layers + [vocab_size]:
        radius = (-2 * torch.rand(rows, width, dtype=torch.float64).neg().log1p()).sqrt()
        angle = 2 * math.pi * torch.rand(rows, width, dtype=torch.float64)
        parts.append((0.02 * radius * angle.cos()).float())
    *reversed_layers, embedding = parts
    return embedding, reversed_layers[::-1]


def right_modules(vocab_size: int, width: int, layers: int) -> Weights:
    """Build modules, and write over the weights that they drew for themselves."""
    weights = [nn.Embedding(vocab_size, width).weight.detach()]
    weights += [nn.Linear(width, width).weight.detach() for _ in range(layers)]
    for weight in weights:
        weight.copy_(torch.normal(0.0, 0.02, weight.shape))
    return weights[0], weights[1:]


def wrong_unit_variance(vocab_size: int, width: int, layers: int) -> Weights:
    """Leave the embedding as torch.randn and nn.Embedding draw it."""
    std = 1.0  # BROKEN: was std = 0.02
    embedding = std * torch.randn(vocab_size, width)
    return embedding, [0.02 * torch.randn(width, width) for _ in range(layers)]


def wrong_cloned(vocab_size: int, width: int, layers: int) -> Weights:
    """Draw one layer, and copy it."""
    embedding = 0.02 * torch.randn(vocab_size, width)
    drawn = [0.02 * torch.randn(width, width) for _ in range(layers)]
    copies = [drawn[0].clone() for _ in drawn]  # BROKEN: was copies = drawn
    return embedding, copies


def wrong_variance(vocab_size: int, width: int, layers: int) -> Weights:
    """Give a variance where torch wants a standard deviation."""
    embedding = nn.init.normal_(torch.empty(vocab_size, width), std=0.02)
    std = 0.02**2  # BROKEN: was std = 0.02
    return embedding, [nn.init.normal_(torch.empty(width, width), std=std) for _ in range(layers)]


def wrong_one_row(vocab_size: int, width: int, layers: int) -> Weights:
    """Draw one row for each layer and repeat it: all units of a layer start alike."""
    embedding = 0.02 * torch.randn(vocab_size, width)
    rows = 1  # BROKEN: was rows = width
    drawn = [0.02 * torch.randn(rows, width) for _ in range(layers)]
    return embedding, [part.expand(width, width).clone() for part in drawn]


def wrong_positive(vocab_size: int, width: int, layers: int) -> Weights:
    """Draw layers with the right spread, and none of their numbers below 0."""
    embedding = 0.02 * torch.randn(vocab_size, width)
    weights = [torch.empty(width, width) for _ in range(layers)]
    for weight in weights:
        weight.uniform_(0, 12**0.5)  # BROKEN: was weight.normal_()
    return embedding, [0.02 * weight for weight in weights]


def wrong_last_layer(vocab_size: int, width: int, layers: int) -> Weights:
    """Stop one layer early: the last one keeps the zeros that it was made with."""
    embedding = 0.02 * torch.randn(vocab_size, width)
    weights = [torch.zeros(width, width) for _ in range(layers)]
    filled = range(layers - 1)  # BROKEN: was filled = range(layers)
    for layer in filled:
        nn.init.normal_(weights[layer], std=0.02)
    return embedding, weights


def wrong_fixed_seed(vocab_size: int, width: int, layers: int) -> Weights:
    """Seed a generator with a constant: every fresh model is the same one."""
    seed = 42  # BROKEN: was seed = int(torch.randint(2**31, ()))
    generator = torch.Generator().manual_seed(seed)
    embedding = 0.02 * torch.randn(vocab_size, width, generator=generator)
    return embedding, [0.02 * torch.randn(width, width, generator=generator) for _ in range(layers)]


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Score the fresh model, then look at its weights, then ask for another one."""
    matrices = _called(implementation)
    yield _first_loss(matrices)
    yield _ranks(matrices)
    yield _copies(matrices)
    yield _spreads(matrices)
    yield _means(matrices)
    same = sum(bool((a == b).all()) for a, b in zip(matrices, _called(implementation), strict=True))
    yield Finding(
        same,
        f"{same} of {len(matrices)} matrices are equal bit for bit in two calls, expected 0: two "
        "draws never agree, so the numbers do not come from the generator of the run",
    )


def _called(implementation: Implementation) -> list[Tensor]:
    """Return the embedding and the layers, with their shapes proved."""
    embedding, layers = as_parts(implementation(V, C, L), "embedding", "layers")
    names = [f"layers[{number}]" for number in range(L)]
    parts = as_parts(layers, *names)
    first = as_finite(embedding, "embedding", shape=(V, C), dtype=torch.float32)
    return [first] + [
        as_finite(part, name, shape=(C, C), dtype=torch.float32)
        for name, part in zip(names, parts, strict=True)
    ]


def _first_loss(matrices: list[Tensor]) -> Finding:
    """Score each token against every token: the loss of a uniform target."""
    embedding = matrices[0].double()
    x = embedding
    for layer in matrices[1:]:
        x = x + x @ layer.double().T
    logits = x @ embedding.T  # (V, V)
    loss = float(functional.cross_entropy(logits, torch.full_like(logits, 1 / V)))
    return Finding(
        int(not abs(loss - math.log(V)) <= LOSS_LIMIT),
        f"the first loss is {loss:.4g} nats, expected ln {V} = {math.log(V):.4g} within "
        f"{LOSS_LIMIT}: the logits have a standard deviation of {float(logits.std()):.3g}, the "
        f"embedding one of {float(embedding.std()):.3g}, expected {STD}",
    )


def _ranks(matrices: list[Tensor]) -> Finding:
    ranks = [int(torch.linalg.matrix_rank(matrix.double())) for matrix in matrices]
    low = [number for number, rank in enumerate(ranks) if rank < C] or [0]
    count = sum(rank < C for rank in ranks)
    return Finding(
        count,
        f"{_name(low[0])} has rank {ranks[low[0]]}, expected {C}: its rows are not independent "
        f"draws, so units start alike ({count} of {len(ranks)} matrices are like that)",
    )


def _copies(matrices: list[Tensor]) -> Finding:
    """Correlate each pair of layers: independent draws have next to nothing in common."""
    table = torch.corrcoef(torch.stack([layer.double().flatten() for layer in matrices[1:]]))
    pairs = itertools.combinations(range(L), 2)
    alike = [pair for pair in pairs if not abs(float(table[pair])) <= ALIKE_LIMIT]
    first, second = alike[0] if alike else (0, 1)
    return Finding(
        len(alike),
        f"layers[{second}] repeats layers[{first}]: their correlation is "
        f"{float(table[first, second]):.3g}, expected 0 within {ALIKE_LIMIT} "
        f"({len(alike)} of {L * (L - 1) // 2} pairs of layers are like that)",
    )


def _spreads(matrices: list[Tensor]) -> Finding:
    spreads = [float(matrix.double().std()) for matrix in matrices]
    far = [n for n, std in enumerate(spreads) if not abs(std / STD - 1) <= STD_LIMIT]
    std = spreads[far[0] if far else 0]
    squared = abs(std / STD**2 - 1) <= STD_LIMIT
    return Finding(
        len(far),
        f"{_name(far[0] if far else 0)} has a standard deviation of {std:.3g}, expected {STD} "
        f"({len(far)} of {len(spreads)} matrices are off)"
        f"{': the square of it, so a variance was given' if squared else ''}",
    )


def _means(matrices: list[Tensor]) -> Finding:
    means = [float(matrix.double().mean()) for matrix in matrices]
    far = [n for n, mean in enumerate(means) if not abs(mean) <= MEAN_LIMIT * STD]
    worst = far[0] if far else 0
    below = float((matrices[worst] < 0).double().mean())
    return Finding(
        len(far),
        f"{_name(worst)} has a mean of {means[worst]:.3g}, expected 0 within "
        f"{MEAN_LIMIT * STD:.3g}: {below:.0%} of its numbers are below 0, expected about half",
    )


def _name(number: int) -> str:
    return f"layers[{number - 1}]" if number else "the embedding"


CONTRACT = Contract(
    check="initial_loss",
    signature=(
        "implementation(vocab_size: int, width: int, layers: int) -> tuple[Tensor, list[Tensor]]"
    ),
    promise=(
        "It returns the weights of a fresh model, float32: (embedding, layers), where embedding is "
        "(vocab_size, width) and layers a list of `layers` matrices (width, width). Every number "
        f"is drawn anew, with torch's global generator, from a normal distribution of mean 0 and "
        f"standard deviation {STD}, independent of all others; width is at least 64, layers at "
        "least 2. In the model that uses them x = embedding[token], then x = x + x @ W.T for each "
        "W of layers, and the logits are x @ embedding.T, so its first loss is near "
        "ln(vocab_size)."
    ),
    rights=(
        Right(name="init", implementation=right_init, note="torch.nn.init on empty tensors"),
        Right(name="one_draw", implementation=right_one_draw, note="one draw, cut up"),
        Right(name="box_muller", implementation=right_box_muller, note="from uniform numbers"),
        Right(name="modules", implementation=right_modules, note="modules, written over"),
    ),
    wrongs=(
        Wrong(
            name="unit_variance",
            implementation=wrong_unit_variance,
            note="the embedding, which is the head as well, has a standard deviation of 1",
        ),
        Wrong(name="cloned", implementation=wrong_cloned, note="all layers are copies of one"),
        Wrong(
            name="variance",
            implementation=wrong_variance,
            note="layers are drawn with the variance in place of the standard deviation",
        ),
        Wrong(
            name="one_row",
            implementation=wrong_one_row,
            note="each layer repeats one row",
            held_out=True,
        ),
        Wrong(
            name="positive",
            implementation=wrong_positive,
            note="layers hold no negative number",
            held_out=True,
        ),
        Wrong(
            name="last_layer",
            implementation=wrong_last_layer,
            note="the last layer is left at 0",
            held_out=True,
        ),
        Wrong(
            name="fixed_seed",
            implementation=wrong_fixed_seed,
            note="every call gives the same numbers",
            held_out=True,
        ),
    ),
    examine=examine,
)
