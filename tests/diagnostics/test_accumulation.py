"""Accumulation: the weight of each token tells the rule by which micro-batches are mixed."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_
from torch.optim import AdamW, Optimizer

from diagnostics import Pipeline, Status, check_accumulation, diagnose
from tests.diagnostics.tiny import Bigram, HFStyle, MixtureOfExperts, TinyGPT, random_pair

V = 19
Batches = list[tuple[Tensor, Tensor]]
Share = Callable[[int, int, int], float]  # (own scored tokens, all of them, micro-batches)


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3)


def count(targets: Tensor) -> int:
    return int((targets != -100).sum())


def build(
    share: Share = lambda n, N, K: n / N,
    *,
    choose: Callable[[Batches], Batches] = lambda batches: batches,
    zero: str = "start",
    clip: float = 0.0,
    told: Callable[[list[float], list[int]], Any] | None = None,
    skip_empty: bool = False,
) -> Any:
    """An accumulating step with one thing to choose."""

    def accumulate(model: Any, optimizer: Any, batches: Batches) -> Any:
        counts = [count(targets) for _, targets in batches]
        losses = []
        if zero == "start":
            optimizer.zero_grad()
        for inputs, targets in choose(batches):
            if zero == "inside":
                optimizer.zero_grad()
            loss = model(inputs, targets)[1]
            losses.append(loss.item())
            if skip_empty and loss.isnan():
                continue
            (loss * share(count(targets), sum(counts), len(counts))).backward()
        if clip:
            clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if told is not None:
            return told(losses, counts)
        return sum(n * v for n, v in zip(counts, losses, strict=False) if n) / sum(counts)

    return accumulate


def check(accumulate: Any, model: nn.Module | None = None, **parts: Any) -> Any:
    torch.manual_seed(0)
    return check_accumulation(model or TinyGPT(V), adamw, accumulate, **parts)


def means(n: int, N: int, K: int) -> float:
    return 1 / K


HEALTHY = {
    "weighted by tokens": build(skip_empty=True),
    "clipped": build(clip=0.5, skip_empty=True),
    "an inactive clip": build(clip=1e4, skip_empty=True),
}
BROKEN = {
    "not_divided": build(lambda n, N, K: 1.0),
    "mean_of_means": build(means),
    "divided_twice": build(lambda n, N, K: n / N / K),
    "sum": build(lambda n, N, K: n),
    "only_last": build(zero="inside"),
    "dropped": build(choose=lambda batches: batches[1:]),
    "not_cleared": build(zero="never"),
    "uneven": build(lambda n, N, K: n**0.5 / N),
    "scaled": build(lambda n, N, K: 3 * n / N),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_styles_pass_with_equal_weights(name: str) -> None:
    result = check(HEALTHY[name])
    assert (result.status, result.reason) == (Status.PASS, "accumulation.ok")
    weights = result.numbers["token_weights"][0]
    assert weights == pytest.approx([weights[0]] * 4, rel=1e-3)
    if name != "clipped":
        assert weights[0] == pytest.approx(1.0, rel=1e-3)


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_has_its_reason(name: str) -> None:
    result = check(BROKEN[name])
    assert (result.status, result.reason) == (Status.FAIL, f"accumulation.{name}")
    assert result.claim
    assert result.measured
    assert result.next_step


@pytest.mark.parametrize("name", ["not_divided", "mean_of_means", "only_last", "dropped"])
@pytest.mark.parametrize("model", [Bigram, MixtureOfExperts])
def test_faults_are_found_on_other_architectures(name: str, model: type[nn.Module]) -> None:
    assert check(BROKEN[name], model()).reason == f"accumulation.{name}"


@pytest.mark.parametrize("share", [lambda n, N, K: n / N, means])
@pytest.mark.parametrize("limit", [0.05, 0.25])
def test_a_running_sum_that_is_cut_after_each_micro_batch_is_named(
    share: Share, limit: float
) -> None:
    """Early micro-batches are cut again and again, and weigh less than late ones."""

    def accumulate(model: Any, optimizer: Any, batches: Batches) -> float:
        counts = [count(targets) for _, targets in batches]
        optimizer.zero_grad()
        total = 0.0
        for (inputs, targets), n in zip(batches, counts, strict=True):
            if n == 0:
                continue
            loss = model(inputs, targets)[1]
            (loss * share(n, sum(counts), len(counts))).backward()
            clip_grad_norm_(model.parameters(), limit)
            total += n * loss.item() / sum(counts)
        optimizer.step()
        return total

    result = check(accumulate)
    assert (result.status, result.reason) == (Status.FAIL, "accumulation.clipped_inside")
    assert f"norm of {limit}" in result.claim
    weights = result.numbers["token_weights"][0]
    assert weights[0] < weights[-1]


def test_means_are_a_warning_where_every_target_is_scored() -> None:
    """Without padding and ignored targets both rules give the same gradient."""
    whole = random_pair(V)
    result = check(build(means), batch=whole)
    assert (result.status, result.reason) == (Status.WARN, "accumulation.mean_of_means")
    cut = whole[1].clone()
    cut[0, 3:] = -100
    assert check(build(means), batch=(whole[0], cut)).status is Status.FAIL
    assert check(build(means), batch=whole, pad_id=0).status is Status.FAIL


def test_a_constant_divisor_is_named() -> None:
    whole = random_pair(V)
    result = check(build(lambda n, N, K: 1 / 8), batch=whole)
    assert (result.status, result.reason) == (Status.WARN, "accumulation.fixed_divisor")
    assert "stays 8" in result.claim
    fixed = check(build(lambda n, N, K: n / N * K / 4, skip_empty=True))  # right for 4 only
    assert (fixed.status, fixed.reason) == (Status.WARN, "accumulation.fixed_divisor")


def test_a_skipped_micro_batch_that_still_counts() -> None:
    def miscounting(model: Any, optimizer: Any, batches: Batches) -> float:
        optimizer.zero_grad()
        tokens = sum(count(targets) or 12 for _, targets in batches)  # as if it scored 12
        total = 0.0
        for inputs, targets in batches:
            loss = model(inputs, targets)[1]
            if loss.isnan():
                continue
            (loss * count(targets) / tokens).backward()
            total += loss.item() * count(targets) / tokens
        optimizer.step()
        return total

    result = check(miscounting)
    assert (result.status, result.reason) == (Status.FAIL, "accumulation.skipped_counted")

    def own_mean(logits: Tensor, targets: Tensor) -> Tensor:
        scored = targets != -100
        wanted = targets.clamp(min=0)[..., None]
        losses = -logits.log_softmax(-1).gather(2, wanted)[..., 0] * scored
        return losses.sum() / scored.sum()

    nan = check(build(), TinyGPT(V, loss_of=own_mean))
    assert (nan.status, nan.reason) == (Status.WARN, "accumulation.nan_on_empty")


def test_a_nan_that_is_skipped_must_not_count_as_a_micro_batch() -> None:
    """Three of four means, divided by 4, are three quarters of the step; by 3, they are whole."""

    def skipping(divisor: Callable[[int, int], int]) -> Any:
        def accumulate(model: Any, optimizer: Any, batches: Batches) -> float:
            optimizer.zero_grad()
            losses = [model(inputs, targets)[1] for inputs, targets in batches]
            kept = [loss for loss in losses if loss.isfinite()]
            for loss in kept:
                (loss / divisor(len(batches), len(kept))).backward()
            optimizer.step()
            return sum(loss.item() for loss in kept) / len(kept)

        return accumulate

    whole = random_pair(V)
    counted = check(skipping(lambda K, kept: K), batch=whole)
    assert (counted.status, counted.reason) == (Status.FAIL, "accumulation.skipped_counted")
    share = re.search(r"the step is ([\d.]+) of what it should be", counted.claim)
    assert share is not None  # 3 of 4 micro-batches, but for the rounding of this machine's sums
    assert float(share[1]) == pytest.approx(3 / 4, abs=5e-4)
    right = check(skipping(lambda K, kept: kept), batch=whole)
    assert (right.status, right.reason) == (Status.WARN, "accumulation.mean_of_means")

    def refusing(model: Any, optimizer: Any, batches: Batches) -> float:
        loss = build()(model, optimizer, batches)
        if not loss == loss:
            raise FloatingPointError
        return float(loss)

    assert check(refusing).reason == "accumulation.ok"


def test_a_returned_loss_of_nan_is_told_although_the_gradient_is_finite() -> None:
    """Torch's mean over nothing is NaN, and its gradient is 0."""
    result = check(build(told=lambda losses, counts: sum(losses) / 4))
    assert (result.status, result.reason) == (Status.WARN, "accumulation.nan_loss_on_empty")


def test_windows_and_steps() -> None:
    def per_four(model: Any, optimizer: Any, batches: Batches) -> None:
        tokens = sum(count(targets) for _, targets in batches)
        for number, (inputs, targets) in enumerate(batches, 1):
            if count(targets):
                (model(inputs, targets)[1] * (count(targets) / tokens)).backward()
            if number % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()

    result = check(per_four)
    assert (result.status, result.reason) == (Status.FAIL, "accumulation.partial_window_dropped")
    assert "3 instead of 4" in result.claim
    assert check(per_four, micro_batches=8).reason == "accumulation.steps_twice"

    def each(model: Any, optimizer: Any, batches: Batches) -> None:
        for inputs, targets in batches:
            optimizer.zero_grad()
            model(inputs, targets)[1].backward()
            optimizer.step()

    assert check(each).reason == "accumulation.steps_twice"
    assert check(lambda m, o, b: None).reason == "accumulation.no_step"


def test_returned_losses() -> None:
    def told(tell: Callable[[list[float], list[int]], Any]) -> Any:
        return check(build(told=tell, skip_empty=True))

    last = told(lambda losses, counts: losses[-1])
    assert (last.status, last.reason) == (Status.WARN, "accumulation.loss_of_last")
    divided = told(lambda losses, counts: losses[-1] / 4)
    assert (divided.status, divided.reason) == (Status.FAIL, "accumulation.loss_scaled")
    other = told(lambda losses, counts: 1.0)
    assert (other.status, other.reason) == (Status.FAIL, "accumulation.other_loss")
    assert told(lambda losses, counts: None).reason == "accumulation.no_loss"


def test_eval_mode_and_labels_inside() -> None:
    def in_eval(model: Any, optimizer: Any, batches: Batches) -> Any:
        model.eval()
        return build()(model, optimizer, batches)

    model = TinyGPT(V)
    model.add_module("drop", nn.Dropout(0.0))
    assert check(in_eval, model).reason == "accumulation.eval_mode"

    def inside(model: Any, optimizer: Any, batches: Batches) -> Any:
        counts = [count(targets[:, 1:]) for _, targets in batches]
        optimizer.zero_grad()
        total = 0.0
        for (inputs, targets), n in zip(batches, counts, strict=True):
            if n:
                loss = model(input_ids=inputs, labels=targets).loss * (n / sum(counts))
                loss.backward()
                total += loss.item()
        optimizer.step()
        return total

    assert check(inside, HFStyle(), labels="same").reason == "accumulation.ok"


def test_a_loss_that_cannot_ignore_gets_unequal_rows_instead() -> None:
    def gather(logits: Tensor, targets: Tensor) -> Tensor:
        return -logits.log_softmax(-1).gather(2, targets[..., None]).mean()

    model = TinyGPT(V, loss_of=gather)
    assert check(build(), model).reason == "accumulation.ok"
    assert check(build(means), TinyGPT(V, loss_of=gather)).reason == "accumulation.mean_of_means"


def test_without_accumulate_it_is_skipped() -> None:
    result = diagnose(Pipeline(Bigram()), only=["accumulation"])["accumulation"]
    assert result.status is Status.SKIP
    assert result.numbers["missing"] == ["accumulate"]


class NoisyGPT(TinyGPT):
    """Draws noise of its own in train mode, which silencing dropout does not silence."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        return x + torch.randn_like(x) if self.training else x


def test_noise_of_the_models_own_is_drawn_again_micro_batch_by_micro_batch() -> None:
    torch.manual_seed(0)
    assert check_accumulation(NoisyGPT(V), adamw, build()).reason == "accumulation.ok"
    halved = build(lambda n, N, K: 0.5 * n / N)
    assert check_accumulation(NoisyGPT(V), adamw, halved).reason == "accumulation.scaled"


def clipped_by_hand(share: Share) -> Any:
    """Every gradient is cut to norm 0.01, without torch's own function."""

    def accumulate(model: Any, optimizer: Any, batches: Batches) -> Tensor:
        optimizer.zero_grad()
        counts = [count(targets) for _, targets in batches]
        total = torch.zeros(())
        for (inputs, targets), n in zip(batches, counts, strict=True):
            if n:
                loss = model(inputs, targets)[1]
                total += loss.detach() * n / sum(counts)
                (loss * share(n, sum(counts), len(counts))).backward()
        size = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad.mul_(min(1.0, 0.01 / float(size)))
        optimizer.step()
        return total

    return accumulate


@pytest.mark.parametrize(
    ("share", "reason"),
    [
        (lambda n, N, K: n / N, "ok"),
        (lambda n, N, K: K * n / N, "not_divided"),
        (lambda n, N, K: n / N / K, "divided_twice"),
    ],
)
def test_clipping_of_every_window_hides_no_factor(share: Share, reason: str) -> None:
    """The first window is stepped once more with a gradient that no limit reaches."""
    torch.manual_seed(0)
    result = check_accumulation(TinyGPT(V), adamw, clipped_by_hand(share))
    assert result.reason == f"accumulation.{reason}", str(result)


def test_gradients_that_are_brought_to_one_norm_have_no_factor_to_judge() -> None:
    def unit(model: Any, optimizer: Any, batches: Batches) -> Tensor:
        optimizer.zero_grad()
        counts = [count(targets) for _, targets in batches]
        total = torch.zeros(())
        for (inputs, targets), n in zip(batches, counts, strict=True):
            if n:
                loss = model(inputs, targets)[1] * (n / sum(counts))
                loss.backward()
                total += loss.detach()
        size = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
        for parameter in model.parameters():
            parameter.grad.div_(size)
        optimizer.step()
        return total

    torch.manual_seed(0)
    assert check_accumulation(TinyGPT(V), adamw, unit).reason == "accumulation.ok"
