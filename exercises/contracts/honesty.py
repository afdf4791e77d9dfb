"""The contract of honesty: each token is predicted before it is seen, and then it is learnt.

A table counts what followed what; a token is scored by the counts of before. On tokens drawn at
random no such score can stay below the entropy, unless the answer was known.

Shapes: N ids, V symbols.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_number,
)

N = 150
UNIFORM_V, CHAIN_V, UNUSED_V = 7, 10, 9  # all are drawn; two may follow; only USED are drawn
USED = 4
FITS = 1e-9  # how near the value of a known mistake counts as that mistake


def right_loop(ids: Tensor, vocab_size: int) -> float:
    """Score a token, count it, go on."""
    counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64).tolist()
    nats = 0.0
    tokens = ids.tolist()
    for t in range(len(tokens) - 1):
        row = counts[tokens[t]]
        nats -= math.log(row[tokens[t + 1]] / sum(row))
        row[tokens[t + 1]] += 1
    return nats / (len(tokens) - 1)


def right_all_pairs(ids: Tensor, vocab_size: int) -> Tensor:
    """Compare every pair with every earlier pair, at once."""
    before, after = ids[:-1], ids[1:]
    same = (before[:, None] == before).double().tril(diagonal=-1)  # (N - 1, N - 1): earlier ones
    hits = (same * (after[:, None] == after)).sum(dim=1) + 1
    return -(hits / (same.sum(dim=1) + vocab_size)).log().mean()


def right_closed_form(ids: Tensor, vocab_size: int) -> Tensor:
    """Use the product of all predictions, which depends on the final counts alone."""
    pairs = ids[:-1] * vocab_size + ids[1:]
    counts = pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size).double()
    rows = torch.lgamma(counts.sum(dim=1) + vocab_size) - math.lgamma(vocab_size)
    nats = rows.sum() - torch.lgamma(counts + 1).sum()
    return (nats / (len(ids) - 1)).reshape(1)


def right_by_context(ids: Tensor, vocab_size: int) -> float:
    """Collect what follows each token, and score the lists one by one, in random order."""
    followers = [ids[1:][ids[:-1] == token] for token in range(vocab_size)]
    nats = 0.0
    for token in torch.randperm(vocab_size).tolist():
        seen = [1] * vocab_size
        for total, following in enumerate(followers[token].tolist(), start=vocab_size):
            nats += math.log(total) - math.log(seen[following])
            seen[following] += 1
    return nats / (len(ids) - 1)


def wrong_counted_first(ids: Tensor, vocab_size: int) -> float:
    """Count the token, and then predict it: the answer is in the table already."""
    counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64)
    nats = 0.0
    for before, after in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        row = counts[before]  # BROKEN: was row = counts[before].clone()
        counts[before, after] += 1
        nats -= math.log(float(row[after] / row.sum()))
    return nats / (len(ids) - 1)


def wrong_two_passes(ids: Tensor, vocab_size: int) -> float:
    """Learn from the whole text, and report the loss on that same text."""
    nats = 0.0
    for t in range(len(ids) - 1):
        known = ids[: len(ids)]  # BROKEN: was known = ids[: t + 1]
        pairs = known[:-1] * vocab_size + known[1:]
        counts = pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size)
        row = counts[ids[t]].double() + 1
        nats -= math.log(float(row[ids[t + 1]] / row.sum()))
    return nats / (len(ids) - 1)


def wrong_target_read(ids: Tensor, vocab_size: int) -> float:
    """Read the token that is to be predicted: the table learns to copy."""
    counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64).tolist()
    nats = 0.0
    tokens = ids.tolist()
    for t in range(len(tokens) - 1):
        before = tokens[t + 1]  # BROKEN: was before = tokens[t]
        row = counts[before]
        nats -= math.log(row[tokens[t + 1]] / sum(row))
        row[tokens[t + 1]] += 1
    return nats / (len(tokens) - 1)


def wrong_backwards(ids: Tensor, vocab_size: int) -> float:
    """Predict each token from the one that comes after it."""
    counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64).tolist()
    nats = 0.0
    pairs = list(zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True))
    for before, after in pairs:
        given, asked = after, before  # BROKEN: was given, asked = before, after
        nats -= math.log(counts[given][asked] / sum(counts[given]))
        counts[given][asked] += 1
    return nats / len(pairs)


def wrong_symbols_seen(ids: Tensor, vocab_size: int) -> float:
    """Ask the text how many symbols it will use, where the vocabulary has to be asked."""
    symbols = len(ids.unique())  # BROKEN: was symbols = vocab_size
    seen = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    nats = 0.0
    for before, after in zip(ids[:-1].tolist(), ids[1:].tolist(), strict=True):
        row = seen[before]
        nats -= math.log(float((row[after] + 1) / (row.sum() + symbols)))
        seen[before, after] += 1
    return nats / (len(ids) - 1)


def wrong_divided_by_all(ids: Tensor, vocab_size: int) -> float:
    """Divide by the number of tokens: the first one counts as predicted without any cost."""
    counts = torch.ones(vocab_size, vocab_size, dtype=torch.float64).tolist()
    tokens = ids.tolist()
    scored = len(tokens)  # BROKEN: was scored = len(tokens) - 1
    nats = 0.0
    for t in range(len(tokens) - 1):
        row = counts[tokens[t]]
        nats -= math.log(row[tokens[t + 1]] / sum(row))
        row[tokens[t + 1]] += 1
    return nats / scored


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Ask for uniform tokens, for a chain, and for a text that leaves symbols out."""
    for _ in range(2):
        sources = (
            ("uniform tokens", torch.randint(UNIFORM_V, (N,)), UNIFORM_V, math.log(UNIFORM_V)),
            ("a chain of two followers", _draw_chain(), CHAIN_V, math.log(2)),
            (
                f"uniform tokens of {USED} symbols",
                torch.randint(USED, (N,)),
                UNUSED_V,
                math.log(USED),
            ),
        )
        for told, ids, V, entropy in sources:
            value = as_number(implementation(ids, V), "the mean")
            distance = abs(value - _mean_nats(ids, V))
            yield Finding(
                distance if math.isfinite(distance) else math.inf,
                _claim(value, ids, V, f"{told} with entropy {entropy:.4g}"),
            )


def _draw_chain() -> Tensor:
    """Return (N,) ids, each followed by one of two tokens of its own, with equal chances."""
    followers = torch.stack([torch.randperm(CHAIN_V)[:2] for _ in range(CHAIN_V)])  # (V, 2)
    ids = [0]
    for side in torch.randint(2, (N - 1,)).tolist():
        ids.append(int(followers[ids[-1], side]))
    return torch.tensor(ids)


def _mean_nats(ids: Tensor, V: int, *, counted: int = 0, symbols: int | None = None) -> float:
    """Return the mean nats of predicting each token from the one before it.

    counted: how often the token itself stands in the table already.
    symbols: how many symbols share the first guess; None: V.
    """
    seen = torch.zeros(V, V, dtype=torch.int64).tolist()
    tokens, nats = ids.tolist(), 0.0
    for t in range(len(tokens) - 1):
        row, after = seen[tokens[t]], tokens[t + 1]
        nats += math.log(sum(row) + counted + (symbols or V)) - math.log(row[after] + counted + 1)
        row[after] += 1
    return nats / (len(tokens) - 1)


def _after_both_passes(ids: Tensor, V: int) -> float:
    counts = (ids[:-1] * V + ids[1:]).bincount(minlength=V * V).view(V, V).double() + 1
    p = counts / counts.sum(dim=1, keepdim=True)
    return -float(p[ids[:-1], ids[1:]].log().mean())


def _copied(ids: Tensor, V: int) -> float:
    """Return what is left when the token itself is read: the cost of learning to copy."""
    nats = 0.0
    for count in ids[1:].bincount().tolist():
        nats += sum(math.log(V + n) - math.log(1 + n) for n in range(count))
    return nats / (len(ids) - 1)


def _claim(value: float, ids: Tensor, V: int, source: str) -> str:
    """Name the mistake that gives the value, where one does."""
    due = _mean_nats(ids, V)
    claim = f"it reports {value:.5g} nats for {len(ids)} ids, {source}, expected {due:.5g}"
    if abs(value - due) <= FITS:
        return claim
    used = len(ids.unique())
    stories = {
        "each token is counted before it is predicted": _mean_nats(ids, V, counted=1),
        "the whole text is counted before it is predicted": _after_both_passes(ids, V),
        "the token that is asked for is read": _copied(ids, V),
        "each token is predicted from the one after it": _mean_nats(ids.flip(0), V),
        f"the first guess is shared by {used} symbols, not by {V}": _mean_nats(
            ids, V, symbols=used
        ),
        f"the sum is divided by {len(ids)}, not by {len(ids) - 1}": due * (1 - 1 / len(ids)),
    }
    for told, number in stories.items():
        if abs(value - number) <= FITS:
            return f"{claim}: {told}"
    return claim


CONTRACT = Contract(
    check="honesty",
    signature="implementation(ids: Tensor, vocab_size: int) -> float",
    promise=(
        "ids is (N,), int64, in 0..vocab_size - 1, N >= 2. Each token but the first is predicted "
        "from the one before it, in the order of the text, and learnt only afterwards: when b has "
        "followed a so far c times, and n tokens have followed a, then b gets the probability "
        "(c + 1) / (n + vocab_size) after a. It returns the mean of -log of these probabilities "
        "over the N - 1 predicted tokens, in nats, as a number or a tensor of one element."
    ),
    rights=(
        Right(name="loop", implementation=right_loop, note="scores, counts, goes on"),
        Right(name="all_pairs", implementation=right_all_pairs, note="compares all pairs at once"),
        Right(name="closed_form", implementation=right_closed_form, note="gamma functions"),
        Right(name="by_context", implementation=right_by_context, note="one list per token"),
    ),
    wrongs=(
        Wrong(
            name="counted_first",
            implementation=wrong_counted_first,
            note="a token is counted before it is predicted",
        ),
        Wrong(
            name="two_passes",
            implementation=wrong_two_passes,
            note="the whole text is counted before it is predicted",
        ),
        Wrong(
            name="target_read",
            implementation=wrong_target_read,
            note="the token that is to be predicted is read",
        ),
        Wrong(
            name="backwards",
            implementation=wrong_backwards,
            note="tokens are predicted from those after them",
            held_out=True,
        ),
        Wrong(
            name="symbols_seen",
            implementation=wrong_symbols_seen,
            note="the text is asked which symbols it will use",
            held_out=True,
        ),
        Wrong(
            name="divided_by_all",
            implementation=wrong_divided_by_all,
            note="the first token counts as predicted for nothing",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # right ones are within 1e-13; the nearest wrong one is off by 0.002
)
