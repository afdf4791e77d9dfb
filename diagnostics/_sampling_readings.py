"""The distribution that sampling filters must give, and what the usual mistakes give instead.

All in float64. Shapes: V vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor


@dataclass(frozen=True)
class Setting:
    """One call: logits (V,) and the three settings; None where a filter is off."""

    logits: Tensor
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None

    def __str__(self) -> str:
        p = None if self.top_p is None else f"{self.top_p:.4g}"
        return f"temperature={self.temperature:g}, top_k={self.top_k}, top_p={p}"


Formula = Callable[[Setting], Tensor]  # -> (V,)


def distribution(setting: Setting) -> Tensor:
    """Return the distribution by definition: temperature, then top-k, then the nucleus."""
    logits = setting.logits.double() / setting.temperature
    return nucleus(keep_best(logits, setting.top_k).softmax(-1), setting.top_p)


def keep_best(logits: Tensor, k: int | None, fill: float = -torch.inf) -> Tensor:
    """Return logits in which all but the k largest are `fill`."""
    if k is None or k >= len(logits):
        return logits
    kept = torch.full_like(logits, fill)
    best = logits.topk(k).indices
    kept[best] = logits[best]
    return kept


def nucleus(probabilities: Tensor, p: float | None, extra: int = 0) -> Tensor:
    """Return the smallest set of most probable tokens whose mass reaches p, rescaled.

    extra: how many tokens more (or less) are kept than the definition says.
    """
    if p is None or p >= 1.0:
        return probabilities
    ordered, ids = probabilities.sort(descending=True)
    count = int((ordered.cumsum(-1) < p - 1e-12).sum()) + 1 + extra
    kept = torch.zeros_like(probabilities)
    kept[ids[: max(count, 0)]] = ordered[: max(count, 0)]
    return kept / kept.sum()


def alternatives(setting: Setting) -> Iterator[Tensor]:
    """Yield the distributions that other healthy designs give: filters in another order."""
    logits = setting.logits.double() / setting.temperature
    if setting.top_k is not None and setting.top_p is not None:
        whole = logits.softmax(-1)
        for mass in (whole, setting.logits.double().softmax(-1)):  # before the temperature, too
            by_mass = torch.where(nucleus(mass, setting.top_p) > 0, logits, -torch.inf)
            yield keep_best(by_mass, setting.top_k).softmax(-1)


# ---- mistakes, by the question that they answer wrongly -------------------------------------


def plain_mistakes() -> Iterator[tuple[str, Formula]]:
    """Yield what may come where all filters are off."""
    yield "sampling.logits", lambda s: s.logits.double()
    yield "sampling.log_probabilities", lambda s: s.logits.double().log_softmax(-1)
    yield "sampling.unnormalised", lambda s: s.logits.double().exp()
    yield "sampling.unnormalised", lambda s: (s.logits.double() - s.logits.max()).exp()
    yield "sampling.argmax_only", lambda s: keep_best(s.logits.double(), 1).softmax(-1)
    yield "sampling.softmax_twice", lambda s: s.logits.double().softmax(-1).softmax(-1)
    yield (
        "sampling.logits_rescaled",
        lambda s: s.logits.double().clamp(min=0) / s.logits.clamp(min=0).sum(),
    )
    yield "sampling.logits_rescaled", lambda s: s.logits.double() / s.logits.double().sum()
    yield "sampling.negated", lambda s: (-s.logits.double()).softmax(-1)
    yield "sampling.uniform", lambda s: torch.full_like(s.logits, 1 / len(s.logits)).double()


def temperature_mistakes() -> Iterator[tuple[str, Formula]]:
    """Yield what may come of a temperature that is not 1."""
    yield "sampling.temperature_ignored", lambda s: s.logits.double().softmax(-1)
    yield "sampling.temperature_inverted", lambda s: (s.logits.double() * s.temperature).softmax(-1)
    yield "sampling.temperature_twice", lambda s: (s.logits.double() / s.temperature**2).softmax(-1)
    yield (
        "sampling.temperature_rooted",
        lambda s: (s.logits.double() / s.temperature**0.5).softmax(-1),
    )
    yield (
        "sampling.temperature_after_softmax",
        lambda s: s.logits.double().softmax(-1) / s.temperature,
    )
    yield "sampling.temperature_after_softmax", _softened
    yield "sampling.argmax_only", lambda s: keep_best(s.logits.double(), 1).softmax(-1)


def top_k_mistakes() -> Iterator[tuple[str, Formula]]:
    """Yield what may come of top-k."""
    yield "sampling.top_k_ignored", lambda s: s.logits.double().softmax(-1)
    for extra in (1, -1):
        yield (
            "sampling.top_k_off_by_one",
            lambda s, e=extra: _best(s, (s.top_k or 0) + e).softmax(-1),  # type: ignore[misc]
        )
    for fill in (0.0, -1e-10, -1.0, -10.0, -100.0):
        yield (
            "sampling.top_k_fill",
            lambda s, f=fill: keep_best(s.logits.double(), s.top_k, f).softmax(-1),  # type: ignore[misc]
        )
    yield "sampling.top_k_not_rescaled", _cut_probabilities
    yield "sampling.top_k_keeps_worst", _worst
    yield "sampling.argmax_only", lambda s: keep_best(s.logits.double(), 1).softmax(-1)
    yield "sampling.top_k_unsorted", _mask_in_sorted_order(lambda s: s.top_k or 0)
    for mistake in _gathered_masks(lambda s: s.top_k or 0):
        yield "sampling.top_k_gathered", mistake
    yield (
        "sampling.top_k_uniform",
        lambda s: (_best(s, s.top_k or 0) > -torch.inf).double() / (s.top_k or 1),
    )


def top_p_mistakes() -> Iterator[tuple[str, Formula]]:
    """Yield what may come of a nucleus."""
    yield "sampling.top_p_ignored", lambda s: s.logits.double().softmax(-1)
    yield "sampling.top_p_drops_crossing", lambda s: nucleus(_soft(s), s.top_p, extra=-1)
    yield "sampling.top_p_drops_crossing", _drops_crossing_or_keeps_first
    yield "sampling.top_p_keeps_one_more", lambda s: nucleus(_soft(s), s.top_p, extra=1)
    yield "sampling.top_p_not_rescaled", lambda s: _soft(s) * (nucleus(_soft(s), s.top_p) > 0)
    yield "sampling.top_p_from_least", _from_least
    yield (
        "sampling.top_p_unsorted",
        _mask_in_sorted_order(_nucleus_size),
    )
    for mistake in _gathered_masks(_nucleus_size):
        yield "sampling.top_p_gathered", mistake
    yield "sampling.top_p_of_each", lambda s: _rescaled(_soft(s) * (_soft(s) >= (s.top_p or 0)))
    yield "sampling.top_p_of_each", lambda s: _rescaled(_soft(s) * (_soft(s) >= 1 - (s.top_p or 0)))
    yield (
        "sampling.top_p_of_best",
        lambda s: _rescaled(_soft(s) * (_soft(s) >= (s.top_p or 0) * _soft(s).max())),
    )
    yield "sampling.top_p_complement", lambda s: nucleus(_soft(s), 1 - (s.top_p or 0))
    yield "sampling.argmax_only", lambda s: keep_best(s.logits.double(), 1).softmax(-1)


def before_temperature(setting: Setting) -> Tensor:
    """Return what comes when the filters choose at temperature 1, and then it is tempered."""
    chosen = keep_best(setting.logits.double(), setting.top_k)
    kept = nucleus(chosen.softmax(-1), setting.top_p) > 0
    tempered = setting.logits.double() / setting.temperature
    return torch.where(kept, tempered, -torch.inf).softmax(-1)


def _soft(setting: Setting) -> Tensor:
    return (setting.logits.double() / setting.temperature).softmax(-1)


def _softened(setting: Setting) -> Tensor:
    return (setting.logits.double().softmax(-1) / setting.temperature).softmax(-1)


def _best(setting: Setting, k: int) -> Tensor:
    if k < 1:
        return torch.full_like(setting.logits, torch.nan).double()  # nothing is left
    return keep_best(setting.logits.double(), k)


def _worst(setting: Setting) -> Tensor:
    worst = (-setting.logits.double()).topk(setting.top_k or 1).indices
    kept = torch.full_like(setting.logits.double(), -torch.inf)
    kept[worst] = setting.logits.double()[worst]
    return kept.softmax(-1)


def _cut_probabilities(setting: Setting) -> Tensor:
    return _soft(setting) * (_best(setting, setting.top_k or 0) > -torch.inf)


def _from_least(setting: Setting) -> Tensor:
    """Tokens are gathered from the least probable one upwards."""
    probabilities = _soft(setting)
    ordered, ids = probabilities.sort()
    count = int((ordered.cumsum(-1) < (setting.top_p or 0)).sum()) + 1
    kept = torch.zeros_like(probabilities)
    kept[ids[:count]] = ordered[:count]
    return _rescaled(kept)


def _drops_crossing_or_keeps_first(setting: Setting) -> Tensor:
    """The crossing token is dropped, but never the first one."""
    kept = nucleus(_soft(setting), setting.top_p, extra=-1)
    return (
        kept if bool(kept.isfinite().all()) else keep_best(setting.logits.double(), 1).softmax(-1)
    )


def _mask_in_sorted_order(count: Callable[[Setting], int]) -> Formula:
    """The mask belongs to the sorted tokens and is laid on the unsorted ones."""

    def formula(setting: Setting) -> Tensor:
        kept = setting.logits.double() / setting.temperature
        kept[count(setting) :] = -torch.inf
        return kept.softmax(-1)

    return formula


def _nucleus_size(setting: Setting) -> int:
    return int((nucleus(_soft(setting), setting.top_p) > 0).sum())


def _gathered_masks(count: Callable[[Setting], int]) -> Iterator[Formula]:
    """Yield masks in sorted order that are read at the order, mask[order], not written there.

    In either direction of the sort, and with the most probable token kept whatever comes.
    """

    def formula(setting: Setting, descending: bool, keeps_best: bool) -> Tensor:
        logits = setting.logits.double() / setting.temperature
        order, V = logits.argsort(descending=descending), len(logits)
        ranks = torch.arange(V) if descending else torch.arange(V).flip(0)  # 0: the best
        kept = (ranks < count(setting))[order]
        kept[logits.argmax()] |= keeps_best
        return torch.where(kept, logits, -torch.inf).softmax(-1)

    for descending, keeps_best in itertools.product((True, False), (False, True)):
        yield partial(formula, descending=descending, keeps_best=keeps_best)


def _rescaled(kept: Tensor) -> Tensor:
    return kept / kept.sum()
