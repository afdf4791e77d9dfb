"""Sampling filters give the distribution of their definition, and each usual mistake is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from diagnostics import Pipeline, Status, check_sampling, diagnose
from diagnostics._sampling_readings import Setting, distribution, nucleus
from diagnostics.sampling import check_repetition_penalty
from minigpt.sampling import next_token_probabilities
from tests.diagnostics.tiny import Bigram

Filter = Callable[[Tensor, float, "int | None", "float | None"], Tensor]
CLOSED = float("-inf")


def build(
    scale: Callable[[Tensor, float], Tensor] = lambda x, t: x / t,
    removed_by_k: Callable[[Tensor, int], Tensor] = lambda x, k: x < x.topk(k).values[-1],
    fill: float = CLOSED,
    removed_by_p: Callable[[Tensor, Tensor, float], Tensor] = lambda m, p, top_p: m - p >= top_p,
    descending: bool = True,
    order: str = "tkp",
    final: Callable[[Tensor], Tensor] = lambda x: x.softmax(-1),
) -> Filter:
    """Return textbook filters of which a test replaces one part."""

    def best(x: Tensor, k: int | None) -> Tensor:
        return x if k is None else x.masked_fill(removed_by_k(x, min(k, len(x))), fill)

    def mass(x: Tensor, top_p: float | None) -> Tensor:
        if top_p is None or top_p >= 1.0:
            return x
        ordered, ids = x.sort(descending=descending)
        p = ordered.softmax(-1)
        removed = removed_by_p(p.cumsum(-1), p, top_p)
        return x.masked_fill(torch.zeros_like(removed).scatter(0, ids, removed), CLOSED)

    def filters(logits: Tensor, temperature: float, k: int | None, p: float | None) -> Tensor:
        if temperature == 0:
            return torch.zeros_like(logits).scatter(0, logits.argmax(0, keepdim=True), 1.0)
        steps = {"t": lambda x: scale(x, temperature), "k": lambda x: best(x, k),
                 "p": lambda x: mass(x, p)}  # fmt: skip
        for step in order:
            logits = steps[step](logits)
        return final(logits)

    return filters


def test_the_definition_keeps_the_smallest_set_that_reaches_p() -> None:
    """Of 0.5, 0.41 and 0.09 two tokens reach 0.9, and one reaches 0.5."""
    p = torch.tensor([0.09, 0.5, 0.41], dtype=torch.float64)
    assert torch.allclose(nucleus(p, 0.9), torch.tensor([0, 0.5, 0.41], dtype=p.dtype) / 0.91)
    assert torch.equal(nucleus(p, 0.5), torch.tensor([0.0, 1.0, 0.0], dtype=p.dtype))
    assert torch.equal(nucleus(p, 1.0), p)


def test_the_definition_divides_by_the_temperature_and_keeps_k() -> None:
    """Ln 4, ln 2 and ln 1 at temperature 0.5 are 16 : 4 : 1; with k = 2 they are 16 : 4."""
    logits = torch.tensor([1.0, 4.0, 2.0]).log()
    got = distribution(Setting(logits, temperature=0.5, top_k=2))
    assert torch.allclose(got, torch.tensor([0.0, 0.8, 0.2], dtype=torch.float64), atol=1e-6)


@pytest.mark.parametrize("V", [2, 3, 19, 300])
@pytest.mark.parametrize(
    "filters",
    [
        next_token_probabilities,
        build(),
        build(order="ktp"),
        build(order="tpk"),
        build(fill=-1e9),  # exp(-1e9) is exactly 0
        build(final=lambda x: x.log_softmax(-1).softmax(-1)),
        # Hugging Face's form: the mask is moved by one, so that the crossing token stays
        build(removed_by_p=lambda m, p, q: torch.cat([torch.tensor([False]), (m > q)[:-1]])),
    ],
)
def test_healthy_filters_pass(filters: Filter, V: int) -> None:
    result = check_sampling(filters, vocab_size=V)
    assert (result.status, result.reason) == (Status.PASS, "sampling.ok")
    assert result.numbers["worst"] < 1e-5
    assert result.numbers["settings"] > 30


def test_ties_are_told_and_not_judged() -> None:
    """Of equal logits the threshold keeps all, and indices keep k: both are healthy."""
    assert check_sampling(build(), vocab_size=19).numbers["kept_of_ties"] == 19
    assert check_sampling(next_token_probabilities, vocab_size=19).numbers["kept_of_ties"] == 2


def test_a_function_that_takes_no_none_is_called_with_v_and_one() -> None:
    def filters(logits: Tensor, temperature: float, k: int, p: float) -> Tensor:
        return build()(logits, temperature, min(k, len(logits)), p + 0.0)

    assert check_sampling(filters).reason == "sampling.ok"


def test_refusing_temperature_zero_and_a_large_k_is_healthy() -> None:
    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        if t <= 0 or (k is not None and k > len(logits)):
            raise ValueError("out of range")
        return build()(logits, t, k, p)

    assert check_sampling(filters).reason == "sampling.ok"


def test_a_division_by_temperature_zero_is_a_warning_for_nothing_can_be_drawn_from_nan() -> None:
    """A design may document temperature > 0: it gives NaN at 0, and torch.multinomial raises."""
    result = check_sampling(lambda x, t, k, p: build()(x / t, 1.0, k, p))
    assert (result.status, result.reason) == (Status.WARN, "sampling.temperature_zero")
    assert "0 of 32 probabilities are finite" in result.measured


def test_nan_at_a_tiny_temperature_is_a_fault() -> None:
    """1e-4 is above 0, and softmax takes it without trouble: the maximum goes first."""

    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        return build()(logits, t, k, p) * (float("nan") if 0 < t < 0.01 else 1.0)

    result = check_sampling(filters)
    assert (result.status, result.reason) == (Status.FAIL, "sampling.temperature_zero")


@pytest.mark.parametrize("least", [1e-8, 0.01])
def test_a_temperature_that_is_raised_a_little_is_argmax(least: float) -> None:
    result = check_sampling(lambda x, t, k, p: build()(x, max(t, least), k, p))
    assert result.reason == "sampling.ok"


def test_a_temperature_that_is_raised_further_is_a_warning_with_the_number() -> None:
    result = check_sampling(lambda x, t, k, p: build()(x, max(t, 0.15), k, p))
    assert (result.status, result.reason) == (Status.WARN, "sampling.temperature_zero")
    assert result.numbers["read_as"] == pytest.approx(0.15, rel=0.05)


BROKEN: list[tuple[str, Filter]] = [
    ("logits", build(final=lambda x: x.masked_fill(x == CLOSED, 0))),
    ("log_probabilities", build(final=lambda x: x.log_softmax(-1))),
    ("softmax_twice", build(final=lambda x: x.softmax(-1).softmax(-1))),
    ("unnormalised", build(final=lambda x: (x - x.max()).exp())),
    ("negated", build(final=lambda x: (-x).softmax(-1))),
    ("argmax_only", lambda x, t, k, p: build()(x, t, 1, p)),
    ("temperature_ignored", build(scale=lambda x, t: x)),
    ("temperature_inverted", build(scale=lambda x, t: x * t)),
    ("temperature_twice", build(scale=lambda x, t: x / t / t)),
    ("temperature_after_softmax", build(scale=lambda x, t: (x.softmax(-1) / t).log(),
                                        final=lambda x: x.exp())),
    ("temperature_zero", lambda x, t, k, p: build()(x, t or 1.0, k, p)),
    ("temperature_zero", lambda x, t, k, p: build()(x, max(t, 0.5), k, p) if t < 0.5
        else build()(x, t, k, p)),
    ("changes_input", build(scale=lambda x, t: x.div_(t))),
    ("top_k_ignored", build(removed_by_k=lambda x, k: torch.zeros_like(x, dtype=torch.bool))),
    ("top_k_off_by_one", build(removed_by_k=lambda x, k: x
        < x.topk(min(k + 1, len(x))).values[-1])),
    ("top_k_off_by_one", build(removed_by_k=lambda x, k: x <= x.topk(k).values[-1])),
    ("top_k_fill", build(fill=-1e-10)),
    ("top_k_fill", build(fill=0.0)),
    ("top_k_fill", build(fill=-10.0)),
    ("top_k_keeps_worst", build(removed_by_k=lambda x, k: x > (-x).topk(k).values.neg()[-1])),
    ("top_k_not_rescaled", lambda x, t, k, p: build()(x, t, None, p)
        * (x >= x.topk(min(k or len(x), len(x))).values[-1])),
    ("top_p_ignored", build(removed_by_p=lambda m, p, q: torch.zeros_like(m, dtype=torch.bool))),
    ("top_p_drops_crossing", build(removed_by_p=lambda m, p, q: m > q)),
    ("top_p_drops_crossing", build(
        removed_by_p=lambda m, p, q: torch.cat([torch.tensor([False]), (m > q)[1:]]))),
    ("top_p_keeps_one_more", build(removed_by_p=lambda m, p, q: m - 2 * p >= q)),
    ("top_p_from_least", build(descending=False)),
]  # fmt: skip


@pytest.mark.parametrize("V", [19, 65])
@pytest.mark.parametrize(("reason", "filters"), BROKEN)
def test_each_mistake_is_named(reason: str, filters: Filter, V: int) -> None:
    result = check_sampling(filters, vocab_size=V)
    assert result.status is Status.FAIL
    assert result.reason == f"sampling.{reason}"
    assert result.measured
    assert result.expected
    assert result.next_step


def test_a_mask_that_stays_in_sorted_order_is_named() -> None:
    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        x = logits / max(t, 1e-6)
        x = x if k is None else x.masked_fill(x < x.topk(min(k, len(x))).values[-1], CLOSED)
        if p is None or p >= 1:
            return x.softmax(-1)
        ordered = x.softmax(-1).sort(descending=True).values
        return x.masked_fill(ordered.cumsum(-1) - ordered >= p, CLOSED).softmax(-1)

    result = check_sampling(filters)
    assert result.reason == "sampling.top_p_unsorted"
    assert "wrong tokens" in result.claim


@pytest.mark.parametrize("keeps_best", [False, True])
@pytest.mark.parametrize("which", ["top_k", "top_p"])
@pytest.mark.parametrize("descending", [False, True])
def test_a_mask_that_gather_brings_back_is_named(
    which: str, descending: bool, keeps_best: bool
) -> None:
    """mask[order] is not the inverse of sorting: scatter, or mask[order.argsort()], is."""

    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        x = logits / max(t, 1e-6)
        V = len(x)
        for name in ("top_k", "top_p"):
            order = x.argsort(descending=descending)
            if name == "top_k":
                ranks = torch.arange(V) if descending else torch.arange(V).flip(0)
                removed = ranks >= (V if k is None else k)
            else:
                masses = x.softmax(-1)[order]
                before = masses.cumsum(-1) - masses if descending else 1 - masses.cumsum(-1)
                removed = before >= (2 if p is None else p)
            wrong = name == which
            back = removed[order] if wrong else removed[order.argsort()]
            if wrong and keeps_best:
                back[x.argmax()] = False
            x = x.masked_fill(back, CLOSED)
        return x.softmax(-1)

    result = check_sampling(filters)
    assert result.reason == f"sampling.{which}_gathered"
    assert "scatter" in result.next_step


def test_softmax_by_hand_overflows_at_large_logits() -> None:
    """exp(1000) is infinite in float32, and infinity over infinity is NaN."""

    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        if k is not None or p is not None or t < 0.1:
            return build()(logits, t, k, p)
        weights = (logits / t).exp()
        return weights / weights.sum()

    result = check_sampling(filters)
    assert result.reason == "sampling.overflow"
    assert "nan" in result.measured


def test_half_precision_that_gives_nan_is_a_fault() -> None:
    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        probabilities = build()(logits, t, k, p)
        return probabilities * float("nan") if logits.dtype == torch.float16 else probabilities

    assert check_sampling(filters).reason == "sampling.half"


def test_closed_tokens_must_stay_closed() -> None:
    """A closed token that comes back as logit 0 gets a share; at -20 none that counts."""
    result = check_sampling(lambda x, t, k, p: build()(x.nan_to_num(neginf=-20.0), t, k, p))
    assert result.reason == "sampling.ok"
    result = check_sampling(lambda x, t, k, p: build()(x.nan_to_num(neginf=0.0), t, k, p))
    assert result.reason == "sampling.closed_tokens"


@pytest.mark.parametrize("order", ["kpt", "ptk", "pkt"])
def test_a_nucleus_before_the_temperature_is_a_warning(order: str) -> None:
    result = check_sampling(build(order=order))
    assert (result.status, result.reason) == (Status.WARN, "sampling.nucleus_before_temperature")


def test_filters_that_overwrite_each_other_are_named() -> None:
    """With both filters on, the nucleus starts from the unfiltered logits again."""

    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        return build()(logits, t, None if p is not None and p < 1 else k, p)

    assert check_sampling(filters).reason == "sampling.together"


def test_what_is_kept_between_calls_is_named() -> None:
    calls = [0]

    def filters(logits: Tensor, t: float, k: int | None, p: float | None) -> Tensor:
        calls[0] += 1
        return build()(logits, t * (2.0 if calls[0] > 66 else 1.0), k, p)

    result = check_sampling(filters)
    assert result.status is Status.FAIL


def test_a_wrong_shape_is_told_with_the_shape() -> None:
    result = check_sampling(lambda x, t, k, p: build()(x, t, k, p)[:3])
    assert result.reason == "sampling.wrong_shape"
    assert "(3,)" in result.measured


def test_without_the_part_it_is_a_skip_that_names_it() -> None:
    report = diagnose(Pipeline(Bigram()), only=["sampling"])
    assert report["sampling"].status is Status.SKIP
    assert "next_token_probabilities" in report["sampling"].next_step


def test_the_global_random_state_stays() -> None:
    before = torch.get_rng_state()
    check_sampling(next_token_probabilities)
    assert torch.equal(before, torch.get_rng_state())


def test_a_vocabulary_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        check_sampling(build(), vocab_size=1)


def by_sign(logits: Tensor, seen: Tensor, strength: float) -> Tensor:
    value = logits[seen]
    return logits.index_put((seen,), torch.where(value > 0, value / strength, value * strength))


def subtracted(logits: Tensor, seen: Tensor, strength: float) -> Tensor:
    return logits.index_put((seen,), logits[seen] - strength)


def test_a_penalty_that_lowers_what_was_seen_is_healthy_in_both_forms() -> None:
    assert check_repetition_penalty(by_sign).reason == "sampling.ok"
    additive = check_repetition_penalty(subtracted, strengths=(0.0, 0.5, 1.0))
    assert additive.reason == "sampling.ok"


@pytest.mark.parametrize(
    ("reason", "cause", "penalise"),
    [
        ("penalty_rewards", "negative logits are divided", lambda x, seen, s: x.index_put(
            (seen,), x[seen] / s)),
        ("penalty_rewards", "multiplied by the penalty", lambda x, seen, s: x.index_put(
            (seen,), x[seen] * s)),
        ("penalty_rewards", "sign of the penalty", lambda x, seen, s: subtracted(x, seen, 1 - s)),
        ("penalty_ignored", "not the ones that are returned", lambda x, seen, s: x),
        ("penalty_never_off", "always on", lambda x, seen, s: by_sign(x, seen, s + 0.1)),
        ("penalty_spreads", "whole row", lambda x, seen, s: torch.where(x > 0, x / s, x * s)),
        ("penalty_not_finite", "division by 0", lambda x, seen, s: by_sign(x, seen, s)
            * (1.0 if s == 1.0 else float("nan"))),
    ],
)  # fmt: skip
def test_each_mistake_of_a_penalty_is_named(
    reason: str, cause: str, penalise: Callable[[Tensor, Tensor, float], Tensor]
) -> None:
    result = check_repetition_penalty(penalise)
    assert (result.status, result.reason) == (Status.FAIL, f"sampling.{reason}")
    assert cause in result.causes[0]


def test_one_strength_shows_no_change_and_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        check_repetition_penalty(by_sign, strengths=(1.0,))
