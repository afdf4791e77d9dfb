"""The optimizer check: coverage by identity, the motion of one step, and five steps of loss."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from diagnostics import Pipeline, Status, check_optimizer, diagnose
from diagnostics._optimizer_faults import TOO_SMALL
from minigpt import MiniGPT, MiniGPTConfig
from minigpt import make_optimizer as reference_optimizer
from tests.diagnostics.tiny import (
    Bigram,
    HFStyle,
    MixtureOfExperts,
    Recurrent,
    TinyGPT,
    cross_entropy,
    random_pair,
)

V = 31


def debug(**changes: Any) -> MiniGPT:
    """The debug model, as GPT-2 initialises it."""
    return MiniGPT(MiniGPTConfig.debug(V, **changes))


def check(
    make_optimizer: Callable[[nn.Module], Any], model: nn.Module | None = None, **parts: Any
) -> Any:
    """Check on the debug model with a batch of random tokens."""
    return check_optimizer(model or debug(), make_optimizer, *random_pair(V, 8, 32), **parts)


def adamw(**settings: Any) -> Callable[[nn.Module], Optimizer]:
    """AdamW over all parameters."""
    return lambda model: AdamW(model.parameters(), **{"lr": 1e-3, **settings})


class OwnAdam(Optimizer):
    """Adam written out, with a fault to choose."""

    def __init__(
        self, parameters: Iterable[nn.Parameter], fault: str = "", **settings: Any
    ) -> None:
        defaults = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        super().__init__(parameters, defaults | settings)
        self.fault, self.count = fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        self.count += self.fault != "counter"
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.count += self.fault == "counter"
                    self._step(parameter, group)

    def _step(self, parameter: Tensor, group: dict[str, Any]) -> None:
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state["m"], state["v"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        state["m"].lerp_(parameter.grad, 1 - beta1)
        state["v"].lerp_(parameter.grad.square(), 1 - beta2)
        correct = (1.0, 1.0)
        if self.fault != "raw":
            correct = (1 - beta1**self.count, 1 - beta2**self.count)
        update = state["m"] / correct[0] / ((state["v"] / correct[1]).sqrt() + group["eps"])
        sign = 1 if self.fault == "decay" else -1
        parameter.mul_(1 + sign * group["lr"] * group["weight_decay"])
        if self.fault == "copy" and parameter.ndim == 2:
            parameter.t().contiguous().add_(update.t(), alpha=-group["lr"])  # written to a copy
        elif self.fault == "row" and parameter.ndim == 2:
            parameter[:1].add_(update[:1], alpha=-group["lr"])
        else:
            parameter.add_(update, alpha=-group["lr"])


class Listed(nn.Module):
    """A model whose middle layer hides in a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(V, 8), nn.Linear(8, V)
        self.layers = [nn.Linear(8, 8)]

    def forward(self, ids: Tensor, targets: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """Return (logits, loss or None)."""
        logits = self.head(self.layers[0](self.embedding(ids)))
        return logits, None if targets is None else cross_entropy(logits, targets)


@pytest.mark.parametrize("rate", [1e-4, 1e-3, 1e-2])
def test_healthy_rates_pass(rate: float) -> None:
    """The first AdamW step moves each weight by one rate: the ratio is proportional to it."""
    model = debug()
    result = check(adamw(lr=rate, weight_decay=0.0), model)
    assert (result.reason, result.status) == ("optimizer.ok", Status.PASS), str(result)
    numbers = result.numbers
    assert numbers["learning_rates"] == [rate]
    count = sum(p.numel() for p in model.parameters())
    size = math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters()))
    # not all: positions, tokens and attention scores may have gradients below eps
    assert 0.8 < numbers["update_to_weight"][0] / (rate * math.sqrt(count) / size) < 1.01
    assert numbers["losses"][-1] < numbers["losses"][0]
    assert numbers["trainable"] == len(list(model.parameters()))


@pytest.mark.parametrize("seed", range(5))
def test_learning_rate_of_a_tenth_is_far_too_high(seed: int) -> None:
    """AdamW at 0.1 moves weights of size 0.02 by 0.1: the loss ends above ln V, every time."""
    torch.manual_seed(seed)
    result = check(adamw(lr=0.1))
    assert (result.reason, result.status) == ("optimizer.update_too_large", Status.FAIL)
    assert "0.1" in result.next_step
    assert result.numbers["update_to_weight"][1] > 0.4


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_healthy_sgd_rates_pass(rate: float) -> None:
    """What is far too much for Adam is right for SGD: the loss decides, not the number."""
    result = check(lambda model: SGD(model.parameters(), lr=rate))
    assert result.reason == "optimizer.ok", str(result)


def test_sgd_at_ten_is_far_too_high() -> None:
    """Each clipped step is ten long, and all weights together about seven."""
    assert check(lambda m: SGD(m.parameters(), lr=10.0)).reason == "optimizer.update_too_large"


def test_rate_zero_moves_nothing() -> None:
    """An optimizer that is built with lr=0 fails, and the cause is named."""
    result = check(adamw(lr=0.0))
    assert (result.reason, result.status) == ("optimizer.does_not_move", Status.FAIL)
    assert result.causes == ("the learning rate is 0",)


def test_warm_up_inside_make_optimizer_is_healthy() -> None:
    """A scheduler that starts at 0 is judged at its base rate."""

    def make(model: nn.Module) -> Optimizer:
        optimizer = AdamW(model.parameters(), lr=1e-3)
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
        assert optimizer.param_groups[0]["lr"] == 0
        return optimizer

    result = check(make)
    assert result.reason == "optimizer.ok"
    assert result.numbers["learning_rates"] == [1e-3]


def test_schedule_overrules_a_placeholder_rate() -> None:
    """A loop that writes each step's rate may build the optimizer with any other."""
    result = check(adamw(lr=0.0), learning_rate=lambda step: 1e-3 * min(1.0, step / 10))
    assert result.reason == "optimizer.ok"
    assert result.numbers["learning_rates"] == [1e-3]
    result = check(adamw(lr=1e-3), learning_rate=lambda step: 0.3)
    assert result.reason == "optimizer.update_too_large"


def test_rate_nan_is_named() -> None:
    """NaN passes torch's own test of the argument when it is set later."""

    def make(model: nn.Module) -> Optimizer:
        optimizer = AdamW(model.parameters())
        optimizer.param_groups[0]["lr"] = math.nan
        return optimizer

    assert check(make).reason == "optimizer.not_finite"


def test_too_small_a_rate_is_a_warning() -> None:
    """1e-10 of a weight is invisible in any run."""
    result = check(lambda m: SGD(m.parameters(), lr=1e-9), Bigram(V).double())
    assert (result.reason, result.status) == ("optimizer.update_too_small", Status.WARN)


def test_uphill_is_named() -> None:
    """maximize=True moves along the gradient."""
    result = check(adamw(maximize=True))
    assert (result.reason, result.status) == ("optimizer.uphill", Status.FAIL)


def test_one_group_uphill_is_named_by_parameter() -> None:
    """Only the head goes the wrong way; the loss still falls."""

    def make(model: nn.Module) -> Optimizer:
        head = list(model.head.parameters())  # type: ignore[union-attr,operator]
        rest = [p for p in model.parameters() if all(p is not q for q in head)]
        return AdamW([{"params": rest}, {"params": head, "maximize": True}], lr=1e-3)

    result = check(make)
    assert result.reason == "optimizer.uphill"
    assert result.numbers["names"] == ["head.weight"]


def test_parameters_in_no_group_are_named() -> None:
    """A filter for names that end in weight leaves every bias out: 13 of 29."""
    result = check(lambda m: AdamW([p for n, p in m.named_parameters() if n.endswith("weight")]))
    assert (result.reason, result.status) == ("optimizer.missing_parameters", Status.FAIL)
    assert "13 of 29" in result.claim
    assert all(name.endswith("bias") for name in result.numbers["missing"])


def test_optimizer_of_another_model_is_foreign() -> None:
    """Built before the model was built anew."""
    old = debug()
    result = check(lambda model: AdamW(old.parameters()))
    assert (result.reason, result.status) == ("optimizer.foreign_parameters", Status.FAIL)
    assert "are not this model's" in result.claim


def test_make_optimizer_that_ignores_its_argument_is_told_so_and_steps_nothing() -> None:
    """The original's own optimizer must not be stepped: its weights stay."""
    model = debug()
    before = copy.deepcopy(model.state_dict())
    optimizer = AdamW(model.parameters())
    result = check(lambda _: optimizer, model)
    assert result.reason == "optimizer.foreign_parameters"
    assert "make_optimizer" in result.claim
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert not optimizer.state


def test_layers_in_a_plain_list_are_found_through_the_loss() -> None:
    """model.parameters() lists neither the weight (8, 8) nor the bias (8,)."""
    result = check(adamw(), Listed())
    assert (result.reason, result.status) == ("optimizer.unregistered_parameters", Status.FAIL)
    assert "2 tensors" in result.claim
    assert "(8, 8)" in result.measured


def test_tied_tensor_in_two_groups_is_named() -> None:
    """Torch itself refuses, in words that do not say tied."""

    def make(model: nn.Module) -> Optimizer:
        named = dict(model.named_parameters(remove_duplicate=False))
        rest = [p for name, p in named.items() if name != "tokens.weight"]
        return AdamW([{"params": [named["tokens.weight"]]}, {"params": rest}])

    result = check(make, TinyGPT(V, block=32, tied=True))
    assert (result.reason, result.status) == ("optimizer.repeated_parameters", Status.FAIL)
    assert "tied" in result.causes[0]


@pytest.mark.filterwarnings("ignore:optimizer contains a parameter group with duplicate")
def test_tied_tensor_twice_in_one_group_is_named() -> None:
    """Torch only warns, and steps it twice."""
    result = check(
        lambda m: SGD([p for _, p in m.named_parameters(remove_duplicate=False)], lr=0.01),
        TinyGPT(V, block=32, tied=True),
    )
    assert result.reason == "optimizer.repeated_parameters"
    assert result.numbers["repeated"] == ["tokens.weight"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("", "optimizer.ok"),
        ("raw", "optimizer.no_bias_correction"),
        ("counter", "optimizer.step_counter"),
        ("decay", "optimizer.decay_sign"),
        ("copy", "optimizer.some_do_not_move"),
        ("row", "optimizer.partly_moved"),
    ],
)
def test_hand_written_adam(fault: str, reason: str) -> None:
    """The healthy one passes, each fault has its own name."""
    result = check(lambda model: OwnAdam(model.parameters(), fault))
    assert result.reason == reason, str(result)


@pytest.mark.parametrize(("beta2", "size"), [(0.999, 3.162), (0.95, 0.4472)])
def test_size_of_an_uncorrected_first_step(beta2: float, size: float) -> None:
    """(1 - beta1) / sqrt(1 - beta2) learning rates, by hand."""
    result = check(lambda m: OwnAdam(m.parameters(), "raw", betas=(0.9, beta2)))
    assert result.numbers["adam_first_step"]["head.weight"] == pytest.approx(size, rel=1e-3)
    assert f"{size}" in result.claim


def test_coupled_decay_is_a_warning() -> None:
    """With no gradient, Adam turns the decay into the sign of the weight: cosine about 0.8."""
    result = check(lambda m: Adam(m.parameters(), lr=1e-3, weight_decay=0.1))
    assert (result.reason, result.status) == ("optimizer.coupled_decay", Status.WARN)
    assert "AdamW" in result.next_step


def test_decay_is_counted_apart_for_vectors() -> None:
    """One group decays the 18 vectors of the debug model too; the reference decays 11 matrices."""
    assert check(adamw(weight_decay=0.1)).numbers["decayed_vectors"] > 0
    numbers = check(lambda m: reference_optimizer(m, learning_rate=1e-3)).numbers
    assert (numbers["decayed_matrices"], numbers["decayed_vectors"]) == (11, 0)


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        (Bigram(V), {}),
        (Recurrent(V), {}),
        (MixtureOfExperts(V, shut=True), {}),
        (TinyGPT(V, block=32, positions=False), {}),
        (TinyGPT(V, block=32, tied=True), {}),
        (HFStyle(TinyGPT(V, block=32), V), {"labels": "same"}),
        (debug(dropout=0.2), {}),
    ],
    ids=["bigram", "gru", "experts", "nope", "tied", "hf", "dropout"],
)
def test_healthy_designs_pass(model: nn.Module, parts: dict[str, Any]) -> None:
    """Odd architectures are no fault of the optimizer."""
    assert check(adamw(), model, **parts).reason == "optimizer.ok"


def test_zero_initialised_head_and_frozen_layers_pass() -> None:
    """No gradient reaches the trunk at first, and frozen parameters may sit in the groups."""
    model = debug()
    nn.init.zeros_(model.head.weight)
    assert check(adamw(), model).reason == "optimizer.ok"
    model = debug()
    model.blocks.requires_grad_(False)
    result = check(adamw(), model)
    assert result.reason == "optimizer.ok"
    assert result.numbers["trainable"] == 5
    assert len(result.numbers["frozen"]) == 24


@pytest.mark.parametrize(
    "make",
    [
        lambda m: torch.optim.RAdam(m.parameters()),
        lambda m: torch.optim.NAdam(m.parameters()),
        lambda m: torch.optim.Adafactor(m.parameters()),
        lambda m: torch.optim.Adagrad(m.parameters()),
        lambda m: [SGD(m.blocks.parameters(), lr=0.1, momentum=0.9), AdamW(list(outside(m)))],
    ],
    ids=["radam", "nadam", "adafactor", "adagrad", "two"],
)
def test_other_optimizers_pass(make: Callable[[nn.Module], Any]) -> None:
    """Adam's first step is asked of Adam only; two optimizers may share the work."""
    assert check(make).reason == "optimizer.ok"


def outside(model: nn.Module) -> Iterable[nn.Parameter]:
    """The parameters outside the blocks."""
    return (p for name, p in model.named_parameters() if not name.startswith("blocks"))


def grouped(*no_decay: str) -> Callable[[nn.Module], Optimizer]:
    """AdamW with decay for all parameters but those whose name holds one of these words."""

    def make(model: nn.Module) -> Optimizer:
        named = list(model.named_parameters())
        kept = [p for n, p in named if not any(word in n for word in no_decay)]
        left = [p for n, p in named if any(word in n for word in no_decay)]
        groups = [{"params": kept, "weight_decay": 0.1}, {"params": left, "weight_decay": 0.0}]
        return AdamW(groups, lr=1e-3)

    return make


@pytest.mark.parametrize(
    ("no_decay", "reason", "status"),
    [
        (("LayerNorm.weight",), "no_decay_group_empty", Status.FAIL),
        (("final_norm", "bias"), "decay_uneven", Status.FAIL),
        (("LayerNorm.weight", "bias"), "gains_decay", Status.WARN),
        (("norm", "bias"), "ok", Status.PASS),
        (("norm", "bias", "embedding"), "ok", Status.PASS),
        (("norm",), "ok", Status.PASS),  # biases of linear layers decay, as some recipes have it
    ],
)
def test_names_to_leave_out_of_the_decay(
    no_decay: tuple[str, ...], reason: str, status: Status
) -> None:
    """A list of names that matches nothing, or some of a kind, shows in what decays."""
    result = check(grouped(*no_decay))
    assert (result.reason, result.status) == (f"optimizer.{reason}", status), str(result)


def test_decay_on_vectors_alone_is_named() -> None:
    """The two groups are exchanged: 18 vectors of the debug model decay, and no matrix."""

    def make(model: nn.Module) -> Optimizer:
        groups: list[dict[str, Any]] = [
            {"params": [p for p in model.parameters() if p.ndim >= 2], "weight_decay": 0.0},
            {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.1},
        ]
        return AdamW(groups, lr=1e-3)

    result = check(make)
    assert (result.reason, result.status) == ("optimizer.decay_swapped", Status.FAIL)
    assert result.measured == "18 vectors decay, 0 of 11 matrices"


def test_which_vectors_decay_is_a_choice() -> None:
    """All decay, none decays by shape, or only new layers do on top of old ones: all healthy."""

    def new_head(model: nn.Module) -> Optimizer:
        named = dict(model.named_parameters())
        new = [p for n, p in named.items() if n.startswith(("head", "final_norm"))]
        rest = [p for n, p in named.items() if not n.startswith(("head", "final_norm"))]
        groups: list[dict[str, Any]] = [{"params": new}, {"params": rest, "weight_decay": 0.0}]
        return AdamW(groups, lr=1e-3)

    for make in (adamw(weight_decay=0.1), new_head, adamw(weight_decay=0.0)):
        assert check(make).reason == "optimizer.ok"
    result = check(lambda m: reference_optimizer(m, learning_rate=1e-3))
    assert "decay on 11 matrices and 0 vectors" in result.measured


def test_bfloat16_gains_are_a_warning_and_lost_updates_a_failure() -> None:
    """At 1.0 a bfloat16 step is 2 ** -8: gains stand still at 1e-3; at 1e-5 nearly all does."""
    result = check(adamw(lr=1e-3), debug().bfloat16())
    assert (result.reason, result.status) == ("optimizer.some_lost_to_rounding", Status.WARN)
    assert all("norm.weight" in name for name in result.numbers["names"])
    result = check(adamw(lr=1e-5), debug().bfloat16())
    assert (result.reason, result.status) == ("optimizer.lost_to_rounding", Status.FAIL)


def test_the_user_keeps_everything() -> None:
    """Weights, mode, gradients and random state come back; the skip names the argument."""
    model = debug().train()
    before, state = copy.deepcopy(model.state_dict()), torch.get_rng_state()
    check(adamw(), model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.training
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), state)
    report = diagnose(Pipeline(model), only=["optimizer"])
    assert report["optimizer"].numbers["missing"] == ["make_optimizer"]


def test_inputs_need_targets() -> None:
    """Half a batch is a mistake of the caller."""
    with pytest.raises(ValueError, match="belong together"):
        check_optimizer(debug(), adamw(), torch.zeros(2, 4, dtype=torch.long))


def test_what_a_small_update_is_compared_with_is_what_healthy_models_measure() -> None:
    """Adam moves each number by about the rate: 1e-3 on weights of spread 0.02 is about 0.05."""
    torch.manual_seed(0)
    for std, low, high in ((None, 0.002, 0.004), (0.02, 0.005, 0.06)):
        model = TinyGPT(std=std)
        result = check_optimizer(model, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3))
        assert low < result.numbers["update_to_weight"][0] < high
    assert "0.003 to 0.06" in TOO_SMALL.expected
