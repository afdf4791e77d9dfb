"""The training step: every wrong order of its lines is named, every right one passes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy as entropy
from torch.nn.utils import clip_grad_norm_, clip_grad_value_
from torch.optim import LBFGS, SGD, AdamW, Optimizer

from diagnostics import Pipeline, Status, check_training_step, diagnose
from tests.diagnostics.tiny import Bigram, HFStyle, MixtureOfExperts, Recurrent, TinyGPT

V, T = 19, 12
Step = Callable[[Any, Any, Tensor, Tensor], Any]


def adamw(model: nn.Module) -> Optimizer:
    return AdamW(model.parameters(), lr=1e-3)


def check(step: Step, model: nn.Module | None = None, **parts: Any) -> Any:
    if model is None:
        torch.manual_seed(0)
        model = TinyGPT(V)
    return check_training_step(model, parts.pop("make_optimizer", adamw), step, **parts)


def loss_of(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return model(x, y)[1]


@pytest.mark.parametrize(("keep", "reason"), [(9, "keeps_graph"), (1, "ok")])
def test_graphs_that_pile_up_are_told_and_a_last_one_is_not(keep: int, reason: str) -> None:
    """A list of losses holds every graph; a variable holds the last one only."""
    history: list[Tensor] = []

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        history.append(loss)
        del history[:-keep]
        return loss.item()

    result = check(step)
    assert result.reason == f"training_step.{reason}"
    assert result.status is (Status.WARN if keep > 1 else Status.PASS)


def build(
    *,
    zero: str = "start",
    scale: float = 1.0,
    clip: Callable[[nn.Module], object] | None = None,
    late_clip: Callable[[nn.Module], object] | None = None,
    loss: Callable[[Any, Tensor, Tensor], Tensor] = loss_of,
    after: Callable[[nn.Module], object] | None = None,
) -> Step:
    """An ordinary step with one thing to choose."""

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        if zero == "start":
            optimizer.zero_grad()
        value = loss(model, x, y)
        (value * scale).backward()
        if clip is not None:
            clip(model)
        if zero == "between":
            optimizer.zero_grad()
        if after is not None:
            after(model)
        optimizer.step()
        if late_clip is not None:
            late_clip(model)
        if zero.startswith("end"):
            optimizer.zero_grad(set_to_none=zero == "end")
        return value.item()

    return step


def norm(limit: float) -> Callable[[nn.Module], object]:
    return lambda model: clip_grad_norm_(model.parameters(), limit)


def each_norm(model: nn.Module) -> None:
    for parameter in model.parameters():
        clip_grad_norm_([parameter], 0.05)


def rescale(factor: float) -> Callable[[nn.Module], object]:
    def divide(model: nn.Module) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(factor)

    return divide


def drop_embedding(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if "tokens" in name:
            parameter.grad = None


def unsmoothed(select: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]) -> Any:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        logits, targets = select(model(x)[0], x, y)
        return entropy(logits.flatten(0, 1), targets.flatten())

    return loss


def summed(model: Any, x: Tensor, y: Tensor) -> Tensor:
    return entropy(model(x)[0].flatten(0, 1), y.flatten(), reduction="sum")


HEALTHY = {
    "zero at the start": build(),
    "zero at the end": build(zero="end"),
    "zero in place at the end": build(zero="end in place", clip=norm(0.5)),
    "clip by norm": build(clip=norm(1.0)),
    "clip that never binds": build(clip=norm(1e4)),
    "clip by value": build(clip=lambda m: clip_grad_value_(m.parameters(), 0.01)),
    "scaled and unscaled": build(scale=1024.0, clip=rescale(1 / 1024), after=norm(1.0)),
}
BROKEN = {
    "not_cleared": build(zero="never"),
    "cleared_gradient": build(zero="between"),
    "uphill": build(scale=-1.0),
    "not_unscaled": build(scale=1024.0, loss=lambda m, x, y: loss_of(m, x, y)),
    "clip_after_step": build(late_clip=norm(0.1)),
    "clip_before_unscale": build(scale=1024.0, clip=norm(1.0), after=rescale(1 / 1024)),
    "clip_tiny": build(clip=norm(3e-4)),
    "clip_per_parameter": build(clip=each_norm),
    "sum": build(loss=summed),
    "not_finite": build(after=rescale(float("nan"))),
    "partial_gradient": build(after=drop_embedding),
    "shifted_again": build(loss=unsmoothed(lambda z, x, y: (z[:, :-1], y[:, 1:]))),
    "copies": build(loss=unsmoothed(lambda z, x, y: (z, x))),
    "last_position": build(loss=unsmoothed(lambda z, x, y: (z[:, -1:], y[:, -1:]))),
    "part_of_batch": build(loss=unsmoothed(lambda z, x, y: (z[:2], y[:2]))),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_styles_pass(name: str) -> None:
    result = check(HEALTHY[name])
    assert (result.status, result.reason) == (Status.PASS, "training_step.ok")
    assert max(result.numbers["misfits"]) < 1e-3 or name == "clip by value"
    assert result.numbers["steps"] == [1, 1, 1]


@pytest.mark.parametrize("name", BROKEN)
def test_each_fault_has_its_reason(name: str) -> None:
    result = check(BROKEN[name])
    assert (result.status, result.reason) == (Status.FAIL, f"training_step.{name}")
    assert result.claim
    assert result.expected
    assert result.next_step


@pytest.mark.parametrize("name", ["not_cleared", "clip_after_step", "uphill", "copies"])
@pytest.mark.parametrize("model", [Bigram, MixtureOfExperts])
def test_faults_are_found_on_other_architectures(name: str, model: type[nn.Module]) -> None:
    torch.manual_seed(1)
    assert check(BROKEN[name], model()).reason == f"training_step.{name}"


def test_the_limit_of_clipping_is_measured() -> None:
    """Three gradients of different size are all cut to norm 0.25."""
    result = check(build(clip=norm(0.25)))
    assert result.numbers["clip_limit"] == pytest.approx(0.25, rel=1e-3)
    assert result.numbers["norms_used"] == pytest.approx([0.25] * 3, rel=1e-3)


def test_not_cleared_names_the_share_that_is_left() -> None:
    """Without zero_grad the whole gradient of the last step is added, once."""
    result = check(build(zero="never"))
    assert "plus 1 times what the last step left" in result.claim


def test_a_low_limit_and_a_divided_loss_are_warnings() -> None:
    assert check(build(clip=norm(0.03))).reason == "training_step.clip_tiny"
    assert check(build(clip=norm(0.03))).status is Status.WARN
    result = check(build(scale=0.25))
    assert (result.status, result.reason) == (Status.WARN, "training_step.scaled")


def test_step_before_backward_in_both_variants() -> None:
    def stale(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        loss = loss_of(model, x, y)
        optimizer.step()
        optimizer.zero_grad()
        loss.backward()
        return loss.item()

    def empty(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        optimizer.step()
        loss.backward()
        return loss.item()

    for step in (stale, empty):
        result = check(step)
        assert (result.status, result.reason) == (Status.FAIL, "training_step.step_before_backward")


def with_steps(count: int) -> Step:
    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        for _ in range(count):
            optimizer.step()
        return loss.item()

    return step


def test_the_number_of_steps() -> None:
    assert check(with_steps(0)).reason == "training_step.no_step"
    assert check(with_steps(2)).reason == "training_step.steps_twice"


def test_a_step_that_accumulates_over_calls_is_a_warning_with_its_period() -> None:
    for period in (2, 3, 4):
        calls = [0]

        def step(
            model: Any,
            optimizer: Any,
            x: Tensor,
            y: Tensor,
            calls: list[int] = calls,
            period: int = period,
        ) -> float:
            calls[0] += 1
            loss = loss_of(model, x, y)
            (loss / period).backward()
            if calls[0] % period == 0:
                optimizer.step()
                optimizer.zero_grad()
            return loss.item()

        result = check(step)
        assert (result.status, result.reason) == (Status.WARN, "training_step.accumulates")
        assert f"once in {period} calls" in result.claim


def skipping(*, zero: str, limit: float) -> Step:
    """A step that returns early where the gradient is large; zero: where it clears."""

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        if zero == "start":
            optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        large = clip_grad_norm_(model.parameters(), 1.0) > limit
        if not large:
            optimizer.step()
        if zero == "always" or (zero == "after step" and not large):
            optimizer.zero_grad()
        return loss.item()

    return step


def norms() -> list[float]:
    """The norms of the batches' own gradients: the third is that of one repeated token."""
    result = check(build())
    return list(result.numbers["norms_own"])


def test_a_skipped_step_that_leaves_its_gradient_is_named() -> None:
    """The next step adds what was left; the limit lets ordinary batches through, or not all."""
    usual, large = max(norms()[:2]), norms()[2]
    assert usual < 0.5 * large
    for limit in (0.5 * (usual + large), 0.99 * usual):  # the second stays above it for ever
        result = check(skipping(zero="after step", limit=limit))
        assert (result.status, result.reason) == (
            Status.FAIL,
            "training_step.skip_keeps_gradient",
        )
        assert "once in 1" not in result.claim


def test_a_limit_below_every_norm_is_not_taken_for_a_missing_step() -> None:
    """optimizer.step() is there, and no ordinary gradient is small enough for it."""
    result = check(skipping(zero="start", limit=0.5 * min(norms())))
    assert (result.status, result.reason) == (Status.FAIL, "training_step.no_step")
    assert "limit" in result.causes[0]


def test_a_long_accumulation_is_not_taken_for_a_limit() -> None:
    """The tenth call steps whatever its gradient is, the eleventh does not."""
    calls = [0]

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        calls[0] += 1
        loss = loss_of(model, x, y)
        loss.backward()
        if calls[0] % 10 == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    assert "limit" not in " ".join(check(step).causes)


@pytest.mark.parametrize("zero", ["start", "always"])
def test_a_skipped_step_that_is_cleared_is_a_design(zero: str) -> None:
    """Only a limit that ordinary batches reach is worth a warning."""
    usual, large = norms()[:2], norms()[2]
    result = check(skipping(zero=zero, limit=0.5 * (max(usual) + large)))
    assert (result.status, result.reason) == (Status.PASS, "training_step.ok")
    assert "1 of 9 calls" in result.measured
    assert "call steps once," not in result.claim
    result = check(skipping(zero=zero, limit=0.5 * sum(usual)))
    assert (result.status, result.reason) == (Status.WARN, "training_step.skips")
    assert "norm of the gradient" in result.causes[0]


def test_zero_grad_that_is_missing_is_told_before_skipped_steps() -> None:
    """Every call adds to the last one, skipped or not."""
    usual, large = max(norms()[:2]), norms()[2]

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        loss = loss_of(model, x, y)
        loss.backward()
        if loss.item() < 3.5:  # of one repeated token it is larger
            optimizer.step()
        return loss.item()

    assert large > usual
    assert check(step).reason == "training_step.not_cleared"


def test_the_wrong_model_the_wrong_optimizer_and_a_new_one() -> None:
    torch.manual_seed(0)
    model = TinyGPT(V)
    twin = copy.deepcopy(model)
    stranger = AdamW(twin.parameters())
    plain = build()
    assert check(lambda m, o, x, y: plain(twin, o, x, y)).reason == "training_step.other_model"
    assert check(lambda m, o, x, y: plain(m, stranger, x, y)).reason == (
        "training_step.other_optimizer"
    )
    renewed = check(lambda m, o, x, y: plain(m, AdamW(m.parameters()), x, y))
    assert renewed.reason == "training_step.new_optimizer"


def test_the_same_batch_at_every_step_is_named() -> None:
    first: list[tuple[Tensor, Tensor]] = []
    plain = build()

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Any:
        first.append((x, y))
        return plain(model, optimizer, *first[0])

    assert check(step).reason == "training_step.same_batch"


class WithDropout(TinyGPT):
    """A dropout that is 0, as in the debug configuration: the mode alone can be seen."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__(V)
        self.drop = nn.Dropout(rate)

    def hidden(self, ids: Tensor) -> Tensor:
        return self.drop(super().hidden(ids))


def in_eval(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Any:
    model.eval()
    return build()(model, optimizer, x, y)


def test_training_in_eval_mode_is_found_even_with_dropout_0() -> None:
    result = check(in_eval, WithDropout())
    assert (result.status, result.reason) == (Status.FAIL, "training_step.eval_mode")
    assert check(in_eval).status is Status.WARN  # no module of this model minds


def test_dropout_and_an_evaluation_inside_the_step_are_healthy() -> None:
    plain = build()

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Any:
        model.eval()
        with torch.no_grad():
            model(x, y)
        model.train()
        return plain(model, optimizer, x, y)

    assert check(step, WithDropout(0.3)).reason == "training_step.ok"


def returning(tell: Callable[[Tensor, Any, Tensor, Tensor], Any]) -> Step:
    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Any:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        optimizer.step()
        return tell(loss, model, x, y)

    return step


def test_losses_that_are_not_the_batch_s_own() -> None:
    told: list[float] = []

    def before(loss: Tensor, *rest: Any) -> float:
        told.append(loss.item())
        return told[-2] if len(told) > 1 else 0.0

    average: list[float] = []

    def smooth(loss: Tensor, *rest: Any) -> float:
        last = average[-1] if average else loss.item()
        average.append(0.9 * last + 0.1 * loss.item())
        return average[-1]

    cases: list[tuple[Any, Status, str]] = [
        (before, Status.FAIL, "stale_loss"),
        (lambda loss, *rest: loss.item() / 4, Status.FAIL, "loss_scaled"),
        (lambda loss, *rest: loss.item() * 4 * T, Status.FAIL, "loss_scaled"),
        (lambda loss, *rest: loss.exp().item(), Status.FAIL, "other_loss"),
        (smooth, Status.WARN, "smoothed_loss"),
        (lambda loss, m, x, y: loss_of(m, x, y).item(), Status.WARN, "loss_after_step"),
        (lambda loss, *rest: None, Status.WARN, "no_loss"),
        (lambda loss, *rest: loss, Status.WARN, "keeps_graph"),
        (lambda loss, *rest: {"loss": loss.detach(), "norm": 1.0}, Status.PASS, "ok"),
        (lambda loss, *rest: (loss.item(), 1.0), Status.PASS, "ok"),
    ]
    for tell, status, reason in cases:
        result = check(returning(tell))
        assert (result.status, result.reason) == (status, f"training_step.{reason}")


def test_intended_extra_terms_are_warnings() -> None:
    def penalised(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return loss_of(model, x, y) + 0.01 * sum(p.square().sum() for p in model.parameters())

    def smoothed(model: Any, x: Tensor, y: Tensor) -> Tensor:
        return entropy(model(x)[0].flatten(0, 1), y.flatten(), label_smoothing=0.2)

    assert check(build(loss=penalised)).reason == "training_step.extra_terms"
    assert not check(build(loss=smoothed)).failed


def test_mixed_precision_with_a_scaler_and_autocast_is_healthy() -> None:
    scaler = torch.amp.GradScaler("cpu")

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor, unscale: bool = True) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.item()

    assert check(step).reason == "training_step.ok"
    for fused in (False, True):  # a fused optimizer divides by the scale itself
        broken = check(
            lambda m, o, x, y: step(m, o, x, y, unscale=False),
            make_optimizer=lambda m, fused=fused: AdamW(m.parameters(), lr=1e-3, fused=fused),
        )
        assert broken.reason == "training_step.clip_before_unscale"


def frozen() -> nn.Module:
    model = TinyGPT(V)
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("blocks.1" in name)
    return model


def zero_head() -> nn.Module:
    model = TinyGPT(V)
    nn.init.zeros_(model.head.weight)
    return model


@pytest.mark.parametrize(
    "make",
    [
        Bigram,
        Recurrent,
        MixtureOfExperts,
        lambda: MixtureOfExperts(shut=True, aux=0.1),
        lambda: TinyGPT(V, tied=True),
        lambda: TinyGPT(V).bfloat16(),
        frozen,
        zero_head,
    ],
)
def test_healthy_oddities_pass(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(2)
    model = make()

    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        if isinstance(model, Recurrent):
            return entropy(model(x).flatten(0, 1), y.flatten())
        return loss_of(model, x, y)

    assert check(build(loss=loss, clip=norm(1.0)), model).reason == "training_step.ok"


def test_labels_inside_the_model() -> None:
    step = build(loss=lambda m, x, y: m(input_ids=x, labels=y).loss)
    assert check(step, HFStyle(), labels="same").reason == "training_step.ok"


def test_an_optimizer_with_a_closure_and_an_update_by_hand_are_not_judged() -> None:
    def closure_step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> Any:
        def closure() -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    result = check(closure_step, make_optimizer=lambda m: LBFGS(m.parameters(), max_iter=1))
    assert (result.status, result.reason) == (Status.WARN, "training_step.closure")

    def by_hand(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        loss = loss_of(model, x, y)
        parameters = list(model.parameters())
        with torch.no_grad():
            for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                p -= 0.1 * g
        return loss.item()

    assert check(by_hand).reason == "training_step.own_update"


def test_several_optimizers_and_one_that_is_not_torch_s() -> None:
    class Duck:
        def __init__(self, parameters: Iterator[nn.Parameter]) -> None:
            self.inner = SGD(parameters, lr=0.1)
            self.param_groups = self.inner.param_groups

        def zero_grad(self) -> None:
            self.inner.zero_grad()

        def step(self) -> None:
            self.inner.step()

    result = check(build(), make_optimizer=lambda m: Duck(m.parameters()))
    assert result.reason == "training_step.ok"

    def both(model: Any, optimizers: Any, x: Tensor, y: Tensor) -> float:
        for each in optimizers:
            each.zero_grad()
        loss = loss_of(model, x, y)
        loss.backward()
        for each in optimizers:
            each.step()
        return loss.item()

    def split(model: nn.Module) -> list[Optimizer]:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        return [SGD(matrices, lr=0.1), AdamW([p for p in model.parameters() if p.ndim < 2])]

    assert check(both, make_optimizer=split).reason == "training_step.ok"


def test_the_user_s_model_is_left_alone_and_missing_parts_are_named() -> None:
    torch.manual_seed(0)
    model = TinyGPT(V).eval()
    before = copy.deepcopy(model.state_dict())
    report = diagnose(
        Pipeline(model, make_optimizer=adamw, train_step=build()), only=["training_step"]
    )
    assert report["training_step"].status is Status.PASS
    assert all(torch.equal(before[n], t) for n, t in model.state_dict().items())
    assert not model.training
    assert all(p.grad is None for p in model.parameters())
    skipped = diagnose(Pipeline(model), only=["training_step"])["training_step"]
    assert skipped.numbers["missing"] == ["train_step"]
    only_step = diagnose(Pipeline(model, train_step=build()), only=["training_step"])
    assert only_step["training_step"].numbers["missing"] == ["make_optimizer"]


class NoisyGPT(TinyGPT):
    """Draws noise of its own in train mode, which silencing dropout does not silence."""

    def hidden(self, ids: Tensor) -> Tensor:
        x = super().hidden(ids)
        return x + torch.randn_like(x) if self.training else x


def test_noise_of_the_models_own_is_drawn_again_and_excuses_nothing() -> None:
    """The recomputed gradient draws what the step drew: clipping still reads as clipping."""
    torch.manual_seed(0)
    healthy = check(build(clip=lambda m: clip_grad_norm_(m.parameters(), 1.0)), NoisyGPT(V))
    assert healthy.reason == "training_step.ok"
    assert "norm of 1" in healthy.claim
    assert check(build(scale=1.03), NoisyGPT(V)).reason == "training_step.scaled"


def stepping_in_backward(model: nn.Module) -> list[Optimizer]:
    """One optimizer per parameter, stepped by a hook as soon as its gradient is there."""
    each = {p: AdamW([p], lr=1e-3) for p in model.parameters()}

    def use_and_free(parameter: Tensor) -> None:
        each[parameter].step()  # type: ignore[index]
        each[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(use_and_free)
    return list(each.values())


def backward_then(clip: Callable[[nn.Module], object] | None) -> Step:
    def step(model: Any, optimizers: Any, x: Tensor, y: Tensor) -> float:
        loss = loss_of(model, x, y)
        loss.backward()
        if clip is not None:
            clip(model)
        return loss.item()

    return step


def test_clipping_after_steps_inside_backward_finds_nothing() -> None:
    """Without the call the design is healthy, and with it somebody believes to be protected."""
    healthy = check(backward_then(None), make_optimizer=stepping_in_backward)
    assert healthy.reason == "training_step.ok", str(healthy)
    result = check(backward_then(norm(1.0)), make_optimizer=stepping_in_backward)
    assert (result.status, result.reason) == (Status.FAIL, "training_step.clip_of_nothing")
    assert "during backward()" in result.causes[0]


def test_clipping_parameters_that_are_none_of_the_model_s_finds_nothing() -> None:
    """A used-up generator, or the parameters of an earlier model: the call is right, and empty."""
    torch.manual_seed(0)
    old = TinyGPT(V)
    result = check(build(clip=lambda model: clip_grad_norm_(old.parameters(), 1.0)))
    assert result.reason == "training_step.clip_of_nothing"
    assert "not those that backward() writes to" in result.causes[0]
    result = check(build(clip=lambda model: clip_grad_norm_(iter(()), 1.0)))
    assert result.reason == "training_step.clip_of_nothing"
    assert "used up" in result.causes[0]


def test_clipping_after_the_step_is_seen_where_zeros_follow() -> None:
    """zero_grad(set_to_none=False) leaves no trace of the cut; the call itself was seen."""
    result = check(build(zero="end in place", late_clip=norm(0.1)))
    assert (result.status, result.reason) == (Status.FAIL, "training_step.clip_after_step")
    assert check(build(zero="end in place", late_clip=norm(1e4))).reason == "training_step.ok"


def test_a_loss_without_a_slope_is_told_from_a_cleared_gradient() -> None:
    """A clamp names its limit; a factor of 0 gives zeros as well, and no limit to name."""
    clamped = check(build(loss=lambda m, x, y: loss_of(m, x, y).clamp(max=1.5)))
    assert (clamped.status, clamped.reason) == (Status.FAIL, "training_step.clamped_loss")
    assert "1.5" in clamped.claim
    nothing = check(build(scale=0.0))
    assert (nothing.status, nothing.reason) == (Status.FAIL, "training_step.zero_gradient")
    assert check(build(loss=lambda m, x, y: loss_of(m, x, y).clamp(max=50.0))).passed


@pytest.mark.parametrize("too_early", [True, False])
@pytest.mark.parametrize(("interval", "factor"), [(2, 2.0), (3, 2.0), (2, 0.5)])
def test_a_loss_scale_that_changes_before_its_use_is_named(
    interval: int, factor: float, too_early: bool
) -> None:
    """Every so many calls the gradient is divided by a scale it was not multiplied with."""
    scale, calls = [1024.0], [0]

    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        loss = loss_of(model, x, y)
        used = scale[0]
        (loss * used).backward()
        calls[0] += 1
        if calls[0] % interval == 0:
            scale[0] *= factor
        rescale(1 / (scale[0] if too_early else used))(model)
        optimizer.step()
        return loss.item()

    reason = "training_step.scale_changes" if too_early else "training_step.ok"
    assert check(step).reason == reason


def test_autocast_around_the_whole_step_is_a_warning() -> None:
    def step(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
        return loss.item()

    result = check(step)
    assert (result.status, result.reason) == (Status.WARN, "training_step.autocast_at_step")


def test_clipping_before_backward_is_named_with_and_without_old_gradients() -> None:
    """What is cut then is what the last step left, or nothing at all."""

    def step(clear_first: bool) -> Step:
        def early(model: Any, optimizer: Any, x: Tensor, y: Tensor) -> float:
            if clear_first:
                optimizer.zero_grad()
            clip_grad_norm_(model.parameters(), 1.0)
            optimizer.zero_grad()
            loss = loss_of(model, x, y)
            loss.backward()
            optimizer.step()
            return loss.item()

        return early

    result = check(step(clear_first=True))
    assert result.reason == "training_step.clip_of_nothing"
    assert result.causes == ("it is called before backward()",)
    assert check(step(clear_first=False)).reason == "training_step.clip_before_backward"


def test_a_gradient_that_is_doubled_is_not_said_to_be_divided() -> None:
    """Two backward passes give factor 2: a weight on the loss could be meant."""
    result = check(build(scale=2.0))
    assert (result.status, result.reason) == (Status.WARN, "training_step.scaled")
    assert "more than once" in result.causes[0]


def test_the_batch_of_the_call_before_is_not_taken_for_the_first_one() -> None:
    """In the second call both are the same batch; the third one tells."""
    kept: list[tuple[Tensor, Tensor]] = []

    def late(model: Any, optimizer: Any, inputs: Tensor, targets: Tensor) -> Tensor:
        kept.append((inputs, targets))
        model.train()
        optimizer.zero_grad()
        loss = model(*kept[max(0, len(kept) - 2)])[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch.manual_seed(0)
    assert check(late).reason == "training_step.last_batch"
