"""The schedule: its curve, judged without training, and the rates that steps really use."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from diagnostics import Pipeline, Status, check_schedule, diagnose
from minigpt.schedule import learning_rate_at
from tests.diagnostics.tiny import Bigram

N, PEAK = 1000, 1e-3
Rate = Callable[[int], float]


def cosine(warmup: int = 100, end: int = N, floor: float = 1e-4) -> Rate:
    return lambda s: learning_rate_at(s, peak=PEAK, warmup_steps=warmup, max_steps=end, floor=floor)


HEALTHY: dict[str, Rate] = {
    "warm-up and cosine": cosine(),
    "short warm-up": cosine(warmup=2),
    "no warm-up": cosine(warmup=0),
    "constant": lambda s: PEAK,
    "linear to 0": lambda s: PEAK * max(0.0, 1 - s / N),
    "stages": lambda s: PEAK * 0.1 ** (s // 300),
    "warm-up, stable, decay": lambda s: PEAK * min(1, (s + 1) / 50, max(0, N - s) / 200),
    "inverse root": lambda s: PEAK * min((s + 1) / 100, (100 / (s + 1)) ** 0.5),
}
ODD: dict[str, tuple[Rate, Status]] = {
    "not_finite": (lambda s: PEAK / 0.0 if s < 0 else math.nan, Status.FAIL),
    "negative": (lambda s: PEAK * (1 - s / N), Status.FAIL),
    "always_zero": (lambda s: 0 * s, Status.FAIL),
    "peak_never_reached": (lambda s: PEAK * min(1, (s + 1) / 5000), Status.FAIL),
    "ends_at_zero_early": (cosine(10, N // 4, 0.0), Status.FAIL),
    "ends_early": (cosine(10, N // 4, 1e-5), Status.WARN),
    "ends_late": (cosine(10, 4 * N, 0.0), Status.WARN),
    "zero_at_first_step": (lambda s: PEAK * min(1, s / 100), Status.WARN),
    "rises_after_end": (lambda s: PEAK * 0.5 * (1 + math.cos(math.pi * s / N)), Status.WARN),
    "restart": (lambda s: PEAK * (1 - 0.9 * (s % 250) / 250), Status.WARN),
    "jump": (lambda s: 0.3 * PEAK * (s + 1) / 100 if s < 100 else cosine()(s), Status.WARN),
    "drop_after_warmup": (
        lambda s: PEAK * (s + 1) / 100 if s < 100 else PEAK / 2 * max(0.0, 1 - (s - 100) / 900),
        Status.WARN,
    ),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_usual_schedules_pass(name: str) -> None:
    result = check_schedule(HEALTHY[name], N)
    assert (result.status, result.reason) == (Status.PASS, "schedule.ok")
    assert result.numbers["peak"] == pytest.approx(PEAK, rel=1e-2)


@pytest.mark.parametrize("name", ODD)
def test_each_odd_curve_has_its_reason(name: str) -> None:
    rate, status = ODD[name]
    result = check_schedule(rate, N)
    assert (result.status, result.reason) == (status, f"schedule.{name}")


def uncounted(warmup: int, floor: float = 0.0) -> Rate:
    """A cosine whose progress does not subtract the warm-up, and is not bounded."""

    def rate(step: int) -> float:
        if step < warmup:
            return PEAK * (step + 1) / warmup
        wave = 0.5 * (1 + math.cos(math.pi * step / (N - warmup)))
        return floor + (PEAK - floor) * wave

    return rate


@pytest.mark.parametrize("floor", [0.0, 0.1 * PEAK])
@pytest.mark.parametrize("warmup", [30, 100, 300])
def test_a_cosine_that_does_not_subtract_the_warm_up_is_named(warmup: int, floor: float) -> None:
    """Its minimum lies at N - warmup, and from there on it runs backwards."""
    result = check_schedule(uncounted(warmup, floor), N)
    assert (result.status, result.reason) == (Status.FAIL, "schedule.rises_again")
    assert f"step {N - warmup} of {N}" in result.claim
    assert f"warm-up of {warmup} steps" in result.causes[0]


def test_a_decay_that_turns_back_for_another_reason_names_no_warm_up() -> None:
    """A cosine over 700 of 1,000 steps: it was set for a shorter run."""
    short = check_schedule(lambda s: PEAK * 0.5 * (1 + math.cos(math.pi * s / 700)), N)
    assert (short.status, short.reason) == (Status.FAIL, "schedule.rises_again")
    assert "700 steps" in short.causes[0]
    late = check_schedule(lambda s: PEAK * (1 - 0.9 * min(s, 950 - s / 10) / 950), N)
    assert late.status is not Status.FAIL


def test_whole_cycles_are_a_design() -> None:
    """A cosine that comes back to its peak warns, several of them pass."""

    def cycles(number: float) -> Rate:
        return lambda s: PEAK * 0.5 * (1 + math.cos(2 * math.pi * number * s / N))

    assert check_schedule(cycles(1), N).status is Status.WARN
    for number in (1.5, 2.5):
        assert check_schedule(cycles(number), N).status is not Status.FAIL


def test_a_small_drop_after_the_warm_up_is_seen() -> None:
    """The cosine begins at the warm-up's share of the run: 2.4 % below the peak."""

    def rate(step: int) -> float:
        decay = PEAK * 0.5 * (1 + math.cos(math.pi * step / N))
        return PEAK * (step + 1) / 100 if step < 100 else decay

    result = check_schedule(rate, N)
    assert (result.status, result.reason) == (Status.WARN, "schedule.drop_after_warmup")
    assert "step 100" in result.claim
    assert check_schedule(HEALTHY["inverse root"], N).reason == "schedule.ok"


def test_a_schedule_that_counts_its_calls_is_found() -> None:
    calls = itertools.count(1)
    assert check_schedule(lambda s: PEAK / next(calls), N).reason == "schedule.not_repeatable"


def test_an_early_end_at_a_fraction_of_the_micro_batches_names_them() -> None:
    result = check_schedule(cosine(10, N // 4, 0.0), N, micro_batches=4)
    assert (result.status, result.reason) == (Status.FAIL, "schedule.per_micro_batch")
    assert "4 places per step" in result.claim


def test_long_runs_unknown_lengths_and_schedules_that_refuse_later_steps() -> None:
    assert check_schedule(cosine(2000, 1_000_000), 1_000_000).reason == "schedule.ok"
    assert check_schedule(cosine()).reason == "schedule.ok"
    table = [cosine()(step) for step in range(N)]
    assert check_schedule(table.__getitem__, N).reason == "schedule.ok"
    with pytest.raises(ValueError, match="max_steps"):
        check_schedule(cosine(), 0)


def two_groups(model: nn.Module) -> Optimizer:
    return AdamW([{"params": [model.table.weight]}, {"params": [model.bias], "lr": PEAK / 2}], PEAK)  # type: ignore[list-item]


class Biased(Bigram):
    """A bigram table with a bias, so that two groups can be made."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(11))

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits, loss)."""
        logits = self.table(ids) + self.bias
        return logits, None if targets is None else self.loss_of(logits, targets)


def update(model: Any, optimizer: Any, pairs: list[tuple[Tensor, Tensor]]) -> None:
    optimizer.zero_grad()
    for x, y in pairs:
        (model(x, y)[1] / len(pairs)).backward()
    optimizer.step()


def run(assign: Callable[[Any, int], None], **parts: Any) -> Any:
    """Check with a step that calls assign(optimizer, number of the step)."""
    steps = itertools.count()

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        assign(optimizer, next(steps))
        update(model, optimizer, [(x, y)])

    pipeline = Pipeline(
        Biased(),
        make_optimizer=two_groups,
        **{"train_step": step, "learning_rate": cosine(), "max_steps": N, **parts},
    )
    return diagnose(pipeline, only=["schedule"])["schedule"]


def set_all(optimizer: Any, step: int) -> None:
    for group, share in zip(optimizer.param_groups, (1.0, 0.5), strict=True):
        group["lr"] = share * cosine()(step)


def test_rates_that_follow_with_a_factor_per_group_pass() -> None:
    result = run(set_all)
    assert (result.status, result.reason) == (Status.PASS, "schedule.ok")
    assert [g[0] for g in result.numbers["rates_in_use"]] == pytest.approx(
        [1e-5, 2e-5, 3e-5, 4e-5]  # (step + 1) / 100 of the peak
    )
    assert run(lambda optimizer, step: set_all(optimizer, step + 7)).reason == "schedule.ok"


def test_a_loop_that_sets_the_rate_around_the_step_passes() -> None:
    assert run(lambda optimizer, step: None).reason == "schedule.ok"


def test_rates_that_do_not_arrive() -> None:
    schedule = cosine()

    def forget(optimizer: Any, step: int) -> None:
        schedule(step)

    def first(optimizer: Any, step: int) -> None:
        optimizer.param_groups[0]["lr"] = schedule(step)

    def twice(optimizer: Any, step: int) -> None:
        for group in optimizer.param_groups:
            group["lr"] = schedule(step) ** 2 / PEAK

    assert run(forget, learning_rate=schedule).reason == "schedule.not_applied"
    wrapped = run(forget, learning_rate=lambda step: schedule(step))
    assert wrapped.reason == "schedule.not_applied"
    assert run(first, learning_rate=schedule).reason == "schedule.only_some_groups"
    assert run(twice, learning_rate=schedule).reason == "schedule.other_rates"


@pytest.mark.parametrize("inside", [False, True])
def test_a_scheduler_stepped_per_micro_batch(inside: bool) -> None:
    """With 4 micro-batches the rate moves 4 places per step."""
    schedulers: dict[int, LambdaLR] = {}

    def accumulate(model: Any, optimizer: Any, pairs: list[tuple[Tensor, Tensor]]) -> None:
        if id(optimizer) not in schedulers:
            schedulers[id(optimizer)] = LambdaLR(optimizer, lambda step: cosine()(step) / PEAK)
        update(model, optimizer, pairs)
        for _ in pairs if inside else [0]:
            schedulers[id(optimizer)].step()

    result = run(set_all, accumulate=accumulate)
    assert result.reason == ("schedule.per_micro_batch" if inside else "schedule.ok")


@pytest.mark.parametrize("always", [False, True])
def test_a_schedule_that_counts_skipped_updates_is_a_warning(always: bool) -> None:
    """The gradient of one call is made infinite: its update is skipped, is its place as well?"""
    places: dict[int, int] = {}

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> None:
        place = places.get(id(model), 0)
        set_all(optimizer, place)
        optimizer.zero_grad()
        model(x, y)[1].backward()
        is_finite = all(p.grad.isfinite().all() for p in model.parameters())
        if is_finite:
            optimizer.step()
        places[id(model)] = place + (is_finite or always)

    result = run(set_all, train_step=step)
    assert result.reason == ("schedule.skipped_counted" if always else "schedule.ok"), str(result)
    assert result.status is (Status.WARN if always else Status.PASS)


def test_without_a_schedule_it_is_skipped() -> None:
    result = diagnose(Pipeline(Bigram()), only=["schedule"])["schedule"]
    assert result.status is Status.SKIP
    assert result.numbers["missing"] == ["learning_rate"]
