"""The contract of the shapes: logits (B, T, V) and one loss, for every size, with targets or not.

Shapes: B batch, T time, V vocabulary, C width.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_finite,
    as_number,
    as_parts,
    as_tensor,
)

V, C = 11, 5
SIZES = ((2, 3), (3, 7), (1, 7), (3, 1), (1, 1))  # B and T; they differ from V and C
TOLERANCE = 1e-9  # rounding makes 4e-15; the nearest bug is more than 1 off

Output = tuple[Tensor, Tensor | float | None]


def right_matmul(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Look up, multiply, and let torch flatten for the loss."""
    logits = embedding[tokens] @ embedding.T
    if targets is None:
        return logits, None
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def right_one_hot(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Work with one long row of positions, and shape the result at the end."""
    B, T = tokens.shape
    choice = functional.one_hot(tokens.reshape(-1), len(embedding)).to(embedding.dtype)
    flat = choice @ (embedding @ embedding.T)  # (B * T, V)
    loss = None
    if targets is not None:
        loss = functional.cross_entropy(flat, targets.reshape(-1)).item()
    return flat.view(B, T, -1), loss


def right_table(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Compute all V x V logits once, and choose rows of them."""
    table = torch.einsum("vc,wc->vw", embedding, embedding)
    logits = table.index_select(0, tokens.flatten()).unflatten(0, tokens.shape)
    if targets is None:
        return logits, None
    losses = logits.logsumexp(2) - logits.gather(2, targets[..., None])[..., 0]  # (B, T)
    return logits, losses.mean()


def right_time_first(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Go through the time, and move it to its place by a transpose."""
    steps = [functional.linear(embedding[column], embedding) for column in tokens.T]
    logits = torch.stack(steps).transpose(0, 1)  # (B, T, V)
    loss = None
    if targets is not None:
        loss = functional.cross_entropy(logits.movedim(2, 1), targets)
    return logits, loss


def wrong_flattened(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Return the view that was made for the loss."""
    logits = embedding[tokens] @ embedding.T
    if targets is None:
        return logits, None
    flat = logits.flatten(0, 1)  # (B * T, V)
    loss = functional.cross_entropy(flat, targets.flatten())
    return flat, loss  # BROKEN: was return logits, loss


def wrong_transposed(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Return the layout that cross_entropy likes, classes second."""
    logits = embedding[tokens] @ embedding.T
    classes_second = logits.transpose(1, 2)
    loss = None if targets is None else functional.cross_entropy(classes_second, targets)
    return classes_second, loss  # BROKEN: was return logits, loss


def wrong_squeezed(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Squeeze without naming an axis: only a size of 1 shows it."""
    logits = embedding[tokens] @ embedding.T
    loss = None
    if targets is not None:
        loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return logits.squeeze(), loss  # BROKEN: was return logits, loss


def wrong_rows_mixed(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Come back from (T, B, V) by a reshape, which moves no axis."""
    B, T = tokens.shape
    steps = embedding[tokens.T] @ embedding.T  # (T, B, V)
    logits = steps.reshape(B, T, -1)  # BROKEN: was logits = steps.transpose(0, 1)
    if targets is None:
        return logits, None
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def wrong_last_only(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Compute one position where no loss is wanted, for generation needs no more."""
    x = embedding[tokens]  # (B, T, C)
    if targets is None:
        x = x[:, -1:]  # BROKEN: was x = x[:, :]
    logits = x @ embedding.T
    if targets is None:
        return logits, None
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def wrong_loss_per_row(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Average over the time and leave the batch: a loss for each row, one number for one row."""
    logits = embedding[tokens] @ embedding.T
    if targets is None:
        return logits, None
    losses = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")  # (B, T)
    return logits, losses.mean(1)  # BROKEN: was return logits, losses.mean()


def wrong_zero_loss(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> Output:
    """Report a loss of 0 where there is nothing to score."""
    logits = embedding[tokens] @ embedding.T
    if targets is None:
        return logits, 0.0  # BROKEN: was return logits, None
    return logits, functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Call it for sizes that no axis can be confused at, and for sizes of 1."""
    embedding = torch.randn(V, C, dtype=torch.float64)
    for B, T in SIZES:
        tokens = torch.randint(V, (B, T))
        targets = torch.randint(V, (B, T))
        for given in (None, targets):
            words = f"for tokens ({B}, {T}), {'without' if given is None else 'with'} targets,"
            logits, loss = as_parts(implementation(tokens, embedding, given), "logits", "loss")
            fault = _wrong_shape(logits, (B, T, V), words)
            if fault is not None:
                yield fault
                return
            logits = as_finite(logits, "logits", shape=(B, T, V), dtype=torch.float64)
            yield _distance(logits, embedding[tokens] @ embedding.T, words)
            yield _loss(loss, logits, given, words)


def _wrong_shape(logits: Any, wanted: tuple[int, ...], words: str) -> Finding | None:
    """Name the layout that came in place of (B, T, V)."""
    shape = tuple(as_tensor(logits, "logits").shape)
    if shape == wanted:
        return None
    B, T, _ = wanted
    layouts = {
        (B * T, V): "rows and positions are one axis",
        (B, V, T): "classes stand before positions",
        (T, B, V): "time stands before the batch",
        (B, 1, V): "the last position alone",
        (B, V): "the axis of positions is gone",
        (B, T, C): "the width in place of the vocabulary",
        tuple(size for size in wanted if size > 1): "axes of size 1 are gone",
    }
    reading = f": {layouts[shape]}" if shape in layouts else ""
    return Finding(
        math.inf, f"{words} logits have shape {shape}, expected (B, T, V) = {wanted}{reading}"
    )


def _distance(logits: Tensor, wanted: Tensor, words: str) -> Finding:
    """Compare values, and count the places that hold the logits of another place."""
    places = (logits - wanted).abs().amax(2)  # (B, T)
    count = int((~(places <= TOLERANCE)).sum())
    flat, others = logits.flatten(0, 1), wanted.flatten(0, 1)  # (B * T, V)
    known = ((flat[:, None] - others[None]).abs().amax(2) <= TOLERANCE).any(1)
    foreign = int((known & ~(places.flatten() <= TOLERANCE)).sum())
    return Finding(
        float(places.amax()),
        f"{words} the logits at {count} of {places.numel()} places are not embedding[token] @ "
        f"embedding.T, up to {float(places.amax()):.3g} off; {foreign} of them belong to other "
        "places",
    )


def _loss(loss: Any, logits: Tensor, targets: Tensor | None, words: str) -> Finding:
    """Judge the second value: None without targets, else one number, the mean."""
    if targets is None:
        came = f"{loss:.3g}" if isinstance(loss, int | float) else f"a {type(loss).__name__}"
        return Finding(
            0.0 if loss is None else math.inf,
            f"{words} the loss is {came}, expected None: nothing was scored",
        )
    if type(loss) is Tensor and loss.ndim > 0:
        shape = tuple(loss.shape)
        return Finding(math.inf, f"{words} the loss has shape {shape}, expected one number: ()")
    number = as_number(loss, "the loss")
    wanted = float(functional.cross_entropy(logits.flatten(0, 1), targets.flatten()))
    size = abs(number - wanted)
    return Finding(
        size if math.isfinite(size) else math.inf,
        f"{words} the loss is {number:.9g}, expected {wanted:.9g}: the mean cross-entropy of its "
        f"own logits over {targets.numel()} places",
    )


CONTRACT = Contract(
    check="shapes",
    signature=(
        "implementation(tokens: Tensor, embedding: Tensor, targets: Tensor | None) -> "
        "tuple[Tensor, Tensor | float | None]"
    ),
    promise=(
        "tokens is (B, T), int64, B and T at least 1; embedding is (V, C), float64; targets is "
        "None or (B, T), int64. It returns (logits, loss). logits is (B, T, V), float64, for every "
        "B and T, with targets and without them: logits[b, t] is embedding[tokens[b, t]] @ "
        "embedding.T. loss is None without targets; with them it is their mean cross-entropy in "
        "nats, a number or a tensor of shape ()."
    ),
    rights=(
        Right(name="matmul", implementation=right_matmul, note="look up and multiply"),
        Right(name="one_hot", implementation=right_one_hot, note="one row of positions"),
        Right(name="table", implementation=right_table, note="rows of a table of all logits"),
        Right(name="time_first", implementation=right_time_first, note="a loop over the time"),
    ),
    wrongs=(
        Wrong(
            name="flattened",
            implementation=wrong_flattened,
            note="with targets, logits come as (B * T, V)",
        ),
        Wrong(
            name="transposed",
            implementation=wrong_transposed,
            note="logits come as (B, V, T)",
        ),
        Wrong(
            name="squeezed",
            implementation=wrong_squeezed,
            note="an axis of size 1 is lost",
        ),
        Wrong(
            name="rows_mixed",
            implementation=wrong_rows_mixed,
            note="the shape is right, and most logits stand in another place",
            held_out=True,
        ),
        Wrong(
            name="last_only",
            implementation=wrong_last_only,
            note="without targets only the last position is returned",
            held_out=True,
        ),
        Wrong(
            name="loss_per_row",
            implementation=wrong_loss_per_row,
            note="there is one loss for each row",
            held_out=True,
        ),
        Wrong(
            name="zero_loss",
            implementation=wrong_zero_loss,
            note="without targets the loss is 0",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
