"""Mixtures of the ranks' gradients that are made by hand, and the rows of ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from diagnostics import CheckResult, Status
from diagnostics._fault import Fault, found
from diagnostics._rank_samples import Samples, epoch_length, overlap, same_share
from diagnostics._rank_trial import Packed, Plan, Start, Step
from diagnostics._rank_verdicts import (
    compare_ranks,
    drift,
    judge_after,
    judge_gradients,
    judge_start,
)

# the means of two ranks over their own tokens: of lengths 5 and 1, at right angles
MEANS = (torch.tensor([3.0, 4.0, 0.0, 0.0]), torch.tensor([0.0, 0.0, 0.6, 0.8]))


def tell(fault: Fault, measured: str = "", **facts: Any) -> CheckResult:
    return found(fault, measured, {}, **facts)


def packed(values: torch.Tensor) -> Packed:
    return Packed.of({"weight": values})


def steps(
    weights: list[list[float]],
    *,
    plan: Plan,
    counts: tuple[int, int] = (10, 10),
    moved: tuple[float, float] = (1.0, 1.0),
) -> list[list[Step]]:
    """One call of two ranks; weights[rank]: of both means in what this rank used, halved."""
    ranks = []
    for rank, row in enumerate(weights):
        used = sum((w / 2 * mean for w, mean in zip(row, MEANS, strict=True)), torch.zeros(4))
        step = Step(
            plan,
            packed(used),
            float(used.norm()),
            1,
            False,
            packed(torch.zeros(4)),
            packed(torch.full((4,), moved[rank])),
            {"weight": hash((moved[rank], *row))},  # another step leads to other weights
            {},
            [counts[rank]],
            [packed(counts[rank] * MEANS[rank])],
            [float(MEANS[rank].norm())],
        )
        ranks.append([step])
    return ranks


SHRUNK, UNEQUAL = Plan("train_step", shrunk=True), Plan("train_step", unequal=True)


@pytest.mark.parametrize(
    ("weights", "reason"),
    [
        ([[1, 1], [1, 1]], None),
        ([[2, 2], [2, 2]], "gradient_scale"),
        ([[0.5, 0.5], [0.5, 0.5]], "divided_twice"),
        ([[0.3, 0.3], [0.3, 0.3]], None),  # the same in one process: training_step tells it
        ([[2, 0], [0, 2]], "local_gradient"),
        ([[1, 0], [0, 1]], "local_gradient"),
        ([[1, 1], [0, 2]], "local_gradient"),
        ([[2, 0], [2, 0]], "one_rank"),
        ([[0, 2], [0, 2]], "one_rank"),
        ([[1, 1], [3, 3]], "rank_scale"),
    ],
)
def test_weights_tell_the_fault(weights: list[list[float]], reason: str | None) -> None:
    calls = compare_ranks(steps(weights, plan=SHRUNK))
    expected = [[pytest.approx(w, abs=1e-6) for w in row] for row in weights]
    assert [mix.flat for mix in calls[0].mixes] == expected
    reasons = [finding.reason for finding in judge_gradients(tell, calls, [])]
    assert reasons == ([] if reason is None else [f"distributed.{reason}"])


@pytest.mark.parametrize(
    ("weights", "scored", "reason"),
    [
        # 10 and 30 tokens: by token 0.5 and 1.5, by rank 1 and 1, whatever both are clipped to
        ([0.5, 1.5], [], None),
        ([0.05, 0.15], [], None),
        ([1, 1], [], None),
        ([1, 1], [[64, 64], [64, 64]], None),
        ([1, 1], [[64, 64], [64, 32]], "unequal_counts"),
        ([0.1, 0.5], [], "clipped_apart"),  # norms 5 and 1, both cut to 0.5
        ([0.4, 1], [], "clipped_apart"),  # cut to 2: the second is not
        ([1.5, 0.5], [], "rank_weights"),
    ],
)
def test_unequal_ranks_tell_how_they_are_weighed(
    weights: list[float], scored: list[list[int]], reason: str | None
) -> None:
    calls = compare_ranks(steps([weights, weights], plan=UNEQUAL, counts=(10, 30)))
    findings = list(judge_gradients(tell, calls, scored))
    assert [f.reason for f in findings] == ([] if reason is None else [f"distributed.{reason}"])
    if reason == "unequal_counts":
        assert findings[0].status is Status.WARN
        assert findings[0].claim == (
            "ranks count alike whatever they score, and yours score 32 and 64 tokens in one step"
        )


def test_a_gradient_of_something_else_is_a_warning() -> None:
    ranks = steps([[1, 1], [1, 1]], plan=SHRUNK)
    ranks[0][0].used = packed(torch.tensor([4.0, -3.0, 0.0, 0.0]))
    (finding,) = judge_gradients(tell, compare_ranks(ranks), [])
    assert (finding.status, finding.reason) == (Status.WARN, "distributed.other_gradient")
    assert finding.claim.endswith("own gradients: 100 % of it is something else")


def test_nan_is_no_pass() -> None:
    ranks = steps([[1, 1], [1, 1]], plan=SHRUNK, moved=(1.0, 2.0))
    ranks[0][0].used = packed(torch.full((4,), float("nan")))
    ranks[1][0].after = packed(torch.full((4,), float("nan")))
    findings = [*judge_gradients(tell, compare_ranks(ranks), []), *judge_after(tell, ranks)]
    assert [f.reason for f in findings] == ["distributed.not_finite", "distributed.drift"]


def test_drift_is_a_share_of_what_the_steps_changed() -> None:
    """Rank 0 moves by 1 in each of 4 places, rank 1 by 1.5: half as far again."""
    ranks = steps([[1, 1], [1, 1]], plan=SHRUNK, moved=(1.0, 1.5))
    assert drift(ranks) == (0.5, 0, 1)
    assert drift(steps([[1, 1], [1, 1]], plan=SHRUNK)) == (0.0, 0, 0)
    (finding,) = judge_after(tell, steps([[1, 1], [1, 1]], plan=SHRUNK, moved=(1.0, 1.5)))
    assert finding.claim == (
        "after 1 step rank 1 holds other weights than rank 0, by 50 % of what the steps changed"
    )


@pytest.mark.parametrize(
    ("moved", "fresh", "given", "separate", "reason"),
    [
        ((5, 5), (1, 2), (0, 0), False, None),
        ((5, 6), None, (0, 0), False, "no_broadcast"),
        ((5, 6), (1, 2), (0, 0), False, "weights"),
        ((5, 6), (1, 1), (0, 0), False, None),
        ((5, 6), None, (0, 0), True, None),
        ((5, 6), None, (0, 1), True, "weights"),
    ],
)
def test_starts(
    moved: tuple[int, int],
    fresh: tuple[int, int] | None,
    given: tuple[int, int],
    separate: bool,
    reason: str | None,
) -> None:
    starts = [
        Start({"w": given[r]}, {"w": moved[r]}, ["w"], None if fresh is None else {"w": fresh[r]})
        for r in range(2)
    ]
    finding = judge_start(tell, starts, separate=separate)
    found_reason = None if finding is None else finding.reason
    assert found_reason == (None if reason is None else f"distributed.{reason}")


# ---- rows ----------------------------------------------------------------------------------------


def samples(*batches: str) -> Samples:
    """Each letter is a row."""
    return Samples([list(b) for b in batches], [], [], None, "")


def test_equal_rows_are_counted_batch_by_batch_in_any_order() -> None:
    assert same_share(samples("ab", "cd", "ef"), samples("ba", "dc", "eg")) == 2 / 3


def test_overlap_is_set_against_chance() -> None:
    """Of b's rows, d and a stand in a; a's own halves (a, c, a) and (b, d) never meet."""
    assert overlap(samples("ab", "cd", "a"), samples("dx", "ay")) == (2, 0, 4)
    assert overlap(samples("aa", "aa"), samples("bb", "bb")) == (0, 8, 4)


@pytest.mark.parametrize(
    ("batches", "period"),
    [
        (["a", "b", "c"] * 3, 3),
        (["a", "b", "c", "a", "b"], None),
        (["a", "b", "c", "a", "b", "d"], None),
        (["a"] * 6, 2),
    ],
)
def test_an_epoch_is_found_when_it_comes_again_as_a_whole(
    batches: list[str], period: int | None
) -> None:
    assert epoch_length(samples(*batches)) == period
