"""The parameters: held by the optimizer, reached by gradients, and moved by a sane amount.

Of a large parameter a spread-out sample of numbers is compared, so that the cost and the memory
of a look do not grow with the model. Every verdict needs several looks in a row.

Shapes: P parameters, S sampled numbers of all of them together.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from diagnostics._state import some
from diagnostics._text import say
from diagnostics.monitor.events import Speaker
from diagnostics.monitor.idle import IdleWatch
from diagnostics.monitor.update import gradient_norms
from diagnostics.monitor.values import Values

SAMPLE_MAX = 4096  # numbers of one parameter
RATIO_MAX = 0.4  # of update to matrices; healthy runs at 3e-3 measured: 0.17
# of the first one: RMSprop begins with ten times its rate, and Adam with all of it in every number;
# healthy runs measured: 0.43 (at 1e-3 and 1e-2)
RATIO_FIRST_MAX = 0.6
STEP_MIN = 5e-3  # of one number in one update, root mean square: weights that were 0 may move less
SMALL = 1e-7  # of update to weights
LOOKS = 3  # in a row without movement
APART_MIN = 15  # updates between looks that tell that nothing moves: longer than accumulation
Judge = Callable[[list[float], list[float]], None]  # (way moved, size) of each parameter
HALVES = (torch.float16, torch.bfloat16)


@dataclass
class Sample:
    """Numbers of all watched parameters at one moment, as one vector."""

    step: int
    parameters: list[nn.Parameter]
    full: frozenset[str]  # names that were taken whole
    numbers: Tensor  # (S,)
    sizes: list[int]


@dataclass
class ParameterWatch:
    """Looks at the parameters from time to time: `look` at an update, `look_again` at the next."""

    speaker: Speaker
    values: Values
    model: nn.Module
    optimizers: Sequence[Optimizer] = ()
    names: dict[int, str] = field(default_factory=dict)  # id -> name, trainable ones only
    trainable: list[nn.Parameter] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)  # group -> last update-to-weight ratio
    gradients_seen: bool | None = None
    _last: Sample | None = None
    _now: Sample | None = None  # waits for the next update
    _rate: float | None = None
    _rate_max: float = 0.0
    _began: int | None = None  # update of the first look
    _idle: IdleWatch = field(init=False)
    _missed: frozenset[str] = frozenset()  # not in the optimizer
    _still: dict[str, int] = field(default_factory=dict)
    _small: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._idle = IdleWatch(self.speaker)

    def refresh(self) -> None:
        """Read the list of parameters again: layers may have been replaced or unfrozen."""
        named = [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]
        self.names = {id(p): n for n, p in named}
        self.trainable = [p for _, p in named]

    def look(self, step: int, norms: list[Tensor] | None, rate: float | None) -> None:
        """Compare with the look before, and remember the weights for the next update.

        norms: of the gradients of `with_gradient()`, where they were computed anyway.
        """
        self.refresh()
        self._judge_optimizer(step)
        if not self.trainable:
            return
        self._ask_gradients(step, norms)
        now = self._sample(step)
        before = self._last
        self._began = step if self._began is None else self._began
        if before is not None and step - before.step >= APART_MIN:
            self._ask_moves(before, now, lambda moved, sizes: self._judge_moves(now, moved, rate))
        if before is None or step - before.step >= APART_MIN:
            self._last = now
        self._now = now
        self._rate, self._rate_max = rate, max(self._rate_max, rate or 0.0)

    def look_again(self, step: int) -> None:
        """Measure the one update since `look`."""
        before, self._now = self._now, None
        if before is None:
            return
        now = self._sample(step, before.full)
        self._ask_moves(before, now, partial(self._judge_ratios, before, now))

    def with_gradient(self) -> list[nn.Parameter]:
        """Return the trainable parameters that hold a gradient."""
        return [p for p in self.trainable if p.grad is not None]

    def groups(self) -> dict[str, list[nn.Parameter]]:
        """Return the parameters by group of the optimizer; one group where there is none."""
        if not self.optimizers:
            return {"all parameters": self.trainable}
        several = len(self.optimizers) > 1
        return {
            (f"optimizer {number} group {index}" if several else f"group {index}"): group["params"]
            for number, optimizer in enumerate(self.optimizers)
            for index, group in enumerate(optimizer.param_groups)
        }

    # ---- what is measured --------------------------------------------------------------------

    def _sample(self, step: int, full: frozenset[str] | None = None) -> Sample:
        if full is None:
            full = frozenset(name for name, looks in self._still.items() if looks >= LOOKS - 1)
        home = self.trainable[0].device
        parts = []
        for parameter in self.trainable:
            flat = parameter.detach().reshape(-1)
            if flat.numel() > SAMPLE_MAX and self.names[id(parameter)] not in full:
                flat = flat[:: math.ceil(flat.numel() / SAMPLE_MAX)]
            parts.append(flat.to(home, torch.float32))
        return Sample(step, self.trainable, full, torch.cat(parts), [len(part) for part in parts])

    def _ask_moves(self, before: Sample, now: Sample, judge: Judge) -> None:
        same = len(before.parameters) == len(now.parameters) and all(
            a is b for a, b in zip(before.parameters, now.parameters, strict=True)
        )
        if not same or before.full != now.full:
            return
        moved = torch._foreach_norm(list((now.numbers - before.numbers).split(now.sizes)))
        sizes = torch._foreach_norm(list(now.numbers.split(now.sizes)))
        count = len(moved)
        self.values.ask([*moved, *sizes], lambda told: judge(told[:count], told[count:]))

    def _ask_gradients(self, step: int, norms: list[Tensor] | None) -> None:
        holders = self.with_gradient()
        self.gradients_seen = bool(holders)
        if not holders:
            return
        if norms is None or len(norms) != len(holders):
            norms = gradient_norms(holders)
        names = [self.names[id(p)] for p in holders]
        self.values.ask(
            norms,
            lambda told: self._idle.see(
                step, self.names.values(), dict(zip(names, told, strict=True))
            ),
        )

    # ---- what is said ------------------------------------------------------------------------

    def _judge_optimizer(self, step: int) -> None:
        if not self.optimizers:
            return
        held = {id(p) for params in self.groups().values() for p in params}
        missing = [name for key, name in self.names.items() if key not in held]
        self._missed = frozenset(missing)
        if not missing or len(missing) == len(self.names):
            return  # an optimizer over flat or sharded copies holds none of them
        foreign = len(held - {id(p) for p in self.model.parameters()})
        self.speaker.speak(
            "optimizer_misses",
            step,
            say(
                "the optimizer does not hold {n:trainable parameter|trainable parameters} of the "
                "model: {names}",
                n=len(missing),
                names=some(missing),
            ),
            say("all {total} in it", total=len(self.names)),
            cause=say(
                "it holds {n} that the model does not have: it was built before layers were "
                "replaced",
                n=foreign,
            )
            if foreign
            else say("it was built from a part of the model"),
            measured=float(len(missing)),
            names=missing,
        )

    def _judge_moves(self, now: Sample, moved: list[float], rate: float | None) -> None:
        names = [self.names.get(id(p), "?") for p in now.parameters]
        if rate == 0:
            return  # `monitor.rate_zero` has the word
        if not all(map(math.isfinite, moved)):
            return  # weights that are not finite are reported by the loss
        if not any(moved):
            self._still["*"] = self._still.get("*", 0) + 1
            if self._still["*"] >= LOOKS:
                self._say_still(now.step)
            return
        self._still.pop("*", None)
        for name, parameter, way in zip(names, now.parameters, moved, strict=True):
            # half precision rounds small updates of a gain of 1 away: known, and not a frozen layer
            known = parameter.dtype in HALVES or self._idle.is_idle(name) or name in self._missed
            self._still[name] = self._still.get(name, 0) + 1 if way == 0 and not known else 0
        stuck_names = [n for n in names if self._still[n] > LOOKS and n in now.full]
        if stuck_names:
            self.speaker.speak(
                "parameters_still",
                now.step,
                say(
                    "{n:parameter has|parameters have} a gradient and never moved: {names}",
                    n=len(stuck_names),
                    names=some(stuck_names),
                ),
                say("a change in each of {looks} looks", looks=LOOKS),
                cause=say("their group has a rate of 0, or something writes the old values back"),
                measured=0.0,
                names=stuck_names,
            )

    def _say_still(self, step: int) -> None:
        if not self.gradients_seen:
            cause = say("no parameter holds a gradient: backward is not called, or not on this")
        elif all(p.dtype in HALVES for p in self.trainable):
            cause = say("half precision rounds the updates away: the rate is too low for it")
        else:
            cause = say("optimizer.step() is not called, or works on another model's parameters")
        self.speaker.speak(
            "weights_still",
            step,
            say("no weight has moved between the last {looks} looks", looks=LOOKS + 1),
            say("a change with every update"),
            cause=cause,
            measured=0.0,
        )

    def _judge_ratios(
        self, before: Sample, now: Sample, moved: list[float], sizes: list[float]
    ) -> None:
        places = {id(p): index for index, p in enumerate(now.parameters)}
        for group, members in self.groups().items():
            found = [places[id(p)] for p in members if id(p) in places]
            # gains and biases start at 1 or 0 and say nothing about the rate, if there is more
            found = [i for i in found if now.parameters[i].ndim > 1] or found
            # a sample stands for the whole parameter
            weight = [now.parameters[i].numel() / max(now.sizes[i], 1) for i in found]
            way = math.sqrt(sum(w * moved[i] ** 2 for w, i in zip(weight, found, strict=True)))
            size = math.sqrt(sum(w * sizes[i] ** 2 for w, i in zip(weight, found, strict=True)))
            count = sum(now.parameters[i].numel() for i in found)
            if found and math.isfinite(way) and size > 0 and now.step == before.step + 1:
                self.ratios[group] = way / size
                most = RATIO_FIRST_MAX if before.step == self._began else RATIO_MAX
                self._judge_ratio(now.step, group, way / size, way / math.sqrt(count), most)

    def _judge_ratio(self, step: int, group: str, ratio: float, rms: float, most: float) -> None:
        if ratio > most and rms > STEP_MIN:
            self.speaker.speak(
                "updates_too_large",
                step,
                say(
                    "one update moved the weights of {group} by {ratio} of their size",
                    group=group,
                    ratio=ratio,
                ),
                say("about 0.001 to 0.1, at most {limit}", limit=most),
                cause=say("the learning rate is too high for weights of this size"),
                measured=ratio,
                key=group,
            )
        # the end of a schedule that falls to 0 is meant to be small
        fading = self._rate is not None and self._rate < 0.01 * self._rate_max
        tiny = 0 < ratio < SMALL and not fading
        self._small[group] = self._small.get(group, 0) + 1 if tiny else 0
        if self._small[group] >= LOOKS:
            self.speaker.speak(
                "updates_too_small",
                step,
                say(
                    "one update moves the weights of {group} by {ratio} of their size",
                    group=group,
                    ratio=ratio,
                ),
                say("about 0.001"),
                cause=say("the learning rate is too low, or the gradient was scaled down"),
                measured=ratio,
                key=group,
            )
