"""The contract of evaluation: the mean nats per token, over every token once.

The model is a table of logits: what follows a token depends on that token alone.

Shapes: N ids, V vocabulary, N - 1 pairs of a token and the next one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_number,
)

V = 9
SPREAD = 2.0  # standard deviation of the logits: the nats of two pairs then differ by whole units
CASES = ((24, 8), (25, 8), (50, 16), (41, 7))  # (N, batch_size): pairs over, none, one, five
FITS = 1e-9  # how near the value of a known mistake counts as that mistake


def right_batches(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Add up the nats of each batch, and divide once by all pairs."""
    inputs, targets = ids[:-1], ids[1:]
    nats = 0.0
    for start in range(0, len(inputs), batch_size):
        end = start + batch_size
        logits = table[inputs[start:end]]  # (batch, V)
        nats += float(functional.cross_entropy(logits, targets[start:end], reduction="sum"))
    return nats / len(inputs)


def right_at_once(table: Tensor, ids: Tensor, batch_size: int) -> Tensor:
    """Score all pairs at once, whatever the size of a batch."""
    log_p = table.log_softmax(dim=1)[ids[:-1]]  # (N - 1, V)
    return -log_p.gather(1, ids[1:, None]).mean()


def right_counts(table: Tensor, ids: Tensor, batch_size: int) -> Tensor:
    """Count how often each pair occurs, and weigh the table with the counts."""
    V = len(table)
    counts = (ids[:-1] * V + ids[1:]).bincount(minlength=V * V).view(V, V)
    nats = table.logsumexp(dim=1, keepdim=True) - table
    return (nats * counts).sum(dim=(0, 1), keepdim=True) / counts.sum()


def right_running_mean(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Read the batches in random order, and keep a mean that is right after each of them."""
    inputs, targets = ids[:-1].split(batch_size), ids[1:].split(batch_size)
    mean, seen = 0.0, 0
    for number in torch.randperm(len(inputs)).tolist():
        loss = functional.cross_entropy(table[inputs[number]], targets[number])
        seen += len(inputs[number])
        mean += (float(loss) - mean) * len(inputs[number]) / seen
    return mean


def right_plain_numbers(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Compute each pair with plain numbers."""
    rows, tokens = table.tolist(), ids.tolist()
    norms = [math.log(math.fsum(math.exp(logit) for logit in row)) for row in rows]
    count = len(tokens) - 1
    each = [norms[tokens[i]] - rows[tokens[i]][tokens[i + 1]] for i in range(count)]
    return math.fsum(each) / count


def wrong_mean_of_means(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Average the batches: a short one weighs as much as a full one."""
    inputs, targets = ids[:-1], ids[1:]
    nats, weights = 0.0, 0
    for start in range(0, len(inputs), batch_size):
        end = start + batch_size
        loss = functional.cross_entropy(table[inputs[start:end]], targets[start:end])
        weight = 1  # BROKEN: was weight = len(targets[start:end])
        nats += float(loss) * weight
        weights += weight
    return nats / weights


def wrong_remainder_dropped(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Read full batches only: the pairs that are left over are never scored."""
    inputs, targets = ids[:-1], ids[1:]
    nats, pairs = 0.0, 0
    stop = len(inputs) - batch_size + 1  # BROKEN: was stop = len(inputs)
    for start in range(0, stop, batch_size):
        end = start + batch_size
        logits = table[inputs[start:end]]  # (batch, V)
        nats += float(functional.cross_entropy(logits, targets[start:end], reduction="sum"))
        pairs += len(logits)
    return nats / pairs


def wrong_mean_probability(table: Tensor, ids: Tensor, batch_size: int) -> Tensor:
    """Take the logarithm of the mean probability, where the mean of logarithms is meant."""
    p = table.softmax(dim=1)[ids[:-1], ids[1:]]  # (N - 1,)
    mean = p.mean().log()  # BROKEN: was mean = p.log().mean()
    return -mean


def wrong_pairs_between_lost(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Cut the ids into pieces that share no token: the pair across each cut is lost."""
    nats, pairs = 0.0, 0
    for start in range(0, len(ids) - 1, batch_size):
        end = start + batch_size  # BROKEN: was end = start + batch_size + 1
        piece = ids[start:end]
        logits = table[piece[:-1]]  # (batch, V)
        nats += float(functional.cross_entropy(logits, piece[1:], reduction="sum"))
        pairs += len(logits)
    return nats / pairs


def wrong_last_batch_moved(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Move the last batch back until it is full: some pairs are scored twice."""
    inputs, targets = ids[:-1], ids[1:]
    nats, pairs = 0.0, 0
    for start in range(0, len(inputs), batch_size):
        first = min(start, len(inputs) - batch_size)  # BROKEN: was first = start
        end = first + batch_size
        logits = table[inputs[first:end]]  # (batch, V)
        nats += float(functional.cross_entropy(logits, targets[first:end], reduction="sum"))
        pairs += len(logits)
    return nats / pairs


def wrong_mean_perplexity(table: Tensor, ids: Tensor, batch_size: int) -> Tensor:
    """Average perplexities: a few surprising tokens decide the number."""
    nats = functional.cross_entropy(table[ids[:-1]], ids[1:], reduction="none")  # (N - 1,)
    perplexity = nats.exp().mean()  # BROKEN: was perplexity = nats.mean().exp()
    return perplexity.log()


def wrong_smoothed(table: Tensor, ids: Tensor, batch_size: int) -> float:
    """Report the loss of training, with its label smoothing."""
    inputs, targets = ids[:-1].split(batch_size), ids[1:].split(batch_size)
    smoothing = 0.1  # BROKEN: was smoothing = 0.0
    nats = 0.0
    for tokens, wanted in zip(inputs, targets, strict=True):
        loss = functional.cross_entropy(table[tokens], wanted, label_smoothing=smoothing)
        nats += float(loss) * len(tokens)
    return nats / (len(ids) - 1)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare with the mean over all pairs, where the last batch is full and where it is not."""
    for _ in range(2):
        table = SPREAD * torch.randn(V, V, dtype=torch.float64)
        for N, batch_size in CASES:
            ids = torch.randint(V, (N,))
            value = as_number(implementation(table, ids, batch_size), "the mean")
            nats = functional.cross_entropy(table[ids[:-1]], ids[1:], reduction="none")  # (N - 1,)
            distance = abs(value - float(nats.mean()))
            yield Finding(
                distance if math.isfinite(distance) else math.inf, _claim(value, nats, batch_size)
            )


def _claim(value: float, nats: Tensor, batch_size: int) -> str:
    """Name the wrong formula that gives the value, where one does."""
    claim = (
        f"it returns {value:.5g} nats for {len(nats)} pairs in batches of {batch_size}, expected "
        f"{float(nats.mean()):.5g}"
    )
    places = torch.arange(1, len(nats) + 1)
    batches = nats.split(batch_size)
    full = nats[: len(nats) // batch_size * batch_size]
    formulas = {
        f"that is the mean of the {len(batches)} batch means": _mean_of_means(batches),
        f"that is the mean over the {len(full)} pairs of full batches": full.mean(),
        "the pairs across two batches are missing": nats[places % batch_size != 0].mean(),
        "some pairs of the last batch count twice": torch.cat(
            [*batches[:-1], nats[-batch_size:]]
        ).mean(),
        "that is the logarithm of the mean probability": -(-nats).exp().mean().log(),
        "that is the logarithm of the mean perplexity": nats.exp().mean().log(),
        "that is the perplexity": nats.mean().exp(),
        "that is the mean in bits": nats.mean() / math.log(2),
        "that is the sum, not the mean": nats.sum(),
    }
    for told, number in formulas.items():
        if abs(value - float(number)) <= FITS:
            return f"{claim}: {told}"
    return claim


def _mean_of_means(batches: tuple[Tensor, ...]) -> Tensor:
    return torch.stack([batch.mean() for batch in batches]).mean()


CONTRACT = Contract(
    check="evaluation",
    signature="implementation(table: Tensor, ids: Tensor, batch_size: int) -> float",
    promise=(
        "table is (V, V), float64: the logits of what follows token i are table[i]. ids is (N,), "
        "int64; 2 <= batch_size <= N - 1 is how many pairs may be scored at a time. It returns the "
        "mean cross-entropy in nats, as a number or a tensor of one element: of all N - 1 pairs "
        "of a token and the next one, each counted once with the same weight."
    ),
    rights=(
        Right(name="batches", implementation=right_batches, note="sums of batches, divided once"),
        Right(name="at_once", implementation=right_at_once, note="all pairs at once"),
        Right(name="counts", implementation=right_counts, note="counts of pairs"),
        Right(
            name="running_mean",
            implementation=right_running_mean,
            note="a running mean over batches in random order",
        ),
        Right(name="plain_numbers", implementation=right_plain_numbers, note="no tensor operation"),
    ),
    wrongs=(
        Wrong(
            name="mean_of_means",
            implementation=wrong_mean_of_means,
            note="a short batch weighs as much as a full one",
        ),
        Wrong(
            name="remainder_dropped",
            implementation=wrong_remainder_dropped,
            note="pairs that fill no batch are not scored",
        ),
        Wrong(
            name="mean_probability",
            implementation=wrong_mean_probability,
            note="the logarithm is taken of the mean probability",
        ),
        Wrong(
            name="pairs_between_lost",
            implementation=wrong_pairs_between_lost,
            note="the pairs across two batches are not scored",
            held_out=True,
        ),
        Wrong(
            name="last_batch_moved",
            implementation=wrong_last_batch_moved,
            note="the last batch is filled up with pairs that were scored before",
            held_out=True,
        ),
        Wrong(
            name="mean_perplexity",
            implementation=wrong_mean_perplexity,
            note="the logarithm is taken of the mean perplexity",
            held_out=True,
        ),
        Wrong(
            name="smoothed",
            implementation=wrong_smoothed,
            note="the label smoothing of training is left on",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # right ones are within 1e-14; the nearest wrong one is off by 0.03
)
