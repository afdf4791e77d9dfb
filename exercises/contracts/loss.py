"""The contract of the loss: mean cross-entropy in nats over the targets that are scored.

Shapes: B batch, T time, V vocabulary, N scored targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional

from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_number,
)

B, T, V = 5, 7, 11
IGNORED = -100
SHARP = 400.0  # standard deviation of large logits: exp overflows in float64 from 710 on
TOLERANCE = 1e-8  # rounding at losses near 1,000 makes 5e-13; the nearest bug is 0.0002 off


def right_flattened(logits: Tensor, targets: Tensor) -> Tensor:
    """Make one row of all positions."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def right_classes_second(logits: Tensor, targets: Tensor) -> Tensor:
    """Keep rows and time apart, with the classes where torch wants them."""
    return nn.CrossEntropyLoss()(logits.transpose(1, 2), targets)


def right_by_hand(logits: Tensor, targets: Tensor) -> float:
    """Pick the scored positions, and subtract the target's logit from the log of the sum."""
    rows, wanted = logits[targets != -100], targets[targets != -100]  # (N, V), (N,)
    chosen = rows.gather(1, wanted[:, None])[:, 0]
    return float((rows.logsumexp(1) - chosen).mean())


def right_plain_numbers(logits: Tensor, targets: Tensor) -> float:
    """Walk through all positions with plain numbers."""
    losses = []
    for row, target in zip(logits.flatten(0, 1).tolist(), targets.flatten().tolist(), strict=True):
        if target != -100:
            top = max(row)
            losses.append(math.log(math.fsum(math.exp(x - top) for x in row)) + top - row[target])
    return math.fsum(losses) / len(losses)


def right_row_by_row(logits: Tensor, targets: Tensor) -> Tensor:
    """Add up sums of rows and counts of rows, and divide once."""
    total, count = torch.zeros(()), torch.zeros(())
    for row, wanted in zip(logits, targets, strict=True):
        logs = row.log_softmax(-1)
        total = total + functional.nll_loss(logs, wanted, reduction="sum")
        count = count + (wanted >= 0).sum()
    return total / count


def wrong_double_softmax(logits: Tensor, targets: Tensor) -> Tensor:
    """Hand over probabilities where scores are expected."""
    scores = logits.softmax(-1)  # BROKEN: was scores = logits
    return functional.cross_entropy(scores.flatten(0, 1), targets.flatten())


def wrong_shifted_twice(logits: Tensor, targets: Tensor) -> Tensor:
    """Shift targets that the loader has shifted already."""
    cut = 1  # BROKEN: was cut = 0
    kept, wanted = logits[:, : logits.shape[1] - cut], targets[:, cut:]
    return functional.cross_entropy(kept.flatten(0, 1), wanted.flatten())


def wrong_denominator(logits: Tensor, targets: Tensor) -> Tensor:
    """Divide by all positions, the ignored ones too."""
    losses = functional.cross_entropy(logits.mT, targets, reduction="none")  # (B, T)
    count = losses.numel()  # BROKEN: was count = (targets != -100).sum()
    return losses.sum() / count


def wrong_row_means(logits: Tensor, targets: Tensor) -> Tensor:
    """Average over each row first: a row with few scored targets weighs as much as a full one."""
    losses = functional.cross_entropy(logits.mT, targets, reduction="none")  # (B, T)
    scored = (targets != -100).double()
    axis = 1  # BROKEN: was axis = (0, 1)
    return (losses.sum(axis) / scored.sum(axis)).mean()


def wrong_token_zero(logits: Tensor, targets: Tensor) -> Tensor:
    """Leave token 0 out as if it were padding."""
    padding = 0  # BROKEN: was padding = -100
    wanted = torch.where(targets == padding, -100, targets)
    return functional.cross_entropy(logits.flatten(0, 1), wanted.flatten())


def wrong_another_order(logits: Tensor, targets: Tensor) -> Tensor:
    """Flatten logits time first, and targets row first."""
    ordered = logits.transpose(0, 1)  # BROKEN: was ordered = logits
    return functional.cross_entropy(ordered.flatten(0, 1), targets.flatten())


def wrong_overflow(logits: Tensor, targets: Tensor) -> Tensor:
    """Take the exponential of raw scores, which is infinite from 710 on."""
    rows, wanted = logits[targets != -100], targets[targets != -100]  # (N, V), (N,)
    top = torch.zeros_like(rows[:, :1])  # BROKEN: was top = rows.amax(1, keepdim=True)
    logs = (rows - top) - (rows - top).exp().sum(1, keepdim=True).log()
    return -logs.gather(1, wanted[:, None]).mean()


def wrong_clamped(logits: Tensor, targets: Tensor) -> Tensor:
    """Cut the loss off where the gradients were meant."""
    loss = functional.cross_entropy(logits.flatten(0, 1), targets.flatten())
    return loss.clamp(max=20.0)  # BROKEN: was return loss


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Compare with the definition on batches that tell the usual formulas apart."""
    for name, logits, targets in _cases():
        loss = as_number(implementation(logits, targets), "the loss")
        wanted = _mean(logits, targets)
        size = abs(loss - wanted) if math.isfinite(loss) else math.inf
        yield Finding(
            size,
            f"with {name} the loss is {loss:.9g}, expected {wanted:.9g}: the mean cross-entropy in "
            f"nats over {int((targets != IGNORED).sum())} scored targets of {targets.numel()}"
            f"{_reading(loss, logits, targets)}",
        )


def _cases() -> Iterator[tuple[str, Tensor, Tensor]]:
    """Plain batches, one row, ignored targets in uneven numbers, and large logits."""
    every = torch.arange(B * T).view(B, T) % V  # each token is a target
    plain = torch.randn(B, T, V, dtype=torch.float64)
    yield "ordinary logits", plain, every
    yield "one row", plain[:1], every[:1]
    ignored = every.masked_fill(torch.arange(T) > torch.arange(B)[:, None], IGNORED)
    yield "ignored targets", plain * 2, ignored
    yield "large logits", SHARP * plain, every


def _mean(logits: Tensor, targets: Tensor) -> float:
    rows, wanted = logits[targets != IGNORED], targets[targets != IGNORED]  # (N, V), (N,)
    return float((rows.logsumexp(1) - rows.gather(1, wanted[:, None])[:, 0]).mean())


def _reading(loss: float, logits: Tensor, targets: Tensor) -> str:
    """Name the usual formula that gives this number, if one does."""
    for name, formula in _FORMULAS.items():
        if abs(loss - formula(logits, targets)) <= TOLERANCE:
            return f"; {name} gives this number"
    return ""


def _swapped(logits: Tensor, targets: Tensor) -> float:
    return _mean(logits.transpose(0, 1).reshape(logits.shape), targets)


def _mean_of_rows(logits: Tensor, targets: Tensor) -> float:
    rows = [_mean(row[None], wanted[None]) for row, wanted in zip(logits, targets, strict=True)]
    return math.fsum(rows) / len(rows)


_FORMULAS: dict[str, Callable[[Tensor, Tensor], float]] = {
    "a second softmax": lambda x, t: _mean(x.softmax(-1), t),
    "a shift by one more": lambda x, t: _mean(x[:, :-1], t[:, 1:]),
    "division by all positions": lambda x, t: _mean(x, t) * float((t != IGNORED).double().mean()),
    "a sum in place of the mean": lambda x, t: _mean(x, t) * int((t != IGNORED).sum()),
    "a mean of the means of rows": _mean_of_rows,
    "a logarithm to base 2": lambda x, t: _mean(x, t) / math.log(2),
    "leaving out token 0": lambda x, t: _mean(x, t.masked_fill(t == 0, IGNORED)),
    "pairing logits in the order of time with targets in the order of rows": _swapped,
    "the last position alone": lambda x, t: _mean(x[:, -1:], t[:, -1:]),
}

CONTRACT = Contract(
    check="loss",
    signature="implementation(logits: Tensor, targets: Tensor) -> float",
    promise=(
        "logits is (B, T, V), float64, finite, at most a few thousand in size. targets is (B, T), "
        f"int64: targets[b, t] is the token, 0 to V - 1, that logits[b, t] is scored against, or "
        f"{IGNORED} where nothing is scored; each row has at least one scored target, and T is at "
        "least 2. It returns the mean over all scored targets of minus the natural logarithm of "
        "the probability that softmax gives to the target, exact to 1e-8: a number, or a tensor of "
        "one number."
    ),
    rights=(
        Right(name="flattened", implementation=right_flattened, note="one row of all positions"),
        Right(
            name="classes_second",
            implementation=right_classes_second,
            note="classes on the second axis",
        ),
        Right(name="by_hand", implementation=right_by_hand, note="logsumexp minus one logit"),
        Right(
            name="plain_numbers",
            implementation=right_plain_numbers,
            note="a loop over plain numbers",
        ),
        Right(name="row_by_row", implementation=right_row_by_row, note="sums and counts of rows"),
    ),
    wrongs=(
        Wrong(
            name="double_softmax",
            implementation=wrong_double_softmax,
            note="softmax is applied to the logits twice",
        ),
        Wrong(
            name="shifted_twice",
            implementation=wrong_shifted_twice,
            note="each position is scored against the target of the next one",
        ),
        Wrong(
            name="denominator",
            implementation=wrong_denominator,
            note="the sum is divided by all positions, the ignored ones too",
        ),
        Wrong(
            name="row_means",
            implementation=wrong_row_means,
            note="rows are averaged first, so that targets of short rows weigh more",
            held_out=True,
        ),
        Wrong(
            name="token_zero",
            implementation=wrong_token_zero,
            note="token 0 is not scored, although it is a token like others",
            held_out=True,
        ),
        Wrong(
            name="another_order",
            implementation=wrong_another_order,
            note="logits meet the targets of other positions",
            held_out=True,
        ),
        Wrong(
            name="overflow",
            implementation=wrong_overflow,
            note="large logits give an infinite loss",
            held_out=True,
        ),
        Wrong(
            name="clamped",
            implementation=wrong_clamped,
            note="a loss above 20 is reported as 20",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=TOLERANCE,
)
