"""What a leak comes from: the pattern of the pairs that leak, and the call in which it begins.

Shapes: T time, J replaced tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from diagnostics._leak_site import LeakSite, Trace
from diagnostics._text import Text, say

FULL_READ_RATIO = 0.3  # future to past, medians: 0.9 to 1.1 without a mask, at most 0.14 after it
FIRST_ROW_RATIO = 5.0  # measured with tril(diagonal=-1): 14 and more; without a mask: about 1


@dataclass(frozen=True)
class Reading:
    """What the leak is called, what can produce it, and what to do; no causes: nothing fits."""

    reason: str
    causes: tuple[Text, ...]
    next_step: Text


@dataclass(frozen=True)
class Leak:
    """How far logits moved, and which of those moves are leaks."""

    influence: Tensor  # (T, J)
    leaks: Tensor  # (T, J) bool
    changed: Tensor  # (J,) the replaced positions

    @property
    def ahead(self) -> Tensor:
        """(T, J): how far the replaced token lies ahead of the position."""
        positions = torch.arange(len(self.leaks), device=self.leaks.device)
        return self.changed[None, :] - positions[:, None]

    @property
    def reach(self) -> int:
        """How many tokens ahead the furthest token that is read lies."""
        return int(self.ahead[self.leaks].max())

    @property
    def is_full(self) -> bool:
        """Whether every position reads every later token."""
        return bool(self.leaks[self.ahead > 0].all())

    @property
    def is_band(self) -> bool:
        """Whether every position reads the next few tokens, and none beyond."""
        near = (self.ahead > 0) & (self.ahead <= self.reach)
        return self.reach < len(self.leaks) // 2 and bool(self.leaks[near].all())


def read_leak(leak: Leak, trace: Trace | None) -> Reading:
    """Name what fits. Masks are spoken of only where the model reads a table (T, T)."""
    if bool(leak.influence.isnan().any()):
        return Reading("causal_independence.not_finite", _NOT_FINITE, _FIND_NAN)
    site = None if trace is None else trace.site
    if site is None:
        if trace is not None and not trace.has_attention:
            return Reading("causal_independence.leak", (), _BISECT)
        return _read_pattern(leak, None)
    if site.kind in ("attention", "reshaped"):
        return _read_pattern(leak, site)
    return _read_site(leak, site)


def _read_site(leak: Leak, site: LeakSite) -> Reading:
    """Read a leak that has nothing to do with attention."""
    facts = {"place": site_name(site), "function": site.function, "reach": leak.reach}
    reads_past = bool((leak.influence[leak.ahead < 0] > 0).all())
    if site.kind == "flip" and _is_reversed(leak):
        return _reading("time_reversed", facts, _REVERSED, _UNFLIP)
    if site.kind == "flip" and reads_past:
        return _reading("both_directions", facts, _FLIPPED, _ONE_DIRECTION)
    if site.kind == "flip":
        return _reading("leak", facts, _REVERSED, _LOOK_THERE)
    if site.kind == "recurrence":
        return _reading("both_directions", facts, _BIDIRECTIONAL, _ONE_DIRECTION)
    if site.kind == "convolution":
        return _reading("convolution_ahead", facts, _CONVOLUTION, _PAD_LEFT)
    if site.kind == "moved" and leak.is_band:
        return _reading("shifted_back", facts, _SHIFTED, _SHIFT_FORWARD)
    if site.kind == "over_axis":
        return _reading("normalised_over_future", facts, _OVER_TIME, _OVER_FEATURES)
    if site.kind == "linear":
        return _reading("leak", facts, _LINEAR, _LOOK_THERE)
    return Reading("causal_independence.leak", (), say(_LOOK_THERE, **facts))


def _reading(word: str, facts: dict[str, object], cause: str, next_step: str) -> Reading:
    return Reading(f"causal_independence.{word}", (say(cause, **facts),), say(next_step, **facts))


def site_name(site: LeakSite) -> Text:
    """Tell where the call stands, as far as that is known."""
    named = {"function": site.function, "path": site.path, "place": site.place}
    if site.path and site.place:
        return say("{function} in {path} ({place})", **named)
    return say("{function} in {path}" if site.path else "{function} ({place})", **named)


def _read_pattern(leak: Leak, site: LeakSite | None) -> Reading:
    """Read which pairs leak, where positions are mixed by weights (T, T) or cut across."""
    word, causes = _read_pairs(leak, site)
    if word == "leak" and site is not None and site.kind == "reshaped":
        return _reading(word, {"place": site_name(site)}, _RESHAPED, _LOOK_THERE)
    return Reading(f"causal_independence.{word}", causes, _NEXT_STEPS.get(word, _PRINT_MASK))


def _read_pairs(leak: Leak, site: LeakSite | None) -> tuple[str, tuple[Text, ...]]:
    leaks, changed, ahead = leak.leaks, leak.changed, leak.ahead
    T, future = len(leaks), ahead > 0
    if leak.is_full:
        return _read_full_leak(leak, site)
    if leak.is_band:
        return "mask_too_wide", (say(_TOO_WIDE, reach=leak.reach),)
    rows = leaks.any(dim=1)
    first = int(torch.nonzero(rows).min())
    if first == 0 and int(rows.sum()) == 1:
        return "first_row", _FIRST_ROW
    if first > 0 and bool(leaks[first:][future[first:]].all()):
        return (
            "mask_too_small",
            (say("the mask covers only the first {first} positions of the block", first=first),),
        )
    positions = torch.arange(T, device=leaks.device)
    for size in range(2, T // 2 + 1):
        together = positions[:, None] // size == changed[None, :] // size
        if torch.equal(leaks, future & together):
            return (
                "chunked",
                (say("positions are mixed inside blocks of {size}, without a mask", size=size),),
            )
    if _is_reversed(leak):
        return "time_reversed", (say("the tokens are read from the end: a flip over time"),)
    furthest = (ahead * leaks).amax(dim=1)  # (T,) how far each position sees
    if int(furthest[1]) == 2 * int(furthest[0]) > 0:
        return "heads_mixed", _HEADS_MERGED
    if _is_split_by_view(furthest):
        return "heads_mixed", _HEADS_SPLIT
    return "leak", ()


def _is_reversed(leak: Leak) -> bool:
    T = len(leak.leaks)
    from_end = T - 1 - torch.arange(T, device=leak.leaks.device)
    expected = (leak.ahead > 0) & (leak.changed[None, :] >= from_end[:, None])
    return torch.equal(leak.leaks, expected)


def _is_split_by_view(furthest: Tensor) -> bool:
    """Whether position i sees up to ((H - 1) * T + i) // H, once per layer, for some H heads."""
    T = len(furthest)
    seen = [i + int(ahead) for i, ahead in enumerate(furthest.tolist())]
    if seen[0] == T - 1:
        return False  # everything fits
    for H in range(2, T):
        reached = list(range(T))
        for _layer in range(8):
            reached = [((H - 1) * T + i) // H for i in reached]
            if reached == seen:
                return True
    return False


def _read_full_leak(leak: Leak, site: LeakSite | None) -> tuple[str, tuple[Text, ...]]:
    """Every later token is read: as strongly as the past, or faintly, or in its place."""
    influence, future, past = leak.influence, leak.ahead > 0, leak.ahead < 0
    if bool((influence[past] == 0).all()):
        return "mask_inverted", _INVERTED
    first = influence[0][future[0]].median()
    others = influence[1:][future[1:]].median()
    usual = influence[past].median()
    if bool(first > FIRST_ROW_RATIO * others) and bool(first > 0.1 * usual):
        return "first_row", _FIRST_ROW
    known = _OF_WEIGHTS.get("" if site is None else site.weights)
    # what is truly read moves a logit about as much from the future as from the past
    if known is None and bool(influence[future].median() > FULL_READ_RATIO * usual):
        return "no_mask", _NO_MASK
    return "normalised_over_future", tuple(_OF_WEIGHTS.values()) if known is None else (known,)


_NO_MASK = (
    say("no causal mask is applied: every position reads the whole row"),
    say("the mask is added as 0 and 1, or fills hidden scores with 0, so it hides nothing"),
)
_OF_WEIGHTS = {
    "late_mask": say(
        "the mask is applied after the softmax, whose sum still runs over later tokens"
    ),
    "queries": say("the softmax runs over the queries (dim=-2) in place of the keys (dim=-1)"),
    "heads": say("the softmax runs over the heads (dim=1) in place of the keys (dim=-1)"),
    "weak_fill": say(
        "hidden scores are filled with a small number such as -10, which lets a little through"
    ),
}
_INVERTED = (
    say(
        "the mask has the opposite meaning: it keeps the future and hides the past (True keeps in "
        "scaled_dot_product_attention and drops in nn.MultiheadAttention)"
    ),
)
_FIRST_ROW = (
    say(
        "the mask hides a position from itself, as tril(diagonal=-1) does: position 0 then has "
        "nothing to read, and softmax spreads over all tokens"
    ),
)
_NOT_FINITE = (
    say("a row of the mask hides everything, so that its softmax is 0 / 0"),
    say("the softmax runs over another axis than the keys, where all scores are -inf"),
    say("some layer gives NaN or infinity: see forward_hooks"),
)
_HEADS_MERGED = (
    say(
        "heads are merged by reshape without moving the time axis back: the reach doubles from "
        "position 0 to position 1, as in slices of a (H, T) table; a transpose(1, 2) is missing"
    ),
)
_HEADS_SPLIT = (
    say(
        "heads are split by view(B, H, T, D) in place of view(B, T, H, D).transpose(1, 2): the "
        "reach is that of rows cut across time and features"
    ),
)
_TOO_WIDE = (
    "the mask keeps a diagonal too many, as tril(diagonal=1) does: each layer adds its extra "
    "diagonals to the reach ({reach} here)"
)
_RESHAPED = "{place} cuts across positions: an axis has to be moved before it is merged or split"
_BIDIRECTIONAL = "{place} reads the row from both ends, as bidirectional=True does"
_FLIPPED = "{place} turns the row round, and what is read from its end reaches every position"
_REVERSED = "the tokens are read from the end: {place}"
_CONVOLUTION = (
    "{place} is padded on both sides or on the right, so that positions read {reach} ahead in all"
)
_SHIFTED = (
    "{place} moves tokens to earlier positions: a shift by one goes the wrong way ({reach} ahead in"
    " all)"
)
_OVER_TIME = (
    "{place} uses a mean, a norm or a sum over the whole row, in which later tokens take part"
)
_LINEAR = "{place} is a linear layer over the time axis: every position reads all others"

_PRINT_MASK = say("print the attention mask for T=4: row i must allow columns 0 to i only")
_NEXT_STEPS = {
    "heads_mixed": say(
        "print the shape after each step for T=3: time moves by transpose(1, 2) only"
    ),
    "normalised_over_future": say(
        "fill hidden scores with -inf first, then take softmax(dim=-1), and change nothing after it"
    ),
}
_FIND_NAN = say("run forward_hooks: it names the first module that gives NaN")
_BISECT = say(
    "change the last token of a row, and print which layer's output moves at position 0 first"
)
_LOOK_THERE = "look at {place}: there, positions before a replaced token move for the first time"
_ONE_DIRECTION = "run one direction only: the one that starts at the first token"
_UNFLIP = "read the tokens in their order: take the flip out"
_PAD_LEFT = "pad by hand on the left only: functional.pad(x, (kernel_size - 1, 0)), then padding=0"
_SHIFT_FORWARD = "shift the other way: position t may get token t - 1, never t + 1"
_OVER_FEATURES = "take it over the features (dim=-1), or over the tokens up to each position"
