"""Which rule do the first updates of an optimizer follow? They are recomputed from gradients.

Any gradient will do to learn a rule, so they are made up: from far below eps to 1, another one at
each step. Every update is predicted from the weights before it; one prediction per hypothesis.

Shapes: S steps, E elements that are looked at, P parameters.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from diagnostics._optimizer_step import (
    MakeOptimizer,
    Move,
    as_optimizers,
    set_usual_rate,
)
from diagnostics._probe import JITTER_STD, Probe

STEPS = 5  # after that the correction of a usual first average is still 0.4
ELEMENTS = 24  # of each parameter
SIZES = (-11.0, 0.0)  # powers of ten, by element
# Gap between prediction and update, over the largest update. Measured in float64: 1e-12; with
# averages in float32: 3e-7; all in float32: 2e-4.
EXACT, ROUGH = 3e-6, 2e-3
PLAIN_ADAM, PLAIN_SGD = ("adam", "adamw"), ("sgd", "sgdw")
# words that people put around the name of an optimizer that they write out by hand
MODEST = (
    *("own", "my", "custom", "simple", "tiny", "plain", "basic", "naive", "toy", "reference"),
    *("hand", "written", "manual", "from", "scratch", "optimizer", "broken", "fixed"),
)


@dataclass(frozen=True)
class Trajectory:
    """A few updates of one optimizer, element by element; the settings are those of the groups.

    place: of the element's parameter in `names`; order: the same, counting all parameters held.
    """

    kind: str  # the class of the optimizer
    is_torch: bool  # whether that class is torch's own
    names: list[str]
    place: Tensor  # (E,)
    order: Tensor  # (E,)
    group: Tensor  # (E,)
    is_vector: Tensor  # (E,)
    before: Tensor  # (S, E)
    after: Tensor  # (S, E)
    gradients: Tensor  # (S, E)
    settings: Mapping[str, Tensor]  # (E,) each; NaN where no setting was found
    tolerance: float

    @property
    def is_plain(self) -> bool:
        """Whether the name of the class promises the rule of Adam or SGD, and no variant of it."""
        return _bare(self.kind) in (*PLAIN_ADAM, *PLAIN_SGD)

    @property
    def family(self) -> str:
        """The rule that name or settings claim: "adam", "sgd", or "" for none."""
        if self.is_torch and not self.is_plain:
            return ""  # RAdam and NAdam have the settings of Adam
        adam = all(self._has(name) for name in ("rate", "beta1", "beta2", "eps"))
        if adam and _bare(self.kind) not in PLAIN_SGD:
            return "adam"
        return "sgd" if self._has("rate") and _bare(self.kind) in PLAIN_SGD else ""

    @property
    def claims_decoupled(self) -> bool:
        """Whether weight decay apart from the gradient is promised, by name or by a setting."""
        promised = self.settings["decoupled_weight_decay"] == 1
        return "adamw" in self.kind.lower() or bool(promised.all())

    @property
    def is_uncorrected_by_choice(self) -> bool:
        """Whether a setting says that the averages are not corrected, as BERT's Adam has it."""
        flags = (self.settings[name] == 0 for name in ("correct_bias", "bias_correction"))
        return any(bool(flag.all()) for flag in flags)

    @cached_property
    def moved(self) -> Tensor:
        """What each step did (S, E)."""
        return self.after - self.before

    def gaps(self, predicted: Tensor) -> Tensor:
        """Return (P,): the largest gap between predicted and real updates of each parameter."""
        size = self.moved.abs().max().clamp_min(1e-300)
        gap = ((predicted - self.moved).abs() / size).nan_to_num(nan=torch.inf).amax(0)
        return torch.zeros(len(self.names), dtype=gap.dtype).scatter_reduce(
            0, self.place, gap, "amax"
        )

    def _has(self, name: str) -> bool:
        return bool(self.settings[name].isfinite().all())


@dataclass(frozen=True)
class Rule:
    """One hypothesis: a way to compute the update, with its departures from the usual one."""

    correction: str = ""
    counter: str = ""
    averages: str = ""
    decay: str = ""
    eps: str = ""

    @property
    def departures(self) -> list[tuple[str, str]]:
        """(part of the rule, what is done there), for every part that is not as usual."""
        pairs = [(field.name, getattr(self, field.name)) for field in fields(self)]
        return [(part, how) for part, how in pairs if how]


@dataclass(frozen=True)
class RuleReading:
    """What the updates of one optimizer turned out to follow.

    rule: the usual one where `names` is empty; None where nothing that is known here fits.
    names: of the parameters that do not follow the usual rule.
    """

    trajectory: Trajectory
    rule: Rule | None
    names: list[str]
    gap: float  # from the usual rule
    fit: float  # from `rule`


def read_rules(
    probe: Probe, make_optimizer: MakeOptimizer, moves: Iterable[Move]
) -> list[RuleReading]:
    """Return what each of the optimizers does, for those that claim a rule that is known here.

    moves: of the parameters that have a gradient.
    """
    dense = {move.name for move in moves if move.is_dense}
    return [_read(each) for each in record(probe, make_optimizer, dense) if each.family]


def record(probe: Probe, make_optimizer: MakeOptimizer, dense: Collection[str]) -> list[Trajectory]:
    """Step each optimizer a few times on a copy, with made-up gradients.

    dense: names of the parameters whose gradient has a number for every element.
    """
    with (
        probe.seeded("optimizer"),
        probe.model(train=True, exact=True, jitter=JITTER_STD) as model,
    ):
        optimizers = as_optimizers(make_optimizer(model))
        set_usual_rate(probe, optimizers)
        names = {id(p): name for name, p in model.named_parameters() if name in dense and p.numel()}
        return [_record_one(probe, each, names) for each in optimizers]


def _record_one(probe: Probe, optimizer: Any, names: dict[int, str]) -> Trajectory:
    groups = optimizer.param_groups
    held = [(number, p) for number, group in enumerate(groups) for p in group["params"]]
    moving = [(order, g, p) for order, (g, p) in enumerate(held) if id(p) in names]
    chosen = [
        torch.linspace(0, p.numel() - 1, min(ELEMENTS, p.numel())).long() for _, _, p in moving
    ]
    counts = torch.tensor([len(each) for each in chosen], dtype=torch.long)

    def spread(values: list[Any]) -> Tensor:
        dtype = torch.float64 if values and isinstance(values[0], float) else None
        return torch.tensor(values, dtype=dtype).repeat_interleave(counts)

    def read() -> Tensor:
        parts = [p.detach().flatten()[i.to(p.device)] for i, (*_, p) in zip(chosen, moving)]  # noqa: B905
        return torch.cat(parts).double().cpu() if parts else torch.zeros(0, dtype=torch.float64)

    generator = probe.generator("rule")
    sizes = [SIZES[0] + (SIZES[1] - SIZES[0]) * _rand(p, generator) for *_, p in moving]
    states: list[Tensor] = [read()]
    gradients = []
    for _ in range(STEPS):
        for size, (*_, p) in zip(sizes, moving, strict=True):
            noise = torch.randn(p.shape, generator=generator, dtype=torch.float64)
            p.grad = (10.0**size * noise).to(p)
        gradients.append(_gradients(moving, chosen))
        optimizer.step()
        states.append(read())
    return Trajectory(
        type(optimizer).__name__,
        type(optimizer).__module__.startswith("torch.optim"),
        [names[id(p)] for *_, p in moving],
        spread(list(range(len(moving)))),
        spread([order for order, *_ in moving]),
        spread([g for _, g, _ in moving]),
        spread([p.ndim < 2 for *_, p in moving]),
        torch.stack(states[:-1]),
        torch.stack(states[1:]),
        torch.stack(gradients),
        {
            name: spread([_setting(optimizer, groups[g], spellings) for _, g, _ in moving])
            for name, spellings in _SETTINGS.items()
        },
        EXACT if _is_exact(groups, [p for *_, p in moving]) else ROUGH,
    )


def _is_exact(groups: list[dict[str, Any]], moving: list[Tensor]) -> bool:
    """Whether all is computed in float64: a rate may be a tensor of its own type."""
    rates = [group["lr"] for group in groups if isinstance(group.get("lr"), Tensor)]
    return all(tensor.dtype == torch.float64 for tensor in (*moving, *rates))


def _rand(parameter: Tensor, generator: torch.Generator) -> Tensor:
    return torch.rand(parameter.shape, generator=generator, dtype=torch.float64)


def _gradients(moving: list[Any], chosen: list[Tensor]) -> Tensor:
    parts = [p.grad.flatten()[i.to(p.device)] for i, (*_, p) in zip(chosen, moving, strict=True)]
    return torch.cat(parts).double().cpu() if parts else torch.zeros(0, dtype=torch.float64)


# by the names in use: in groups, or as attributes of an optimizer written by hand
_SETTINGS: dict[str, tuple[str, ...]] = {
    "rate": ("lr", "learning_rate"),
    "beta1": ("beta1", "b1", "betas"),
    "beta2": ("beta2", "b2", "betas"),
    "eps": ("eps", "epsilon"),
    "decay": ("weight_decay", "wd", "decay"),
    "momentum": ("momentum", "mu"),
    "dampening": ("dampening",),
    "nesterov": ("nesterov",),
    "maximize": ("maximize",),
    "amsgrad": ("amsgrad",),
    "decoupled_weight_decay": ("decoupled_weight_decay",),
    "correct_bias": ("correct_bias",),
    "bias_correction": ("bias_correction",),
}


def _setting(optimizer: Any, group: Mapping[str, Any], spellings: tuple[str, ...]) -> float:
    for name in spellings:
        value = group.get(name, getattr(optimizer, name, None))
        if name == "betas" and isinstance(value, (tuple, list)):
            if len(value) != 2:  # three averages: another rule
                return float("nan")
            value = value[0 if "beta1" in spellings else 1]
        try:
            if value is not None:
                return float(value)
        except (TypeError, ValueError):
            continue
    return float("nan")


def _bare(kind: str) -> str:
    """Return the lower-case name of a class without the words that mean nothing."""
    bare = kind.lower().replace("_", "")
    for word in MODEST:
        bare = bare.replace(word, "")
    return bare


# ---- hypotheses ------------------------------------------------------------------------------

Counter = Callable[[Trajectory, int], Tensor]


def _counted_from(first: int) -> Counter:
    return lambda t, s: torch.full_like(t.place, s + first - 1)


COUNTERS: dict[str, Counter] = {
    "": lambda t, s: torch.full_like(t.place, s),
    "per parameter": lambda t, s: (s - 1) * len(t.names) + t.place + 1,
    "per parameter held": lambda t, s: (s - 1) * (int(t.order.max()) + 1) + t.order + 1,
    "per group": lambda t, s: (s - 1) * (int(t.group.max()) + 1) + t.group + 1,
    "stuck": lambda t, s: torch.full_like(t.place, 1),
    "one behind": lambda t, s: torch.full_like(t.place, max(1, s - 1)),
    **{f"from {n}": _counted_from(n) for n in range(2, 33)},
}
DEPARTURES = {
    "correction": ("none", "first only", "second only"),
    "counter": tuple(name for name in COUNTERS if name),
    "averages": ("no root", "betas swapped", "first summed", "second summed", "one beta"),
    "decay": ("coupled", "after", "unscaled", "twice", "both", "outwards"),
    "eps": ("before correction", "inside root", "times correction", "missing"),
}


def _read(t: Trajectory) -> RuleReading:
    predict = predict_adam if t.family == "adam" else predict_sgd
    usual = torch.stack([t.gaps(predict(t, rule)) for rule in _usual(t)])  # (rules, P)
    best = usual.amin(0)
    wrong = ~(best <= t.tolerance)
    gap = float(best.max()) if len(best) else 0.0
    if not wrong.any():
        return RuleReading(t, Rule(), [], gap, gap)
    names = [name for name, is_wrong in zip(t.names, wrong.tolist(), strict=True) if is_wrong]
    for rule in _hypotheses(t):
        fit = float(t.gaps(predict(t, rule))[wrong].max())
        if fit <= t.tolerance and fit <= 0.2 * gap:
            return RuleReading(t, rule, names, gap, fit)
    return RuleReading(t, None, names, gap, gap)


def _usual(t: Trajectory) -> list[Rule]:
    """Return the rules that are as they should be; some decay no vectors, whatever the setting."""
    if t.family == "sgd":
        return [
            Rule(averages=how, decay=decay)
            for how in ("", "mean", "from zero")
            for decay in ("coupled", "", "absent", "not vectors")
        ]
    rules = [Rule(), Rule(decay="not vectors"), Rule(decay="absent")]  # the last: decay_ignored
    rules += [] if t.claims_decoupled else [Rule(decay="coupled")]
    if t.is_uncorrected_by_choice:
        rules += [replace(rule, correction="none") for rule in rules]
    return rules


def _hypotheses(t: Trajectory) -> Iterator[Rule]:
    """Yield rules with one departure, then with two; the plainest explanation comes first."""
    if t.family == "sgd":
        for decay in ("coupled", ""):
            yield Rule(averages="momentum ignored", decay=decay)
        return
    single = [(part, how) for part, ways in DEPARTURES.items() for how in ways]
    for part, how in single:
        yield replace(Rule(), **{part: how})
    few = [(part, how) for part, how in single if not how.startswith("from ")]
    for (part, how), (other, way) in itertools.combinations(few, 2):
        if part != other:
            yield replace(Rule(), **{part: how, other: way})


def predict_adam(t: Trajectory, rule: Rule) -> Tensor:
    """Return the updates (S, E) of Adam under a rule."""
    s = t.settings
    beta1, beta2 = s["beta1"], s["beta2"]
    if rule.averages == "betas swapped":
        beta1, beta2 = beta2, beta1
    elif rule.averages == "one beta":
        beta2 = beta1
    share1 = 1.0 if rule.averages == "first summed" else 1 - beta1
    share2 = 1.0 if rule.averages == "second summed" else 1 - beta2
    first, second, largest = (torch.zeros_like(beta1) for _ in range(3))
    updates = []
    for step, (weight, raw) in enumerate(zip(t.before, t.gradients, strict=True), 1):
        gradient = torch.where(s["maximize"] == 1, -raw, raw)
        if rule.decay in ("coupled", "both"):
            gradient = gradient + _decay(t) * weight
        first = beta1 * first + share1 * gradient
        second = beta2 * second + share2 * gradient.square()
        largest = torch.maximum(largest, second)
        count = COUNTERS[rule.counter](t, step)
        both = rule.correction == ""
        one = 1 - beta1**count if both or rule.correction == "first only" else 1.0
        two = 1 - beta2**count if both or rule.correction == "second only" else torch.ones(())
        used = torch.where(s["amsgrad"] == 1, largest, second)
        size = _denominator(rule, used, torch.as_tensor(two, dtype=used.dtype), s["eps"])
        updates.append(_apply(t, rule, weight, -s["rate"] * first / one / size))
    return torch.stack(updates)


def _denominator(rule: Rule, second: Tensor, two: Tensor, eps: Tensor) -> Tensor:
    """Return the root of the second average plus eps, in the places where people put it."""
    if rule.averages == "no root":
        return second / two + eps
    root = (second / two).sqrt()
    return {
        "": root + eps,
        "before correction": root + eps / two.sqrt(),
        "inside root": (second / two + eps).sqrt(),
        "times correction": root + eps * two.sqrt(),
        "missing": root,
    }[rule.eps]


def predict_sgd(t: Trajectory, rule: Rule) -> Tensor:
    """Return the updates (S, E) of SGD with momentum under a rule; its decay is coupled."""
    s = t.settings
    mu, damping = s["momentum"].nan_to_num(0.0), s["dampening"].nan_to_num(0.0)
    if rule.averages == "momentum ignored":
        mu = torch.zeros_like(mu)
    share = 1 - mu if rule.averages == "mean" else 1 - damping
    buffer = torch.zeros_like(mu)
    updates = []
    for step, (weight, raw) in enumerate(zip(t.before, t.gradients, strict=True), 1):
        gradient = torch.where(s["maximize"] == 1, -raw, raw)
        if rule.decay == "coupled":
            gradient = gradient + _decay(t) * weight
        begins = step == 1 and rule.averages == ""
        buffer = gradient if begins else mu * buffer + share * gradient
        ahead = torch.where(s["nesterov"] == 1, gradient + mu * buffer, buffer)
        used = torch.where(mu == 0, gradient, ahead)
        updates.append(_apply(t, rule, weight, -s["rate"] * used))
    return torch.stack(updates)


def _decay(t: Trajectory) -> Tensor:
    return t.settings["decay"].nan_to_num(0.0)


def _apply(t: Trajectory, rule: Rule, weight: Tensor, update: Tensor) -> Tensor:
    """Return the whole change of the weights: the update, and the decay where the rule has it."""
    pull = t.settings["rate"] * _decay(t)
    return {
        "": update - pull * weight,
        "not vectors": update - pull * weight * ~t.is_vector,
        "absent": update,
        "coupled": update,
        "both": update - pull * weight,
        "after": update - pull * (weight + update),
        "unscaled": update - _decay(t) * weight,
        "twice": update - (2 - pull) * pull * weight,
        "outwards": update + pull * weight,
    }[rule.decay]
