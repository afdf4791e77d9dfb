"""The rule of an optimizer: recomputed from its gradients, and named only where a mistake fits."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn, optim

from diagnostics import Status, check_optimizer
from tests.diagnostics.tiny import Bigram, Recurrent, TinyGPT, random_pair

V = 19
Make = Callable[[nn.Module], Any]


def check(make: Make, model: nn.Module | None = None) -> Any:
    """Check on a tiny GPT with a batch of random tokens."""
    torch.manual_seed(0)
    return check_optimizer(model or TinyGPT(V), make, *random_pair(V), vocab_size=V)


class Written(optim.Optimizer):
    """Adam with decoupled decay written out, and one thing to choose."""

    def __init__(
        self, parameters: Iterable[Any], fault: str = "", lr: float = 1e-3, **settings: Any
    ) -> None:
        defaults = {"lr": lr, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1}
        super().__init__(parameters, defaults | settings)
        self.fault, self.count = fault, 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        self.count += self.fault not in ("per parameter", "per group")
        for group in self.param_groups:
            self.count += self.fault == "per group"
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.count += self.fault == "per parameter"
                    self.update(parameter, group)

    def update(self, weight: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        assert weight.grad is not None
        fault, rate, decay, gradient = self.fault, group["lr"], group["weight_decay"], weight.grad
        state, (beta1, beta2) = self.state[weight], group["betas"]
        if not state:
            state["m"], state["v"] = torch.zeros_like(weight), torch.zeros_like(weight)
        if fault in ("coupled", "both"):
            gradient = gradient + decay * weight
        beta2 = beta1 if fault == "one beta" else beta2
        state["m"].mul_(beta1).add_(gradient, alpha=1.0 if fault == "first summed" else 1 - beta1)
        state["v"].mul_(beta2).add_(gradient.square(), alpha=1 - beta2)
        count = {"stuck": 1, "from two": self.count + 1}.get(fault, self.count)
        one, two = 1 - beta1**count, 1 - beta2**count
        if fault == "raw":
            one = two = 1.0
        mean, square = state["m"] / one, state["v"] / two
        size = {
            "no root": square + group["eps"],
            "inside": (square + group["eps"]).sqrt(),
            "scaled eps": square.sqrt() + group["eps"] * math.sqrt(two),
            "tensorflow": (state["v"].sqrt() + group["eps"]) / math.sqrt(two),
        }.get(fault, square.sqrt() + group["eps"])
        if fault == "cautious":
            mean = mean * (mean * gradient > 0)
        if fault == "twice":
            weight.mul_(1 - rate * decay)
        if fault not in ("after", "coupled", "ignored") and (fault != "vectors" or weight.ndim > 1):
            weight.mul_(1 - (1 if fault == "unscaled" else rate) * decay)
        weight.sub_(rate * mean / size)
        if fault == "after":
            weight.mul_(1 - rate * decay)


def written(fault: str, name: str = "MyAdamW", **settings: Any) -> Make:
    """The hand-written optimizer under a class name, with a fault."""
    kind = type(name, (Written,), {})
    return lambda model: kind(model.parameters(), fault, **settings)


FAULTS: dict[str, tuple[str, Status]] = {
    "raw": ("no_bias_correction", Status.FAIL),
    "per parameter": ("step_counter", Status.FAIL),
    "stuck": ("step_counter", Status.FAIL),
    "from two": ("step_counter", Status.FAIL),
    "no root": ("wrong_averages", Status.FAIL),
    "first summed": ("wrong_averages", Status.FAIL),
    "one beta": ("wrong_averages", Status.FAIL),
    "coupled": ("coupled_decay", Status.FAIL),
    "both": ("decay_twice", Status.FAIL),
    "twice": ("decay_twice", Status.FAIL),
    "unscaled": ("decay_too_strong", Status.FAIL),
    "after": ("decay_after_update", Status.WARN),
    "inside": ("eps_placement", Status.WARN),
    "scaled eps": ("eps_placement", Status.WARN),
    "tensorflow": ("eps_placement", Status.WARN),
    "ignored": ("decay_ignored", Status.WARN),
    "cautious": ("other_rule", Status.WARN),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_each_departure_from_adamw_has_its_name(fault: str) -> None:
    """The updates fit one wrong rule exactly, and the words say which."""
    reason, status = FAULTS[fault]
    result = check(written(fault))
    assert (result.reason, result.status) == (f"optimizer.{reason}", status), str(result)
    assert result.measured
    assert "learning rate" not in result.measured


@pytest.mark.parametrize("fault", ["raw", "per parameter", "coupled", "after", "scaled eps"])
@pytest.mark.parametrize("make_model", [Bigram, Recurrent])
def test_departures_are_named_on_other_architectures(
    fault: str, make_model: Callable[[int], nn.Module]
) -> None:
    """The rule does not depend on the model; a single parameter counts as one call counts."""
    reason = f"optimizer.{FAULTS[fault][0]}"
    if fault == "per parameter" and make_model is Bigram:
        reason = "optimizer.ok"  # of one parameter, once per parameter is once per step
    assert check(written(fault), make_model(V)).reason == reason


def test_a_counter_raised_per_group_and_a_decay_of_one_percent_without_the_rate() -> None:
    """Two groups make the counter go by two; 0.01 of a weight per step is weak enough to warn."""

    def grouped(model: nn.Module) -> optim.Optimizer:
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim < 2]
        kind = type("MyAdam", (Written,), {})
        groups = [{"params": matrices}, {"params": vectors, "weight_decay": 0.0}]
        return kind(groups, "per group")

    result = check(grouped)
    assert (result.reason, result.causes) == (
        "optimizer.step_counter",
        ("the step counter is raised inside the loop over groups",),
    )
    weak = check(written("unscaled", weight_decay=0.01))
    assert (weak.reason, weak.status) == ("optimizer.decay_without_rate", Status.WARN)


HEALTHY: dict[str, Make] = {
    "written": written(""),
    "written without decay": written("", weight_decay=0.0),
    "vectors left out inside": written("vectors"),
    "large eps": written("", eps=1e-3),
    "other betas": written("", betas=(0.8, 0.999)),
    "high rate": written("", lr=1e-2),
    "coupled, and called Adam": written("coupled", "MyAdam", weight_decay=0.0),
    "no correction, and says so": written("raw", "BertAdam", correct_bias=False),
    "a variant with a name of its own": written("cautious", "CautiousAdamW"),
    "another rule": written("cautious", "Lion"),
}


@pytest.mark.parametrize("name", HEALTHY)
def test_healthy_rules_pass(name: str) -> None:
    """The rule is recognised, or its name promises nothing that is known here."""
    result = check(HEALTHY[name])
    assert result.reason == "optimizer.ok", str(result)


TORCH: dict[str, Make] = {
    "Adam": lambda m: optim.Adam(m.parameters()),
    "AdamW": lambda m: optim.AdamW(m.parameters(), weight_decay=0.1),
    "fused": lambda m: optim.AdamW(m.parameters(), fused=True),
    "foreach": lambda m: optim.AdamW(m.parameters(), foreach=True),
    "amsgrad": lambda m: optim.AdamW(m.parameters(), amsgrad=True),
    "tensor rate": lambda m: optim.AdamW(m.parameters(), lr=torch.tensor(1e-3)),
    "decoupled Adam": lambda m: optim.Adam(
        m.parameters(), weight_decay=0.1, decoupled_weight_decay=True
    ),
    "NAdam": lambda m: optim.NAdam(m.parameters()),
    "RAdam": lambda m: optim.RAdam(m.parameters(), weight_decay=0.1, decoupled_weight_decay=True),
    "Adamax": lambda m: optim.Adamax(m.parameters()),
    "Adagrad": lambda m: optim.Adagrad(m.parameters()),
    "Adadelta": lambda m: optim.Adadelta(m.parameters()),
    "ASGD": lambda m: optim.ASGD(m.parameters()),
    "Rprop": lambda m: optim.Rprop(m.parameters()),
    "RMSprop": lambda m: optim.RMSprop(m.parameters()),
    "RMSprop centered": lambda m: optim.RMSprop(m.parameters(), centered=True),
    "RMSprop momentum": lambda m: optim.RMSprop(m.parameters(), lr=1e-3, momentum=0.9),
    "Adafactor": lambda m: optim.Adafactor(m.parameters()),
    "SGD": lambda m: optim.SGD(m.parameters(), lr=0.1),
    "SGD decay": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4),
    "nesterov": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, nesterov=True),
    "dampening": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, dampening=0.5),
    "fused SGD": lambda m: optim.SGD(m.parameters(), lr=0.1, momentum=0.9, fused=True),
    "Muon": lambda m: optim.Muon(m.parameters(), lr=0.02),
}


@pytest.mark.parametrize("name", TORCH)
def test_torch_s_own_optimizers_pass(name: str) -> None:
    """Default settings and every way of computing them; Muon takes matrices only."""
    result = check(TORCH[name], Bigram(V) if name == "Muon" else None)
    assert (result.reason, result.status) == ("optimizer.ok", Status.PASS), str(result)
    known = name not in ("NAdam", "RAdam", "Adafactor", "Muon", "ASGD", "Rprop")
    known = known and not name.startswith(("RMSprop", "Adad", "Adag", "Adamax"))
    assert ("follows the formula" in result.measured) == known


@pytest.mark.parametrize("seed", range(3))
def test_rmsprop_is_judged_at_the_size_that_its_steps_keep(seed: int) -> None:
    """Its first step is ten rates by its own definition; a rate of 0.3 is too high all the same."""
    torch.manual_seed(seed)
    batch = random_pair(V)
    healthy = check_optimizer(TinyGPT(V, std=0.02), TORCH["RMSprop"], *batch)
    assert healthy.reason == "optimizer.ok", str(healthy)
    wild = check_optimizer(
        TinyGPT(V, std=0.02), lambda m: optim.RMSprop(m.parameters(), lr=0.3), *batch
    )
    assert wild.reason == "optimizer.update_too_large"


class PlainSGD(optim.Optimizer):
    """SGD with momentum written out; its buffer may be forgotten."""

    def __init__(self, parameters: Iterable[Any], keep: bool, averaged: bool = False) -> None:
        super().__init__(parameters, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.0})
        self.keep, self.averaged = keep, averaged

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take one step."""
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    last = self.state[p].get("buffer", torch.zeros_like(p))
                    share = 1 - group["momentum"] if self.averaged else 1.0
                    buffer = group["momentum"] * last + share * p.grad
                    if self.keep:
                        self.state[p]["buffer"] = buffer
                    p.sub_(group["lr"] * buffer)


def kept_buffer(model: nn.Module, averaged: bool) -> optim.Optimizer:
    """The healthy one."""
    return type("MySGD", (PlainSGD,), {})(model.parameters(), keep=True, averaged=averaged)


def test_sgd_that_forgets_its_momentum_is_named() -> None:
    """A buffer that starts at 0 every time is plain SGD; an average is another healthy way."""
    kind = type("MySGD", (PlainSGD,), {})
    forgetful = check(lambda m: kind(m.parameters(), keep=False))
    assert (forgetful.reason, forgetful.status) == ("optimizer.momentum_ignored", Status.FAIL)
    for averaged in (False, True):
        healthy = check(partial(kept_buffer, averaged=averaged))
        assert healthy.reason == "optimizer.ok", str(healthy)


class ByHand:
    """No torch optimizer: groups without settings, which are attributes of the object."""

    def __init__(self, parameters: Iterable[nn.Parameter], start: int) -> None:
        self.param_groups = [{"params": list(parameters)}]
        self.lr, self.b1, self.b2, self.eps, self.t = 1e-3, 0.9, 0.999, 1e-8, start
        self.state: dict[int, tuple[Tensor, Tensor]] = {}

    @torch.no_grad()
    def step(self) -> None:
        """Take one step of Adam."""
        self.t += 1
        for p in self.param_groups[0]["params"]:
            if p.grad is None:
                continue
            m, v = self.state.get(id(p), (torch.zeros_like(p), torch.zeros_like(p)))
            m = self.b1 * m + (1 - self.b1) * p.grad
            v = self.b2 * v + (1 - self.b2) * p.grad**2
            self.state[id(p)] = (m, v)
            mean, square = m / (1 - self.b1**self.t), v / (1 - self.b2**self.t)
            p.sub_(self.lr * mean / (square.sqrt() + self.eps))


def test_settings_are_read_from_attributes_too() -> None:
    """A tutorial's Adam keeps beta1 and beta2 on itself; its counter may begin at 1 already."""
    kind = type("AdamFromScratch", (ByHand,), {})
    assert check(lambda m: kind(m.parameters(), 0)).reason == "optimizer.ok"
    late = check(lambda m: kind(m.parameters(), 1))
    assert (late.reason, late.causes) == (
        "optimizer.step_counter",
        ("the step counter begins with 2",),
    )
    zero = check(lambda m: kind(m.parameters(), -1))
    assert zero.reason == "optimizer.not_finite"


def test_a_correction_of_zero_is_named() -> None:
    """1 - beta ** 0 divides by 0: every element with a gradient becomes NaN."""

    class Late(Written):
        def update(self, weight: Tensor, group: dict[str, Any]) -> None:
            self.count -= 1
            super().update(weight, group)
            self.count += 1

    kind = type("MyAdam", (Late,), {})
    result = check(lambda m: kind(m.parameters()))
    assert result.reason == "optimizer.not_finite"
    assert "1 - beta ** 0" in result.causes[0]


def test_lbfgs_is_told_and_not_judged() -> None:
    """It needs a closure: its groups are compared, and nothing else."""
    result = check(lambda m: optim.LBFGS(m.parameters()))
    assert (result.reason, result.status) == ("optimizer.needs_closure", Status.WARN)


class TrustRatio(Written):
    """LAMB: the step of each parameter is scaled by its norm over that of the update."""

    def update(self, weight: Tensor, group: dict[str, Any]) -> None:
        """Update one parameter."""
        before = weight.clone()
        super().update(weight, group)
        size = float(before.norm())
        ratio = size / float((weight - before).norm()) * group["lr"]
        if size or self.fault == "stuck at 0":
            weight.copy_(before + ratio * (weight - before))


def test_a_trust_ratio_that_holds_zeros_is_not_called_rounding() -> None:
    """Biases that begin at 0 have norm 0, and a factor of 0 for ever."""
    model = TinyGPT(V)
    nn.init.zeros_(model.norm.bias)
    result = check(lambda m: TrustRatio(m.parameters(), "stuck at 0"), copy.deepcopy(model))
    assert (result.reason, result.status) == ("optimizer.stuck_at_zero", Status.FAIL)
    assert "norm.bias" in result.numbers["names"]
    assert check(lambda m: TrustRatio(m.parameters()), model).reason == "optimizer.ok"


def test_averages_in_16_bits_are_told_and_not_accused() -> None:
    """A memory-saving AdamW is 0.4 % off the formula: within what is called near."""

    class Narrow(Written):
        def update(self, weight: Tensor, group: dict[str, Any]) -> None:
            super().update(weight, group)
            for average in self.state[weight].values():
                average.copy_(average.bfloat16())

    kind = type("AdamW", (Narrow,), {})
    result = check(lambda m: kind(m.parameters()))
    assert result.reason == "optimizer.ok"
    assert "of Adam" in result.measured
