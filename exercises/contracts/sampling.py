"""The contract of sampling: temperature, top-k and nucleus, each as it is defined.

Shapes: B rows, V vocabulary, K tokens that survive top-k.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from diagnostics._sampling_readings import Setting, distribution
from exercises.contracts._contract import (
    Contract,
    Finding,
    Implementation,
    Right,
    Wrong,
    as_tensor,
    largest_difference,
)

B, V = 3, 13
SPREAD = 2.0  # standard deviation of the logits
COLD = 0.002  # a temperature at which exp(logit / temperature) overflows in float64
TIED = 5  # equal logits at the top of a row, of which TIES_KEPT survive
TIES_KEPT = 2

Filters = tuple[float, int, float]  # temperature, top_k, top_p


def right_sorted(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Sort each row, cut it, and put what is left back in its places."""
    ordered, order = (logits / temperature).sort(dim=-1, descending=True)  # (B, V)
    p = ordered[:, :top_k].softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def right_loop(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Walk through each row from its best token down, with plain numbers."""
    rows = []
    for row in logits.tolist():
        best = sorted(range(len(row)), key=row.__getitem__, reverse=True)[:top_k]
        weights = [math.exp((row[i] - row[best[0]]) / temperature) for i in best]
        total, mass, kept = math.fsum(weights), 0.0, {}
        for token, weight in zip(best, weights, strict=True):
            if mass < top_p:
                kept[token] = weight
            mass += weight / total
        left = math.fsum(kept.values())
        rows.append([kept.get(token, 0.0) / left for token in range(len(row))])
    return torch.tensor(rows, dtype=torch.float64)


def right_pairwise(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Compare every token with every other, and sort nothing."""
    scaled = logits / temperature
    places = torch.arange(logits.shape[1])
    mine, other = scaled[:, :, None], scaled[:, None, :]
    tied = (other == mine) & (places < places[:, None])
    ahead = (other > mine) | tied  # (B, V, V): whether token j comes before token i
    scaled = scaled.masked_fill(ahead.sum(dim=2) >= top_k, -math.inf)
    mass_before = torch.einsum("bij,bj->bi", ahead.double(), scaled.softmax(dim=1))
    return scaled.masked_fill(mass_before >= top_p, -math.inf).softmax(dim=1)


def right_from_below(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Shuffle the vocabulary, close tokens from the least probable one up, and shuffle back."""
    shuffled = torch.randperm(logits.shape[1])
    scaled = (logits / temperature)[:, shuffled]
    closed = torch.ones_like(scaled, dtype=torch.bool)
    closed = closed.scatter(1, scaled.topk(top_k).indices, False)
    scaled = scaled.masked_fill(closed, -math.inf)
    p, order = scaled.softmax(dim=1).sort(dim=1)  # the least probable first
    closed = torch.zeros_like(closed).scatter(1, order, p.cumsum(dim=1) <= 1.0 - top_p)
    return scaled.masked_fill(closed, -math.inf).softmax(dim=1)[:, shuffled.argsort()]


def wrong_small_fill(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Fill what top-k removes with a number close to 0, which is a logit like any other."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    fill = -1e-10  # BROKEN: was fill = -math.inf
    scaled = scaled.scatter(1, order[:, top_k:], fill)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    removed = torch.zeros_like(p).bool().scatter(1, order, p.cumsum(dim=-1) - p >= top_p)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_crossing_dropped(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Keep what lies fully below top_p: the token that reaches it is lost."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    scaled = scaled.scatter(1, order[:, top_k:], -math.inf)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    limit = math.inf if top_p == 1.0 else top_p
    late = p.cumsum(dim=-1) > limit  # BROKEN: was late = p.cumsum(dim=-1) - p >= limit
    late[:, 0] = False
    removed = torch.zeros_like(late).scatter(1, order, late)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_multiplied(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Multiply by the temperature: a cold setting makes the text wilder."""
    scaled = logits * temperature  # BROKEN: was scaled = logits / temperature
    ordered, order = scaled.sort(dim=-1, descending=True)  # (B, V)
    p = ordered[:, :top_k].softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def wrong_mask_gathered(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Read the mask of the sorted tokens at the order, where it has to be written there."""
    scaled = logits / temperature
    order = scaled.argsort(dim=-1, descending=True)  # (B, V)
    scaled = scaled.scatter(1, order[:, top_k:], -math.inf)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    limit = math.inf if top_p == 1.0 else top_p
    late = p.cumsum(dim=-1) - p >= limit
    removed = late.gather(1, order)  # BROKEN: was removed = late.scatter(1, order, late)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_order_of_first_row(
    logits: Tensor, temperature: float, top_k: int, top_p: float
) -> Tensor:
    """Sort the first row only, and cut every row by that order."""
    scaled = logits / temperature
    chooser = scaled[:1]  # BROKEN: was chooser = scaled
    order = chooser.argsort(dim=-1, descending=True).expand_as(scaled)  # (B, V)
    p = scaled.gather(1, order[:, :top_k]).softmax(dim=-1)  # (B, K)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def wrong_ties_kept(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Compare with the K-th largest value: all that equal it stay, however many."""
    scaled = logits / temperature
    ordered, order = scaled.sort(dim=-1, descending=True)  # (B, V)
    weakest = ordered[:, top_k - 1 : top_k]  # (B, 1)
    closed = scaled < weakest  # BROKEN: was closed = order.argsort(dim=-1) >= top_k
    scaled = scaled.masked_fill(closed, -math.inf)
    p, order = scaled.softmax(dim=-1).sort(dim=-1, descending=True)
    removed = torch.zeros_like(closed).scatter(1, order, p.cumsum(dim=-1) - p >= top_p)
    return scaled.masked_fill(removed, -math.inf).softmax(dim=-1)


def wrong_overflow(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor:
    """Write softmax as in the textbook: e to the power of a large logit is infinite."""
    ordered, order = (logits / temperature).sort(dim=-1, descending=True)  # (B, V)
    highest = torch.zeros(())  # BROKEN: was highest = ordered[:, :1]
    weights = (ordered[:, :top_k] - highest).exp()  # (B, K)
    p = weights / weights.sum(dim=-1, keepdim=True)
    p = p.masked_fill(p.cumsum(dim=-1) - p >= top_p, 0.0)
    p = p / p.sum(dim=-1, keepdim=True)
    return torch.zeros_like(logits).scatter(1, order[:, :top_k], p)


def examine(implementation: Implementation) -> Iterator[Finding]:
    """Ask for settings of each kind, alone and together, and compare with the definition."""
    for _ in range(2):
        logits = SPREAD * torch.randn(B, V, dtype=torch.float64)
        for filters in _settings(logits):
            got = _answer(implementation, logits, filters)
            temperature, top_k, top_p = filters
            wanted = torch.stack(
                [distribution(Setting(row, temperature, top_k, top_p)) for row in logits]
            )  # (B, V)
            yield Finding(largest_difference(got, wanted), _claim(got, wanted, logits, filters))
    yield from _examine_ties(implementation)


def _settings(logits: Tensor) -> Iterator[Filters]:
    yield 1.0, V, 1.0
    yield 0.5, V, 1.0
    yield 2.0, V, 1.0
    for top_k in (1, 3, V - 1):
        yield 1.0, top_k, 1.0
    for low, high in ((0.05, 0.35), (0.5, 0.8), (0.8, 0.95)):
        yield 1.0, V, _clear_of_masses(logits.softmax(dim=-1), low, high)
    best = (logits / 1.5).topk(6, dim=-1).values
    yield 1.5, 6, _clear_of_masses(best.softmax(dim=-1), 0.4, 0.9)
    yield COLD, V, 1.0


def _clear_of_masses(p: Tensor, low: float, high: float) -> float:
    """Return the top_p of an interval that is farthest from the mass of any set of best tokens."""
    masses = p.sort(dim=-1, descending=True).values.cumsum(dim=-1)  # (B, K)
    candidates = torch.linspace(low, high, 200, dtype=torch.float64)
    distances = (candidates[:, None] - masses.flatten()).abs().amin(dim=1)
    return float(candidates[distances.argmax()])


def _answer(implementation: Implementation, logits: Tensor, filters: Filters) -> Tensor:
    came = implementation(logits.clone(), *filters)
    return as_tensor(came, "probabilities", shape=(B, V), dtype=torch.float64)


def _claim(got: Tensor, wanted: Tensor, logits: Tensor, filters: Filters) -> str:
    """Say what is wrong with the worst row; the more basic first."""
    temperature, top_k, top_p = filters
    row = int((got - wanted).abs().nan_to_num(nan=math.inf).amax(dim=1).argmax())
    p, due = got[row], wanted[row]
    where = f"with temperature {temperature:g}, top_k {top_k} of {V}, top_p {top_p:.3g}"
    if not p.isfinite().all():
        count = int((~p.isfinite()).sum())
        return f"{count} of {V} probabilities of row {row} are no finite numbers, {where}"
    if not abs(float(p.sum()) - 1.0) <= 1e-6:
        return f"the probabilities of row {row} sum to {float(p.sum()):.4g}, expected 1, {where}"
    kept, survive = int((p > 0).sum()), int((due > 0).sum())
    if kept != survive:
        return f"row {row} keeps {kept} of {V} tokens, expected {survive}, {where}"
    used = _temperature_of(p, logits[row])
    if used is not None and abs(used - temperature) > 1e-6:
        return f"row {row} has the probabilities of temperature {used:.3g}, {where}"
    lost = torch.nonzero((p == 0) & (due > 0)).flatten().tolist()
    if lost:
        share = float(due[lost[0]])
        return f"row {row} closes token {lost[0]}, which should get {share:.3f}, {where}"
    token = int((p - due).abs().argmax())
    given = f"{float(p[token]):.4f}, expected {float(due[token]):.4f}"
    return f"token {token} of row {row} has the probability {given}, {where}"


def _temperature_of(p: Tensor, logits: Tensor) -> float | None:
    """Return the temperature that explains the probabilities of all kept tokens, or None."""
    kept = torch.nonzero(p > 0).flatten()
    if len(kept) < 2:
        return None
    steps = p[kept].log() - p[kept[0]].log()  # (kept,): logits over temperature, less the first
    rates = steps[1:] / (logits[kept[1:]] - logits[kept[0]])
    if not bool((rates - rates[0]).abs().amax() <= 1e-6 * abs(float(rates[0]))):
        return None
    return 1.0 / float(rates[0])


def _examine_ties(implementation: Implementation) -> Iterator[Finding]:
    """Of equal logits exactly top_k stay, each with the same share."""
    logits = torch.full((B, V), -1.0, dtype=torch.float64)
    logits[:, torch.randperm(V)[:TIED]] = 1.0
    got = _answer(implementation, logits, (1.0, TIES_KEPT, 1.0))
    kept = (got > 0).sum(dim=1)  # (B,)
    row = int((kept - TIES_KEPT).abs().argmax())
    yield Finding(
        float((kept - TIES_KEPT).abs().amax()),
        f"where {TIED} logits tie for the first place, top_k {TIES_KEPT} keeps {int(kept[row])} "
        f"tokens, expected {TIES_KEPT}",
    )
    highest = got.amax(dim=1, keepdim=True)
    yield Finding(
        largest_difference(highest, torch.full_like(highest, 1.0 / TIES_KEPT)),
        f"of {TIES_KEPT} equal logits that survive, one has the probability "
        f"{float(highest.amax()):.4f}, expected {1.0 / TIES_KEPT}",
    )


CONTRACT = Contract(
    check="sampling",
    signature=(
        "implementation(logits: Tensor, temperature: float, top_k: int, top_p: float) -> Tensor"
    ),
    promise=(
        "logits is (B, V), float64, finite; temperature > 0; top_k is in 1..V, and V keeps all; "
        "top_p is in (0, 1], and 1 keeps all. It returns (B, V), float64. Each row by itself: "
        "softmax of logits / temperature; of this exactly the top_k most probable tokens survive, "
        "rescaled to sum 1; of these the smallest set of most probable tokens whose mass reaches "
        "top_p, rescaled to sum 1. All others get 0. Where logits are equal, or a mass meets top_p "
        "to within 1e-9, either choice is right."
    ),
    rights=(
        Right(name="sorted", implementation=right_sorted, note="sorts, cuts and puts back"),
        Right(name="loop", implementation=right_loop, note="a loop over plain numbers"),
        Right(name="pairwise", implementation=right_pairwise, note="compares all pairs of tokens"),
        Right(name="from_below", implementation=right_from_below, note="closes the least first"),
    ),
    wrongs=(
        Wrong(
            name="small_fill",
            implementation=wrong_small_fill,
            note="what top_k removes gets a logit near 0, and is drawn",
        ),
        Wrong(
            name="crossing_dropped",
            implementation=wrong_crossing_dropped,
            note="the token with which the mass reaches top_p is lost",
        ),
        Wrong(
            name="multiplied",
            implementation=wrong_multiplied,
            note="logits are multiplied by the temperature",
        ),
        Wrong(
            name="mask_gathered",
            implementation=wrong_mask_gathered,
            note="the nucleus closes other tokens than the least probable ones",
            held_out=True,
        ),
        Wrong(
            name="order_of_first_row",
            implementation=wrong_order_of_first_row,
            note="every row keeps the tokens that are best in the first row",
            held_out=True,
        ),
        Wrong(
            name="ties_kept",
            implementation=wrong_ties_kept,
            note="more than top_k tokens stay where logits are equal",
            held_out=True,
        ),
        Wrong(
            name="overflow",
            implementation=wrong_overflow,
            note="large logits over a small temperature give NaN",
            held_out=True,
        ),
    ),
    examine=examine,
    tolerance=1e-9,  # right ones are within 1e-15; the nearest wrong one is off by 0.3
)
