"""The contract of overfitting: a model that can learn learns one batch, down to its floor.

The model is a table of logits: what follows a token depends on that token alone. Where a token is
followed by two different ones, no table gets both right, and the floor lies above 0.

Shapes: B batch, T time, V vocabulary.
"""

from __future__ import annotations

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
    as_tensor,
)

B, T = 3, 4  # of the batch in which every token occurs once, so that every place has to be learnt
ODDS = (9, 1)  # how often a token of the other batch is followed by one token, and by another
CONTEXTS = 4  # tokens of the other batch that are followed by something
OTHER_SHAPE = (5, 8)  # its (B, T): CONTEXTS times the sum of ODDS places


def right_momentum(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Descend along the gradient, with momentum; rare tokens take steps as long as common ones."""
    share = inputs.flatten().bincount(minlength=vocab_size).clamp(min=1) / inputs.numel()  # (V,)
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    velocity = torch.zeros_like(table)
    for _ in range(100):
        table.requires_grad_()
        loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
        (gradient,) = torch.autograd.grad(loss, [table])
        velocity = 0.9 * velocity + gradient / share[:, None]
        table = table.detach() - velocity
    return table


def right_counts(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Count all pairs at once: the logarithm of the counts is the best table there is."""
    pairs = inputs.flatten() * vocab_size + targets.flatten()
    counts = pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size)
    return (counts.double() + 1e-6).log()


def right_dictionary(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Count pair by pair, in random order, and fill in what was seen."""
    tokens, nexts = inputs.flatten().tolist(), targets.flatten().tolist()
    seen: dict[tuple[int, int], int] = {}
    for place in torch.randperm(len(tokens)).tolist():
        pair = tokens[place], nexts[place]
        seen[pair] = seen.get(pair, 0) + 1
    table = [[-20.0] * vocab_size for _ in range(vocab_size)]
    for (token, following), count in seen.items():
        table[token][following] = math.log(count)
    return torch.tensor(table, dtype=torch.float64)


def right_from_noise(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Begin with random logits, and move each token's row by what it misses on the average."""
    hot = functional.one_hot(inputs.flatten(), vocab_size).double()  # (B T, V)
    share = hot / hot.sum(dim=0).clamp(min=1.0)
    wanted = share.T @ functional.one_hot(targets.flatten(), vocab_size).double()  # (V, V)
    occurs = wanted.sum(dim=1, keepdim=True)
    table = torch.randn(vocab_size, vocab_size, dtype=torch.float64)
    for _ in range(400):
        table += 3.0 * (wanted - occurs * table.softmax(dim=1))
    return table


def wrong_clamped(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Bound the loss from below: at the bound there is no gradient, and learning ends."""
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    for _ in range(200):
        table.requires_grad_()
        loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
        loss = loss.clamp(min=0.8)  # BROKEN: was loss = loss.clamp(min=0.0)
        (gradient,) = torch.autograd.grad(loss, [table])
        table = table.detach() - 12.0 * gradient
    return table


def wrong_capped(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Cap the logits so low that no prediction can be certain."""
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    velocity = torch.zeros_like(table)
    cap = 1.0  # BROKEN: was cap = 30.0
    for _ in range(100):
        table.requires_grad_()
        logits = cap * torch.tanh(table[inputs].flatten(0, 1) / cap)  # (B T, V)
        loss = functional.cross_entropy(logits, targets.flatten())
        (gradient,) = torch.autograd.grad(loss, [table])
        velocity = 0.9 * velocity + gradient
        table = table.detach() - 12.0 * velocity
    return cap * torch.tanh(table / cap)


def wrong_rows_averaged(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Move every row by the mean gradient: the table never learns which token it has read."""
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    velocity = torch.zeros_like(table)
    for _ in range(100):
        table.requires_grad_()
        loss = functional.cross_entropy(table[inputs].flatten(0, 1), targets.flatten())
        (gradient,) = torch.autograd.grad(loss, [table])
        moved = gradient.mean(dim=0)  # BROKEN: was moved = gradient
        velocity = 0.9 * velocity + moved
        table = table.detach() - 12.0 * velocity
    return table


def wrong_last_row_missed(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Leave out the last row of the batch, as a slice that ends at -1 does."""
    end = -1  # BROKEN: was end = len(inputs)
    tokens, nexts = inputs[:end].flatten(), targets[:end].flatten()
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    velocity = torch.zeros_like(table)
    for _ in range(100):
        table.requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(table[tokens], nexts), [table])
        velocity = 0.9 * velocity + gradient
        table = table.detach() - 12.0 * velocity
    return table


def wrong_last_column_missed(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Leave out the last position of every row."""
    end = -1  # BROKEN: was end = inputs.shape[1]
    tokens, nexts = inputs[:, :end].flatten(), targets[:, :end].flatten()
    table = torch.zeros(vocab_size, vocab_size, dtype=torch.float64)
    velocity = torch.zeros_like(table)
    for _ in range(100):
        table.requires_grad_()
        (gradient,) = torch.autograd.grad(functional.cross_entropy(table[tokens], nexts), [table])
        velocity = 0.9 * velocity + gradient
        table = table.detach() - 12.0 * velocity
    return table


def wrong_pairs_counted_once(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Add 1 through an index: a pair that comes ten times in it is counted once."""
    tokens, nexts = inputs.flatten(), targets.flatten()
    counts = torch.full((vocab_size, vocab_size), 1e-6, dtype=torch.float64)
    adds = False  # BROKEN: was adds = True
    ones = torch.ones(len(tokens), dtype=torch.float64)
    counts = counts.index_put((tokens, nexts), ones, accumulate=adds)
    return counts.log()


def wrong_probabilities(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor:
    """Return probabilities where logits are expected: the softmax is taken twice."""
    pairs = inputs.flatten() * vocab_size + targets.flatten()
    counts = pairs.bincount(minlength=vocab_size**2).view(vocab_size, vocab_size)
    last = nn.Softmax(dim=1)  # BROKEN: was last = nn.LogSoftmax(dim=1)
    table: Tensor = last((counts.double() + 1e-6).log())
    return table


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Have a batch without conflicts learnt, and one in which a token has two followers."""
    for inputs, targets, V in (_draw_distinct(), _draw_contested(), _draw_distinct()):
        came = implementation(inputs, targets, V)
        table = as_tensor(came, "table", shape=(V, V), dtype=torch.float64)
        nats = functional.cross_entropy(
            table[inputs].flatten(0, 1), targets.flatten(), reduction="none"
        ).view_as(targets)  # (B, T)
        counts = torch.zeros(V, V).double()
        counts.index_put_((inputs, targets), torch.ones(()).double(), accumulate=True)
        above = float(nats.mean()) - _floor(counts)
        size = max(above, 0.0) if math.isfinite(above) else math.inf
        yield Finding(size, _claim(table, inputs, targets, nats, counts))


def _draw_distinct() -> tuple[Tensor, Tensor, int]:
    """Return inputs (B, T) and targets in which each token occurs once; V = B T."""
    return torch.randperm(B * T).view(B, T), torch.randperm(B * T).view(B, T), B * T


def _draw_contested() -> tuple[Tensor, Tensor, int]:
    """Return inputs and targets in which each token has two followers, one of them rare."""
    V = CONTEXTS + 3
    usual = torch.randperm(V)[:CONTEXTS]
    rare = (usual + torch.randint(1, V, (CONTEXTS,))) % V
    tokens = torch.arange(CONTEXTS).repeat_interleave(sum(ODDS))
    nexts = torch.stack([*[usual] * ODDS[0], *[rare] * ODDS[1]], dim=1).flatten()
    order = torch.randperm(len(tokens))
    return tokens[order].view(OTHER_SHAPE), nexts[order].view(OTHER_SHAPE), V


def _floor(counts: Tensor) -> float:
    """Return the lowest mean nats that a table can reach on pairs that occur so often (V, V)."""
    share = counts / counts.sum(dim=1, keepdim=True).clamp(min=1)
    nats = float((counts * share.clamp(min=1e-300).log()).sum() / counts.sum())
    return max(0.0, -nats)


def _claim(table: Tensor, inputs: Tensor, targets: Tensor, nats: Tensor, counts: Tensor) -> str:
    """Say where the loss comes to rest, and what of the batch is not learnt."""
    right = table.argmax(dim=1)[inputs] == targets  # (B, T)
    best = int(counts.amax(dim=1).sum())
    claim = (
        f"the loss of one batch rests at {float(nats.mean()):.4g} nats, where {_floor(counts):.4g} "
        f"are possible, with {int(right.sum())} of {right.numel()} tokens right, at best {best}"
    )
    if not bool(table.isfinite().all()):
        return f"{claim}: {int((~table.isfinite()).sum())} logits are no finite numbers"
    if bool((table == table[:1]).all()):
        return f"{claim}: all rows of the table are equal"
    if int(right.sum()) == best:
        spread = float((table.amax(dim=1) - table.amin(dim=1)).amax())
        return f"{claim}: no two logits of a row are more than {spread:.3g} apart"
    if bool(right[:-1].all()) and not bool(right[-1].all()):
        return f"{claim}: all rows of the batch are learnt but the last"
    if bool(right[:, :-1].all()) and not bool(right[:, -1].all()):
        return f"{claim}: all columns of the batch are learnt but the last"
    return claim


CONTRACT = Contract(
    check="overfit",
    signature="implementation(inputs: Tensor, targets: Tensor, vocab_size: int) -> Tensor",
    promise=(
        "inputs and targets are (B, T), int64, in 0..vocab_size - 1, with B, T >= 2. It learns "
        "this one batch by heart and returns a table (vocab_size, vocab_size), float64, of finite "
        "logits: row i says what follows token i. The mean cross-entropy of table[inputs] against "
        "targets, in nats, ends within 0.02 of the lowest that any table can have: 0 where every "
        "token is followed by one token only, and above 0 where a token is followed by several."
    ),
    rights=(
        Right(name="momentum", implementation=right_momentum, note="gradients with momentum"),
        Right(name="counts", implementation=right_counts, note="logarithms of counts"),
        Right(name="dictionary", implementation=right_dictionary, note="counts pair by pair"),
        Right(name="from_noise", implementation=right_from_noise, note="begins with random logits"),
    ),
    wrongs=(
        Wrong(
            name="clamped",
            implementation=wrong_clamped,
            note="learning ends where the loss meets its bound",
        ),
        Wrong(
            name="capped",
            implementation=wrong_capped,
            note="the logits are held so near each other that nothing can be certain",
        ),
        Wrong(
            name="rows_averaged",
            implementation=wrong_rows_averaged,
            note="all rows of the table learn the same",
        ),
        Wrong(
            name="last_row_missed",
            implementation=wrong_last_row_missed,
            note="the last row of the batch is not learnt",
            held_out=True,
        ),
        Wrong(
            name="last_column_missed",
            implementation=wrong_last_column_missed,
            note="the last position of each row is not learnt",
            held_out=True,
        ),
        Wrong(
            name="pairs_counted_once",
            implementation=wrong_pairs_counted_once,
            note="frequent and rare followers get the same probability",
            held_out=True,
        ),
        Wrong(
            name="probabilities",
            implementation=wrong_probabilities,
            note="probabilities are returned where logits are expected",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=0.02,  # right ones are within 0.002; the nearest wrong one is 0.36 above the floor
)
