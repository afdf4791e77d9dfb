"""What a reported loss could be: formulas computed from the model's own logits.

Each reading is one usual way to get a loss wrong (or to add to it on purpose). `loss` looks for
the one that gives the reported number in every case, to the last digits that count.

Shapes: B batch, T time, V vocabulary, W width of the logits, N scored targets.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor
from torch.nn import functional

# Losses of healthy models differ from the float64 one by at most 9e-8 of their size, in float32
# and with weights x100 too (60 tiny models measured), so that this leaves a factor of a hundred.
TOLERANCE = 1e-5


@dataclass(frozen=True)
class Case:
    """One call of the model: its logits, what it was given, and the loss it reported."""

    name: str
    logits: Tensor  # (B, T, W) float64
    inputs: Tensor  # (B, T)
    targets: Tensor  # (B, T), as given to the model
    reported: float
    noise: float  # rounding of the model's own number type, relative
    labels: str = "next"
    ignore_index: int = -100
    pads: Tensor | None = None  # (B, T) bool: targets that are padding after padding

    @cached_property
    def aligned(self) -> tuple[Tensor, Tensor]:
        """Logits and the targets that the contract pairs them with, (B, S, W) and (B, S)."""
        if self.labels == "same":
            return self.logits[:, :-1], self.targets[:, 1:]
        return self.logits, self.targets

    @cached_property
    def scored(self) -> tuple[Tensor, Tensor]:
        """Logits (N, W) and targets (N,) that count."""
        logits, targets = self.aligned
        keep = targets != self.ignore_index
        return logits[keep], targets[keep]

    @cached_property
    def nll(self) -> Tensor:
        """Cross-entropy of each scored target (N,), in nats."""
        return functional.cross_entropy(*self.scored, reduction="none")

    @cached_property
    def reference(self) -> float:
        """The loss as it should be: mean nats per scored target."""
        return float(self.nll.mean())

    @property
    def tolerance(self) -> float:
        """How far a right formula may lie from the reported number."""
        scale = 1.0 + abs(self.reference) + abs(self.reported)
        size = float(self.logits.abs().max()) if self.noise > TOLERANCE else 0.0
        return max(TOLERANCE, self.noise) * (scale + size)

    def fits(self, value: float) -> bool:
        """Whether a value is the reported one; NaN fits NaN only."""
        if math.isnan(self.reported) or math.isinf(self.reported):
            return str(value) == str(self.reported)
        return abs(value - self.reported) <= self.tolerance


Formula = Callable[[Case], float]


@dataclass(frozen=True)
class Reading:
    """A formula that gave the reported number everywhere, and its parameter if it has one."""

    reason: str
    parameter: float | None = None
    place: str = ""  # what of the batch is meant, where it is a part of it


def find_readings(cases: Sequence[Case]) -> list[Reading]:
    """Return every reading that fits all cases; the likeliest first, each reason once."""
    found: dict[str, Reading] = {}
    for reading in _candidates(cases):
        found.setdefault(reading.reason, reading)
    return list(found.values())


def is_healthy(cases: Sequence[Case]) -> bool:
    """Whether all cases report the mean cross-entropy, or it over the V real columns only."""
    return _fits_all(cases, lambda case: case.reference)


def without(case: Case, left_out: Tensor) -> float:
    """Return the mean cross-entropy over scored targets that are not left out (B, T)."""
    logits, targets = case.aligned
    if case.labels == "same":
        left_out = left_out[:, 1:]
    keep = (targets != case.ignore_index) & ~left_out
    if not keep.any():
        return math.nan
    return float(functional.cross_entropy(logits[keep], targets[keep]))


def _candidates(cases: Sequence[Case]) -> Iterator[Reading]:
    for reason, formula in [*_alignments(cases[0].labels), *_FORMS]:
        if _fits_all(cases, formula):
            yield Reading(reason)
    for reason, formula in _ignored_as_class(cases):
        if _fits_all(cases, formula):
            yield Reading(reason)
    for token in _ids_left_out(cases):
        yield Reading("loss.ignores_real_token", token)
    for reason, feature in _ADDED:
        yield from _solve_linear(cases, reason, feature)
    yield from _solve_scaled(cases)
    yield from _solve_clamped(cases)
    for reason, family, low, high in _CURVES:
        yield from _solve_curve(cases, reason, family, low, high)


def _fits_all(cases: Sequence[Case], formula: Formula) -> bool:
    return all(case.fits(_value(formula, case)) for case in cases)


def _value(formula: Formula, case: Case) -> float:
    try:
        return formula(case)
    except (RuntimeError, IndexError, ValueError):  # the formula does not apply to such shapes
        return math.nan


# ---- which logits meet which tokens -----------------------------------------------------------


def _alignments(labels: str) -> list[tuple[str, Formula]]:
    def pair(
        logits_from: int, logits_to: int | None, targets_from: int, targets_to: int | None
    ) -> Formula:
        return lambda case: _mean(
            case,
            case.logits[:, logits_from:logits_to],
            case.targets[:, targets_from:targets_to],
        )

    if labels == "same":
        return [
            ("loss.not_shifted", pair(0, None, 0, None)),
            ("loss.shifted_twice", pair(0, -2, 2, None)),
            ("loss.shifted_backward", pair(1, None, 0, -1)),
            ("loss.last_target_dropped", pair(0, -2, 1, -1)),
            ("loss.first_target_dropped", pair(1, -1, 2, None)),
            ("loss.last_position_only", pair(-2, -1, -1, None)),
            ("loss.first_position_only", pair(0, 1, 1, 2)),
            ("loss.wrapped_target", lambda c: _mean(c, c.logits, c.targets.roll(-1, 1))),
        ]
    return [
        ("loss.not_shifted", lambda c: _mean(c, c.logits, c.inputs)),
        ("loss.not_shifted", pair(1, None, 0, -1)),
        ("loss.shifted_twice", pair(0, -1, 1, None)),
        ("loss.shifted_twice", pair(0, -2, 2, None)),
        ("loss.shifted_backward", lambda c: _mean(c, c.logits[:, 1:], c.inputs[:, :-1])),
        ("loss.shifted_backward", pair(2, None, 0, -2)),
        ("loss.last_target_dropped", pair(0, -1, 0, -1)),
        ("loss.last_target_dropped", lambda c: _mean(c, c.logits[:, :-1], c.inputs[:, 1:])),
        ("loss.first_target_dropped", pair(1, None, 1, None)),
        ("loss.last_position_only", pair(-1, None, -1, None)),
        ("loss.first_position_only", pair(0, 1, 0, 1)),
        ("loss.wrapped_target", lambda c: _mean(c, c.logits, c.targets.roll(-1, 1))),
    ]


def _mean(case: Case, logits: Tensor, targets: Tensor) -> float:
    return float(
        functional.cross_entropy(
            logits.reshape(-1, logits.shape[-1]),
            targets.reshape(-1),
            ignore_index=case.ignore_index,
        )
    )


# ---- other formulas over the right pairs --------------------------------------------------------


def _double_softmax(case: Case) -> float:
    logits, targets = case.scored
    return float(functional.cross_entropy(logits.softmax(-1), targets))


def _transposed_logits(case: Case) -> float:
    logits, targets = case.aligned
    return _mean(case, logits.transpose(0, 1), targets)


def _transposed_targets(case: Case) -> float:
    logits, targets = case.aligned
    return _mean(case, logits, targets.transpose(0, 1))


def _classes_as_time(case: Case) -> float:
    """[B, V, T] reshaped to rows of V without moving the axis."""
    logits, targets = case.aligned
    return _mean(case, logits.transpose(1, 2).reshape(-1, logits.shape[-1]), targets)


def _viewed_as_classes_first(case: Case) -> float:
    """[B, T, V] reshaped to [B, V, T], as cross_entropy wants it, without moving the axis."""
    logits, targets = case.aligned
    B, S, W = logits.shape
    return float(
        functional.cross_entropy(logits.reshape(B, W, S), targets, ignore_index=case.ignore_index)
    )


def _normalised_over(case: Case, axis: int | None, *, again: bool) -> float:
    """log_softmax over rows (0), time (1) or both (None); again: cross-entropy does its own too."""
    whole = case.logits
    log_p = (
        whole.flatten(0, 1).log_softmax(0).view_as(whole)
        if axis is None
        else whole.log_softmax(axis)
    )
    if case.labels == "same":
        log_p = log_p[:, :-1]
    log_p = log_p[case.aligned[1] != case.ignore_index]  # (N, W)
    score = functional.cross_entropy if again else functional.nll_loss
    return float(score(log_p, case.scored[1]))


def _mean_of_rows(case: Case) -> float:
    logits, targets = case.aligned
    rows = zip(logits, targets, strict=True)
    return sum(_mean(case, z, y) for z, y in rows) / len(targets)


def _one_hot_swapped(case: Case) -> float:
    """The prediction stands where the truth belongs: one-hot targets are softmaxed as scores."""
    logits, targets = case.scored
    one_hot = functional.one_hot(targets, logits.shape[-1]).to(logits)
    return float(-(logits.softmax(-1) * one_hot.log_softmax(-1)).sum(-1).mean())


def _one_hot_softmaxed(case: Case) -> float:
    logits, targets = case.scored
    one_hot = functional.one_hot(targets, logits.shape[-1]).to(logits)
    return float(-(one_hot.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean())


def _picked(case: Case, scores: Tensor) -> Tensor:
    return scores.gather(-1, case.scored[1][:, None])[:, 0]


def _squared_error(case: Case, scores: Tensor) -> float:
    one_hot = functional.one_hot(case.scored[1], scores.shape[-1]).to(scores)
    return float((scores - one_hot).square().mean())


def _binary(case: Case) -> float:
    logits, targets = case.scored
    one_hot = functional.one_hot(targets, logits.shape[-1]).to(logits)
    return float(functional.binary_cross_entropy_with_logits(logits, one_hot))


def _rounded(case: Case, dtype: torch.dtype) -> float:
    """Cross-entropy in a type of 16 bits: the answer is one of the few numbers that it has."""
    logits, targets = case.aligned
    flat = logits.flatten(0, 1).to(dtype)
    return float(functional.cross_entropy(flat, targets.flatten(), ignore_index=case.ignore_index))


def _total(case: Case) -> float:
    return float(case.nll.sum())


_FORMS: list[tuple[str, Formula]] = [
    ("loss.double_softmax", _double_softmax),
    ("loss.low_precision", lambda c: _rounded(c, torch.bfloat16)),
    ("loss.low_precision", lambda c: _rounded(c, torch.float16)),
    ("loss.summed", _total),
    ("loss.summed_over_time", lambda c: _total(c) / c.targets.shape[0]),
    ("loss.summed_over_rows", lambda c: _total(c) / c.targets.shape[1]),
    ("loss.denominator_counts_ignored", lambda c: _total(c) / c.aligned[1].numel()),
    ("loss.denominator_counts_ignored", lambda c: _total(c) / c.targets.numel()),
    ("loss.mean_of_row_means", _mean_of_rows),
    ("loss.flattened_in_another_order", _transposed_logits),
    ("loss.flattened_in_another_order", _transposed_targets),
    ("loss.flattened_in_another_order", _classes_as_time),
    ("loss.flattened_in_another_order", _viewed_as_classes_first),
    *(
        ("loss.softmax_over_another_axis", partial(_normalised_over, axis=axis, again=again))
        for axis in (1, 0, None)
        for again in (False, True)
    ),
    ("loss.arguments_swapped", _one_hot_swapped),
    ("loss.arguments_swapped", _one_hot_softmaxed),
    ("loss.no_log", lambda c: float(-_picked(c, c.scored[0].softmax(-1)).mean())),
    ("loss.no_log", lambda c: float(1 - _picked(c, c.scored[0].softmax(-1)).mean())),
    ("loss.not_normalised", lambda c: float(-_picked(c, c.scored[0]).mean())),
    ("loss.squared_error", lambda c: _squared_error(c, c.scored[0])),
    ("loss.squared_error", lambda c: _squared_error(c, c.scored[0].softmax(-1))),
    ("loss.binary", _binary),
    ("loss.error_rate", lambda c: float((c.scored[0].argmax(-1) != c.scored[1]).double().mean())),
    ("loss.perplexity", lambda c: math.exp(min(c.reference, 700.0))),
    (
        "loss.probabilities_returned",
        lambda c: float(-_picked(c, c.scored[0].clamp_min(0).log()).mean()),
    ),
]


def _ignored_as_class(cases: Sequence[Case]) -> Iterator[tuple[str, Formula]]:
    """Ignored targets scored as some real class: id 0, or what a negative index points at."""
    width = cases[0].logits.shape[-1]
    for token in dict.fromkeys((0, cases[0].ignore_index % width, width - 1)):
        yield ("loss.ignored_counted", partial(_with_ignored_as, token=token))


def _with_ignored_as(case: Case, token: int) -> float:
    logits, targets = case.aligned
    counted = torch.where(targets == case.ignore_index, token, targets)
    return float(functional.cross_entropy(logits.flatten(0, 1), counted.flatten()))


def _ids_left_out(cases: Sequence[Case]) -> Iterator[int]:
    """Token ids whose targets do not count: leaving them out gives the reported number."""
    width = cases[0].logits.shape[-1]
    fits = torch.ones(width, dtype=torch.bool)
    seen = torch.zeros(width, dtype=torch.bool)
    for case in cases:
        targets = case.scored[1].cpu()
        sums = torch.bincount(targets, weights=case.nll.cpu(), minlength=width)
        counts = torch.bincount(targets, minlength=width)
        seen |= counts > 0
        left = (case.nll.sum().cpu() - sums) / (len(targets) - counts)
        fits &= (left - case.reported).abs() <= case.tolerance
    yield from torch.nonzero(fits & seen).flatten().tolist()


# ---- formulas with a number in them: solved on one case, proved on the others --------------------


def _smooth_part(case: Case) -> float:
    logits, _ = case.scored
    return float((logits.logsumexp(-1) - logits.mean(-1)).mean()) - case.reference


def _entropy(case: Case) -> float:
    log_p = case.scored[0].log_softmax(-1)
    return float(-(log_p.exp() * log_p).sum(-1).mean())


_ADDED: list[tuple[str, Formula]] = [
    ("loss.label_smoothing", _smooth_part),
    ("loss.z_loss", lambda case: float(case.scored[0].logsumexp(-1).square().mean())),
    ("loss.z_loss", lambda case: float(case.logits.logsumexp(-1).square().mean())),
    ("loss.entropy_term", _entropy),
]


def _solve_linear(cases: Sequence[Case], reason: str, feature: Formula) -> Iterator[Reading]:
    """Reported = cross-entropy + c * feature, with one c for all cases."""
    solved = max(cases, key=lambda case: abs(case.reported - case.reference))
    c = (solved.reported - solved.reference) / (feature(solved) or math.nan)
    if reason == "loss.label_smoothing" and not 0 < c < 1:
        return
    if _fits_all(cases, lambda case: case.reference + c * feature(case)):
        negative = reason == "loss.z_loss" and c < 0
        yield Reading("loss.z_loss_sign" if negative else reason, c)


def _solve_scaled(cases: Sequence[Case]) -> Iterator[Reading]:
    solved = max(cases, key=lambda case: case.reference)
    factor = solved.reported / (solved.reference or math.nan)
    if not _fits_all(cases, lambda case: factor * case.reference):
        return
    if abs(factor + 1) < 1e-3:
        yield Reading("loss.sign_flipped")
    elif abs(factor - 1 / math.log(2)) < 1e-3:
        yield Reading("loss.base_two")
    elif abs(factor * solved.logits.shape[-1] - 1) < 1e-3:
        yield Reading("loss.averaged_over_vocabulary", solved.logits.shape[-1])
    elif 0 < factor < 1 and abs(1 / factor - round(1 / factor)) < 1e-3:
        yield Reading("loss.divided", round(1 / factor))
    else:
        yield Reading("loss.multiplied", factor)


def _solve_clamped(cases: Sequence[Case]) -> Iterator[Reading]:
    """The whole loss is cut at c: cases above report c, cases below their own loss."""
    above = [case for case in cases if not case.fits(case.reference)]
    c = max(case.reported for case in above) if above else math.nan
    if len(above) > 1 and _fits_all(cases, lambda case: min(case.reference, c)):
        yield Reading("loss.clamped", c)


def _clamped_tokens(case: Case, c: float) -> float:
    return float(case.nll.clamp(max=c).mean())


def _floored(case: Case, negative_exponent: float) -> float:
    floor = math.exp(-negative_exponent)
    return float(-(torch.exp(-case.nll) + floor).log().mean())


def _tempered(case: Case, log_beta: float) -> float:
    logits, targets = case.scored
    return float(functional.cross_entropy(logits * math.exp(log_beta), targets))


_CURVES: list[tuple[str, Callable[[Case, float], float], float, float]] = [
    ("loss.clamped", _clamped_tokens, 0.01, 200.0),
    ("loss.probability_floor", _floored, 1.0, 80.0),
    ("loss.temperature", _tempered, -5.0, 5.0),
]


def _solve_curve(
    cases: Sequence[Case],
    reason: str,
    family: Callable[[Case, float], float],
    low: float,
    high: float,
) -> Iterator[Reading]:
    """Find every crossing of the curve with the reported number on one case; prove it on all."""
    solved = max(cases, key=lambda case: abs(case.reported - case.reference))
    steps = 24
    grid = [low + (high - low) * i / steps for i in range(steps + 1)]
    gaps = [family(solved, x) - solved.reported for x in grid]
    for a, b, gap_a, gap_b in zip(grid, grid[1:], gaps, gaps[1:], strict=False):
        if not gap_a * gap_b <= 0 or gap_a == gap_b:
            continue
        root = _bisect(lambda x: family(solved, x) - solved.reported, a, b, gap_a)
        if all(case.fits(family(case, root)) for case in cases):
            yield Reading(reason, math.exp(root) if reason == "loss.temperature" else root)


def _bisect(gap: Callable[[float], float], low: float, high: float, gap_low: float) -> float:
    for _ in range(50):
        middle = (low + high) / 2
        value = gap(middle)
        if (value > 0) == (gap_low > 0):
            low = middle
        else:
            high = middle
    return (low + high) / 2
