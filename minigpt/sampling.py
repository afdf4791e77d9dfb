"""From logits to the next token: repetition penalty, temperature, top-k, nucleus; and a measure.

The order is the usual one: the penalty moves logits, the temperature scales them, top-k keeps the
best k, the nucleus keeps the best of those that carry the mass top_p.

Shapes: B batch, T time, V vocabulary, K candidates kept by top-k (V without it).
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor
from torch.nn import functional


def next_token_probabilities(
    logits: Tensor,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Tensor:
    """Return the distribution that the next token is drawn from.

    logits: (V,) or (B, V), any floating type; half precision is computed in float32.
    temperature: 0 puts everything on the argmax; 1 leaves the model's own distribution.
    top_k: exactly this many tokens survive, also where logits tie.
    top_p: the smallest set of most probable tokens whose mass reaches top_p survives (Holtzman et
        al. 2020, "The Curious Case of Neural Text Degeneration"), measured after top-k. The token
        that crosses top_p stays, so the set is never empty.
    Returns probabilities of the same shape; every row sums to 1.
    Raises ValueError for settings out of range, FloatingPointError for logits without a finite
    maximum (NaN, +inf, or nothing but -inf).
    """
    if logits.ndim not in (1, 2) or logits.shape[-1] < 1:
        raise ValueError(f"logits must have shape (V,) or (B, V), got {tuple(logits.shape)}")
    require_sampling_settings(temperature, top_k, top_p, vocab_size=logits.shape[-1])
    if logits.dtype in (torch.float16, torch.bfloat16):
        logits = logits.float()
    best = logits.amax(dim=-1, keepdim=True)  # NaN anywhere in a row makes its maximum NaN
    if not bool(torch.isfinite(best).all()):
        raise FloatingPointError(
            "logits must have a finite maximum in every row, got NaN, +inf or only -inf; "
            "look for the first module with a non-finite output"
        )
    if temperature == 0 or top_k == 1:  # `topk` may choose another one of equal logits
        return torch.zeros_like(logits).scatter(-1, logits.argmax(dim=-1, keepdim=True), 1.0)
    # The maximum goes first: dividing by a small temperature then gives -inf at worst, never inf.
    scaled = (logits - best) / max(temperature, torch.finfo(logits.dtype).tiny)
    if top_k is None and (top_p is None or top_p == 1.0):
        return scaled.softmax(dim=-1)
    kept, ids = scaled.topk(top_k or logits.shape[-1], dim=-1)  # (.., K), best first
    probabilities = kept.softmax(dim=-1)
    if top_p is not None and top_p < 1.0:  # at 1.0 rounding in the sum must not cut the tail
        probabilities = _nucleus(probabilities, top_p)
    return torch.zeros_like(scaled).scatter(-1, ids, probabilities)


def _nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Keep tokens (sorted, best first) until their mass reaches top_p; rescale to sum 1."""
    mass_before = functional.pad(probabilities.cumsum(dim=-1)[..., :-1], (1, 0))
    kept = probabilities.masked_fill(mass_before >= top_p, 0.0)  # the first has 0 before it
    return kept / kept.sum(dim=-1, keepdim=True)


def apply_repetition_penalty(logits: Tensor, previous_ids: Tensor, penalty: float) -> Tensor:
    """Return logits in which tokens seen before are less likely (penalty > 1), or more (< 1).

    A positive logit is divided by the penalty and a negative one multiplied: dividing both would
    raise the negative ones. Each token is penalised once, however often it occurred. Source: CTRL
    (Keskar et al. 2019), section 4.1; the split by sign is the usual repair of its formula.

    logits: (V,) with previous_ids (T,), or (B, V) with (B, T). The input is never changed.
    Raises ValueError when penalty is not a finite number > 0 or the shapes do not fit.
    """
    _require_penalty(penalty)
    if previous_ids.ndim != logits.ndim or previous_ids.shape[:-1] != logits.shape[:-1]:
        raise ValueError(
            "previous_ids must be (T,) for logits (V,), or (B, T) for (B, V), "
            f"got {tuple(previous_ids.shape)} for {tuple(logits.shape)}"
        )
    if penalty == 1.0:
        return logits
    seen = logits.gather(-1, previous_ids)  # (.., T)
    return logits.scatter(-1, previous_ids, torch.where(seen > 0, seen / penalty, seen * penalty))


def repetition_rate(sequence: str | Sequence[Hashable] | Tensor, n: int = 4) -> float:
    """Return the share of n-grams that occurred earlier in the same sequence, from 0 to 1.

    `sequence` is a text or a list or 1-D tensor of ids. 0.0 means that no n-gram comes twice (also
    when there is none); one token repeated for ever tends to 1. Compare equal lengths only: in a
    longer text more n-grams have been seen before.
    """
    if n < 1:
        raise ValueError(f"n must be >= 1, got {n}")
    items = sequence.tolist() if isinstance(sequence, Tensor) else sequence
    total = len(items) - n + 1
    if total < 1:
        return 0.0
    return 1.0 - len({tuple(items[i : i + n]) for i in range(total)}) / total


def require_sampling_settings(
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    repetition_penalty: float = 1.0,
    *,
    vocab_size: int,
) -> None:
    """Raise ValueError naming the first setting that is out of range."""
    if not (math.isfinite(temperature) and temperature >= 0):
        raise ValueError(f"temperature must be a finite number >= 0, got {temperature}")
    if top_k is not None and not 1 <= top_k <= vocab_size:
        raise ValueError(f"top_k must be in 1..{vocab_size}, the vocabulary size, got {top_k}")
    if top_p is not None and not 0 < top_p <= 1:  # written so that NaN is refused
        raise ValueError(f"top_p must be in (0, 1], got {top_p}")
    _require_penalty(repetition_penalty)


def _require_penalty(penalty: float) -> None:
    if not (math.isfinite(penalty) and penalty > 0):
        raise ValueError(f"repetition_penalty must be a finite number > 0, got {penalty}")
